"""Reasoning that a server signed, or wants back, is in the next turn as it came, through every library."""

import importlib
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sampling import Message, MultiTurnStrategy, OpenAIBackend, Options, Reasoning, Request, Requirement, Tool, ToolCall
from sampling.backends.adapters import from_langchain, from_litellm, from_openai_client, from_pydantic_ai
from sampling.backends.layers import ToolLoop
from sampling.parts import ToolResult
from sampling.testing.servers import HostileServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    # As in test_adapters.py and test_options.py.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # LangChain warns of Anthropic's encrypted thoughts, which it reads.
    pytest.mark.filterwarnings("ignore:Received unexpected tool content block"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

SIGNATURE, ENCRYPTED = "EqQBCkgIBR+/x==", "EmwKAhgBEgy3va3="


def load(name: str) -> Any:
    return importlib.import_module(name)


def stream_of(*events: dict, named: bool) -> bytes:
    lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in events]
    body = ("".join(lines) + ("" if named else "data: [DONE]\n\n")).encode()
    head = "HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


# Anthropic.


def message(reason: str, *blocks: list[dict]) -> bytes:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    counts = {"input_tokens": 10, "output_tokens": 1}
    events = [{"type": "message_start", "message": {**start, "stop_reason": None, "usage": counts}}]
    for index, (block, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {**counts, "output_tokens": 30}}
    return stream_of(*events, {"type": "message_delta", **end}, {"type": "message_stop"}, named=True)


THINKING = [
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Let me "},
    {"type": "thinking_delta", "thinking": "look."},
    {"type": "signature_delta", "signature": SIGNATURE},
]
REDACTED = [{"type": "redacted_thinking", "data": ENCRYPTED}]
TOOL_USE = [
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"number": 7}'},
]


def said(text: str) -> list[dict]:
    return [{"type": "text", "text": ""}, {"type": "text_delta", "text": text}]


BLOCKS = [
    {"type": "thinking", "thinking": "Let me look.", "signature": SIGNATURE},
    {"type": "redacted_thinking", "data": ENCRYPTED},
]


@asynccontextmanager
async def of_anthropic(kind: str, url: str) -> AsyncGenerator[Any]:
    """Open a client of a library for Anthropic's API, and make a backend of it."""
    name = "claude-sonnet-4-5"
    if kind == "litellm":
        handler = load("litellm.llms.custom_httpx.http_handler").AsyncHTTPHandler()
        arguments = {"model": f"anthropic/{name}", "api_base": url, "api_key": "k", "client": handler}
        yield from_litellm(load("litellm").acompletion, **arguments)
        await handler.close()
    elif kind == "pydantic-ai":
        async with load("anthropic").AsyncAnthropic(base_url=url, api_key="k") as client:
            provider = load("pydantic_ai.providers.anthropic").AnthropicProvider(anthropic_client=client)
            yield from_pydantic_ai(load("pydantic_ai.models.anthropic").AnthropicModel(name, provider=provider))
    else:
        versions = {"langchain-v1": {"output_version": "v1"}}
        model = load("langchain_anthropic").ChatAnthropic(
            model=name, base_url=url, api_key="k", max_retries=0, **versions.get(kind, {})
        )
        yield from_langchain(model)
        await model._async_client.close()


@pytest.mark.parametrize("kind", ["litellm", "langchain", "langchain-v1", "pydantic-ai"])
async def test_signed_thoughts_of_anthropic_go_back_with_the_results_of_tools(kind, anyio_backend):
    """Anthropic refuses tool results whose turn lacks its thoughts, and thoughts that are not exactly its own."""
    look = Tool("look", "Look up a number.", {"type": "object", "properties": {"number": {"type": "integer"}}}, str)
    first = message("tool_use", THINKING, REDACTED, said("Looking."), TOOL_USE)
    scripts = [first], [message("end_turn", said("Seven."))]
    async with HostileServer(*scripts) as server, of_anthropic(kind, server.url) as backend:
        answer = await ToolLoop(backend, [look]).generate(Request((Message("user", "hi"),), Options(max_tokens=2000)))
        _, turn, results = server.requests[1].json()["messages"]
    assert answer.text == "Seven."
    thoughts = [part for part in answer.turns[0].content if isinstance(part, Reasoning)]
    assert thoughts == [Reasoning("Let me look.", SIGNATURE), Reasoning("", f"redacted_thinking:{ENCRYPTED}")]
    assert turn["content"][:2] == BLOCKS
    assert [block["type"] for block in turn["content"][2:]] == ["text", "tool_use"]
    assert results["content"][0]["tool_use_id"] == "toolu_1"


