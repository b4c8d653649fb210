"""Recorded responses of Gemini are read correctly. Each file in `shapes` names its source and all changes."""

from pathlib import Path

import pytest

from sampling import Message, Request, ToolCall, Usage
from sampling.backends.gemini import GeminiBackend
from sampling.errors import (
    AnswerRejected,
    AuthenticationFailed,
    BadRequest,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
    ServerError,
)
from sampling.parts import Reasoning
from sampling.testing.servers import HostileServer

SHAPES = Path(__file__).parent / "shapes"
HI = Request((Message("user", "hi"),))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def response(name, status=200):
    """Return a recording without the comment about its source, as a response."""
    content = (SHAPES / name).read_bytes()
    body = content.partition(b"\n\n")[2] if name.endswith(".json") else content
    kind = "application/json" if name.endswith(".json") else "text/event-stream"
    head = f"HTTP/1.1 {status} .\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(name, status=200):
    """Return the generation, and the pieces of its text as they came."""
    pieces = []
    async with (
        HostileServer([response(name, status)]) as server,
        GeminiBackend("m", base_url=f"http://127.0.0.1:{server.port}", timeout_s=20) as backend,
    ):
        return await backend.stream(HI, pieces.append), pieces


DAYS = (
    "**Calculating the Days**\n\nI need to get the current date.\n\n\n"
    "**Determining the Approach**\n\nI'm now zeroing in on the best method.\n\n\n"
)
SOLUTIONS = "**Counting the rivers**\n\nI start with the longest ones.\n\n"
NOW = ToolCall("gemini_48SHaPHpHKbG-8YPtZCawAk_0", "now", "{}")
WEATHER = ToolCall("gemini_QHiLaa6LBrb8vdIPoNztsAg_0", "weather", '{"location": "San Francisco"}')

