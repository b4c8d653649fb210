"""Recorded responses of Anthropic's API are read correctly. Each file in `shapes` names its source."""

from pathlib import Path

import pytest

from sampling import Message, Request, Usage
from sampling.backends.anthropic import AnthropicBackend
from sampling.errors import ServerError
from sampling.parts import Reasoning, ToolCall
from sampling.testing.servers import HostileServer

SHAPES = Path(__file__).parent / "shapes"
HI = Request((Message("user", "hi"),))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def response(name):
    text = (SHAPES / name).read_text(encoding="utf-8")
    is_json = name.endswith(".json")
    # A comment is a part of an event stream, but not of JSON.
    body = (text.partition("\n\n")[2].strip() if is_json else text).encode()
    kind = "application/json" if is_json else "text/event-stream"
    return f"HTTP/1.1 200 .\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def ask(name):
    """Return the generation, and the pieces of its text as they came."""
    pieces = []
    async with HostileServer([response(name)]) as server, AnthropicBackend("m", base_url=server.url) as backend:
        return await backend.stream(HI, pieces.append), pieces


# text, tool calls, finish reason, usage, model
EXPECTED = {
    "text.sse": ("Hello there!", [], "stop", Usage(11, 6), "claude-3-opus-latest"),
    "tool_use.sse": (
        "I'll check the current weather in Paris for you.",
        [ToolCall("toolu_01NRLabsLyVHZPKxbKvkfSMn", "get_weather", '{"location": "Paris"}')],
        "tool_calls",
        Usage(377, 65),
        "claude-sonnet-4-20250514",
    ),
    "tool_no_arguments.sse": (
        "I'll update the issue list for you.",
        [ToolCall("toolu_01QE1WLsSVp5hy5Q3GmGTmjP", "updateIssueList", "{}")],
        "tool_calls",
        Usage(565, 48),
        "claude-sonnet-4-5-20250929",
    ),
    "thinking.sse": (
        "$$\\gcd(1071, 462) = 21$$\n\n**Verification:** \n- 1071 = 21 × 51 ✓\n- 462 = 21 × 22 ✓",
        [],
        "stop",
        Usage(47, 373, reasoning_tokens=62),
        "claude-sonnet-5",
    ),
    "server_tool_cache.sse": (
        "The sum of the squares of the numbers 1 through 12 is **650**.",
        [],
        "stop",
        Usage(6 + 3337 + 6289, 198, cached_input_tokens=6289),
        "claude-sonnet-5",
    ),
    "refusal.sse": ("", [], "refusal", Usage(18, 5), "claude-fable-5"),
    "usage_at_the_end.sse": ("hi", [], "stop", Usage(19, 1, cached_input_tokens=5), "claude-test"),
    "two_starts.sse": ("Hello, World!", [], "stop", Usage(17, 227), "claude-3-haiku-20240307"),
    "content_at_the_start.sse": (
        "",
        [ToolCall("toolu_followup", "lookup_customer", '{"id": "customer_123"}')],
        "tool_calls",
        Usage(0, 0),
        "claude-sonnet-4-6",
    ),
    "whole.json": ("OK", [], "stop", Usage(21, 6), "claude-opus-4-7"),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
async def test_a_recorded_answer_is_read(name):
    """Text, tool calls, the reason for the end, and tokens."""
    generation, pieces = await ask(name)
    text, calls, finish_reason, usage, model = EXPECTED[name]
    assert text == generation.text == "".join(pieces)
    assert tuple(calls) == generation.tool_calls
    assert finish_reason == generation.finish_reason
    assert usage == generation.usage
    assert model == generation.model


def test_every_recording_is_read():
    """None is forgotten, and each names its source."""
    names = {path.name for path in SHAPES.iterdir()}
    assert names == {*EXPECTED, "error.sse"}
    for name in names:
        assert "Source: https://" in (SHAPES / name).read_text(encoding="utf-8")


async def test_thinking_keeps_its_signature():
    """It goes back to the model with the conversation."""
    generation, _ = await ask("thinking.sse")
    thought = "I'm working through the Euclidean algorithm to find the GCD of 1071 and 462,"
    assert thought == generation.reasoning
    assert [thought] == [part.text for part in generation.thoughts]
    assert generation.thoughts[0].signature.startswith("EsECCokBCBAYAipA9i3H")
    assert isinstance(generation.message.content[0], Reasoning)


async def test_a_refusal_says_why():
    """Its explanation is the refusal."""
    generation, _ = await ask("refusal.sse")
    assert generation.refusal.startswith("This request triggered restrictions")
    assert generation.raw["stop_details"]["category"] == "cyber"


async def test_what_else_the_server_said_is_kept():
    """`raw` has the id, and the parts of the usage with separate prices."""
    generation, _ = await ask("server_tool_cache.sse")
    assert generation.raw["id"] == "msg_011CdYfpjpVtBoXyXCQD1tQP"
    assert generation.raw["usage"]["cache_creation_input_tokens"] == generation.usage.cache_write_tokens == 3337
    assert generation.raw["container"]["id"] == "container_01Qh1LG5zm6onKQjYrHnhrvi"


async def test_an_error_inside_the_stream_is_typed():
    """An overloaded server is a transient error, and the text so far may be billed."""
    with pytest.raises(ServerError, match="529: Overloaded") as caught:
        await ask("error.sse")
    assert (caught.value.status, caught.value.partial_text, caught.value.maybe_billed) == (529, "Hello", True)
