"""The tool that takes an answer: its name, and schemas that the arguments of a tool can't have."""

import json

import pytest

from sampling import Message, Options, Request, Tool, ToolCall
from sampling.backends._structured import answer_from_tool, answer_tool_name
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.gemini import GeminiBackend
from sampling.backends.openai import OpenAIBackend
from sampling.messages import Generation

OBJECT = {"type": "object", "title": "search", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
LIST = {"type": "array", "items": {"type": "integer"}}
SEARCH = Tool("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}})
URL = "http://127.0.0.1:1"


def body_of(provider: str, options: Options) -> dict:
    """Return what a backend would send."""
    backend = {
        "chat": lambda: OpenAIBackend(URL, model="m", structured="tool"),
        "responses": lambda: OpenAIBackend(URL, model="m", structured="tool", endpoint="responses"),
        "anthropic": lambda: AnthropicBackend("m", base_url=URL, structured="tool"),
        "gemini": lambda: GeminiBackend("m", base_url=URL, structured="tool"),
    }[provider]()
    return json.loads(backend._body(Request((Message("user", "hi"),), options), "m"))


def tool_names(body: dict) -> list[str]:
    tools = body["tools"][0]["functionDeclarations"] if "functionDeclarations" in body["tools"][0] else body["tools"]
    return [tool.get("name") or tool["function"]["name"] for tool in tools]


@pytest.mark.parametrize("provider", ["chat", "responses", "anthropic", "gemini"])
def test_a_tool_with_the_name_of_the_schema_is_not_sent_twice(provider):
    """Providers refuse two tools of one name, and an answer could not be told from a search."""
    body = body_of(provider, Options(schema=OBJECT, tools=[SEARCH]))
    assert ["search", "answer_search"] == tool_names(body)
    assert ["search"] == tool_names(body_of(provider, Options(schema=OBJECT)))


def test_a_call_of_the_other_tool_is_not_taken_for_the_answer():
    """Only a call of the answer's tool becomes the text."""
    options = Options(schema=OBJECT, tools=[SEARCH])
    search, answer = ToolCall("1", "search", '{"q": "a"}'), ToolCall("2", "answer_search", '{"b": 1}')
    searching = Generation("", finish_reason="tool_calls", tool_calls=(search,))
    assert searching is answer_from_tool(searching, options)
    answered = answer_from_tool(Generation("", finish_reason="tool_calls", tool_calls=(answer,)), options)
    assert ('{"b": 1}', ()) == (answered.text, answered.tool_calls)


def test_there_is_always_a_name_left():
    """However long the names are, and whichever are taken."""
    long = "n" * 64
    taken = [long, f"answer_{long}"[:64], "answer_1", "answer_2"]
    tools = [Tool(name, "", {"type": "object"}) for name in taken]
    assert "answer_3" == answer_tool_name(Options(schema={**OBJECT, "title": long}, tools=tools))


@pytest.mark.parametrize("provider", ["chat", "responses", "anthropic", "gemini"])
def test_a_schema_of_no_object_is_asked_for_in_words(provider):
    """The arguments of a tool are an object, so a server would refuse it."""
    body = body_of(provider, Options(schema=LIST))
    assert "tools" not in body
    assert "matches this schema" in json.dumps(body)


@pytest.mark.parametrize("provider", ["chat", "responses", "anthropic"])
def test_extra_tools_do_not_replace_those_of_the_request(provider):
    """Tools that the server runs, such as a search, are added to those of the request."""
    of_the_server = {"type": "web_search", "name": "web_search"}
    body = body_of(provider, Options(tools=[SEARCH], extra={"tools": [of_the_server]}))
    assert ["search", "web_search"] == tool_names(body)
    assert [of_the_server] == body_of(provider, Options(extra={"tools": [of_the_server]}))["tools"]
