"""
Keys for `MajorityVotingStrategy`: equal answers get equal keys.

Each function takes the value of an answer, or its text if the action has no parser, and returns something hashable.
None means that the answer does not vote. They read a bounded part of a text and never execute it.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, TypeAlias, cast

import attrs

from sampling._arguments import check_str
from sampling._json.extraction import read_json
from sampling._text import unfenced
from sampling.strategies._arithmetic import NotArithmetic, Number, evaluate, in_plain_notation, without_text_commands

__all__ = ["Key", "exact", "expression", "json_field", "number"]

Key: TypeAlias = Callable[[Any], Hashable | None]
"""A function that maps the value of an answer to a hashable key, or to None to abstain."""

_MAX_CHARS = 100_000
"""Only the end of a longer text is read, because the final answer is there."""

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?(?:[eE][-+]?\d{1,3}+)?|[-+]?\.\d++")
_MAX_DIGITS = 300
_BOXED = "\\boxed{"
_AT_MOST = re.compile(r"\\leq?(?![a-z])|<=")
_AT_LEAST = re.compile(r"\\geq?(?![a-z])|>=")
_MEMBER_OF = re.compile(r"\b[a-zA-Z]\s*+(?:\\in\b|∈)\s*+")
_PUNCTUATION = ".!?,;:\"'`*"


def exact(value: Any) -> Hashable | None:
    """
    Compare texts regardless of case, spacing, width and surrounding punctuation.

    Punctuation that belongs to a number counts: .5 is not 5, and 5' is not 5".
    """
    if not isinstance(value, str):
        return _hashable(value)
    text = unicodedata.normalize("NFKC", value[-_MAX_CHARS:]).casefold()
    return _without_punctuation(" ".join(text.split())) or None


def _without_punctuation(text: str) -> str:
    stripped = text.lstrip(_PUNCTUATION)
    # The point of .5, and the sign of an ordinal such as ,5 in other languages, is not punctuation.
    point = text[len(text) - len(stripped) - 1 :][:1]
    if stripped[:1].isdecimal() and point in {".", ","} and len(stripped) < len(text):
        stripped = f".{stripped}"
    start = text[: len(text) - len(stripped)]
    end = stripped.rstrip(_PUNCTUATION)
    prime = stripped[len(end) : len(end) + 1]
    # After a number, a quotation mark that was not opened is a unit: feet or inches.
    return f"{end}{prime}" if prime in {"'", '"'} and end[-1:].isdecimal() and prime not in start else end


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

    2 * (3 + 4) equals 14, \frac12 equals 0.5, 2\sqrt{2} equals \sqrt{8}, and (x+1)^2 equals x^2+2x+1.
    So do tuples, intervals and sets of these: (1, 2) equals (1.0, 2), and [0, 1) is not (0, 1).
    The expression is in the last `\boxed{…}`, else after the last equals sign, else in the last line,
    where words before it, and a unit or a currency around it, are left out: "The answer is $42." equals 42.
    A parser for plain arithmetic evaluates it. Rational numbers are exact, others have ten digits.
    Anything else is compared as text.
    """
    if not isinstance(value, str):
        return number(value)
    answer = without_text_commands(_final_part(_plain(value))).strip()
    key = _math_key(answer)
    if key is None:
        key = _math_key(_without_unit(_WORDS_BEFORE.sub("", answer)))
    if key is None:
        key = _symbolic_key(answer)
    return _text_key(answer) if key is None else key


def _text_key(answer: str) -> Hashable | None:
    text = _PHRASE_BEFORE.sub("", answer, count=1) or answer
    if choice := _CHOICE.fullmatch(text):
        text = choice[1]
    # In mathematics, spaces mean nothing.
    return exact("".join(text.split()) if _HAS_MATH.search(text) else text)


_HAS_MATH = re.compile(r"[<>≤≥^\\]")
_CHOICE = re.compile(r"\(?([A-Za-z])[).]*")
_COLLECTION = re.compile(r"(\(|\[|\{|\\\{)(.*?)(\)|\]|\\\}|\})", re.DOTALL)
_INFINITY = re.compile(r"([-+]?)\s*(?:\\infty|∞|oo|infinity|inf)")
_PHRASE_BEFORE = re.compile(r"^[^:]{0,200}?(?:\b(?:is|are|equals|be)\b|:)[\s:]*")
_WORDS_BEFORE = re.compile(rf"{_PHRASE_BEFORE.pattern}|^(?:[A-Za-z]{{2,}}[\s,:]+)+")
_UNIT_AFTER = re.compile(
    r"(?<=[\d)}%])(?:\s*(?:[A-Za-z]{2,}|(?<=[\s/])[mgshlLNJWVKC])(?![A-Za-z])(?:\s*\^?\s*[23²³])?\s*/?)+$"
)
_EVALUATED_AT = (Fraction(3, 7), Fraction(11, 5), Fraction(-13, 9))
"""An identity that holds at these points, with another factor for each letter, holds everywhere."""

