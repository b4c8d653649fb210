"""Names and ids of tool calls that a provider would refuse are sent as ones that it takes."""

import re

import pytest

from sampling import Message, Request, ToolCall, ToolResult
from sampling.backends._tool_names import plain_id, short_id, wire_name
from sampling.backends.anthropic._messages import wire_messages as anthropic_messages
from sampling.backends.gemini._contents import wire_contents
from sampling.backends.openai._messages import wire_messages as chat_messages
from sampling.backends.openai._responses_request import responses_body

# As Kimi and vLLM number calls: too strange for Anthropic, and too long for OpenAI.
IDS = ("functions.search:0", "chatcmpl-tool-" + 32 * "a")
CALLED = (
    Message("user", "hi"),
    Message("assistant", [ToolCall(IDS[0], "functions.search", "{}"), ToolCall(IDS[1], "", "{}")]),
    Message("tool", [ToolResult(one, "nothing") for one in IDS]),
)
NAMES = ["functions_search", "unnamed"]


def of_chat():
    _, called, *results = chat_messages(CALLED)
    calls = called["tool_calls"]
    return [c["function"]["name"] for c in calls], [c["id"] for c in calls], [r["tool_call_id"] for r in results]


def of_responses():
    _, *items = responses_body(Request(CALLED), "m", "native")["input"]
    calls, results = items[:2], items[2:]
    return [one["name"] for one in calls], [one["call_id"] for one in calls], [one["call_id"] for one in results]


def of_anthropic():
    _, called, results = anthropic_messages(CALLED)
    calls = called["content"]
    return [c["name"] for c in calls], [c["id"] for c in calls], [r["tool_use_id"] for r in results["content"]]


@pytest.mark.parametrize(
    ("sent", "accepted"), [(of_chat, r".{1,40}"), (of_responses, r".{1,40}"), (of_anthropic, r"[A-Za-z0-9_-]+")]
)
def test_a_conversation_of_another_model_is_accepted(sent, accepted):
    """Calls and their results still belong together."""
    names, ids, results = sent()
    assert NAMES == names
    assert ids == results
    assert 2 == len(set(ids))
    assert all(re.fullmatch(accepted, one) for one in ids)


def test_gemini_gets_names_that_it_takes():
    """Names are made valid for Gemini, which accepts any id."""
    _, called, results = wire_contents(CALLED, "gemini-2.5-flash")["contents"]
    assert NAMES == [part["functionCall"]["name"] for part in called["parts"]]
    assert NAMES == [part["functionResponse"]["name"] for part in results["parts"]]
    assert list(IDS) == [part["functionCall"]["id"] for part in called["parts"]]


@pytest.mark.parametrize("given", ["call_abc-1", "toolu_01A", "gemini_x_0"])
def test_what_is_accepted_stays_as_it_is(given):
    """A server may know it."""
    assert given == plain_id(given) == short_id(given) == wire_name(given)


def test_ids_that_a_model_was_trained_on_stay_on_servers_like_its_own():
    """Kimi misnumbers its calls if its own ids are gone."""
    assert IDS[0] == short_id(IDS[0])
