"""
Schemas that a server can't enforce, which nobody can know before: they are asked for by a tool, or in words.

The messages are those of the services. Sources: https://github.com/anthropics/anthropic-sdk-python/issues/1185,
https://github.com/vercel/ai/pull/17268 and https://github.com/googleapis/python-genai/issues/660.
"""

import json

import anyio
import pytest
from pydantic import BaseModel, create_model

from sampling import Action, Budget, Message, Options, RejectionSamplingStrategy, Request
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.gemini import GeminiBackend
from sampling.backends.openai import OpenAIBackend
from sampling.errors import BadRequest
from sampling.testing.servers import HostileServer

GRAMMAR = "The compiled grammar is too large, which would cause performance issues. Simplify your tool schemas."
UNIONS = "Schemas contains too many parameters with union types (19 parameters with type arrays or anyOf)."
OPTIONAL = "Schemas contains too many optional parameters (28), which would make grammar compilation inefficient."
XGRAMMAR = "The provided JSON schema contains features not supported by xgrammar."
NOT_WITH_MODEL = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
NO_FORMAT = "This model does not support response format `json_schema`. See supported models"
UNAVAILABLE = "This response_format type is unavailable now"
STATES = "The specified schema produces a constraint that has too many states for serving."


class City(BaseModel):
    name: str


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def reply(status, body, kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d .\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        kind.encode(),
        len(data),
        data,
    )


def anthropic_error(message):
    return reply(400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}})


ARGUMENTS = {"name": "Oslo"}
ANTHROPIC_ANSWER = reply(
    200,
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "City", "input": ARGUMENTS}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    },
)
CALL = {"functionCall": {"name": "City", "args": ARGUMENTS}}
GEMINI_ANSWER = reply(
    200, {"candidates": [{"content": {"parts": [CALL], "role": "model"}, "finishReason": "STOP", "index": 0}]}
)
FUNCTION = {"name": "City", "arguments": json.dumps(ARGUMENTS)}
CHAT_MESSAGE = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}
CHAT_ANSWER = reply(
    200,
    {
        "id": "x",
        "choices": [{"index": 0, "message": CHAT_MESSAGE, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    },
)

PROVIDERS = {
    "anthropic": (lambda url: AnthropicBackend("m", base_url=url), anthropic_error(GRAMMAR), ANTHROPIC_ANSWER),
    "anthropic, unions": (lambda url: AnthropicBackend("m", base_url=url), anthropic_error(UNIONS), ANTHROPIC_ANSWER),
    "anthropic, optional": (
        lambda url: AnthropicBackend("m", base_url=url),
        anthropic_error(OPTIONAL),
        ANTHROPIC_ANSWER,
    ),
    "gemini": (
        lambda url: GeminiBackend("gemini-2.5-flash", base_url=url.removesuffix("/v1")),
        reply(400, {"error": {"code": 400, "message": STATES, "status": "INVALID_ARGUMENT"}}),
        GEMINI_ANSWER,
    ),
    "a gateway": (
        lambda url: OpenAIBackend(url, model="m"),
        reply(400, {"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": GRAMMAR}}}),
        CHAT_ANSWER,
    ),
    **{
        name: (lambda url: OpenAIBackend(url, model="m"), reply(400, {"error": {"message": message}}), CHAT_ANSWER)
        for name, message in {
            "vllm": XGRAMMAR,
            "llama.cpp": "Failed to initialize samplers: failed to parse grammar",
            "openai": NOT_WITH_MODEL,
            "groq": NO_FORMAT,
            "deepseek": UNAVAILABLE,
        }.items()
    },
}


@pytest.mark.parametrize("name", list(PROVIDERS))
async def test_the_answer_is_asked_for_by_a_tool_and_the_refusal_remembered(name):
    """A refused request costs nothing, and the next one with this schema is right at once."""
    make, refusal, answer = PROVIDERS[name]
    async with HostileServer([refusal], [answer]) as server, make(server.url) as backend:
        for _ in range(2):
            result = await RejectionSamplingStrategy().sample(Action("Which city?", City), None, backend)
            assert City(name="Oslo") == result.value
    bodies = [request.body.decode() for request in server.requests]
    assert 3 == len(bodies)
    assert ["tools" in json.loads(body) for body in bodies] == [False, True, True]
    assert result.usage.output_tokens == 2 or name == "gemini"


