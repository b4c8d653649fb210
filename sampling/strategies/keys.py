"""
Keys for `MajorityVotingStrategy`: equal answers get equal keys.

Each function takes the value of an answer, or its text if the action has no parser, and returns something hashable.
None means that the answer does not vote. They read a bounded part of a text and never execute it.
"""

import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, TypeAlias, cast

from sampling._arguments import check_str
from sampling._json.extraction import read_json
from sampling._text import unfenced
from sampling.strategies._arithmetic import NotArithmetic, evaluate

__all__ = ["Key", "exact", "expression", "json_field", "number"]

Key: TypeAlias = Callable[[Any], Hashable | None]
"""A function that maps the value of an answer to a hashable key, or to None to abstain."""

_MAX_CHARS = 100_000
"""Only the end of a longer text is read, because the final answer is there."""

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?(?:[eE][-+]?\d{1,3}+)?|[-+]?\.\d++")
_MAX_DIGITS = 300
_BOXED = "\\boxed{"
_PUNCTUATION = ".!?,;:\"'`*"


def exact(value: Any) -> Hashable | None:
    """Compare texts without case, spacing, width and surrounding punctuation."""
    if not isinstance(value, str):
        return _hashable(value)
    text = unicodedata.normalize("NFKC", value[-_MAX_CHARS:]).casefold()
    return " ".join(text.split()).strip(_PUNCTUATION) or None


def number(value: Any) -> Hashable | None:
    """
    Compare answers by the last number in them.

    1,000 equals 1000.0 and 1e3.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _as_fraction(str(value))
    if not isinstance(value, str):
        return _hashable(value)
    found = None
    for found in _NUMBER.finditer(_plain(value)):  # noqa: B007 - the last one counts
        pass
    return None if found is None else _as_fraction(found[0].replace(",", ""))


def expression(value: Any) -> Hashable | None:
    r"""
    Compare answers by the value of an expression.

    2 * (3 + 4) equals 14, and 1/3 equals \frac{2}{6}.
    The expression is in the last `\boxed{…}`, else after the last equals sign, else in the last line.
    A parser for plain arithmetic evaluates it exactly. Anything else is compared as text.
    """
    if not isinstance(value, str):
        return number(value)
    answer = _final_part(_plain(value))
    try:
        return evaluate(answer)
    except NotArithmetic:
        return exact(answer)


def json_field(path: str) -> Key:
    """
    Compare answers by a field of their JSON.

    The path has dots for nested fields and numbers for items: `json_field("items.0.name")`.
    The JSON is the whole answer, or the first fenced block in it. An answer without the field does not vote.
    """
    steps = check_str("path", path, empty=False).split(".")

    def field(value: Any) -> Hashable | None:
        data = _json_in(value) if isinstance(value, str) else value
        for step in steps:
            data = _inside(data, step)
        return None if data is None else _hashable(data)

    field.__qualname__ = f"json_field({path!r})"
    return field


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text[-_MAX_CHARS:]).replace("\N{MINUS SIGN}", "-")


def _as_fraction(digits: str) -> Fraction | None:
    if len(digits) > _MAX_DIGITS:
        return None
    try:
        return Fraction(digits)
    except ValueError:
        # A parser may return a float that is infinite or not a number.
        return None


def _final_part(text: str) -> str:
    boxed = text.rfind(_BOXED)
    if boxed >= 0:
        return _up_to_closing_brace(text[boxed + len(_BOXED) :])
    lines = text.strip().splitlines()
    return lines[-1].rpartition("=")[2].strip(f"{_PUNCTUATION} $") if lines else ""


def _up_to_closing_brace(text: str) -> str:
    depth = 1
    for index, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return text[:index]
    return text


def _json_in(text: str) -> Any:
    try:
        return read_json(unfenced(text))
    except ValueError:
        return None


def _inside(data: Any, step: str) -> Any:
    if isinstance(data, Mapping):
        return cast("Mapping[str, Any]", data).get(step)
    if isinstance(data, list | tuple):
        items = cast("Sequence[Any]", data)
        # Bounded, because int() of a very long number is slow, or an error.
        return items[int(step)] if step.isdecimal() and len(step) < 10 and int(step) < len(items) else None
    # The action's parser may have returned an object of any class. Its private attributes are not answers.
    return None if data is None or step.startswith("_") else getattr(cast("object", data), step, None)


def _hashable(value: Any) -> Hashable:
    """
    Return a hashable key that is equal for equal values.

    In Python 1 equals True, but as answers they differ, so their keys do.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "mapping", frozenset([(_hashable(key), _hashable(item)) for key, item in value.items()])  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, AbstractSet):
        return "set", frozenset([_hashable(item) for item in value])  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return "list", tuple([_hashable(item) for item in cast("Sequence[Any]", value)])
    if isinstance(value, bool):
        return "bool", value
    return cast("Hashable", value)
