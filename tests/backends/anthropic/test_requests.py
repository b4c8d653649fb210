"""`AnthropicBackend` sends the same requests as the official SDK, and nothing that the API would refuse."""

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import anthropic
import anyio.to_thread
import attrs
import pytest
from anthropic.lib._parse._transform import transform_schema
from pydantic import BaseModel, Field, ValidationError

from sampling import Context, Message, MultiTurnStrategy, Options, Request, Tool
from sampling.backends.anthropic import AnthropicBackend
from sampling.errors import BadRequest, RequestTooLarge, Unsupported
from sampling.parts import Audio, File, Image, Reasoning, Text, ToolCall, ToolResult
from sampling.testing.servers import AnthropicServer, HostileServer, Reply

SHAPES = Path(__file__).parent / "shapes"
HI = (Message("user", "hi"),)
VERSION_OF_THE_SDK = "2026-10-21"
THEIR_HI = [{"role": "user", "content": "hi"}]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
PDF = b"%PDF-1.7\n" + bytes(8)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", "Get weather", SCHEMA)
THEIR_WEATHER = {"name": "get_weather", "description": "Get weather", "input_schema": SCHEMA}


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


class Bounded(BaseModel):
    """A type with constraints that the API can't enforce."""

    pattern: str = Field(description="a property with the name of a keyword")
    size: Annotated[int, Field(ge=1, le=9, description="how big")]
    code: Annotated[str, Field(pattern="[a-z]+")]
    tags: Annotated[list[str], Field(min_length=2, max_length=3)]


class Tree(BaseModel):
    """A recursive type."""

    name: str
    children: list["Tree"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def response():
    body = (SHAPES / "text.sse").read_bytes()
    return b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def of_the_sdk(method="create", headers=None, **arguments):
    """Return the request that the official SDK sends."""
    arguments = {"model": "m", "max_tokens": 16_384, "messages": THEIR_HI, **arguments}
    async with HostileServer([response()]) as server:
        url = server.url.removesuffix("/v1")

        def call():
            with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, default_headers=headers) as client:
                if method == "create":
                    list(client.messages.create(stream=True, **arguments))
                    return
                # The recorded text is not of that class, which the SDK notices after it has sent the request.
                with suppress(ValidationError), client.messages.stream(**arguments) as events:
                    list(events)

        await anyio.to_thread.run_sync(call)
    return server.requests[0]


async def of_ours(messages=HI, options=None, **settings):
    """Return the request that we send."""
    settings = {"api_version": VERSION_OF_THE_SDK, **settings}
    async with (
        HostileServer([response()]) as server,
        AnthropicBackend("m", "k", base_url=server.url, **settings) as backend,
    ):
        await backend.generate(Request(messages, Options() if options is None else options))
    return server.requests[0]


async def body_of(messages=HI, options=None, **settings):
    return (await of_ours(messages, options, **settings)).json()


class Call:
    """One call in our words, and in those of the SDK."""

    def __init__(self, conversation=HI, /, options=None, settings=None, **theirs):
        self.messages, self.options, self.settings, self.theirs = conversation, options, settings or {}, theirs


