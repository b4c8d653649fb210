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
"""The largest count in a row of a journal. As a float, it is exact."""

_DEEPEST: Final = 20
_MAX_PARTS: Final = 200_000
"""The largest number of parts of a value. One whose parts contain each other would have any number of them."""

_MAX_NOTES: Final = 20
"""The largest number of notes on one value. An array may have a million numbers that are not finite."""

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
        text = _encode({name: _converted(value, f"record.{name}", notes) for name, value in others.items()})
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


def storable(value: Any, name: str, notes: list[str]) -> Any:
    """Convert a value to JSON values, with a note about each part that is not stored exactly. It never fails."""
    try:
        return _converted(value, name, notes)
    except _TooManyPartsError:
        notes.append(f"{name} has more than {_MAX_PARTS:,} parts, and is not stored")
        return None


def _converted(value: Any, name: str, notes: list[str]) -> Any:
    """Convert a value to JSON values. Raise an error if it has too many parts."""
    conversion = _Conversion()
    stored = conversion.convert(value, name)
    notes += conversion.notes
    if conversion.unnoted:
        notes.append(f"{conversion.unnoted:,} more parts of {name} are not stored exactly")
    return stored


class _TooManyPartsError(Exception):
    """Raised to give up a value."""


class _Conversion:
    """The conversion of one value to JSON values."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.unnoted = 0
        """The number of notes that were left out."""

        self._parts = 0
        self._around: list[int] = []
        """The containers around the current part, by id."""

    def _note(self, text: str) -> None:
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(text)
        else:
            self.unnoted += 1

    def convert(self, value: Any, name: str) -> Any:
        """Return a part of the value as JSON values."""
        if value is None or value is True or value is False:
            return value
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise _TooManyPartsError
        try:
            return self._convert(value, name)
        except _TooManyPartsError:
            raise
        except Exception as error:  # noqa: BLE001 - the value is the user's, and may raise anything
            self._note(f"{name} raises {type(error).__name__}, and is not stored")
            return None

    def _convert(self, value: Any, name: str) -> Any:
        # By the methods of the plain types: `str` of an enum member is its name, and others may raise anything.
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return self._integer(int.__int__(value), name)
        if isinstance(value, float):
            return self._float(float.__float__(value), name)
        if id(value) in self._around:
            self._note(f"{name} contains itself, and is not stored again")
            return None
        if len(self._around) < _DEEPEST:
            self._around.append(id(value))
            try:
                nested = self._nested(value, name)
            finally:
                self._around.pop()
            if nested is not value:
                return nested
        kind = type(value).__qualname__
        self._note(f"{name} of type {kind} is stored as text")
        # The repr of a container may be as endless as its parts.
        return f"<{kind}>" if isinstance(value, _CONTAINERS) else short_repr(value)

    def _integer(self, value: int, name: str) -> int | None:
        if abs(value) <= MAX_INTEGER:
            return value
        self._note(f"{name} is too large, and is not stored")
        return None

    def _float(self, value: float, name: str) -> float | None:
        if math.isfinite(value):
            return value
        self._note(f"{name} is {value!r}, and is not stored")
        return None

    def _nested(self, value: Any, name: str) -> Any:
        """Return a container or an array as JSON values, and anything else as it is."""
        if isinstance(value, Mapping):
            return self._mapping(list(cast("Iterable[tuple[Any, Any]]", value.items())), name)
        if isinstance(value, list | tuple):
            items = cast("Iterable[Any]", value)
            return [self.convert(item, f"{name}[{place}]") for place, item in enumerate(items)]
        if isinstance(value, AbstractSet):
            self._note(f"{name} is stored as a list")
            return self._nested(_ordered(cast("Iterable[Any]", value)), name)
        plain = _from_object(value)
        if plain is not value:
            return self._nested(plain, name) if isinstance(plain, Mapping) else self.convert(plain, name)
        plain = _from_array(value)
        if plain is value:
            return value
        self._note(f"{name} of type {type(value).__qualname__} is stored as plain numbers")
        return self.convert(plain, name)

    def _mapping(self, pairs: list[tuple[Any, Any]], name: str) -> dict[str, Any]:
        named = [(_name_of(key), item) for key, item in pairs]
        if not all(key is None or isinstance(key, _KEYS) for key, _ in pairs):
            self._note(f"keys of {name} are stored as text")
        stored = {key: self.convert(item, f"{name}.{key}") for key, item in named}
        if len(stored) < len(pairs):
            self._note(f"{name} has several keys with the same text, and only the last of them is stored")
        return stored


_CONTAINERS: Final = (Mapping, list, tuple, AbstractSet)
_KEYS: Final = (str, int, float)
"""Types of keys that are text in every JSON."""


def _ordered(members: Iterable[Any]) -> list[Any]:
    """Return the members of a set in the order of their texts, as far as they have any."""
    members = list(members)
    try:
        return sorted(members, key=repr)
    except Exception:  # noqa: BLE001 - user code may raise anything
        return members


def _name_of(key: Any) -> str:
    """Return a key of a mapping as text."""
    return str.__str__(key) if isinstance(key, str) else str(key)


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
            return attrs.asdict(value, recurse=False)
        if dataclasses.is_dataclass(kind):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    except Exception:  # noqa: BLE001 - user code may raise anything
        return value
    return value


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