_MAX_MATH_CHARS = 1_000
_MAX_PARTS = 100


def _math_key(text: str) -> Hashable | None:
    """Return the key of a number, or of a collection, or None for any other text."""
    if not text or len(text) > _MAX_MATH_CHARS:
        return None
    try:
        return _rounded(evaluate(text))
    except NotArithmetic:
        return _collection_key(text)


def _symbolic_key(text: str) -> Hashable | None:
    """Return the values of an expression with letters at a few points, or None for any other text."""
    if len(text) > _MAX_MATH_CHARS or _CHOICE.fullmatch(text):
        return None  # a letter is the answer to a question with choices
    letters = sorted({letter for letter in text if letter.isalpha()})
    try:
        values = [
            _rounded(evaluate(text, {letter: point * (ord(letter) % 97 + 1) for letter in letters}))
            for point in _EVALUATED_AT
        ]
    except NotArithmetic:
        return None
    # The same everywhere: it does not depend on its letters.
    return values[0] if len(set(values)) == 1 else ("expression", *values)


def _rounded(value: Number) -> Hashable:
    if isinstance(value, Fraction):
        return value
    scale = abs(value)
    # A part that is only a rounding error is 0.
    parts = [0.0 if abs(part) < 1e-12 * scale else float(f"{part:.10g}") for part in (value.real, value.imag)]
    return "about", *parts


def _collection_key(text: str) -> Hashable | None:
    """Return the key of a tuple, an interval or a set."""
    found = _COLLECTION.fullmatch(in_plain_notation(text))
    if found is None:
        return None
    parts = _split(found[2])
    is_set = "{" in found[1]
    if parts is None or (len(parts) < 2 and not is_set):
        return None
    keys = [_part_key(part) for part in parts]
    return ("set", frozenset(keys)) if is_set else (found[1], *keys, found[3])


def _part_key(text: str) -> Hashable | None:
    if infinite := _INFINITY.fullmatch(text):
        return "-infinity" if infinite[1] == "-" else "infinity"
    for key_of in (_math_key, _symbolic_key, exact):
        key = key_of(text)
        if key is not None:
            return key
    return None


def _split(text: str) -> list[str] | None:
    """Split a text at its outermost commas, or return None if there are too many."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0 or len(parts) > _MAX_PARTS:
            return None
        if character in ",;" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _without_unit(text: str) -> str:
    return _UNIT_AFTER.sub("", in_plain_notation(text[:_MAX_MATH_CHARS]).rstrip(".!?,;: "))


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
    text = _AT_LEAST.sub("≥", _AT_MOST.sub("≤", _MEMBER_OF.sub("", text)))
    boxed = text.rfind(_BOXED)
    if boxed >= 0:
        return _up_to_closing_brace(text[boxed + len(_BOXED) :]).rpartition("=")[2].strip()
    lines = text.strip().splitlines()
    # Four of # mark the answer in a common set of questions.
    return _without_punctuation(lines[-1].rpartition("=")[2].strip(" $#")).strip(" $") if lines else ""


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
    An object with fields is compared by its type and its fields, because many such classes are not hashable.
    """
    if isinstance(value, Mapping):
        return "mapping", frozenset([(_hashable(key), _hashable(item)) for key, item in value.items()])  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, AbstractSet):
        return "set", frozenset([_hashable(item) for item in value])  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return "list", tuple([_hashable(item) for item in cast("Sequence[Any]", value)])
    if isinstance(value, bool):
        return "bool", value
    fields = _fields_of(value)
    if fields is not None:
        return cast("Hashable", type(value)), tuple([(name, _hashable(item)) for name, item in fields.items()])
    return cast("Hashable", value) if _has_hash(value) else _unhashable_key(value)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a pydantic, attrs or dataclass object that count for equality, or None for any other."""
    kind = cast("Any", type(value))
    if isinstance(pydantic_fields := getattr(kind, "model_fields", None), Mapping):
        extra: dict[str, Any] = getattr(value, "__pydantic_extra__", None) or {}
        return {**{str(name): getattr(value, name) for name in pydantic_fields}, **extra}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind) if field.eq}
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if field.compare}
    return None


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _unhashable_key(value: object) -> Hashable:
    """Return a key for an object that can't be hashed: the items of an array, or the pickled state."""
    if callable(to_list := getattr(value, "tolist", None)):
        return _hashable(to_list())
    if isinstance(value, bytearray | memoryview):
        return bytes(cast("bytes", value))
    return type(value), tuple([(name, _hashable(item)) for name, item in sorted(vars(value).items())])
