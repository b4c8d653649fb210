"""Turn any value into JSON that can be stored and read back."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import attrs

from sampling._arguments import short_repr
from sampling._json import bounded as bounded_json

__all__ = [
    "MAX_INTEGER",
    "MAX_NUMBER",
    "dump_value",
    "encode",
    "encode_number",
    "encode_object",
    "encode_record",
    "encode_text",
    "readable",
    "storable",
    "storable_numbers",
]

MAX_NUMBER: Final = 10**15
"""The largest count in a row. SQLite can add up thousands of them."""

_DEEPEST: Final = 20
MAX_INTEGER: Final = 2**900 - 1
"""The largest integer that is stored. Those of more than 300 digits are not read back."""

# The digits before it are excluded, so that a long run of digits is tried once, and not from each of its digits.
_LONG_NUMBER: Final = re.compile(rf"(?<!\d)\d{{{bounded_json.MAX_INT_DIGITS + 1}}}", re.ASCII)
"""A number that is not read back, or as many digits in a text."""

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# A value that contains itself raises RecursionError, and is then made storable. Looking for it costs half the time.
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def encode(record: Mapping[str, Any], notes: list[str]) -> str:
    """
    Return a record as one line of ASCII JSON.

    What JSON can't hold is replaced, and a note about it is added to `notes`. The record has all notes.
    """
    return encode_record("", record, notes)


def encode_record(encoded: str, others: Mapping[str, Any], notes: list[str]) -> str:
    """Return a record with fields that are JSON already, and with others. See `encode`."""
    text = encode_object(encoded, others, notes)
    if notes:
        text = encode_object(text[1:-1], {"notes": notes}, [])
    # In a short text there are never too many brackets.
    return text if len(text) <= bounded_json.MAX_BRACKETS else _escape_brackets(text)


encode_text: Final = json.encoder.encode_basestring_ascii
"""Return a str as JSON."""


def encode_number(number: float, notes: list[str]) -> str:
    """Return a number as JSON."""
    # Not `repr` of every number: those of NumPy have another one, those of True and NaN are not JSON, and an integer
    # may have too many digits.
    if type(number) in _PLAIN_NUMBERS and _MIN_NUMBER <= number <= MAX_NUMBER:
        return repr(number)
    return _encode(storable(number, "number", notes))


_PLAIN_NUMBERS: Final = frozenset({int, float})
_MIN_NUMBER: Final = -MAX_NUMBER


def encode_object(encoded: str, others: Mapping[str, Any], notes: list[str]) -> str:
    """
    Return an object with fields that are JSON already, and with others.

    What JSON can't hold is replaced, and a note about it is added to `notes`.
    """
    if not others:
        return f"{{{encoded}}}"
    try:
        text = _encode(others)
        is_exact = len(text) <= bounded_json.MAX_INT_DIGITS or not _LONG_NUMBER.search(text) or _is_read(text)
    except (TypeError, ValueError, OverflowError, RecursionError):
        is_exact, text = False, ""
    if not is_exact:
        text = _encode(storable(others, "record", notes))
    return f"{{{encoded},{text[1:]}" if encoded else text


def _escape_brackets(text: str) -> str:
    """Escape brackets in strings, if there are so many in all that the text would not be read back."""
    if text.count("[") + text.count("{") <= bounded_json.MAX_BRACKETS:
        return text
    return _STRING.sub(lambda match: match[0].replace("[", "\\u005b").replace("{", "\\u007b"), text)


def readable(text: str) -> bool:
    """Return whether a record can be read back."""
    return text.count("[") + text.count("{") <= bounded_json.MAX_DEPTH or _is_read(text)


def _is_read(text: str) -> bool:
    try:
        bounded_json.loads(text)
    except ValueError:
        return False
    return True


def storable(value: Any, name: str, notes: list[str], depth: int = 0) -> Any:
    """Convert a value to JSON values, with a note about each part that is not stored exactly."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return _number(value, name, notes)
    nested = value if depth >= _DEEPEST else _nested(value, name, notes, depth + 1)
    if nested is not value:
        return nested
    notes.append(f"{name} of type {type(value).__qualname__} is stored as text")
    return short_repr(value)


def _nested(value: Any, name: str, notes: list[str], depth: int) -> Any:
    """Return a container or an array as JSON values, and anything else as it is."""
    if isinstance(value, Mapping):
        pairs = list(cast("Iterable[tuple[Any, Any]]", value.items()))
        stored = {str(key): storable(item, f"{name}.{key}", notes, depth) for key, item in pairs}
        if len(stored) < len(pairs):
            notes.append(f"{name} has several keys with the same text, and only the last of them is stored")
        return stored
    if isinstance(value, list | tuple):
        items = cast("Iterable[Any]", value)
        return [storable(item, f"{name}[{place}]", notes, depth) for place, item in enumerate(items)]
    if isinstance(value, AbstractSet):
        notes.append(f"{name} is stored as a list")
        return _nested(sorted(cast("Iterable[Any]", value), key=repr), name, notes, depth)
    plain = _from_object(value)
    if plain is not value:
        return storable(plain, name, notes, depth)
    plain = _from_array(value)
    if plain is value:
        return value
    notes.append(f"{name} of type {type(value).__qualname__} is stored as plain numbers")
    return storable(plain, name, notes, depth)


def dump_value(value: Any, notes: list[str], name: str = "value") -> Any:
    """Return a parsed value as JSON values."""
    stored: Any = storable(value, name, notes)
    if type(stored) in {dict, list} and not readable(encode({"value": stored}, [])):
        notes.append(f"{name} is nested too deeply, and is not stored")
        return None
    return stored


def _from_object(value: Any) -> Any:
    """Return a pydantic, attrs or dataclass object as a dict, and anything else as it is."""
    kind: type[Any] = value.__class__
    try:
        dump: Any = getattr(kind, "model_dump", None)
        if callable(dump):
            return dump(value, mode="json")
        if attrs.has(kind):
            return attrs.asdict(value)
        return dataclasses.asdict(value) if dataclasses.is_dataclass(kind) else value
    except Exception:  # noqa: BLE001 - user code may raise anything
        return value


def _number(value: float, name: str, notes: list[str]) -> float | None:
    if isinstance(value, int):
        if abs(value) <= MAX_INTEGER:
            return int(value)
        notes.append(f"{name} is too large, and is not stored")
        return None
    if math.isfinite(value):
        return float(value)
    notes.append(f"{name} is {float(value)!r}, and is not stored")
    return None


def _from_array(value: Any) -> Any:
    """Convert numbers and arrays of NumPy, PyTorch and the like to plain numbers."""
    to_list: Callable[[], Any] | None = getattr(value, "tolist", None)
    if not callable(to_list):
        return value
    try:
        return to_list()
    except Exception:  # noqa: BLE001 - user code may raise anything
        return value


def storable_numbers(names: Sequence[str], values: Sequence[int], notes: list[str]) -> Sequence[int]:
    """Return counts that SQLite can store and add up. The names are for the notes."""
    return [_storable_number(value, name, notes) for name, value in zip(names, values, strict=True)]


def _storable_number(value: int, name: str, notes: list[str]) -> int:
    if value <= MAX_NUMBER:
        return value
    notes.append(f"{name} is {short_repr(value)}, and is stored as {MAX_NUMBER:,}")
    return MAX_NUMBER