@pytest.mark.parametrize("kind", ["litellm", "langchain", "pydantic-ai"])
async def test_signed_thoughts_of_anthropic_go_back_with_a_repair(kind, anyio_backend):
    """They are in the slice's context."""
    scripts = [message("end_turn", THINKING, said("six"))], [message("end_turn", said("seven"))]
    strategy, is_seven = MultiTurnStrategy(loop_budget=2), Requirement("is seven", check=lambda text: text == "seven")
    async with HostileServer(*scripts) as server, of_anthropic(kind, server.url) as backend:
        result = await strategy.sample("A number", None, backend, [is_seven])
        turn = server.requests[1].json()["messages"][1]
    assert result.value == "seven"
    assert result.slices[0].generation.reasoning == "Let me look."
    assert turn == {"role": "assistant", "content": [BLOCKS[0], {"type": "text", "text": "six"}]}


# Servers of the OpenAI chat API.


def chunk(delta: dict, reason: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"number": 7}'}}
DETAILS = [
    {"type": "reasoning.text", "text": "Let me ", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.text", "text": "look.", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.text", "signature": SIGNATURE, "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": ENCRYPTED, "id": "call_1", "format": "google-gemini-v1", "index": 1},
]
WHOLE_DETAILS = [{**DETAILS[0], "text": "Let me look.", "signature": SIGNATURE}, DETAILS[3]]


def chat_stream(deltas: list[dict], reason: str) -> bytes:
    return stream_of(*[chunk(delta) for delta in deltas], chunk({}, reason), named=False)


