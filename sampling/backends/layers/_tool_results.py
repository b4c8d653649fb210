"""Convert what a tool returns into the content of a message."""

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import date, time
from enum import Enum
from typing import Any, cast

import attrs

from sampling.parts import Media, Text, ToolResult

__all__ = ["as_result"]


def as_result(call_id: str, returned: object) -> ToolResult:
    """
    Return the result of a call.

    Text and parts are sent unchanged, and everything else as JSON. Raise a TypeError or ValueError for anything that
    can't be sent.
    """
    if isinstance(returned, ToolResult):
        # The tool can't know the id of its call.
        return attrs.evolve(returned, id=call_id)
    if isinstance(returned, str):
        return ToolResult(call_id, returned)
    parts = [returned] if isinstance(returned, Text | Media) else returned
    if isinstance(parts, list | tuple) and parts and any(isinstance(part, Text | Media) for part in cast("Any", parts)):
        return ToolResult(call_id, cast("Any", parts))
    try:
        return ToolResult(call_id, _as_json(returned))
    except RecursionError:
        raise ValueError("it returned a value that is nested too deeply") from None


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except TypeError:
        # Keys that JSON does not have, such as dates, are rare, and a copy is slow.
        return json.dumps(_with_text_keys(value), ensure_ascii=False)


def _with_text_keys(value: object) -> object:
    """Convert a value to JSON values, with text as keys."""
    if isinstance(value, Mapping):
        return {_key(key): _with_text_keys(inner) for key, inner in cast("Any", value).items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in cast("Any", value)]
    return value if value is None or isinstance(value, str | int | float) else _with_text_keys(_plain(value))


def _key(key: object) -> str:
    plain = _plain(key) if isinstance(key, Enum | date | time | bytes | Media) else key
    return plain if isinstance(plain, str) else str(plain)


def _plain(value: Any) -> object:
    """Convert a value that JSON can't encode to one that it can."""
    if isinstance(value, Media | bytes | bytearray):
        return _text_of_bytes(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(cast("Any", value), key=str)
    if isinstance(value, Iterator | AsyncIterator):
        # Not read here, where it would block the event loop, perhaps forever.
        kind = type(cast("object", value)).__name__
        raise TypeError(f"it returned a {kind}, which is not JSON: return a list")
    return _fields_of(value)


def _fields_of(value: Any) -> object:
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if callable(as_list := getattr(value, "tolist", None)):
        # Numbers and arrays of NumPy.
        return as_list()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(cast("Any", value))
    if attrs.has(cast("Any", type(value))):
        return attrs.asdict(value, recurse=False)
    return str(value)


def _text_of_bytes(value: Media | bytes | bytearray) -> str:
    """Return bytes as text, or raise, because a model can't read binary data."""
    if isinstance(value, Media):
        raise TypeError(f"it returned {type(value).__name__} inside of something else: return it alone, or in a list")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise TypeError("it returned bytes that are not text: return an Image, Audio, File or text") from None
