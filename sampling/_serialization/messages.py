"""Convert requests, messages and generations to plain JSON and back."""

import hashlib
import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, cast

import attrs

from sampling._arguments import short_repr
from sampling.messages import Generation, Message, Request
from sampling.parts import Audio, Content, File, Image, Media, Part, Reasoning, Text, ToolCall, ToolResult
from sampling.tools import Tool
from sampling.usage import Usage

__all__ = [
    "canonical",
    "digest",
    "dump_content",
    "dump_generation",
    "dump_rare_fields",
    "load_content",
    "load_generation",
    "plain_content",
    "plain_request",
]

_FIELDS = attrs.fields_dict(Generation).keys()
_TEXTS = frozenset({"text", "finish_reason", "model", "reasoning", "refusal"})
_LARGE_BYTES = 64 * 1024
"""Media with more bytes than this are described by their digest, where they need not be restored."""

_KINDS: Mapping[str, type[Any]] = {
    "text": Text,
    "image": Image,
    "audio": Audio,
    "file": File,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "reasoning": Reasoning,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_PLAIN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_call": ("id", "name", "arguments"),
    "reasoning": ("text", "signature"),
}


# Requests, to compare them.


def plain_request(request: Request) -> dict[str, Any]:
    """Return the messages and options of a request, without its ids, as JSON values."""
    return {
        "messages": [{"role": message.role, "content": plain_content(message.content)} for message in request.messages],
        "options": {name: plain_option(name, value) for name, value in request.options.given().items()},
    }


def plain_content(content: Content) -> Any:
    """Return a content as JSON values, with digests in place of large media and of URLs that may be signed."""
    return content if isinstance(content, str) else [_plain_part(part) for part in content]


def _plain_part(part: Part) -> dict[str, Any]:
    if isinstance(part, Media):
        return _dump_media(part, by_digest=part.data is None or len(part.data) > _LARGE_BYTES)
    if isinstance(part, ToolResult):
        return {**_dump_part(attrs.evolve(part, content="")), "content": plain_content(part.content)}
    return _dump_part(part)


def plain_option(name: str, value: Any) -> Any:
    """Return the value of an option as JSON values."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value  # 0.0 and 0 are the same temperature
    if isinstance(value, Mapping):
        pairs = cast("Iterable[tuple[Any, Any]]", value.items())
        return {str(key): plain_option(f"{name}[{key!r}]", item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [plain_option(name, item) for item in cast("list[Any]", value)]
    if isinstance(value, Tool):
        # Without its function, which is never sent.
        return {"name": value.name, "description": value.description, "schema": plain_option(name, value.schema)}
    schema = getattr(value, "model_json_schema", None)
    if callable(schema):
        return plain_option(name, schema())
    raise TypeError(f"{name} must be made of JSON values to be compared with other requests, got {short_repr(value)}")


def canonical(value: object) -> str:
    """Return JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return a hash that is equal for equal JSON values and does not reveal them."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


# Contents.


def dump_content(content: Content, known: AbstractSet[str] = frozenset()) -> Any:
    """
    Return a content as JSON values.

    Media are base64, except for those whose digest is in `known`: they are named by it.
    """
    return content if isinstance(content, str) else [_dump_part(part, known) for part in content]


def _dump_part(part: Part, known: AbstractSet[str] = frozenset()) -> dict[str, Any]:
    name = _NAMES.get(type(part)) or next(name for name, kind in _KINDS.items() if isinstance(part, kind))
    if isinstance(part, Media):
        return _dump_media(part, by_digest=part.digest in known)
    if isinstance(part, ToolResult):
        record = {"type": name, "id": part.id, "content": dump_content(part.content, known)}
        return {**record, "is_error": True} if part.is_error else record
    fields = {field: getattr(part, field) for field in _PLAIN_FIELDS[name]}
    return {"type": name, **{field: value for field, value in fields.items() if value is not None}}


def _dump_media(part: Media, *, by_digest: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"type": next(name for name, kind in _KINDS.items() if isinstance(part, kind))}
    if part.media_type is not None:
        record["media_type"] = part.media_type
    if isinstance(part, File) and part.name is not None:
        record["name"] = part.name
    if by_digest:
        return {**record, "sha256": part.digest}
    return {**record, "url": part.url} if part.url is not None else {**record, "data": part.base64()}


def load_content(data: object, known: Mapping[str, Media] | None = None) -> Content:
    """Return the content that `dump_content` dumped. Anything else raises ValueError."""
    if isinstance(data, str):
        return data
    if not isinstance(data, list):
        raise ValueError("not a content")  # noqa: TRY004 - it is data that is wrong, not a caller's argument
    return tuple(_load_part(part, known or {}) for part in cast("list[object]", data))


