"""Parts, tools and options in the JSON of the chat API."""

import json

import attrs
import pytest

from sampling import Audio, File, Image, Message, Options, Reasoning, Request, Text, Tool, ToolCall, ToolResult
from sampling.backends.openai import OpenAIBackend
from sampling.backends.openai._request import encode_body
from sampling.backends.simulated import SimulatedBackend
from sampling.errors import Unsupported

PNG = b"\x89PNG\r\n\x1a\n"
LOOK = Tool("look", "Look it up.", {"type": "object", "properties": {"at": {"type": "string"}}})


def body(*messages, **options):
    request = Request(messages, Options(**options))
    data = encode_body(
        request, model="m", endpoint="chat", max_tokens_name="max_tokens", include_usage=False, max_bytes=10_000
    )
    return json.loads(data)


def test_parts_of_a_user():
    """Images, sounds and files go as data, and a URL as it is."""
    parts = [Text("a"), Image(PNG), Image("https://x.org/b.png"), Audio(b"ID3x"), File(b"%PDF-", name="c.pdf")]
    [message] = body(Message("user", parts))["messages"]
    assert [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://x.org/b.png"}},
        {"type": "input_audio", "input_audio": {"data": "SUQzeA==", "format": "mp3"}},
        {"type": "file", "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
    ] == message["content"]


def test_tool_calls_and_their_results():
    """Each result is a message of its own, with the id of its call. Reasoning stays here."""
    asked = Message(
        "assistant", [Reasoning("hm", "s"), ToolCall("1", "look", '{"at": "x"}'), ToolCall("2", "look", "")]
    )
    told = Message("tool", [ToolResult("1", "a"), ToolResult("2", [Text("b"), Text("c")])])
    calls = [
        {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}},
        {"id": "2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "bc"},
    ] == body(asked, told)["messages"]


def test_the_same_options_in_another_request_are_the_same_fields():
    """What is remembered of the last options is neither mixed up with others nor changed by a request."""
    given = [Options(seed=1, extra={"tools": [{"type": "web"}]}), Options(seed=1, tools=[LOOK]), Options(seed=2)]

    def sent(options, name, endpoint):
        return encode_body(
            Request([Message("user", "Q")], options),
            model="m",
            endpoint=endpoint,
            max_tokens_name=name,
            include_usage=False,
            max_bytes=10_000,
        )

    every = [
        (attrs.evolve(options, max_tokens=5, logprobs=3), name, "chat")
        for options in given
        for name in ("max_tokens", "max_completion_tokens")
    ]
    every.append((every[-1][0], every[-1][1], "completions"))
    first = [sent(*one) for one in every]
    assert len(set(first)) == len(every)
    assert [sent(*one) for one in every for _ in range(2)] == [body for body in first for _ in range(2)]
    # Once more in another order, in which the same options follow each other.
    last = every[-1][0]
    assert sent(last, "max_tokens", "chat") != sent(last, "max_completion_tokens", "chat") == first[-2]
    assert sent(last, "max_completion_tokens", "completions") == first[-1]


def test_options():
    """All of them have their place."""
    sent = body(
        Message("user", "Q"),
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias={7: 3},
        logprobs=2,
        tools=[LOOK],
        tool_choice="look",
        reasoning_effort="low",
    )
    function = {"name": "look", "description": "Look it up.", "parameters": LOOK.schema}
    assert {
        "model": "m",
        "messages": [{"role": "user", "content": "Q"}],
        "stream": True,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "logit_bias": {"7": 3},
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "reasoning_effort": "low",
    } == sent


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("user", [Audio("https://x.org/a.mp3")]), "Audio as bytes"),
        (Message("user", [Audio(b"fLaC")]), "audio/flac"),
        (Message("user", [File("https://x.org/a.pdf")]), "File as bytes"),
        (Message("tool", [ToolResult("1", [Image(PNG)])]), "no Image"),
    ],
)
def test_what_the_api_does_not_take_is_refused(message, says):
    """Unsupported parts are named before anything is sent."""
    with pytest.raises(Unsupported, match=says):
        body(message)


@pytest.mark.parametrize(
    "backend", [SimulatedBackend(), OpenAIBackend("http://127.0.0.1:9", model="m", endpoint="completions")]
)
@pytest.mark.anyio
async def test_a_backend_for_text_refuses_media(backend):
    """Media are refused by name before anything is sent."""
    with pytest.raises(Unsupported, match="can't send a part of type Image"):
        await backend.generate(Request([Message("user", [Image(PNG)])]))


@pytest.mark.anyio
async def test_an_option_that_the_api_lacks_is_an_error_or_dropped():
    """OpenAI does not support `top_k`."""
    asked = Request([Message("user", "Q")], Options(top_k=3))
    with pytest.raises(Unsupported, match=r"does not support Options\.top_k"):
        await OpenAIBackend(api_key="k", model="m").generate(asked)
    dropping = OpenAIBackend(api_key="k", model="m", drop_unsupported=True)
    assert None is dropping._support.check(asked).options.top_k
