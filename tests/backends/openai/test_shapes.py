"""Recorded responses of servers are read correctly. Each file in `shapes` names its source and all changes."""

from pathlib import Path

import pytest

from sampling import Message, Request, Usage
from sampling.backends.openai import OpenAIBackend, ToolCall
from sampling.errors import AnswerRejected, BadRequest
from sampling.testing.servers import HostileServer

SHAPES = Path(__file__).parent / "shapes"
HI = Request((Message("user", "hi"),))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def recorded(name):
    """Return a recording without the comment about its source, and its content type."""
    path = SHAPES / name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return text.partition("\n\n")[2].strip().encode(), "application/json"
    return text.encode(), "text/event-stream"


def response(name, status=200):
    body, kind = recorded(name)
    head = f"HTTP/1.1 {status} .\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(name, **settings):
    """Return the generation, and the pieces of its text as they came."""
    pieces = []
    async with HostileServer([response(name)]) as server, OpenAIBackend(server.url, model="m", **settings) as backend:
        return await backend.stream(HI, pieces.append), pieces


THOUGHT_OF_VLLM = (
    "\nOkay, the user is asking for the capital of France. I need to confirm the correct answer. France's capital is "
    "Paris. Let me make sure there's no other city that's commonly referred to as the capital. I think Paris is the "
    "official name, and it's a major city. No, I'm not mistaken. So the answer should be Paris.\n"
)
DELEGATED = [
    ToolCall("function-call-1", "delegate_research", '{"question":"first"}'),
    ToolCall("function-call-2", "delegate_code", '{"goal":"second"}'),
    ToolCall("function-call-3", "delegate_research", '{"question":"third"}'),
]

# text, reasoning, tool calls, finish reason, usage
EXPECTED = {
    "azure.sse": ("Capital of Denmark.", None, [], "stop", Usage(15, 78, reasoning_tokens=64)),
    "cerebras.json": (
        "4.",
        'User asks simple: "What is 2 + 2? Think briefly first." Answer: 4. Probably straightforward.',
        [],
        "stop",
        Usage(79, 37, reasoning_tokens=25),
    ),
    "deepseek.sse": ("sanitized", None, [], "length", Usage(88, 4, reasoning_tokens=4)),
    "gemini.sse": ("No, 391 = 17 × 23.", None, [], "stop", Usage(11, 550, reasoning_tokens=526)),
    "gemini_tools.sse": ("", None, DELEGATED, "tool_calls", Usage(1, 1)),
    "groq.sse": ("", None, [ToolCall("tk85n1k4m", "weather", "{}")], "tool_calls", Usage(210, 15)),
    "groq_reasoning.sse": ("Something with", "_not_exist", [], "stop", Usage(336, 135, reasoning_tokens=119)),
    "llamacpp.sse": ("3+4", None, [], "stop", Usage(22, 20)),
    "llamacpp_reasoning.sse": ("", ' word "', [], "stop", Usage(17, 9, cached_input_tokens=7)),
    "lmstudio.sse": ("\n", None, [], "stop", Usage(1, 1)),
    "mistral.sse": (
        "2 + 2 = 4",
        "The user is asking for 2+2. This is basic arithmetic. 2+2=4.",
        [],
        "stop",
        Usage(10, 46),
    ),
    "ollama.sse": (" there! 👋", "The user says", [], "stop", Usage(68, 41)),
    "openrouter.sse": (
        "",
        "We need to respond to a greeting. The user",
        [],
        "length",
        Usage(43, 10, reasoning_tokens=10),
    ),
    "openrouter_text.sse": ("Hello!", None, [], "stop", Usage(254, 5, 0.000837)),
    "together.sse": ("ABCABC", None, [], "stop", Usage(12, 27)),
    "vllm.sse": ("가요?", None, [], "stop", Usage(1, 3)),
    "vllm_think.json": ("The capital of France is **Paris**.", THOUGHT_OF_VLLM, [], "stop", Usage(15, 87)),
    "xai.sse": (
        "",
        "First, the",
        [ToolCall("call_55117580", "weather", '{"location":"San Francisco"}')],
        "tool_calls",
        Usage(291, 222, cached_input_tokens=290, reasoning_tokens=196),
    ),
}
REFUSALS = {
    "groq_json_validate_failed.json": (AnswerRejected, None),
    "groq_tool_use_failed.json": (AnswerRejected, '{"name": "book_appointment", "arguments": {}}'),
    "openai_max_tokens.json": (BadRequest, None),
}
RESPONSES = {path.name for path in SHAPES.glob("responses_*")}


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_recorded_answer_is_read_as_it_was_meant(name):
    """Text, reasoning, tool calls, finish reason and usage are right, and the pieces make up the text."""
    generation, pieces = await ask(name)
    text, reasoning, tool_calls, finish_reason, usage = EXPECTED[name]
    assert text == generation.text == "".join(pieces)
    assert reasoning == generation.reasoning
    assert tuple(tool_calls) == generation.tool_calls
    assert finish_reason == generation.finish_reason
    assert usage == generation.usage


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_recorded_refusal_is_typed(name):
    """A server that refuses what the model wrote costs one attempt. A bad parameter is fatal."""
    kind, text = REFUSALS[name]
    async with HostileServer([response(name, 400)]) as server, OpenAIBackend(server.url, model="m") as backend:
        with pytest.raises(kind) as caught:
            await backend.generate(HI)
    assert type(caught.value) is kind
    assert text == caught.value.partial_text
    assert 400 == caught.value.status


def test_every_recording_has_its_expectation_and_its_source():
    """A recording that nothing reads, or whose source nobody knows, proves nothing."""
    names = {path.name for path in SHAPES.iterdir()}
    assert names == {*EXPECTED, *REFUSALS, *RESPONSES}
    for name in names:
        assert "\n: Source: " in (SHAPES / name).read_text(encoding="utf-8")


async def test_thoughts_stay_in_the_text_on_request():
    """`split_thinking=False` leaves the answer as the server sent it."""
    generation, pieces = await ask("vllm_think.json", split_thinking=False)
    assert f"<think>{THOUGHT_OF_VLLM}</think>\n\nThe capital of France is **Paris**." == generation.text
    assert generation.reasoning is None
    assert [generation.text] == pieces
