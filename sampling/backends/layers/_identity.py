"""Describe which model a backend answers with, so that a cache can tell models apart."""

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from os import PathLike
from types import CodeType
from typing import Any, cast

__all__ = ["identity_of"]

_DEEPEST = 8
_HOW_TO_REACH_IT = re.compile("key|token|secret|password|header|base|url|timeout|retries", re.IGNORECASE)
_MODEL_NAMES = ("model", "model_name", "model_id", "_model")
"""The attributes in which libraries keep the name of their model."""


def identity_of(backend: object) -> list[str]:
    """
    Return the identity of the model that a backend answers with.

    It is the `fingerprint` of the backend if it has one, a str or a function that returns one.
    Else it is its class and its `model`, or the name, code and bound values of a function.
    A layer has the identity of the backends that it wraps, because retries and limits do not change answers.
    The address of a server does not count.
    """
    return list(_parts(backend, 0))


def _parts(backend: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    fingerprint = getattr(backend, "fingerprint", None)
    if fingerprint is not None:
        yield str(fingerprint() if callable(fingerprint) else fingerprint)
    elif isinstance(inner := getattr(backend, "inner", None), tuple):
        for one in inner:  # pyright: ignore[reportUnknownVariableType]
            yield from _parts(one, depth + 1)
    elif isinstance(backend, functools.partial):
        yield from _parts(backend.func, depth + 1)
        yield from _values([*backend.args, *backend.keywords.items()], depth)
    elif isinstance(code := getattr(getattr(backend, "__func__", backend), "__code__", None), CodeType):
        yield from _function(backend, code, depth)
    else:
        yield _name(type(backend))
        yield from _values([getattr(backend, name, None) for name in _MODEL_NAMES], depth)


def _function(function: Any, code: CodeType, depth: int) -> Iterator[str]:
    yield _name(function)
    yield _digest(code)
    plain = getattr(function, "__func__", function)
    cells = [_content(cell) for cell in plain.__closure__ or ()]
    yield from _values([*cells, *(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).items()], depth)
    bound = getattr(function, "__self__", None)
    if bound is not None:
        yield from _parts(bound, depth + 1)


def _values(values: list[Any], depth: int) -> Iterator[str]:
    """Yield the values that have the same text in every process. Others can't be told apart."""
    for value in values:
        if isinstance(value, str | int | float | bool | bytes | PathLike):
            yield str(cast("object", value))
        elif isinstance(value, list | tuple | Mapping):
            yield from _values(_items(value), depth + 1)
        elif value is not None and depth < _DEEPEST and _may_answer(value):
            yield from _parts(value, depth + 1)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        # Another key or address of the same model gives the same answers.
        return [pair for pair in cast("Mapping[str, Any]", value).items() if not _HOW_TO_REACH_IT.search(str(pair[0]))]
    return list(value)


def _may_answer(value: object) -> bool:
    return callable(value) or any(hasattr(value, name) for name in _MODEL_NAMES)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # The cell is empty until its variable is assigned.
        return None


@lru_cache(maxsize=1024)
def _digest(code: CodeType) -> str:
    constants = [_digest(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    # Sorted, because the order of a frozenset differs between processes.
    described = repr([code.co_code, code.co_names, ["".join(sorted(one)) for one in constants]])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
