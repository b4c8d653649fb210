"""Headers for the server, whose values are never shown."""

import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Self

__all__ = ["HEADERS_VARIABLE", "Headers", "header_values", "without_header_values"]

HEADERS_VARIABLE = "SAMPLING_HEADERS"
"""The environment variable for headers, one per line. Worker processes get them in this way, too."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FLAG = "--header"


class Headers(Mapping[str, str]):
    """Headers of every request. They are like keys: a repr shows the names only."""

    def __init__(self, pairs: Mapping[str, str] | None = None, *, from_flags: bool = False) -> None:
        self._pairs = dict(pairs or {})
        self.from_flags = from_flags
        """True if some were given with `--header`."""

    @classmethod
    def parse(cls, given: Sequence[str] | None) -> Self:
        """Return the headers of the environment and of `--header`, or raise ValueError."""
        lines = os.environ.get(HEADERS_VARIABLE, "").splitlines()
        pairs = [_pair(HEADERS_VARIABLE, line) for line in lines if line.strip()]
        pairs += [_pair(_FLAG, text) for text in given or ()]
        return cls({name.lower(): value for name, value in pairs}, from_flags=bool(given))

    @contextmanager
    def in_environment(self) -> Generator[None]:
        """Set the environment variable inside the block, for worker processes."""
        before = os.environ.get(HEADERS_VARIABLE)
        os.environ[HEADERS_VARIABLE] = "\n".join(f"{name}: {value}" for name, value in self.items())
        try:
            yield
        finally:
            os.environ.pop(HEADERS_VARIABLE)
            if before is not None:
                os.environ[HEADERS_VARIABLE] = before

    def __getitem__(self, name: str) -> str:
        return self._pairs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({', '.join(f'{name}: ***' for name in self._pairs)})"


def _pair(where: str, text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    # No message shows the text, because it may be all secret.
    if not colon or not _NAME.fullmatch(name.strip()):
        raise ValueError(f"{where} must be 'Name: value', such as 'X-Team: search', in quotes")
    if not value.strip() or not value.isascii() or not value.strip().isprintable():
        raise ValueError(f"{where}: the value of {name.strip()!r} must be printable ASCII, and not empty")
    return name.strip(), value.strip()


def without_header_values(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command with the values of its headers masked."""
    masked: list[str] = []
    is_value = False
    for argument in arguments:
        if is_value:
            masked.append(_mask(argument))
        elif argument.startswith(f"{_FLAG}="):
            masked.append(f"{_FLAG}={_mask(argument.partition('=')[2])}")
        else:
            masked.append(argument)
        is_value = argument == _FLAG
    return masked


def header_values(arguments: Sequence[str]) -> list[str]:
    """
    Return the values of the headers in the arguments of a command.

    This includes a header without quotes, whose value the shell passed as a separate argument.
    """
    values: list[str] = []
    for number, argument in enumerate(arguments):
        header = argument.partition("=")[2] if argument.startswith(f"{_FLAG}=") else argument
        if header is argument and (number == 0 or arguments[number - 1] != _FLAG):
            continue
        name, colon, value = header.partition(":")
        rest = arguments[number + 1 :] if colon and not value else ()
        words = [value if colon else name, *takewhile(lambda word: not word.startswith("-"), rest)]
        values += [word.strip() for word in words if word.strip()]
    return values


def _mask(header: str) -> str:
    name, colon, _ = header.partition(":")
    return f"{name}: ***" if colon else "***"