CALLS = {
    "plain": Call(),
    "limit": Call(options=Options(max_tokens=7), max_tokens=7),
    "sampling": Call(
        options=Options(temperature=0.5, top_p=0.9, top_k=40),
        # The newest version of the API removed them, and the SDK has no names for them any more.
        settings={"api_version": "2023-06-01"},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40},
    ),
    "stop": Call(options=Options(stop=["END", "\n\n"]), stop_sequences=["END", "\n\n"]),
    "system": Call((Message("system", "Be brief."), *HI), system="Be brief."),
    "systems": Call(
        (Message("system", "Be brief."), *HI, Message("developer", "Be kind.")),
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
    ),
    "turns": Call(
        (*HI, Message("assistant", "Hello!"), Message("user", "Who are you?")),
        messages=[
            *THEIR_HI,
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "Who are you?"},
        ],
    ),
    "one author": Call(
        (*HI, Message("user", "there")),
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}],
    ),
    "image": Call(
        (Message("user", [Text("What is this?"), Image(PNG), Image("https://example.com/a.jpg")]),),
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {
                        "type": "image",
                        "source": {
                            "type": "base64",
                            "media_type": "image/png",
                            "data": base64.b64encode(PNG).decode(),
                        },
                    },
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}},
                ],
            }
        ],
    ),
    "documents": Call(
        (Message("user", [File(PDF, name="a.pdf"), File(b"# Title"), File("https://example.com/b.pdf")]),),
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {
                            "type": "base64",
                            "media_type": "application/pdf",
                            "data": base64.b64encode(PDF).decode(),
                        },
                        "title": "a.pdf",
                    },
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# Title"}},
                    {
                        "type": "document",
                        "source": {"type": "url", "url": "https://example.com/b.pdf"},
                        "title": "b.pdf",
                    },
                ],
            }
        ],
    ),
    "tools": Call(options=Options(tools=[WEATHER]), tools=[THEIR_WEATHER]),
    "tools, auto": Call(
        options=Options(tools=[WEATHER], tool_choice="auto"), tools=[THEIR_WEATHER], tool_choice={"type": "auto"}
    ),
    "tools, required": Call(
        options=Options(tools=[WEATHER], tool_choice="required"), tools=[THEIR_WEATHER], tool_choice={"type": "any"}
    ),
    "tools, none": Call(
        options=Options(tools=[WEATHER], tool_choice="none"), tools=[THEIR_WEATHER], tool_choice={"type": "none"}
    ),
    "tools, by name": Call(
        options=Options(tools=[WEATHER], tool_choice="get_weather"),
        tools=[THEIR_WEATHER],
        tool_choice={"type": "tool", "name": "get_weather"},
    ),
    "tool results": Call(
        (
            *HI,
            Message("assistant", [Text("Let me look."), ToolCall("t1", "f", '{"a": 1}'), ToolCall("t2", "f", "")]),
            Message("tool", [ToolResult("t1", "sunny")]),
            Message("tool", [ToolResult("t2", [Text("broken"), Image(PNG)], is_error=True)]),
            Message("user", "And now?"),
        ),
        messages=[
            *THEIR_HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [
                            {"type": "text", "text": "broken"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": base64.b64encode(PNG).decode(),
                                },
                            },
                        ],
                        "is_error": True,
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    ),
    "documents and images in results": Call(
        (
            *HI,
            Message("assistant", [Reasoning("Hm.", "c2ln"), ToolCall("t1", "f", "{}"), ToolCall("t2", "f", "{}")]),
            Message(
                "tool",
                [
                    ToolResult("t1", [File(PDF, name="a.pdf"), File(b"a,b", name="b.csv")]),
                    ToolResult("t2", [Image("https://example.com/a.png"), File("https://example.com/b.pdf")]),
                ],
            ),
        ),
        settings={"cache": "5m"},
        messages=[
            *THEIR_HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
                    {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [
                            {
                                "type": "document",
                                "source": {
                                    "type": "base64",
                                    "media_type": "application/pdf",
                                    "data": base64.b64encode(PDF).decode(),
                                },
                                "title": "a.pdf",
                            },
                            {
                                "type": "document",
                                "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
                                "title": "b.csv",
                            },
                        ],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                            {
                                "type": "document",
                                "source": {"type": "url", "url": "https://example.com/b.pdf"},
                                "title": "b.pdf",
                            },
                        ],
                    },
                ],
            },
        ],
        cache_control={"type": "ephemeral", "ttl": "5m"},
    ),
    "thoughts": Call(
        (
            *HI,
            Message(
                "assistant",
                [
                    Reasoning("Hm.", "c2ln"),
                    Reasoning("", "redacted_thinking:b3BhcXVl"),
                    Reasoning("unsigned"),
                    Reasoning("Of Gemini.", "thought:c2ln"),
                    Reasoning("", "call 0:c2ln"),
                    Reasoning("Of OpenAI.", "encrypted_content:c2ln"),
                    Text("Hello!"),
                ],
            ),
            Message("user", "Why?"),
        ),
        messages=[
            *THEIR_HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "b3BhcXVl"},
                    {"type": "text", "text": "Hello!"},
                ],
            },
            {"role": "user", "content": "Why?"},
        ],
    ),
    "effort": Call(
        options=Options(reasoning_effort="high"), thinking={"type": "adaptive"}, output_config={"effort": "high"}
    ),
    "no thinking": Call(options=Options(reasoning_effort="none"), thinking={"type": "disabled"}),
    "thinking budget": Call(
        options=Options(reasoning_effort="medium"),
        settings={"thinking": "budget"},
        thinking={"type": "enabled", "budget_tokens": 8_192},
    ),
    "cached": Call(settings={"cache": "auto"}, cache_control={"type": "ephemeral"}),
    "cached for an hour": Call(settings={"cache": "1h"}, cache_control={"type": "ephemeral", "ttl": "1h"}),
    "schema": Call(options=Options(schema=SCHEMA), output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
    "extra": Call(
        options=Options(extra={"service_tier": "auto", "metadata": {"user_id": "u"}}),
        service_tier="auto",
        metadata={"user_id": "u"},
    ),
}


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_request_is_that_of_the_official_sdk(name):
    """The same call has the same path, the same body and the same headers that the API reads."""
    call = CALLS[name]
    theirs = await of_the_sdk(**call.theirs)
    ours = await of_ours(call.messages, call.options, **call.settings)
    assert theirs.path == ours.path == "/v1/messages"
    assert theirs.json() == ours.json()
    assert theirs.headers["content-type"] == ours.headers["content-type"]
    # The API takes the key in both headers, and its documentation shows ours.
    assert theirs.headers["authorization"] == f"Bearer {ours.headers['x-api-key']}"
    assert call.settings.get("api_version", theirs.headers["anthropic-version"]) == ours.headers["anthropic-version"]