async def test_the_oldest_refusal_is_forgotten_when_there_are_too_many(monkeypatch):
    """An application that makes a schema for every request must not fill the memory."""
    monkeypatch.setattr("sampling.backends.http._chat_backend._MAX_REFUSED_SCHEMAS", 1)
    make, refusal, answer = PROVIDERS["anthropic"]
    other = create_model("City", name=(str, ...), km=(int | None, None))
    async with HostileServer(*[[refusal], [answer]] * 3) as server, make(server.url) as backend:
        for kind in (City, other, City):
            result = await RejectionSamplingStrategy().sample(Action("Which city?", kind), None, backend)
            assert "Oslo" == result.value.name
    assert [False, True] * 3 == ["tools" in request.json() for request in server.requests]


class RefusesSchemas(HostileServer):
    """Refuses requests without tools, as soon as there are three of them."""

    async def _serve(self, connection, number):
        asks_by_tool = "tools" in (await self._read_request(connection)).json()
        if len(self.requests) >= 3:
            self.three_asked.set()
        await self.three_asked.wait()
        await connection.send(ANTHROPIC_ANSWER if asks_by_tool else anthropic_error(GRAMMAR))


async def test_siblings_that_are_refused_at_once_all_go_on():
    """Each of them has asked before the first one was refused."""
    server = RefusesSchemas([b""])
    server.three_asked = anyio.Event()
    async with server, AnthropicBackend("m", base_url=server.url) as backend:
        strategy = RejectionSamplingStrategy(concurrency_budget=3)
        result = await strategy.sample(Action("Which city?", City), None, backend, [lambda text, view: False])
    assert ["invalid"] * 3 == [one.outcome for one in result.attempts]
    assert 6 == len(server.requests)


async def test_the_second_request_is_counted():
    """A budget sees it."""
    make, refusal, answer = PROVIDERS["anthropic"]
    budget = Budget(requests=5)
    async with HostileServer([refusal], [answer]) as server, make(server.url) as backend:
        await RejectionSamplingStrategy().sample(Action("Which city?", City), None, backend, budget=budget)
    assert 2 == budget.requests_made == len(server.requests)


async def test_a_tool_that_is_refused_too_becomes_words():
    """Gemini also makes a grammar of the tools that it must call."""
    make, refusal, _ = PROVIDERS["gemini"]
    part = {"text": json.dumps(ARGUMENTS)}
    answer = reply(200, {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]})
    async with HostileServer([refusal], [refusal], [answer]) as server, make(server.url) as backend:
        for _ in range(2):
            result = await RejectionSamplingStrategy().sample(Action("Which city?", City), None, backend)
            assert City(name="Oslo") == result.value
    assert ["tools" in request.json() for request in server.requests] == [False, True, False, False]
    assert "matches this schema" in server.requests[-1].body.decode()


async def test_a_server_that_takes_no_tool_choice_is_asked_in_words():
    """DeepSeek's models that think accept neither a schema nor a tool that must be called."""
    make, refusal, _ = PROVIDERS["deepseek"]
    no_choice = reply(400, {"error": {"message": "Thinking mode does not support this tool_choice"}})
    message = {"role": "assistant", "content": json.dumps(ARGUMENTS)}
    answer = reply(200, {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    async with HostileServer([refusal], [no_choice], [answer]) as server, make(server.url) as backend:
        for _ in range(2):
            result = await RejectionSamplingStrategy().sample(Action("Which city?", City), None, backend)
            assert City(name="Oslo") == result.value
    assert [False, True, False, False] == ["tools" in request.json() for request in server.requests]


async def test_a_second_refusal_is_the_first_error():
    """It is the schema that the caller can change."""
    make, refusal, _ = PROVIDERS["anthropic"]
    second = anthropic_error("tools are not supported")
    async with HostileServer([refusal], [second]) as server, make(server.url) as backend:
        with pytest.raises(BadRequest, match="compiled grammar is too large"):
            await backend.generate(Request([Message("user", "hi")], Options(schema=City)))


@pytest.mark.parametrize("options", [{}, {"schema": City}])
async def test_where_no_schema_was_enforced_it_is_an_error(options):
    """There is nothing else to try."""
    _, refusal, _ = PROVIDERS["anthropic"]
    async with (
        HostileServer([refusal]) as server,
        AnthropicBackend("m", base_url=server.url, structured="prompt") as backend,
    ):
        with pytest.raises(BadRequest, match="compiled grammar is too large"):
            await backend.generate(Request([Message("user", "hi")], Options(**options)))
    assert 1 == len(server.requests)
