"""What we send to the chat API, compared with what OpenAI's own SDK sends for the same call."""

from base64 import b64encode
from contextlib import suppress

import anyio.to_thread
import openai
import pytest
from pydantic import BaseModel, Field, ValidationError

from sampling import Audio, File, Image, Message, Options, Reasoning, Request, Text, Tool, ToolCall, ToolResult
from sampling.backends.openai import OpenAIBackend
from sampling.testing.servers import HostileServer

PNG = b"\x89PNG\r\n\x1a\n0000"
WAV = b"RIFF0000WAVEfmt "
MP3 = b"ID3\x03"
PDF = b"%PDF-1.7\n"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
    "title": "Place",
}
WEATHER = Tool("get_weather", "Get weather", SCHEMA)
CLOCK = Tool("clock", "Tell the time.", {"type": "object", "properties": {}})
HI = [Message("user", "hi")]
THEIR_HI = [{"role": "user", "content": "hi"}]
BODY = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
ANSWER = b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


class Line(BaseModel):
    item: str
    count: int = Field(description="how many")


class Order(BaseModel):
    """An order."""

    lines: list[Line]
    note: str | None
    kind: Line | str


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def data_url(media_type, data):
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def function(tool):
    named = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
    return {"type": "function", "function": named}


def call(call_id, arguments):
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


class Call:
    """One call in our words, and in those of the SDK."""

    def __init__(self, messages=None, options=None, /, **theirs):
        self.messages, self.options = messages or HI, options or {}
        self.theirs = {"messages": THEIR_HI, **theirs}


def parts(*ours_and_theirs):
    ours, theirs = zip(*ours_and_theirs, strict=True)
    return Call([Message("user", ours)], {}, messages=[{"role": "user", "content": list(theirs)}])


CALLS = {
    "plain": Call(),
    "roles": Call(
        [Message("system", "Be brief."), Message("developer", [Text("Be kind.")]), *HI],
        {},
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            *THEIR_HI,
        ],
    ),
    "sampling": Call(
        HI,
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["END", "\n\n"],
            "frequency_penalty": 1.0,
            "presence_penalty": -0.5,
            "logit_bias": {50256: -100},
        },
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=["END", "\n\n"],
        frequency_penalty=1.0,
        presence_penalty=-0.5,
        logit_bias={"50256": -100},
    ),
    "logprobs": Call(HI, {"logprobs": True}, logprobs=True),
    "alternatives": Call(HI, {"logprobs": 5}, logprobs=True, top_logprobs=5),
    "effort": Call(HI, {"reasoning_effort": "minimal"}, reasoning_effort="minimal"),
    "images": parts(
        (Text("Compare."), {"type": "text", "text": "Compare."}),
        (Image(PNG), {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}}),
        (
            Image("https://x.org/a.jpg?size=1"),
            {"type": "image_url", "image_url": {"url": "https://x.org/a.jpg?size=1"}},
        ),
    ),
    "sounds": parts(
        (Audio(WAV), {"type": "input_audio", "input_audio": {"data": b64encode(WAV).decode(), "format": "wav"}}),
        (Audio(MP3), {"type": "input_audio", "input_audio": {"data": b64encode(MP3).decode(), "format": "mp3"}}),
    ),
    "files": parts(
        (
            File(PDF, name="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url("application/pdf", PDF)}},
        ),
    ),
    "tools": Call(HI, {"tools": [WEATHER, CLOCK]}, tools=[function(WEATHER), function(CLOCK)]),
    **{
        f"tools, {choice}": Call(
            HI, {"tools": [WEATHER], "tool_choice": choice}, tools=[function(WEATHER)], tool_choice=choice
        )
        for choice in ("auto", "none", "required")
    },
    "tools, by name": Call(
        HI,
        {"tools": [WEATHER], "tool_choice": "get_weather"},
        tools=[function(WEATHER)],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ),
    "results": Call(
        [
            *HI,
            Message(
                "assistant",
                [
                    Reasoning("Hm.", "c2ln"),
                    ToolCall("c1", "get_weather", '{"city":"Rome"}'),
                    ToolCall("c2", "get_weather", '{"city":"Oslo"}'),
                ],
            ),
            Message("tool", [ToolResult("c1", "sunny"), ToolResult("c2", [Text("no "), Text("city")], is_error=True)]),
            Message("assistant", [Text("It is sunny.")]),
            Message("user", "And now?"),
        ],
        {"tools": [WEATHER]},
        messages=[
            *THEIR_HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("c1", '{"city":"Rome"}'), call("c2", '{"city":"Oslo"}')],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "c2", "content": "no city"},
            {"role": "assistant", "content": "It is sunny."},
            {"role": "user", "content": "And now?"},
        ],
        tools=[function(WEATHER)],
    ),
    "text beside a call": Call(
        [
            *HI,
            Message("assistant", [Text("Let me look."), ToolCall("c1", "get_weather", "{}")]),
            Message("tool", [ToolResult("c1", "sunny")]),
        ],
        {},
        messages=[
            *THEIR_HI,
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call("c1", "{}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
    ),
    "schema": Call(
        HI,
        {"schema": SCHEMA},
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "Place", "schema": SCHEMA, "strict": True},
        },
    ),
    "caching and more": Call(
        HI,
        {"extra": {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "service_tier": "flex", "user": "u"}},
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        service_tier="flex",
        user="u",
    ),
    "extra of a server": Call(HI, {"extra": {"guided_regex": "a+"}}, extra_body={"guided_regex": "a+"}),
}