async def test_a_class_is_sent_as_the_official_sdk_does():
    """Its helper for structured answers rewrites the schema too."""
    theirs = await of_the_sdk("stream", output_format=City)
    assert theirs.json() == await body_of(options=Options(schema=City))


async def test_a_beta_header_is_passed_on():
    """Beta headers are sent as by the SDK."""
    headers = {"anthropic-beta": "context-1m-2025-08-07"}
    theirs, ours = await of_the_sdk(headers=headers), await of_ours(headers=headers)
    assert theirs.headers["anthropic-beta"] == ours.headers["anthropic-beta"] == headers["anthropic-beta"]


class TestSchemas:
    async def test_constraints_are_told_in_words(self):
        """Anthropic's SDK would not change the rewritten schema."""
        body = await body_of(options=Options(schema=Bounded))
        schema = body["output_config"]["format"]["schema"]
        assert transform_schema(schema) == schema
        properties = schema["properties"]
        assert properties["size"] == {
            "type": "integer",
            "title": "Size",
            "description": "how big minimum: 1 maximum: 9",
        }
        assert "pattern: [a-z]+" in properties["code"]["description"]
        assert "minItems: 2 maxItems: 3" in properties["tags"]["description"]
        assert properties["pattern"]["description"] == "a property with the name of a keyword"

    @pytest.mark.parametrize("effort", [None, "low"])
    async def test_what_the_server_cannot_enforce_becomes_a_tool(self, effort):
        """A recursive type is one. A tool can't be forced on a model that thinks."""
        body = await body_of(options=Options(schema=Tree, reasoning_effort=effort))
        assert [tool["name"] for tool in body["tools"]] == ["Tree"]
        assert body["tool_choice"] == {"type": "any" if effort is None else "auto"}
        assert "format" not in body.get("output_config", {})

    async def test_what_is_no_object_goes_into_the_message(self):
        """The arguments of a tool always are one."""
        schema = {"type": "array", "items": {"type": "integer"}, "title": "Numbers"}
        body = await body_of(options=Options(schema=schema), structured="tool")
        assert "tools" not in body
        assert '"items": {"type": "integer"}' in body["messages"][0]["content"]

    async def test_a_tool_beside_others_does_not_replace_them(self):
        """The model may call them first."""
        options = Options(schema=City, tools=[WEATHER], tool_choice="auto")
        body = await body_of(options=options, structured="tool")
        assert [tool["name"] for tool in body["tools"]] == ["get_weather", "City"]
        assert body["tool_choice"] == {"type": "auto"}

    async def test_in_words(self):
        """The schema is in the last message, and nowhere else."""
        body = await body_of(options=Options(schema=City), structured="prompt")
        assert "inhabitants" in body["messages"][0]["content"]
        assert {"model", "max_tokens", "messages", "stream"} == body.keys()

    async def test_effort_and_schema_are_one_setting(self):
        """Both are in `output_config`, next to what the caller adds."""
        options = Options(schema=SCHEMA, reasoning_effort="minimal", extra={"output_config": {"x": 1}})
        config = (await body_of(options=options))["output_config"]
        assert config == {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}, "x": 1}

    async def test_the_answer_of_a_tool_is_the_text(self):
        """The caller sees no difference between the modes, and a stream gets it too."""
        events = [
            {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "t", "name": "City", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"name": "Oslo", "inhabitants": 7}'},
            },
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ]
        body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
        script = [b"HTTP/1.1 200 .\r\ncontent-length: %d\r\n\r\n" % len(body) + body]
        pieces = []
        async with (
            HostileServer(script) as server,
            AnthropicBackend("m", base_url=server.url, structured="tool") as backend,
        ):
            generation = await backend.stream(Request(HI, Options(schema=City)), pieces.append)
        assert generation.text == '{"name": "Oslo", "inhabitants": 7}' == "".join(pieces)
        assert (generation.finish_reason, generation.tool_calls) == ("stop", ())


