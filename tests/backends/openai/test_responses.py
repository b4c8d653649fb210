"""OpenAI's Responses API: requests as the official SDK sends them, and answers as its events tell them."""

import json
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
import openai
import pytest
from pydantic import BaseModel, ValidationError

from sampling import File, Image, Message, MultiTurnStrategy, Options, Request, Text, Tool, ToolResult, Usage
from sampling._redaction import Redactor
from sampling.backends.openai import OpenAIBackend, ToolCall
from sampling.backends.openai._responses_answer import StreamedResponsesAnswer
from sampling.backends.openai._responses_request import _items
from sampling.errors import Incomplete, RateLimited, ServerError, Unsupported
from sampling.parts import Reasoning
from sampling.testing.servers import HostileServer

SHAPES = Path(__file__).parent / "shapes"
HI = (Message("user", "hi"),)
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", "Get weather", SCHEMA)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def response(name):
    body = (SHAPES / name).read_bytes()
    return b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def ask(name, request=None, **settings):
    pieces = []
    async with (
        HostileServer([response(name)]) as server,
        OpenAIBackend(server.url, "k", "m", endpoint="responses", **settings) as backend,
    ):
        generation = await backend.stream(request or Request(HI), pieces.append)
    return generation, pieces, server.requests[0]


class TestAnswers:
    async def test_text(self):
        """It comes in pieces, and the usage with the end."""
        generation, pieces, request = await ask("responses_text.sse")
        assert ("pong", "stop", "gpt-5.5-2026-04-23") == (generation.text, generation.finish_reason, generation.model)
        assert ["pong"] == pieces
        assert Usage(11, 5) == generation.usage
        assert generation.raw["id"].startswith("resp_")
        assert "/v1/responses" == request.path

    async def test_a_function_call(self):
        """Its id is the call_id, to which a result refers."""
        generation, _, _ = await ask("responses_tool_call.sse")
        assert (
            ToolCall("call_2FQdm3Br7Qb35YUBSkDR7kue", "get_weather", '{"city":"Beijing"}'),
        ) == generation.tool_calls
        assert ("", "tool_calls", Usage(45, 25)) == (generation.text, generation.finish_reason, generation.usage)

    async def test_a_failure_is_typed(self):
        """The code in the stream decides the type of the error."""
        with pytest.raises(RateLimited, match="Request too large"):
            await ask("responses_failed.sse")

    def read(self, *events, **settings):
        answer = StreamedResponsesAnswer(Redactor(), **settings)
        for event in events:
            answer.add(json.dumps(event))
        return answer.generation()

    @pytest.mark.parametrize(
        ("reason", "expected"),
        [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "incomplete")],
    )
    def test_an_answer_that_was_cut_off_says_why(self, reason, expected):
        """A truncated answer has its reason, and its usage with cached and reasoning tokens."""
        usage = {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 2},
        }
        end = {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": usage}
        generation = self.read(
            {"type": "response.output_text.delta", "delta": "a"}, {"type": "response.incomplete", "response": end}
        )
        assert ("a", expected, Usage(9, 3, 0.0, 4, 2)) == (generation.text, generation.finish_reason, generation.usage)

    def test_reasoning_refusals_and_signatures_are_kept_apart(self):
        """Summaries are separated by an empty line, and encrypted reasoning can go back."""
        item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ab"}], "encrypted_content": "SIG"}
        generation = self.read(
            {"type": "response.reasoning_summary_part.added", "summary_index": 0},
            {"type": "response.reasoning_summary_text.delta", "delta": "a"},
            {"type": "response.reasoning_summary_part.added", "summary_index": 1},
            {"type": "response.reasoning_summary_text.delta", "delta": "b"},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "encrypted_content": "S"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.refusal.delta", "delta": "No."},
            {"type": "response.completed", "response": {"status": "completed"}},
        )
        assert ("a\n\nb", "No.") == (generation.reasoning, generation.refusal)
        assert (Reasoning("ab", "encrypted_content:SIG"),) == generation.thoughts

    def test_a_stream_that_has_only_an_end_is_read(self):
        """LiteLLM streams like that for providers that can't, and an empty answer would be wrong."""
        text = {"type": "output_text", "text": "Hello.", "annotations": []}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        whole = {"status": "completed", "output": [{"type": "message", "content": [text]}, call]}
        generation = self.read({"type": "response.completed", "response": whole})
        assert ("Hello.", (ToolCall("c", "f", "{}"),)) == (generation.text, generation.tool_calls)

    def test_an_error_event_and_a_missing_end_are_errors(self):
        """An error event, and a stream that stops without its last event, raise."""
        with pytest.raises(ServerError, match="boom"):
            self.read({"type": "error", "code": "server_error", "message": "boom", "param": None})
        with pytest.raises(Incomplete, match=r"response\.completed"):
            self.read({"type": "response.output_text.delta", "delta": "a"})

    @pytest.mark.parametrize("proof", [None, "806896f9-0"])
    @pytest.mark.parametrize("has_call", [True, False])
    def test_reasoning_that_is_shown_goes_back(self, proof, has_call):
        """As DeepSeek gives and wants it: with calls, because it led to them, and with a proof."""
        shown = [{"type": "reasoning_text", "text": "Look it up."}]
        thought = {"type": "reasoning", "id": "x", "summary": [], "content": shown, "encrypted_content": proof}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        text = {"type": "message", "content": [{"type": "output_text", "text": "Hm."}]}
        items = [thought, text, *([call] if has_call else [])]
        generation = self.read(
            {"type": "response.reasoning_text.delta", "delta": "Look it up."},
            {"type": "response.output_text.delta", "delta": "Hm."},
            *[{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)],
            {"type": "response.completed", "response": {"status": "completed", "output": items}},
        )
        assert "Look it up." == generation.reasoning
        sent = _items([generation.message])
        kept = {name: value for name, value in thought.items() if name != "id" and value is not None}
        assert [item for item in sent if item.get("type") == "reasoning"] == ([kept] if has_call or proof else [])

    def test_summaries_of_a_reply_that_is_not_streamed_are_separated(self):
        """By an empty line, as those of a stream are."""
        summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
        text = {"type": "output_text", "text": "Hello.", "annotations": []}
        output = [{"type": "reasoning", "summary": summary}, {"type": "message", "content": [text]}]
        answer = StreamedResponsesAnswer(Redactor())
        answer.add_whole(json.dumps({"object": "response", "status": "completed", "output": output}))
        assert ("a\n\nb", "Hello.") == (answer.generation().reasoning, answer.text)

    @pytest.mark.parametrize("status", ["queued", "in_progress"])
    def test_a_reply_that_is_no_answer_yet_is_an_error(self, status):
        """The API accepts a request with `background` before it answers it, and an empty text would be wrong."""
        answer = StreamedResponsesAnswer(Redactor())
        answer.add_whole(json.dumps({"id": "resp_1", "object": "response", "status": status, "output": []}))
        with pytest.raises(Incomplete, match=r"response\.completed"):
            answer.generation()

    async def test_a_reply_that_is_not_streamed_is_read(self):
        """A whole reply is read, as from a proxy that ignores `stream`."""
        whole = json.loads((SHAPES / "responses_text.sse").read_text().rpartition("data: ")[2])["response"]
        body = json.dumps(whole).encode()
        head = b"HTTP/1.1 200 .\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        async with (
            HostileServer([head + body]) as server,
            OpenAIBackend(server.url, model="m", endpoint="responses") as backend,
        ):
            generation = await backend.generate(Request(HI))
        assert ("pong", "stop", Usage(11, 5)) == (generation.text, generation.finish_reason, generation.usage)


