"""Check the schema and the types of stored JSON."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sampling._arguments import short_repr

__all__ = ["build", "check_schema"]

T = TypeVar("T")

_MOST = 10**300
"""Larger numbers are damage, and can't be divided."""


def check_schema(found: Mapping[str, Any], schema: str, kind: str) -> None:
    """
    Raise `ValueError` unless an object has this schema.

    `kind` names the expected object in the message.
    """
    if found.get("schema") != schema:
        raise ValueError(f"can't read this as a {kind}: schema must be {schema!r}, got {found.get('schema')!r}")


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """
    Make an object of values from a file. Raise `ValueError` if one has another type than the class says.

    A wrong type would only be found later, in the middle of a table or a page.
    """
    hints = _hints(kind)
    for name, value in values.items():
        if name in hints and not _matches(value, hints[name]):
            raise ValueError(f"{name} must be {_describe(hints[name])}, got {short_repr(value)}")
    return kind(**values)


_known_hints: dict[type, Mapping[str, Any]] = {}


def _hints(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a class. They are kept, because a report has hundreds of summaries."""
    if kind not in _known_hints:
        _known_hints[kind] = get_type_hints(kind)
    return _known_hints[kind]


def _matches(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_matches(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return _matches_tuple(value, arguments)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _matches(each, arguments[1]) for each in cast("Mapping[str, Any]", value).values()
        )
    if hint in (int, float):
        return _is_number(value, (int,) if hint is int else (int, float))
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _matches_tuple(value: object, arguments: Sequence[Any]) -> bool:
    if not isinstance(value, list | tuple):
        return False
    items = cast("Sequence[Any]", value)
    if arguments[-1] is Ellipsis:
        return all(_matches(item, arguments[0]) for item in items)
    return len(items) == len(arguments) and all(map(_matches, items, arguments))


def _is_number(value: object, kinds: tuple[type, ...]) -> bool:
    # True is an int for Python, and NaN is within no bounds.
    return isinstance(value, kinds) and not isinstance(value, bool) and -_MOST < cast("float", value) < _MOST


def _describe(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace("collections.abc.", "")