class TestConversations:
    async def test_empty_texts_are_left_out(self):
        """The API refuses them. A model that said nothing had no turn."""
        messages = (*HI, Message("assistant", " "), Message("user", [Text(""), Text("still there?")]))
        body = await body_of(messages)
        assert [message["role"] for message in body["messages"]] == ["user"]
        assert [block["text"] for block in body["messages"][0]["content"]] == ["hi", "still there?"]

    async def test_arguments_that_are_no_json_are_sent_as_an_object(self):
        """The model can see its mistake, and the API accepts the conversation."""
        messages = (*HI, Message("assistant", [ToolCall("t", "f", "{oops")]), Message("tool", [ToolResult("t", "no")]))
        body = await body_of(messages)
        assert body["messages"][1]["content"][0]["input"] == {"INVALID_JSON": "{oops"}

    async def test_a_repair_sends_the_thoughts_back(self):
        """Signed thinking precedes the answer that it led to."""
        events = (SHAPES / "thinking.sse").read_bytes()
        script = [b"HTTP/1.1 200 .\r\ncontent-length: %d\r\n\r\n" % len(events) + events]
        async with HostileServer(script) as server, AnthropicBackend("m", base_url=server.url) as backend:
            await MultiTurnStrategy(loop_budget=2).sample("hi", None, backend, [lambda text: False])
        first, second = (request.json()["messages"] for request in server.requests)
        assert [message["role"] for message in second] == ["user", "assistant", "user"]
        assert [block["type"] for block in second[1]["content"]] == ["thinking", "text"]
        assert second[1]["content"][0]["signature"].startswith("EsECCokBCBAYAipA9i3H")
        assert first == second[:1]

    async def test_redacted_thinking_goes_back_as_it_came(self):
        """Its data is opaque."""
        block = {"type": "redacted_thinking", "data": "b3BhcXVl"}
        message = {"type": "message", "id": "m", "stop_reason": "end_turn"}
        reply = json.dumps({**message, "content": [block, {"type": "text", "text": "Yes."}]}).encode()
        script = [
            b"HTTP/1.1 200 .\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply
        ]
        async with HostileServer(script) as server, AnthropicBackend("m", base_url=server.url) as backend:
            generation = await backend.generate(Request(HI))
        body = await body_of((*HI, generation.message, *HI))
        assert body["messages"][1]["content"] == [block, {"type": "text", "text": "Yes."}]
        assert not generation.reasoning

    async def test_the_limit_of_the_backend_is_sent_unless_the_request_has_one(self):
        """The API requires one."""
        assert (await body_of())["max_tokens"] == 16_384
        assert (await body_of(max_tokens=5))["max_tokens"] == 5
        assert (await body_of(options=Options(max_tokens=3), max_tokens=5))["max_tokens"] == 3

    async def test_a_thinking_budget_leaves_room_for_the_answer(self):
        """It must be below the limit of tokens."""
        options = Options(max_tokens=2_000, reasoning_effort="high")
        assert (await body_of(options=options, thinking="budget"))["thinking"]["budget_tokens"] == 1_500
        with pytest.raises(BadRequest, match="too few tokens to think"):
            await body_of(options=attrs.evolve(options, max_tokens=1_000), thinking="budget")