@asynccontextmanager
async def of_chat(kind: str, url: str) -> AsyncGenerator[Any]:
    """Open a client of a library for the OpenAI chat API, and make a backend of it."""
    if kind == "ours":
        async with OpenAIBackend(url, model="m", api_key="k") as backend:
            yield backend
        return
    async with load("openai").AsyncOpenAI(base_url=url, api_key="k") as client:
        if kind == "openai":
            yield from_openai_client(client, model="m")
        elif kind == "litellm":
            yield from_litellm(load("litellm").acompletion, model="openai/m", client=client, api_base=url, api_key="k")
        elif kind == "openrouter":
            provider = load("pydantic_ai.providers.openrouter").OpenRouterProvider(openai_client=client)
            yield from_pydantic_ai(load("pydantic_ai.models.openrouter").OpenRouterModel("a/m", provider=provider))
        else:
            provider = load("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
            yield from_pydantic_ai(load("pydantic_ai.models.openai").OpenAIChatModel("m", provider=provider))


async def second_turn(kind: str, deltas: list[dict]) -> dict:
    """Return the turn of the assistant that reaches the server with the result of a tool."""
    look = Tool("look", "Look up a number.", {"type": "object", "properties": {"number": {"type": "integer"}}}, str)
    scripts = [chat_stream([*deltas, {"tool_calls": [CALL]}], "tool_calls")], [chat_stream([{"content": "7"}], "stop")]
    async with HostileServer(*scripts) as server, of_chat(kind, server.url) as backend:
        answer = await ToolLoop(backend, [look]).generate(Request((Message("user", "hi"),)))
        assert answer.text == "7"
        return server.requests[1].json()["messages"][1]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("kind", ["ours", "openai", "pydantic-ai", "litellm"])
async def test_unsigned_reasoning_goes_back_with_the_results_of_tools(kind, field, anyio_backend):
    """DeepSeek and Moonshot refuse the results of calls without it."""
    turn = await second_turn(kind, [{"role": "assistant", "content": ""}, {field: "Let me "}, {field: "look."}])
    # litellm has one name for both.
    assert turn["reasoning_content" if kind == "litellm" else field] == "Let me look."
    assert [call["id"] for call in turn["tool_calls"]] == ["call_1"]


@pytest.mark.parametrize("kind", ["ours", "openai", "openrouter"])
async def test_the_details_of_openrouter_go_back_whole(kind, anyio_backend):
    """OpenRouter wants them as they came, those of Gemini's calls too."""
    turn = await second_turn(kind, [{"reasoning": "", "reasoning_details": [one]} for one in DETAILS])
    given = [{name: value for name, value in one.items() if value is not None} for one in turn["reasoning_details"]]
    assert given == WHOLE_DETAILS


async def test_reasoning_without_a_call_is_not_sent_back(anyio_backend):
    """Older models of DeepSeek refuse it."""
    scripts = [chat_stream([{"reasoning_content": "Hm."}, {"content": "6"}], "stop")], [chat_stream([], "stop")]
    async with HostileServer(*scripts) as server, of_chat("ours", server.url) as backend:
        answer = await backend.generate(Request((Message("user", "hi"),)))
        assert (answer.text, answer.reasoning) == ("6", "Hm.")
        await backend.generate(Request((Message("user", "hi"), answer.message, Message("user", "no"))))
        assert server.requests[1].json()["messages"][1] == {"role": "assistant", "content": "6"}


# Other wires.


def responses(*items: dict) -> bytes:
    """Return a stream of OpenAI's Responses API with these items."""
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed"}
    whole |= {"output": list(items), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None}
    whole |= {"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {}}}
    whole["usage"] |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    events = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        started = {**item, "arguments": ""} if item["type"] == "function_call" else item
        events.append({"type": "response.output_item.added", "output_index": index, "item": started})
        more = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            events.append({"type": "response.function_call_arguments.delta", **more, "delta": item["arguments"]})
        if item["type"] == "message":
            text = {"content_index": 0, "delta": item["content"][0]["text"], "logprobs": []}
            part = {"content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}
            events.append({"type": "response.content_part.added", **more, **part})
            events.append({"type": "response.output_text.delta", **more, **text})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return stream_of(*[{**one, "sequence_number": number} for number, one in enumerate(events)], named=True)


REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": ENCRYPTED}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "status": "completed"}
SPOKEN = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}


@pytest.mark.parametrize("kind", ["langchain", "pydantic-ai", "ours"])
async def test_encrypted_reasoning_of_the_responses_api_goes_back(kind, anyio_backend):
    """It comes before the call that it led to."""
    look = Tool("look", "Look up a number.", {"type": "object", "properties": {"number": {"type": "integer"}}}, str)
    spoken = {**SPOKEN, "content": [{"type": "output_text", "text": "7", "annotations": []}]}
    scripts = (
        [responses(REASONING, {**FUNCTION_CALL, "arguments": '{"number": 7}'})],
        [responses(spoken)],
    )
    async with HostileServer(*scripts) as server, of_responses(kind, server.url) as backend:
        answer = await ToolLoop(backend, [look]).generate(Request((Message("user", "hi"),)))
        items = server.requests[1].json()["input"]
    assert answer.text == "7"
    kinds = [item.get("type") for item in items]
    assert kinds[-3:] == ["reasoning", "function_call", "function_call_output"]
    assert items[-3]["encrypted_content"] == ENCRYPTED


@asynccontextmanager
async def of_responses(kind: str, url: str) -> AsyncGenerator[Any]:
    """Open a client of a library for OpenAI's Responses API, and make a backend of it."""
    if kind == "ours":
        async with OpenAIBackend(url, model="gpt-5", api_key="k", endpoint="responses") as backend:
            yield backend
        return
    async with load("openai").AsyncOpenAI(base_url=url, api_key="k") as client:
        if kind == "pydantic-ai":
            provider = load("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
            yield from_pydantic_ai(load("pydantic_ai.models.openai").OpenAIResponsesModel("gpt-5", provider=provider))
            return
        model = load("langchain_openai").ChatOpenAI(
            model="gpt-5", base_url=url, api_key="k", max_retries=0, use_responses_api=True, store=False,
            include=["reasoning.encrypted_content"], output_version="responses/v1",
        )  # fmt: skip
        yield from_langchain(model)
        await model.root_async_client.close()


def gemini(*parts: dict, reason: str = "STOP") -> bytes:
    body = {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": reason, "index": 0}]}
    counts = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    data = f"data: {json.dumps({**body, 'usageMetadata': counts})}\r\n\r\n".encode()
    head = "HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def test_the_signature_of_a_call_of_gemini_goes_back_through_pydantic_ai(anyio_backend):
    """Gemini 3 signs the call, and not a thought."""
    look = Tool("look", "Look up a number.", {"type": "object", "properties": {"number": {"type": "integer"}}}, str)
    call = {"functionCall": {"name": "look", "args": {"number": 7}}, "thoughtSignature": "c2lnbmVk"}
    async with HostileServer([gemini(call)], [gemini({"text": "7"})]) as server:
        provider = load("pydantic_ai.providers.google").GoogleProvider(api_key="k", base_url=server.url)
        model = load("pydantic_ai.models.google").GoogleModel("gemini-3-pro", provider=provider)
        answer = await ToolLoop(from_pydantic_ai(model), [look]).generate(Request((Message("user", "hi"),)))
        turn = server.requests[1].json()["contents"][1]
        await provider.client.aio.aclose()
        provider.client.close()
    assert answer.text == "7"
    assert [part["thoughtSignature"] for part in turn["parts"] if "functionCall" in part] == ["c2lnbmVk"]


# Conversations that change the server.

FOREIGN = [
    Reasoning("a", "reasoning_details:{}"),
    Reasoning("b", "reasoning_content:"),
    Reasoning("c", 'pydantic-ai:{"id": "rs_1"}'),
]
ANSWERED = [
    Message("user", "hi"),
    Message("assistant", [*FOREIGN, ToolCall("call_1", "look", "{}")]),
    Message("tool", [ToolResult("call_1", "7")]),
]


@pytest.mark.parametrize("provider", ["anthropic", "gemini", "responses"])
def test_a_provider_does_not_get_the_thoughts_of_another_library(provider, anyio_backend):
    """Otherwise the provider would refuse the conversation after a fallback."""
    if provider == "anthropic":
        sent = load("sampling.backends.anthropic._messages").wire_messages(ANSWERED)
    elif provider == "gemini":
        sent = load("sampling.backends.gemini._contents").wire_contents(ANSWERED, "gemini-2.5-flash")
    else:
        sent = load("sampling.backends.openai._responses_request")._items(ANSWERED)
    text = json.dumps(sent)
    assert "look" in text
    assert "reasoning" not in text
    assert "pydantic" not in text
    assert "hought" not in text
    assert "hinking" not in text
