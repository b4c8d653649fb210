"""Convert a `Request` into the JSON of the OpenAI API."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeAlias, cast

from sampling._arguments import wrong_type
from sampling.errors import BadRequest, RequestTooLarge
from sampling.messages import Message, Options, Request

__all__ = ["Endpoint", "encode_body"]

Endpoint: TypeAlias = Literal["chat", "completions"]
"""The API to use: chat takes a conversation, completions continues a text."""

_RESERVED = frozenset({"messages", "prompt", "stream"})

Json: TypeAlias = dict[str, Any]


def encode_body(
    request: Request,
    *,
    model: str | None,
    endpoint: Endpoint,
    max_tokens_name: str,
    include_usage: bool,
    max_bytes: int,
) -> bytes:
    """Return the body of the POST for a request."""
    options = request.options
    body: Json = {"model": _model(options.model or model), **_messages_or_prompt(request.messages, endpoint)}
    body.update(_options(options, max_tokens_name))
    if reserved := _RESERVED & options.extra.keys():
        raise BadRequest(
            f"options.extra sets {', '.join(sorted(reserved))}, which the backend sets itself",
            hint="Remove them: the messages come from the request, and every request is streamed so that it can stop.",
        )
    body.update(options.extra)
    body["stream"] = True
    if include_usage:
        body["stream_options"] = {"include_usage": True, **_mapping(options.extra.get("stream_options"))}
    return _to_json(body, max_bytes)


def _model(model: str | None) -> str:
    if model is None:
        raise BadRequest(
            "no model was given",
            hint="Pass model=… to the backend or in Options, or set OPENAI_MODEL. A server with one model accepts any.",
        )
    return model


def _messages_or_prompt(messages: Sequence[Message], endpoint: Endpoint) -> Json:
    if endpoint == "chat":
        return {"messages": [{"role": message.role, "content": message.content} for message in messages]}
    return {"prompt": "\n\n".join(message.content for message in messages)}


def _options(options: Options, max_tokens_name: str) -> Json:
    chosen: Json = {
        "temperature": options.temperature,
        max_tokens_name: options.max_tokens,
        "seed": options.seed,
        "stop": list(options.stop) or None,
        "response_format": None if options.schema is None else _response_format(options.schema),
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_type("options.extra['stream_options']", value, "a mapping")
    return cast("Mapping[str, Any]", value)


def _to_json(body: Json, max_bytes: int) -> bytes:
    try:
        data = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict).encode()
    except UnicodeEncodeError:
        raise BadRequest("the request contains half of a surrogate pair, which can't be sent as UTF-8") from None
    except (TypeError, ValueError, RecursionError) as error:
        # Without the message of the error, which may quote the request.
        raise BadRequest(f"options.extra or options.schema is not JSON ({type(error).__name__})") from None
    if len(data) > max_bytes:
        raise RequestTooLarge(f"the request has {len(data):,} bytes, more than max_request_bytes={max_bytes:,}")
    return data


# Schemas.


def _response_format(schema: object) -> Json:
    """Return the response_format for a JSON schema (a dict) or a pydantic model class."""
    if isinstance(schema, Mapping):
        given = cast("Mapping[str, Any]", schema)
        return _json_schema(str(given.get("title") or "answer"), dict(given))
    if isinstance(schema, type) and callable(make := getattr(schema, "model_json_schema", None)):
        # The class ignores unknown fields, so forbidding them loses no answer, and OpenAI's strict mode requires it.
        return _json_schema(schema.__name__, _close_objects(deepcopy(make())))
    raise wrong_type("options.schema", schema, "a JSON schema (a dict) or a pydantic model class")


def _json_schema(name: str, schema: Json) -> Json:
    safe_name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)[:64]
    named: Json = {"name": safe_name, "schema": schema, "strict": _is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


def _is_strict(schema: object) -> bool:
    """Return whether OpenAI's strict mode accepts a schema: all objects closed, all properties required."""
    if isinstance(schema, list):
        return all(_is_strict(item) for item in cast("list[object]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("Json", schema)
    if isinstance(node.get("properties"), dict):
        properties = cast("Json", node["properties"])
        if node.get("additionalProperties") is not False or properties.keys() != set(node.get("required", ())):
            return False
    return all(_is_strict(value) for value in node.values())


def _close_objects(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close_objects(item) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node: Json = {name: _close_objects(value) for name, value in cast("Json", schema).items()}
    if isinstance(node.get("properties"), dict):
        node.setdefault("additionalProperties", False)
    return node
