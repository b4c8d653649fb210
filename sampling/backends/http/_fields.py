"""Read fields of a response, and name the field whose type is wrong."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from sampling.errors import MalformedResponse

__all__ = ["MAX_TOKENS", "Json", "list_of_objects", "object_or_none", "optional", "required", "token_count"]

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]

MAX_TOKENS = 1_000_000_000
"""The highest token count that is believed. Higher ones are ignored."""


def optional(fields: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Return an optional field, or raise an error that names it if its type is wrong."""
    value = fields.get(name)
    # The same as `required`, for the many fields of many chunks.
    if value is None or type(value) is kind:
        return value
    return required(name, value, kind)


def required(name: str, value: object, kind: type[T]) -> T:
    """Return a value of this type, or raise an error that names it."""
    # type() and not isinstance, because a bool is not a valid index.
    if type(value) is not kind:
        raise MalformedResponse(f"{name} in a chunk is of type {type(value).__name__}, not {kind.__name__}")
    return value


def object_or_none(fields: Mapping[str, Any], name: str) -> Json | None:
    """Return an optional field that holds an object."""
    value: Json | None = fields.get(name)
    # Not `optional`, which every chunk would call several times.
    if value is not None and type(value) is not dict:
        required(name, value, dict)
    return value


def list_of_objects(fields: Mapping[str, Any], name: str) -> list[Json]:
    """Return an optional field that holds a list of objects."""
    items: list[Json] | None = fields.get(name)
    if items is None:
        return []
    if type(items) is not list:
        required(name, items, list)
    for item in items:
        if type(item) is not dict:
            required(f"an item of {name}", item, dict)
    return items


def token_count(value: object) -> int | None:
    """Return a token count, or None if it is implausible."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
