"""Assemble the tool calls of a stream."""

import json
from typing import Any

import attrs

from sampling._json.bounded import loads
from sampling.backends.http._fields import Json, object_or_none, optional, required
from sampling.parts import ToolCall

__all__ = ["ToolCallAssembler"]


@attrs.define
class _PartialCall:
    index: int | None
    id: str
    name: str
    arguments: str


class ToolCallAssembler:
    """
    Assembles tool calls from their pieces.

    OpenAI gives every call an index, and splits it over many chunks. Gemini sends each call whole, with no index
    or always with index 0. vLLM repeats the id in every chunk.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []

    def add(self, given: Json) -> None:
        """Add one item of `tool_calls`."""
        function = object_or_none(given, "function") or {}
        index = optional(given, "index", int)
        call_id = optional(given, "id", str) or ""
        name = optional(function, "name", str) or ""
        arguments = _arguments(function.get("arguments"))
        call = self._find(index)
        if call is None or _begins_another(call, index, call_id, name):
            self._calls.append(_PartialCall(index, call_id, name, arguments))
            return
        call.id = call.id or call_id
        # Some servers repeat the whole name in every chunk. OpenAI sends it once.
        call.name += "" if call.name == name else name
        call.arguments += arguments

    def _find(self, index: int | None) -> _PartialCall | None:
        """Return the call that a piece with this index may continue."""
        if index is None:
            return self._calls[-1] if self._calls else None
        # From the end: if an index is used again, the piece continues the last call with it.
        return next((call for call in reversed(self._calls) if call.index == index), None)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in order. A call without an id gets one, which its result can refer to."""
        ordered = self._calls
        if all(call.index is not None for call in ordered):
            ordered = sorted(ordered, key=lambda call: call.index or 0)
        return tuple(
            [ToolCall(call.id or f"call_{number}", call.name, call.arguments) for number, call in enumerate(ordered)]
        )

    def __bool__(self) -> bool:
        return bool(self._calls)


def _begins_another(call: _PartialCall, index: int | None, call_id: str, name: str) -> bool:
    """Return whether a piece begins another call, although its index is that of an earlier one."""
    if not name:
        return False
    if index is None or (call_id and call.id and call_id != call.id):
        return True
    return not (call_id and call_id == call.id) and _is_whole(call.arguments)


def _is_whole(arguments: str) -> bool:
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        loads(arguments)
    except ValueError:
        return False
    return True


def _arguments(given: Any) -> str:
    """Return the arguments as JSON text. Some servers send them as an object."""
    if given is None:
        return ""
    if isinstance(given, dict):
        return json.dumps(given, ensure_ascii=False)
    return required("arguments", given, str)
