"""Convert a `Request` into the JSON of Anthropic's Messages API."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

import attrs

from sampling._arguments import wrong_type
from sampling.backends._structured import (
    AnswerSchema,
    Structured,
    answer_schema,
    answer_tool_name,
    feasible,
    with_instruction,
)
from sampling.backends.anthropic._messages import wire_messages, wire_system
from sampling.backends.anthropic._schema import native_schema
from sampling.backends.http._body import add_extra
from sampling.backends.http._fields import Json
from sampling.errors import BadRequest
from sampling.messages import Options, Request

__all__ = ["Cache", "Settings", "Thinking", "messages_body", "structured_mode"]

Cache: TypeAlias = Literal["auto", "5m", "1h"]
"""How long the server keeps a prompt after its last use."""

Thinking: TypeAlias = Literal["adaptive", "budget"]
"""The way in which `reasoning_effort` is sent."""

_RESERVED = frozenset({"messages", "stream", "system"})
_MERGED = "output_config"

# The API has no "minimal".
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_BUDGETS = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 65_536}
_LEAST_BUDGET = 1_024


@attrs.frozen
class Settings:
    """The settings of a backend that shape its requests."""

    max_tokens: int
    structured: Structured = "native"
    cache: Cache | None = None
    thinking: Thinking = "adaptive"


def structured_mode(options: Options, chosen: Structured) -> Structured:
    """
    Return how to ask for the schema of a request.

    This is the chosen way, or a tool if the server can't enforce the schema, or the prompt if it does not describe an
    object, because the arguments of a tool are always an object.
    """
    if options.schema is None or chosen == "prompt":
        return chosen
    if chosen == "native" and native_schema(options.schema) is not None:
        return chosen
    return feasible("tool", options)


def messages_body(request: Request, model: str, settings: Settings, *, stream: bool = True) -> Json:
    """Return the body of the POST for a request. In a batch, it is not streamed."""
    options = request.options
    mode = structured_mode(options, settings.structured)
    schema = None if options.schema is None else answer_schema(options.schema)
    messages = request.messages
    if schema is not None and mode == "prompt":
        messages = with_instruction(messages, schema)
    max_tokens = options.max_tokens or settings.max_tokens
    thinking = _thinking(options, max_tokens, settings.thinking)
    body: Json = {
        "model": model,
        "max_tokens": max_tokens,
        "system": wire_system(messages),
        "messages": wire_messages(messages),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stop_sequences": list(options.stop) or None,
        "cache_control": _cache_control(settings.cache),
        "thinking": thinking,
        "output_config": _output_config(options, mode, settings.thinking) or None,
        **_tools(options, schema if mode == "tool" else None, is_thinking=_is_on(options, thinking)),
    }
    body = {name: value for name, value in body.items() if value is not None}
    config = body.get(_MERGED, {})
    add_extra(body, options, _RESERVED)
    if config and _MERGED in options.extra:
        body[_MERGED] = {**config, **_mapping(options.extra[_MERGED])}
    if stream:
        body["stream"] = True
    return body


def _cache_control(cache: Cache | None) -> Json | None:
    if cache is None:
        return None
    return {"type": "ephemeral"} if cache == "auto" else {"type": "ephemeral", "ttl": cache}


def _thinking(options: Options, max_tokens: int, thinking: Thinking) -> Json | None:
    effort = options.reasoning_effort
    if effort is None:
        return None
    if effort == "none":
        return {"type": "disabled"}
    if thinking == "adaptive":
        return {"type": "adaptive"}
    # The rest is for the answer.
    budget = min(_BUDGETS[effort], max_tokens * 3 // 4)
    if budget < _LEAST_BUDGET:
        raise BadRequest(
            f"max_tokens={max_tokens} leaves too few tokens to think: the API requires at least {_LEAST_BUDGET}",
            hint="Raise max_tokens, or leave reasoning_effort out.",
        )
    return {"type": "enabled", "budget_tokens": budget}


def _is_on(options: Options, thinking: Json | None) -> bool:
    given = options.extra.get("thinking", thinking)
    return isinstance(given, Mapping) and cast("Json", given).get("type") != "disabled"


def _output_config(options: Options, mode: Structured, thinking: Thinking) -> Json:
    config: Json = {}
    if options.reasoning_effort in _EFFORTS and thinking == "adaptive":
        config["effort"] = _EFFORTS[options.reasoning_effort]
    if options.schema is not None and mode == "native":
        config["format"] = {"type": "json_schema", "schema": native_schema(options.schema)}
    return config


def _tools(options: Options, answer: AnswerSchema | None, *, is_thinking: bool) -> Json:
    tools = [
        {"name": one.name, "description": one.description, "input_schema": dict(one.schema)} for one in options.tools
    ]
    choice = options.tool_choice
    if answer is not None:
        # Beside other tools, the model may call them first. While it thinks, no tool can be forced on it.
        choice = (choice if tools else None) or ("auto" if is_thinking else "required")
        description = "Give the answer. Always call this tool to answer."
        tools.append(
            {"name": answer_tool_name(options), "description": description, "input_schema": dict(answer.schema)}
        )
    if not tools:
        if choice not in {None, "none"}:
            raise BadRequest(f"options.tool_choice is {choice!r}, but there are no options.tools")
        return {}
    return {"tools": tools, "tool_choice": _tool_choice(choice)}


def _tool_choice(choice: str | None) -> Json | None:
    if choice is None:
        return None
    if choice in {"auto", "none"}:
        return {"type": choice}
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong_type(f"options.extra[{_MERGED!r}]", value, "a mapping")
    return cast("Mapping[str, Any]", value)
