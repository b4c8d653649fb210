"""Convert a `Request` into the JSON of the OpenAI API."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from sampling._arguments import wrong_type
from sampling.backends._structured import AnswerSchema, Structured, answer_schema, answer_tool_name, with_instruction
from sampling.backends.http._body import add_extra, encode_json, resolve_model
from sampling.backends.openai._dialects import COMPATIBLE, Dialect
from sampling.backends.openai._endpoints import Endpoint
from sampling.backends.openai._messages import wire_messages, wire_tool_choice, wire_tools
from sampling.errors import BadRequest
from sampling.messages import Message, Options, Request

__all__ = ["encode_body"]

_RESERVED = frozenset({"input", "messages", "prompt", "stream"})

Json: TypeAlias = dict[str, Any]


def encode_body(  # noqa: PLR0913 - each of them changes the body
    request: Request,
    *,
    model: str | None,
    endpoint: Endpoint,
    max_tokens_name: str,
    include_usage: bool,
    max_bytes: int,
    structured: Structured = "native",
    dialect: Dialect = COMPATIBLE,
    stream: bool = True,
) -> bytes:
    """Return the body of the POST for a request. In a batch, it is not streamed."""
    options = request.options
    name = resolve_model(options.model or model, "OPENAI_MODEL")
    if endpoint == "responses":
        # Most servers do not have it.
        from sampling.backends.openai._responses_request import responses_body  # noqa: PLC0415

        body = responses_body(request, name, structured)
    else:
        body = _completions_body(request, name, endpoint, max_tokens_name, structured, dialect)
    add_extra(body, options, _RESERVED)
    if not stream:
        body.pop("stream_options", None)
        return encode_json(body, max_bytes)
    body["stream"] = True
    if include_usage and dialect.has_stream_options and endpoint != "responses":
        body["stream_options"] = {"include_usage": True, **_mapping(options.extra.get("stream_options"))}
    return encode_json(body, max_bytes)


def _completions_body(
    request: Request, model: str, endpoint: Endpoint, max_tokens_name: str, structured: Structured, dialect: Dialect
) -> Json:
    options = request.options
    schema = None if options.schema is None else answer_schema(options.schema)
    messages = request.messages
    if schema is not None and structured == "prompt":
        messages = with_instruction(messages, schema)
    body: Json = {"model": model, **_messages_or_prompt(messages, endpoint, dialect)}
    body.update(_OPTIONS.get(options, max_tokens_name, endpoint, dialect))
    if schema is not None:
        body.update(_structured(schema, structured, options, body.get("tools", [])))
    return body


def _messages_or_prompt(messages: Sequence[Message], endpoint: Endpoint, dialect: Dialect) -> Json:
    if endpoint == "chat":
        return {"messages": wire_messages(messages, dialect)}
    return {"prompt": "\n\n".join(message.text for message in messages)}


def _options(options: Options, max_tokens_name: str, endpoint: Endpoint, dialect: Dialect) -> Json:
    chosen: Json = {
        "temperature": options.temperature,
        max_tokens_name: options.max_tokens,
        dialect.seed: options.seed,
        "stop": list(options.stop) or None,
        **{name: getattr(options, name) for name in _SAME_NAMES},
    }
    if options.logit_bias is not None:
        chosen["logit_bias"] = {str(token): bias for token, bias in options.logit_bias.items()}
    if options.logprobs is not None:
        chosen.update(_logprobs(options.logprobs, endpoint))
    if options.tools:
        chosen["tools"] = wire_tools(options.tools)
        chosen["tool_choice"] = wire_tool_choice(options.tool_choice)
    elif options.tool_choice not in {None, "none"}:
        raise BadRequest(f"options.tool_choice is {options.tool_choice!r}, but there are no options.tools")
    return {name: value for name, value in chosen.items() if value is not None}


class _LastOptions:
    """Remembers the fields of the last request's options, which most requests share."""

    def __init__(self) -> None:
        self._last: tuple[Options | None, tuple[str, Endpoint, Dialect], Json] = (None, ("", "chat", COMPATIBLE), {})

    def get(self, options: Options, max_tokens_name: str, endpoint: Endpoint, dialect: Dialect) -> Json:
        """Return the fields of options, which the caller must not change."""
        last, last_wire, fields = self._last
        wire = (max_tokens_name, endpoint, dialect)
        if last is options and last_wire == wire:
            return fields
        fields = _options(options, max_tokens_name, endpoint, dialect)
        # The caller may change the schemas of its tools.
        if not options.tools:
            self._last = options, wire, fields
        return fields


_OPTIONS = _LastOptions()


def _structured(schema: AnswerSchema, mode: Structured, options: Options, tools: list[Json]) -> Json:
    """Return the fields that ask for an answer that matches a schema."""
    if mode == "prompt":
        return {}
    named: Json = {"name": schema.name, "schema": dict(schema.schema), "strict": schema.strict}
    if mode == "native":
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    function = {"name": answer_tool_name(options), "description": "Give the answer.", "parameters": named["schema"]}
    # With one tool this is the same as its name. Beside other tools, the model may call them first.
    choice = wire_tool_choice(options.tool_choice if tools and options.tool_choice else "required")
    answer = {"type": "function", "function": {**function, "strict": schema.strict}}
    return {"tools": [*tools, answer], "tool_choice": choice}


_SAME_NAMES = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "reasoning_effort")


def _logprobs(logprobs: int, endpoint: Endpoint) -> Json:
    # The completions API has one number for both, and a number of 0 still returns the chosen tokens.
    if endpoint == "completions":
        return {} if logprobs is False else {"logprobs": int(logprobs)}
    if isinstance(logprobs, bool):
        return {"logprobs": logprobs}
    return {"logprobs": True, "top_logprobs": logprobs}


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_type("options.extra['stream_options']", value, "a mapping")
    return cast("Mapping[str, Any]", value)