def _load_part(data: object, known: Mapping[str, Media]) -> Part:
    if not isinstance(data, dict):
        raise ValueError("not a part")  # noqa: TRY004 - it is data that is wrong
    fields = dict(cast("dict[str, Any]", data))
    kind = _KINDS.get(fields.pop("type", ""))
    if kind is None:
        raise ValueError("a part of an unknown type")
    try:
        if issubclass(kind, Media):
            return cast("Part", _load_media(kind, fields, known))
        if kind is ToolResult:
            fields["content"] = load_content(fields.get("content"), known)
        return cast("Part", kind(**fields))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _load_media(kind: type[Media], fields: dict[str, Any], known: Mapping[str, Media]) -> Media:
    sha256 = fields.pop("sha256", None)
    if sha256 is not None:
        if sha256 not in known:
            raise ValueError("a part is named by a digest that nothing here has")
        return known[sha256]
    url, encoded = fields.pop("url", None), fields.pop("data", None)
    if url is not None:
        # Never a path: reading a file of ours must not read another one.
        part = kind(url, **fields)
        if part.url is None:
            raise ValueError("a part with an invalid URL")
        return part
    try:
        return kind(b64decode(encoded, validate=True), **fields)
    except Base64Error:
        raise ValueError("a part with invalid base64") from None


# Generations.


def dump_generation(generation: Generation) -> dict[str, Any]:
    """
    Return a generation as JSON values.

    `raw` is left out if it is not made of JSON values.
    """
    dumped = {name: getattr(generation, name) for name in ("text", "finish_reason", "model", "reasoning")}
    dumped["usage"] = attrs.asdict(generation.usage)
    return {**dumped, **dump_rare_fields(generation)}


def dump_rare_fields(generation: Generation) -> dict[str, Any]:
    """Return the fields that most generations do not have, as JSON values."""
    dumped: dict[str, Any] = {}
    if generation.refusal is not None:
        dumped["refusal"] = generation.refusal
    if generation.tool_calls or generation.thoughts:
        dumped["tool_calls"] = dump_content(generation.tool_calls)
        dumped["thoughts"] = dump_content(generation.thoughts)
    if generation.turns:
        dumped["turns"] = [{"role": turn.role, "content": dump_content(turn.content)} for turn in generation.turns]
    if generation.logprobs != () and _is_json(generation.logprobs):
        dumped["logprobs"] = generation.logprobs
    if generation.raw is not None and _is_json(generation.raw):
        dumped["raw"] = generation.raw
    return dumped


def _is_json(value: object) -> bool:
    try:
        canonical(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def load_generation(data: object) -> Generation:
    """Return the generation that `dump_generation` dumped. Anything else raises ValueError."""
    fields = _fields(data, "a generation", _FIELDS | {"openai"})
    usage = _fields(fields.pop("usage", {}), "a usage", attrs.fields_dict(Usage).keys())
    # Written by version 0.1, under the names of the OpenAI API.
    openai = _fields(fields.pop("openai", {}), "the OpenAI part of a generation", _OLD_FIELDS)
    if "response_id" in openai:
        openai["raw"] = {"id": openai.pop("response_id")}
    if not all(isinstance(choice, str) for choice in _list(openai, "choices")):
        raise ValueError("a generation has fields of the wrong type")
    openai.pop("choices", None)
    calls = [{"type": "tool_call", **_fields(call, "a tool call", _CALL)} for call in _list(openai, "tool_calls")]
    fields = {**openai, "tool_calls": calls, **fields}
    if not all(value is None or isinstance(value, str) for name, value in fields.items() if name in _TEXTS):
        raise ValueError("a generation has fields of the wrong type")
    for name in ("tool_calls", "thoughts"):
        fields[name] = load_content(_list(fields, name))
    loaded: dict[str, Any] = {
        **fields,
        "logprobs": tuple(_list(fields, "logprobs")),
        "turns": _load_turns(fields),
    }
    try:
        return Generation(**loaded, usage=Usage(**usage))
    except TypeError as error:
        raise ValueError(str(error)) from None


_OLD_FIELDS = frozenset({"tool_calls", "refusal", "logprobs", "choices", "response_id"})
_CALL = frozenset({"id", "name", "arguments"})


def _load_turns(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    turns = [_fields(turn, "a turn", frozenset({"role", "content"})) for turn in _list(fields, "turns")]
    return tuple(Message(turn.get("role", ""), load_content(turn.get("content"))) for turn in turns)


def _fields(data: object, what: str, known: AbstractSet[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"not {what}")  # noqa: TRY004 - it is data that is wrong, not a caller's argument
    fields = dict(cast("dict[str, Any]", data))
    if not fields.keys() <= known:
        raise ValueError(f"{what} has unknown fields")
    return fields


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value: object = fields.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")  # noqa: TRY004 - it is data that is wrong
    return list(cast("Iterable[Any]", value))