class City(BaseModel):
    city: str


CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", [Text("What is this?"), Image(PNG, "image/png")]),
    Message("assistant", [ToolCall("c1", "get_weather", '{"city":"Rome"}')]),
    Message("tool", [ToolResult("c1", "sunny")]),
    Message("user", "And now?"),
)
IMAGE_URL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="
INPUT = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"},
        ],
    },
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"role": "user", "content": "And now?"},
]
FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "Get weather",
    "parameters": SCHEMA,
    "strict": True,
}


PDF_URL = "data:application/pdf;base64,JVBERi0xLjc="
CONVERSATIONS = {
    "files": (
        [Message("user", [Text("Sum up."), File(b"%PDF-1.7", name="a.pdf"), File("https://x.org/b.pdf")])],
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Sum up."},
                    {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
                    {"type": "input_file", "file_url": "https://x.org/b.pdf"},
                ],
            }
        ],
    ),
    "image by its URL": (
        [Message("user", [Image("https://x.org/a.png")])],
        [
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "https://x.org/a.png", "detail": "auto"}],
            }
        ],
    ),
    "results with images and files": (
        [
            *HI,
            Message("assistant", [Text("Let me see."), ToolCall("c1", "see", '{"at":"a"}'), ToolCall("c2", "see", "")]),
            Message("tool", [ToolResult("c1", [Text("here"), Image(PNG)]), ToolResult("c2", "no", is_error=True)]),
            Message("tool", [ToolResult("c3", [File(b"%PDF-1.7", name="a.pdf")])]),
        ],
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "call_id": "c1", "name": "see", "arguments": '{"at":"a"}'},
            {"type": "function_call", "call_id": "c2", "name": "see", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [
                    {"type": "input_text", "text": "here"},
                    {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"},
                ],
            },
            {"type": "function_call_output", "call_id": "c2", "output": "no"},
            {
                "type": "function_call_output",
                "call_id": "c3",
                "output": [{"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL}],
            },
        ],
    ),
    "reasoning": (
        [
            *HI,
            Message("assistant", [Reasoning("Hm.", "encrypted_content:SIG"), Reasoning("unsigned"), Text("Hello!")]),
            Message("user", "Why?"),
        ],
        [
            {"role": "user", "content": "hi"},
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": "SIG",
            },
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "Why?"},
        ],
    ),
}


