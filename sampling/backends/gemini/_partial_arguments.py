"""Put the arguments of a tool call together that Vertex streams in pieces, each with the path of its place."""

import re
from itertools import pairwise
from typing import Any

from sampling.backends.http._fields import Json, list_of_objects, optional
from sampling.errors import MalformedResponse

__all__ = ["add_arguments"]

# The part of JSONPath (RFC 9535) that names one place: $.orders[0]['unit price'].
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+)|\[(?P<index>\d{1,6})\]|\['(?P<single>[^']*)'\]|\["(?P<double>[^"]*)"\]"""
)
_VALUES = ("stringValue", "numberValue", "boolValue")


def add_arguments(arguments: Json, call: Json) -> None:
    """Add the pieces in a `functionCall` to arguments. Texts of the same place are joined."""
    for piece in list_of_objects(call, "partialArgs"):
        place: Any = arguments
        steps = _steps(optional(piece, "jsonPath", str) or "")
        for step, following in pairwise(steps):
            place = _inner(place, step, [] if isinstance(following, int) else {})
        value: Any = next((piece[name] for name in _VALUES if piece.get(name) is not None), None)
        before = _inner(place, steps[-1], "" if isinstance(value, str) else None)
        place[steps[-1]] = before + value if isinstance(value, str) and isinstance(before, str) else value


def _steps(path: str) -> list[str | int]:
    found = list(_STEP.finditer(path, 1))
    if not path.startswith("$") or not found or "".join([step[0] for step in found]) != path[1:]:
        raise MalformedResponse(f"the path {path[:100]!r} of an argument is not one of a place")
    return [
        int(step["index"]) if step["index"] else step["name"] or step["single"] or step["double"] or ""
        for step in found
    ]


def _inner(place: Any, step: str | int, default: Any) -> Any:
    """Return what is at a place, after it was set to a default if nothing is there."""
    inside: Any = place
    if isinstance(step, str) and isinstance(place, dict):
        return inside.setdefault(step, default)
    if isinstance(step, int) and isinstance(place, list) and step <= len(inside):
        if step == len(inside):
            inside.append(default)
        return inside[step]
    raise MalformedResponse(f"the pieces of an argument do not fit together, at {step!r}")