class TestBadInput:
    @pytest.mark.parametrize(
        ("messages", "options", "kind", "message"),
        [
            ((), {}, BadRequest, "nothing to send"),
            ((Message("system", "Be brief."),), {}, BadRequest, "nothing to send"),
            ((Message("user", " \n"),), {}, BadRequest, "nothing to send"),
            ((*HI, Message("tool", "sunny")), {}, BadRequest, "needs the id of its call"),
            ((Message("user", [Audio(b"RIFF1234WAVE")]),), {}, Unsupported, "Audio"),
            ((Message("user", [Image(b"....ftypheic")]),), {}, Unsupported, "image/jpeg, image/png"),
            ((Message("user", [File(b"\xff\xfe\x00", name="x.bin")]),), {}, Unsupported, "application/pdf or text"),
            ((Message("system", [Image(PNG)]), *HI), {}, Unsupported, "system prompt"),
            ((*HI, Message("assistant", [Image(PNG)])), {}, Unsupported, "of an assistant"),
            (HI, {"tool_choice": "required"}, BadRequest, "no options.tools"),
            (HI, {"extra": {"messages": []}}, BadRequest, "sets messages"),
            (HI, {"extra": {"system": "x"}}, BadRequest, "sets system"),
            (HI, {"extra": {"x": object()}}, BadRequest, "is not JSON"),
            (HI, {"seed": 7}, Unsupported, r"does not support Options\.seed"),
            (HI, {"logprobs": True}, Unsupported, r"does not support Options\.logprobs"),
            (HI, {"frequency_penalty": 1, "presence_penalty": 1}, Unsupported, "frequency_penalty, Options.presence"),
            (HI, {"temperature": 1.0}, Unsupported, r"does not support Options\.temperature"),
            (HI, {"logit_bias": {1: 1}, "min_p": 0.1}, Unsupported, "min_p, Options.logit_bias"),
        ],
    )
    async def test_it_is_one_clear_error_before_anything_is_sent(self, messages, options, kind, message):
        """Nothing is paid for what can't work."""
        async with (
            AnthropicServer() as server,
            AnthropicBackend("m", base_url=server.url, api_version=VERSION_OF_THE_SDK) as backend,
        ):
            with pytest.raises(kind, match=message) as caught:
                await backend.generate(Request(messages, Options(**options)))
            assert server.connections == 0
        assert not caught.value.retryable
        assert caught.value.hint

    async def test_extra_for_the_output_must_be_a_mapping(self):
        """It is merged with what we set."""
        options = Options(reasoning_effort="low", extra={"output_config": "x"})
        with pytest.raises(TypeError, match=r"extra\['output_config'\] must be a mapping"):
            await body_of(options=options)

    async def test_a_request_that_is_too_large_is_not_sent(self):
        """A request above the limit of the backend raises before it is sent."""
        with pytest.raises(RequestTooLarge, match="max_request_bytes=100"):
            await body_of((Message("user", "x" * 100),), max_request_bytes=100)

    async def test_options_are_dropped_if_the_caller_says_so(self):
        """With `drop_unsupported=True`, unsupported options are left out."""
        body = await body_of(options=Options(seed=3, min_p=0.5), drop_unsupported=True)
        assert {"model", "max_tokens", "messages", "stream"} == body.keys()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"cache": "forever"}, "cache must be 'auto', '5m', '1h' or None"),
            ({"thinking": "hard"}, "thinking must be 'adaptive' or 'budget'"),
            ({"max_tokens": 0}, "max_tokens must be"),
            ({"api_version": ""}, "api_version must"),
            ({"structured": "magic"}, "structured must be"),
            ({"base_url": "http://example.com"}, "must be https"),
            ({"base_url": "https://example.com/v1/messages"}, "must end before '/messages'"),
            ({"base_url": None, "api_key": None}, "no key for Anthropic's API: pass api_key=…, set ANTHROPIC_API_KEY"),
        ],
    )
    def test_a_constructor_says_what_is_wrong(self, arguments, message):
        """Invalid arguments raise before the first request."""
        with pytest.raises(ValueError, match=message):
            AnthropicBackend(**{"model": "m", "api_key": "k", "base_url": "https://example.com", **arguments})