class TestRequests:
    async def of_the_sdk(self, method, **arguments):
        """Return the body that the official SDK sends."""
        async with HostileServer([response("responses_text.sse")]) as server:

            def call():
                client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
                result = getattr(client.responses, method)(model="m", **arguments)
                if method == "stream":
                    # The recorded text is not of that class, which the SDK notices after it has sent the request.
                    with suppress(ValidationError), result as events:
                        list(events)
                else:
                    list(result)
                client.close()

            await anyio.to_thread.run_sync(call)
        return server.requests[0]

    @pytest.mark.parametrize(
        ("options", "arguments"),
        [
            ({}, {}),
            (
                {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7},
                {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7},
            ),
            ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
            ({"logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
            ({"tools": [WEATHER], "tool_choice": "required"}, {"tools": [FUNCTION], "tool_choice": "required"}),
            (
                {"tools": [WEATHER], "tool_choice": "get_weather"},
                {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "get_weather"}},
            ),
        ],
    )
    async def test_a_request_is_that_of_the_official_sdk(self, options, arguments):
        """The same call has the same path and the same body."""
        theirs = await self.of_the_sdk("create", input=INPUT, stream=True, **arguments)
        _, _, ours = await ask("responses_text.sse", Request(CONVERSATION, Options(**options)))
        assert theirs.path == ours.path
        assert theirs.json() == ours.json()

    @pytest.mark.parametrize("name", list(CONVERSATIONS))
    async def test_a_conversation_is_that_of_the_official_sdk(self, name):
        """Files, images in results, several results and encrypted reasoning are the same, byte by byte."""
        messages, items = CONVERSATIONS[name]
        theirs = await self.of_the_sdk("create", input=items, stream=True)
        _, _, ours = await ask("responses_text.sse", Request(messages))
        assert theirs.json() == ours.json()
        assert theirs.headers["authorization"] == ours.headers["authorization"]

    async def test_a_schema_is_that_of_the_official_sdk(self):
        """A class goes as its helper for structured answers sends it."""
        theirs = await self.of_the_sdk("stream", input=[{"role": "user", "content": "hi"}], text_format=City)
        _, _, ours = await ask("responses_text.sse", Request(HI, Options(schema=City)))
        assert theirs.json() == ours.json()

    async def test_what_the_api_does_not_have_is_refused_or_dropped(self):
        """Unsupported options are refused or dropped before anything is sent."""
        with pytest.raises(Unsupported, match=r"Responses API does not support Options\.stop"):
            await ask("responses_text.sse", Request(HI, Options(stop=["x"])))
        _, _, request = await ask("responses_text.sse", Request(HI, Options(seed=3)), drop_unsupported=True)
        assert {"model", "input", "stream"} == request.json().keys()

    async def test_what_the_answer_should_include_is_added(self):
        """Log probabilities were lost when the caller asked for encrypted reasoning, too."""
        more = {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "store": False}
        _, _, request = await ask("responses_text.sse", Request(HI, Options(logprobs=True, extra=more)))
        assert ["message.output_text.logprobs", "reasoning.encrypted_content"] == request.json()["include"]
        assert request.json()["store"] is False

    async def test_an_image_of_an_assistant_is_refused(self):
        """It was left out, and the answer was one to another question."""
        with pytest.raises(Unsupported, match="no Image in the message of an assistant"):
            await ask("responses_text.sse", Request([*HI, Message("assistant", [Text("Here."), Image(PNG)]), *HI]))

    async def test_a_repair_sends_a_conversation(self):
        """The answer of the first attempt is an assistant's message in the second."""
        async with (
            HostileServer([response("responses_text.sse")]) as server,
            OpenAIBackend(server.url, model="m", endpoint="responses") as backend,
        ):
            result = await MultiTurnStrategy(loop_budget=2).sample("hi", None, backend, [lambda text: False])
        assert Usage(22, 10) == result.usage
        assert ["user", "assistant", "user"] == [item["role"] for item in server.requests[1].json()["input"]]