# text, reasoning, tool calls, finish reason, usage
EXPECTED = {
    "array.json": ("In the quaint, cobbled streets of Willow Creek", None, [], "stop", None),
    "cached.json": (
        "Red Riding Hood is looking for **directions** in the forest.",
        None,
        [],
        "stop",
        Usage(12_013, 88, cached_input_tokens=11_243, reasoning_tokens=73),
    ),
    "code_execution.sse": (
        " sum using a Python tool:\n\nThe sum of the first 5 prime numbers is 28.",
        None,
        [],
        "stop",
        Usage(21 + 243, 126 + 95, reasoning_tokens=95),
    ),
    "function_call.sse": ("", None, [WEATHER], "tool_calls", Usage(29, 15 + 804, reasoning_tokens=804)),
    "max_tokens.sse": ("We", SOLUTIONS, [], "length", Usage(28, 60, reasoning_tokens=59)),
    "prompt_blocked.sse": ("", None, [], "content_filter", Usage(9, 0)),
    "recitation.sse": ("text1text4", None, [], "content_filter", Usage(9, 261)),
    "safety.sse": ("<redacted>", None, [], "content_filter", Usage(10, 66)),
    "short.sse": ("The capital of Wyoming is **Cheyenne**.\n", None, [], "stop", Usage(7, 10)),
    "text.sse": (
        'There are **3** "r"s in strawberry.\n\nst**r**awbe**rr**y',
        None,
        [],
        "stop",
        Usage(9, 23 + 185, reasoning_tokens=185),
    ),
    "thinking_function_call.sse": ("", DAYS, [NOW], "tool_calls", Usage(38, 6 + 168, reasoning_tokens=168)),
    "thoughts.sse": (
        "hello",
        '*   User input: "Reply with exactly: hello"\n     with exactly: hello"\n    *   Output: "hello"',
        [],
        "stop",
        Usage(6, 77, reasoning_tokens=76),
    ),
}
# status, error, words in its message
REFUSALS = {
    "key_invalid.json": (400, AuthenticationFailed, "API key not valid"),
    "not_enabled.json": (403, AuthenticationFailed, "has not been used in project"),
    "overloaded.json": (503, ServerError, "overloaded"),
    "quota_of_a_day.json": (429, QuotaExhausted, "check your plan"),
    "rate_limit.json": (429, RateLimited, "check your plan"),
    "thinking_level.json": (400, BadRequest, "Thinking level MINIMAL"),
    "tools_and_schema.json": (400, BadRequest, "Forced function calling"),
    "unknown_model.json": (404, ModelNotFound, "is not found for API version"),
}
REJECTED = {
    "gave_up.json": ("OTHER", "Model failed to generate content due to internal error."),
    "malformed_function_call.sse": (
        "MALFORMED_FUNCTION_CALL",
        "Malformed function call: print(default_api.weather(places=['Oslo",
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_recorded_answer_is_read_as_it_was_meant(name):
    """Text, reasoning, tool calls, finish reason and usage are right, and the pieces make up the text."""
    generation, pieces = await ask(name)
    text, reasoning, tool_calls, finish_reason, usage = EXPECTED[name]
    assert text == generation.text == "".join(pieces)
    assert reasoning == generation.reasoning
    assert tuple(tool_calls) == generation.tool_calls
    assert finish_reason == generation.finish_reason
    if usage is not None:
        assert usage == generation.usage


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_recorded_refusal_is_typed(name):
    """A wrong key, an unknown model, limits and bad parameters are told apart."""
    status, kind, words = REFUSALS[name]
    with pytest.raises(kind, match=words) as caught:
        await ask(name, status)
    assert type(caught.value) is kind
    assert status == caught.value.status


@pytest.mark.parametrize("name", REFUSALS)
async def test_the_same_error_with_status_200_is_the_same_error(name):
    """Gateways send errors as a success. An answer that is a list is no stream of events either."""
    status, kind, words = REFUSALS[name]
    with pytest.raises(kind, match=words) as caught:
        await ask(name, 200)
    assert (kind, status) == (type(caught.value), caught.value.status)


@pytest.mark.parametrize("name", REJECTED)
async def test_what_the_server_could_not_use_is_one_failed_sample(name):
    """It may be billed, and what the server said about it is on the error."""
    reason, message = REJECTED[name]
    with pytest.raises(AnswerRejected, match=reason) as caught:
        await ask(name)
    assert message == caught.value.partial_text
    assert caught.value.retryable
    assert caught.value.maybe_billed


async def test_the_delay_of_a_rate_limit_is_a_retry_after():
    """Google says it in the body, as a google.rpc.RetryInfo."""
    with pytest.raises(RateLimited) as caught:
        await ask("rate_limit.json", 429)
    assert 34.4 == caught.value.retry_after_s


async def test_a_refused_schema_beside_tools_says_what_to_do():
    """Models before Gemini 3 have no schema for the answer beside tools."""
    with pytest.raises(BadRequest) as caught:
        await ask("tools_and_schema.json", 400)
    assert 'structured="tool"' in caught.value.hint


async def test_signatures_are_kept_as_they_came():
    """The thoughts are text, and the signature of the call is a part of its own."""
    generation, _ = await ask("thinking_function_call.sse")
    signature = "CiIBVKhc7vB+vaaq6rA/KC79Ts7iXagIOA4EBOyBFDpl+pxPCmcBVKhc7gYyIw6X0Is="
    signed = Reasoning("", f"call 0:{signature}")
    assert (Reasoning(DAYS), signed) == generation.thoughts
    assert (signed, NOW) == generation.message.content


async def test_what_is_no_text_is_on_raw():
    """Code that Gemini ran, ratings and the reason of a block: the application may want them."""
    generation, _ = await ask("code_execution.sse")
    assert ["executableCode", "codeExecutionResult"] == [next(iter(part)) for part in generation.raw["parts"]]
    assert "RUy4aObyJcTujrEPqtKYKQ" == generation.raw["responseId"]
    assert "gemini-2.5-flash" == generation.model
    generation, _ = await ask("prompt_blocked.sse")
    assert {"blockReason": "PROHIBITED_CONTENT"} == generation.raw["promptFeedback"]
    generation, _ = await ask("safety.sse")
    assert generation.raw["safetyRatings"][1]["blocked"]
    assert "SAFETY" == generation.raw["finishReason"]


def test_every_recording_has_its_expectation_and_its_source():
    """A recording that nothing reads, or whose source nobody knows, proves nothing."""
    names = {path.name for path in SHAPES.iterdir()}
    assert names == {*EXPECTED, *REFUSALS, *REJECTED}
    for name in names:
        assert "\n: Source: " in (SHAPES / name).read_text(encoding="utf-8")