async def of_the_sdk(client_type, arguments, *, method="create", **settings):
    """Return the request that the official SDK sends."""
    async with HostileServer([ANSWER]) as server:
        address = {"base_url": server.url} if client_type is openai.OpenAI else {"azure_endpoint": server.url[:-3]}

        def send():
            with client_type(api_key="k", max_retries=0, **address, **settings) as client:
                options = {"include_usage": True}
                if method == "create":
                    list(client.chat.completions.create(model="m", stream=True, stream_options=options, **arguments))
                    return
                # The recorded text is not of that class, which the SDK notices after it has sent the request.
                with (
                    suppress(ValidationError),
                    client.chat.completions.stream(model="m", stream_options=options, **arguments) as events,
                ):
                    list(events)

        await anyio.to_thread.run_sync(send)
    return server.requests[0]


async def of_ours(messages, options, **settings):
    """Return the request that we send."""
    async with HostileServer([ANSWER]) as server:
        url = server.url[:-3] if settings else server.url
        async with OpenAIBackend(url, "k", "m", **settings) as backend:
            await backend.generate(Request(messages, Options(**options)))
    return server.requests[0]


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_request_is_that_of_the_official_sdk(name):
    """The same call has the same path, the same key and the same body."""
    one = CALLS[name]
    theirs = await of_the_sdk(openai.OpenAI, one.theirs)
    ours = await of_ours(one.messages, one.options)
    assert theirs.path == ours.path == "/v1/chat/completions"
    assert theirs.json() == ours.json()
    assert theirs.headers["authorization"] == ours.headers["authorization"] == "Bearer k"
    assert theirs.headers["content-type"] == ours.headers["content-type"]


async def test_a_class_is_sent_as_the_official_sdk_does():
    """Its helper for structured answers makes the same schema of it."""
    theirs = await of_the_sdk(openai.OpenAI, {"messages": THEIR_HI, "response_format": Order}, method="stream")
    ours = await of_ours(HI, {"schema": Order})
    assert theirs.json() == ours.json()


@pytest.mark.parametrize("name", ["plain", "images", "results", "schema", "tools, by name"])
async def test_a_request_to_azure_is_that_of_the_official_sdk(name):
    """The deployment is in the path, and the key in a header of its own."""
    one = CALLS[name]
    theirs = await of_the_sdk(openai.AzureOpenAI, one.theirs, api_version="2024-10-21")
    ours = await of_ours(one.messages, one.options, api_version="2024-10-21")
    assert theirs.path == ours.path == "/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert theirs.json() == ours.json()
    assert theirs.headers["api-key"] == ours.headers["api-key"] == "k"
