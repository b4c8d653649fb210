"""Read fields of untrusted JSON, with errors that say where the data is wrong."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

from sampling._arguments import short_repr

__all__ = ["Fields", "wrong_data"]

T = TypeVar("T")

_NO_DEFAULT: Final[Any] = object()


def wrong_data(where: str, problem: str) -> ValueError:
    """Build the error for data that `to_dict` did not write."""
    return ValueError(f"this is not a result of to_dict(): {where} {problem}")


class Fields:
    """The fields of one object in the data."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise wrong_data(where, f"must be an object, got {short_repr(data)}")
        self._data = cast("dict[str, Any]", data)
        self._where = where

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def path(self, name: str) -> str:
        """Return the place of a field, for messages."""
        return f"{self._where}.{name}"

    def raw(self, name: str) -> Any:
        """Return a field as it is, None if it is missing."""
        return self._data.get(name)

    def read(self, name: str, build: Callable[[Any], T]) -> T:
        """Return a field as `build` reads it. Whatever it raises means that the data is wrong."""
        try:
            return build(self._data.get(name))
        except (TypeError, ValueError, KeyError, RecursionError, OverflowError) as error:
            raise wrong_data(self.path(name), f"can't be read: {short_repr(str(error))}") from None

    def text(self, name: str, default: str | None = _NO_DEFAULT, *, among: Iterable[str] = ()) -> Any:
        value = self._get(name, default)
        if value is default:
            return value
        allowed = tuple(among)
        if not isinstance(value, str) or (allowed and value not in allowed):
            expected = f"one of {', '.join(allowed)}" if allowed else "a text"
            raise self._wrong(name, expected, value)
        return value

    def flag(self, name: str, default: bool = _NO_DEFAULT) -> bool:  # noqa: FBT001 - as the others
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: int | None = _NO_DEFAULT, *, least: int = 0, below: int | None = None) -> Any:
        value = self._get(name, default)
        if value is default:
            return value
        if type(value) is not int or value < least or (below is not None and value >= below):
            most = "" if below is None else f" and less than {below}"
            raise self._wrong(name, f"an integer of at least {least}{most}", value)
        return value

    def number(self, name: str, default: float | None = _NO_DEFAULT) -> Any:
        value = self._get(name, default)
        if value is default:
            return value
        if type(value) not in {int, float} or not math.isfinite(value):
            raise self._wrong(name, "a finite number", value)
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list, empty if it is missing."""
        value: Any = self._data.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return list(cast("Iterable[Any]", value))

    def objects(self, name: str) -> "Iterator[Fields]":
        """Yield the objects of a list."""
        for place, item in enumerate(self.items(name)):
            yield Fields(item, f"{self.path(name)}[{place}]")

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        for item in (found := self.items(name)):
            if not isinstance(item, str):
                raise self._wrong(name, "a list of texts", item)
        return found

    def pick(self, name: str, table: list[T]) -> list[T]:
        """Return the items of a table that a list of their places refers to."""
        places = self.items(name)
        for place in places:
            if type(place) is not int or not 0 <= place < len(table):
                raise self._wrong(name, f"a list of places in a table of {len(table)}", place)
        return [table[place] for place in places]

    def _get(self, name: str, default: Any) -> Any:
        if name not in self._data and default is _NO_DEFAULT:
            raise wrong_data(self.path(name), "is missing")
        return self._data.get(name, default)

    def _wrong(self, name: str, expected: str, value: object) -> ValueError:
        return wrong_data(self.path(name), f"must be {expected}, got {short_repr(value)}")