class TestAddresses:
    def test_the_environment_is_read(self, monkeypatch):
        """The key of the environment goes to the address of the environment, or to Anthropic."""
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-x")
        monkeypatch.setenv("ANTHROPIC_MODEL", "claude-x")
        assert repr(AnthropicBackend()) == (
            "<AnthropicBackend 'https://api.anthropic.com', model='claude-x', key from the environment, not open>"
        )
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://llm.example.com/")
        assert AnthropicBackend().base_url == "https://llm.example.com"

    async def test_the_key_of_the_environment_does_not_go_elsewhere(self, monkeypatch):
        """A base_url that the caller passes gets the key only with `send_env_key=True`."""
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-x")
        async with AnthropicServer() as server:
            for send in (False, True):
                async with AnthropicBackend("m", base_url=server.url, send_env_key=send) as backend:
                    await backend.generate(Request(HI))
        assert [request.headers.get("x-api-key") for request in server.requests] == [None, "sk-ant-x"]

    async def test_a_base_url_may_end_in_v1(self):
        """A base_url with /v1 works, as with other APIs."""
        async with AnthropicServer() as server:
            for url in (server.url, server.url.removesuffix("/v1"), f"{server.url}/"):
                async with AnthropicBackend("m", base_url=url) as backend:
                    assert (await backend.generate(Request(HI))).text == "Hello world"
        assert {"/v1/messages"} == {request.path for request in server.requests}

    async def test_a_model_is_needed(self):
        """The error says where to give one."""
        async with AnthropicServer() as server, AnthropicBackend(base_url=server.url) as backend:
            with pytest.raises(BadRequest, match="no model was given") as caught:
                await backend.generate(Request(HI))
            assert "ANTHROPIC_MODEL" in caught.value.hint
            await backend.generate(Request(HI, Options(model="m")))

    async def test_a_context_is_sent_from_its_beginning(self):
        """A system message of a context becomes the system prompt."""
        context = Context([Message("system", "Be brief."), *HI, Message("assistant", "Hello!")])
        async with AnthropicServer(Reply(["Fine."])) as server, AnthropicBackend("m", base_url=server.url) as backend:
            result = await MultiTurnStrategy().sample("How are you?", context, backend)
        assert result.text == "Fine."
        body = server.requests[0].json()
        assert body["system"] == "Be brief."
        assert [message["content"] for message in body["messages"]] == ["hi", "Hello!", "How are you?"]
