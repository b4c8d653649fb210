"""JSON from strangers: parsed only if it is neither too deep nor ambiguous."""

import json
import re
from typing import Any, NoReturn

__all__ = ["MAX_DEPTH", "loads"]

MAX_DEPTH = 64
"""How deep arrays and objects may be nested."""

_MAX_BRACKETS = 100_000
_MAX_INT_DIGITS = 300

# Possessive, and the closing quote optional: no input makes it look at a character twice.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def loads(text: str) -> Any:
    """
    Parse JSON.

    Raises a ValueError, which quotes nothing of the text, for what is not JSON and for what is, but means harm:
    nesting that would overflow the stack, numbers that take minutes to convert,
    NaN and Infinity, which are no JSON, and keys that are there twice.
    """
    _check_depth(text)
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None


def _check_depth(text: str) -> None:
    # Counting is a hundred times faster than walking, and settles it for all honest input.
    brackets = text.count("[") + text.count("{")
    if brackets <= MAX_DEPTH:
        return
    if brackets > _MAX_BRACKETS:
        raise ValueError(f"more than {_MAX_BRACKETS:,} brackets")
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
        elif match[0] in "]}":
            depth -= 1


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_INT_DIGITS:
        raise ValueError(f"a number of more than {_MAX_INT_DIGITS} digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("an object with the same key twice")
    return mapping


_decoder = json.JSONDecoder(parse_int=_bounded_int, parse_constant=_no_constant, object_pairs_hook=_unambiguous)
