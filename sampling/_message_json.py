"""Convert requests and generations to plain JSON and back."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, cast

import attrs

from sampling._arguments import short_repr
from sampling._openai_generation import OpenAIGeneration, ToolCall
from sampling.messages import Generation, Options, Request
from sampling.usage import Usage

__all__ = ["canonical", "digest", "dump_generation", "load_generation", "plain_request"]

_FIELDS = attrs.fields_dict(Generation).keys()
_OPENAI_FIELDS = attrs.fields_dict(OpenAIGeneration).keys() - _FIELDS


def plain_request(request: Request) -> dict[str, Any]:
    """Return the messages and options of a request, without its ids, as JSON values."""
    return {
        "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        "options": _plain_options(request.options),
    }


def _plain_options(options: Options) -> dict[str, Any]:
    # Only None and empty values are left out. A temperature of 0 is kept.
    names = ("model", "temperature", "max_tokens", "seed", "stop", "schema", "extra")
    values = {name: getattr(options, name) for name in names}
    return {name: _plain(name, value) for name, value in values.items() if value is not None and value not in ((), {})}


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value  # 0.0 and 0 are the same temperature
    if isinstance(value, Mapping):
        pairs = cast("Iterable[tuple[Any, Any]]", value.items())
        return {str(key): _plain(f"{name}[{key!r}]", item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in cast("list[Any]", value)]
    schema = getattr(value, "model_json_schema", None)
    if callable(schema):
        return _plain(name, schema())
    raise TypeError(f"{name} must be made of JSON values to be compared with other requests, got {short_repr(value)}")


def canonical(value: object) -> str:
    """Return JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return a hash that is equal for equal JSON values and does not reveal them."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def dump_generation(generation: Generation) -> dict[str, Any]:
    """
    Return a generation as JSON values.

    Fields of an `OpenAIGeneration` are under "openai".
    """
    dumped = {name: getattr(generation, name) for name in _FIELDS} | {"usage": attrs.asdict(generation.usage)}
    if isinstance(generation, OpenAIGeneration):
        whole = attrs.asdict(generation)
        dumped["openai"] = {name: whole[name] for name in sorted(_OPENAI_FIELDS)}
    return dumped


def load_generation(data: object) -> Generation:
    """Return the generation that `dump_generation` dumped. Anything else raises ValueError."""
    fields = _fields(data, "a generation", _FIELDS | {"openai"})
    usage = _fields(fields.pop("usage", {}), "a usage", attrs.fields_dict(Usage).keys())
    openai = fields.pop("openai", None)
    if not all(value is None or isinstance(value, str) for value in fields.values()):
        raise ValueError("a generation has fields of the wrong type")
    try:
        if openai is None:
            return Generation(**fields, usage=Usage(**usage))
        return OpenAIGeneration(**fields, usage=Usage(**usage), **_load_openai_fields(openai))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _load_openai_fields(data: object) -> dict[str, Any]:
    fields = _fields(data, "the OpenAI part of a generation", _OPENAI_FIELDS)
    calls = [_fields(call, "a tool call", attrs.fields_dict(ToolCall).keys()) for call in _list(fields, "tool_calls")]
    choices = _list(fields, "choices")
    single = [fields.get("refusal"), fields.get("response_id")]
    texts = [*choices, *(value for call in calls for value in call.values()), *filter(None, single)]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a generation has fields of the wrong type")
    return fields | {
        "tool_calls": tuple(ToolCall(**call) for call in calls),
        "choices": tuple(choices),
        "logprobs": tuple(_list(fields, "logprobs")),
    }


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
