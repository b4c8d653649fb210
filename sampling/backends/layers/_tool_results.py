"""Convert what a tool returns into the content of a message."""

import dataclasses
import json
from typing import Any, cast

import attrs

from sampling.parts import Media, Text, ToolResult

__all__ = ["as_result"]


def as_result(call_id: str, returned: object) -> ToolResult:
    """
    Return the result of a call.

    A text and parts are sent as they are, and everything else as JSON.
    """
    if isinstance(returned, str):
        return ToolResult(call_id, returned)
    parts = [returned] if isinstance(returned, Text | Media) else returned
    if isinstance(parts, list | tuple) and parts and any(isinstance(part, Text | Media) for part in cast("Any", parts)):
        return ToolResult(call_id, cast("Any", parts))
    return ToolResult(call_id, json.dumps(returned, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> object:
    """Return a value that JSON has, for one that it does not have."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if attrs.has(cast("Any", type(value))):
        return attrs.asdict(value, recurse=False)
    if isinstance(value, set | frozenset):
        return sorted(cast("Any", value), key=str)
    return str(value)
