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
_SIGN_BETWEEN_NUMBERS = re.compile(r"(?<=\d)[-+](?=\.?\d)")
_TIMES_POWER_OF_TEN = re.compile(r"(?<=\d)\s*+(?:×|\*|x|\\times|\\cdot)\s*+10\s*+\^\s*+[({]?([-+]?\d{1,3})[)}]?")
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z])\s*+\^\s*+[({]?[-+]?\d[)}]?")
_BOXED = "\\boxed{"
_EMPHASIS = re.compile(r"(?<![\w)\]}*])\*\*(?=[^\s*])([^*]+)\*\*")
_ABOUT = re.compile(r"\\approx(?![a-z])|≈")
_AT_MOST = re.compile(r"\\leq?(?![a-z])|<=")
_AT_LEAST = re.compile(r"\\geq?(?![a-z])|>=")
_MEMBER_OF = re.compile(r"\b[a-zA-Z]\s*+(?:\\in\b|∈)\s*+")
_PUNCTUATION = ".!?,;:\"'`*¿¡。、"
_STRAIGHT_QUOTES = str.maketrans({**dict.fromkeys("“”„«»", '"'), **dict.fromkeys("‘’‚", "'")})


def exact(value: Any) -> Hashable | None:
    """
    Compare texts regardless of case, spacing, width and surrounding punctuation.

    Punctuation that belongs to a number counts: .5 is not 5, and 5' is not 5".
    """
    if not isinstance(value, str):
        return _hashable(value)
    text = unicodedata.normalize("NFKC", value[-_MAX_CHARS:]).casefold().translate(_STRAIGHT_QUOTES)
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

    1,000 equals 1000.0, 1e3 and 1 thousand. The power of a unit, as in 5 m², is no number of its own.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _as_fraction(str(value))
    if not isinstance(value, str):
        return _hashable(value)
    text = _POWER_OF_UNIT.sub("", _TIMES_POWER_OF_TEN.sub(r"e\1", _plain(value)))
    found = None
    for found in _NUMBER.finditer(_SIGN_BETWEEN_NUMBERS.sub(" ", text)):  # noqa: B007 - the last one counts
        pass
    return None if found is None else _as_fraction(found[0].replace(",", ""))


def expression(value: Any) -> Hashable | None:
    r"""
    Compare answers by the value of an expression.

    2 * (3 + 4) equals 14, \frac12 equals 0.5, 2\sqrt{2} equals \sqrt{8}, and (x+1)^2 equals x^2+2x+1.
    So do tuples, intervals and sets of these: (1, 2) equals (1.0, 2), and [0, 1) is not (0, 1).
    The expression is in the last `\boxed{…}`, else after the last equals sign, else in the last line,
    where words before it, and a unit or a currency around it, are left out: "The answer is $42." equals 42.
    Words that change a number count: "5 million" is 5,000,000, and "at least 5" is not 5.
    Several values are compared together: x = 1, y = 2 equals y = 2 and x = 1, and 1, 2 equals 1 and 2.
    A parser for plain arithmetic evaluates it. Rational numbers are exact, others have ten digits.
    Anything else is compared as text.
    """
    if not isinstance(value, str):
        return number(value)
    final = without_text_commands(_final_part(_plain(value)))
    key = _assignments_key(final)
    if key is not None:
        return key
    answer = final.rpartition("=")[2].strip(" $")
    bare = _without_unit(_WORDS_BEFORE.sub("", answer))
    for key_of, part in ((_math_key, answer), (_math_key, bare), (_symbolic_key, answer), (_list_key, bare)):
        key = key_of(part)
        if key is not None:
            return key
    return _text_key(answer)


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
# The colon of a time or of a ratio, as in 10:30 or 3 : 4, is a part of the answer.
_COLON = r"(?<!\d)(?<!\d ):|(?<=\d):(?=\s)"
_PHRASE_BEFORE = re.compile(
    rf"^[^:]{{0,200}}?(?:\b(?:is|are|equals|be|(?:it|that|there)['’]s)\b|{_COLON})[\s:]*", re.IGNORECASE
)
_NO_WORD_BEFORE = r"(?:not|no|than|least|most|over|under|above|below|between|log|ln|exp|sin|cos|tan|sqrt)\b"
"""These change the meaning of the number after them."""

_WORDS_BEFORE = re.compile(rf"{_PHRASE_BEFORE.pattern}|^(?:(?!{_NO_WORD_BEFORE})[A-Za-z]{{2,}}[\s,:]+)+", re.IGNORECASE)
_NO_UNIT = r"(?:and|or|to|am|pm|bc|bce|ad|ce)\b"
_POWER = r"(?:\s*+\^\s*+[({]?\s*+[23]\s*+[)}]?|[23])?+"
_UNIT = rf"(?!(?i:{_NO_UNIT}))(?:[A-Za-z]{{2,}}+|(?<=[\s/])[mgshlLNJWVKC](?![A-Za-z])){_POWER}"
# Possessive, because spaces that two repetitions could share would take exponential time.
_UNIT_AFTER = re.compile(rf"(?<=[\d)}}%])(?:\s*+{_UNIT}(?:\s*+/)?+)++$")
_AND = re.compile(r"(?:\s*+,)?\s++and\b")
_PERCENT = re.compile(r"(?<=\d)\s*+(?:percent|per cent)\b", re.IGNORECASE)
_DATE = re.compile(r"\d{4}([-/])\d{1,2}\1\d{1,2}|\d{1,2}([-/])\d{1,2}\2\d{4}")
_ASSIGNMENT = re.compile(r"(?<![A-Za-z\\])([A-Za-z](?:_\w|_\{\w{1,9}\})?)\s*+=\s*+")
_NEXT_ASSIGNMENT = re.compile(r"(?:[,;]\s*+(?:(?:or|and)\s)?|\s(?:or|and)\s)\s*+$")
_EVALUATED_AT = (Fraction(3, 7), Fraction(11, 5), Fraction(-13, 9))
"""An identity that holds at these points, with another factor for each letter, holds everywhere."""

_MAX_MATH_CHARS = 1_000
_MAX_PARTS = 100


def _math_key(text: str) -> Hashable | None:
    """Return the key of a number, or of a collection, or None for any other text."""
    if not text or len(text) > _MAX_MATH_CHARS or _DATE.fullmatch(text):
        return None
    try:
        return _rounded(evaluate(text))
    except NotArithmetic:
        return _collection_key(text)


def _symbolic_key(text: str) -> Hashable | None:
    """Return the values of an expression with letters at a few points, or None for any other text."""
    if len(text) > _MAX_MATH_CHARS or _CHOICE.fullmatch(text) or _DATE.fullmatch(text):
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


def _assignments_key(text: str) -> Hashable | None:
    """Return the key of several values, such as x = 1 or x = 2, or None for any other text."""
    found = list(_ASSIGNMENT.finditer(text)) if len(text) <= _MAX_MATH_CHARS else []
    if not 2 <= len(found) <= _MAX_PARTS:
        return None
    values: set[tuple[str, Hashable | None]] = set()
    for one, following in zip(found, [*found[1:], None], strict=True):
        value = text[one.end() : None if following is None else following.start()].rstrip("$ ")
        if following is not None:
            if (end := _NEXT_ASSIGNMENT.search(f"{value} ")) is None:
                return None
            value = value[: end.start()]
        values.add((re.sub("[{}]", "", one[1]), _part_key(value.strip(" $,.;"))))
    names = {name for name, _ in values}
    return ("set", frozenset(key for _, key in values)) if len(names) == 1 else ("values", frozenset(values))


def _rounded(value: Number) -> Hashable:
    if isinstance(value, Fraction):
        return value
    scale = abs(value)
    # A part that is only a rounding error is 0.
    parts = [0.0 if abs(part) < 1e-12 * scale else float(f"{part:.10g}") for part in (value.real, value.imag)]
    # So is a part after the point, as in the product of two roots.
    return Fraction(parts[0]) if not parts[1] and parts[0].is_integer() else ("about", *parts)


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


def _list_key(text: str) -> Hashable | None:
    """Return the key of two or more numbers, as in 1, 2 and 3, or None for any other text."""
    parts = _split(_AND.sub(",", text))
    keys = [] if parts is None else [_math_key(part) for part in parts]
    return None if len(keys) < 2 or None in keys else ("list", *keys)


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
    plain = _PERCENT.sub("%", in_plain_notation(text[:_MAX_MATH_CHARS]).rstrip(".!?,;: "))
    return _UNIT_AFTER.sub("", plain)


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


_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_VULGAR = re.compile("(?<![\\d.])(\\d{0,15}+) ?([¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_DASH_AS_MINUS = re.compile(r"(?<![\w.)–])[–−](?=[\d.])")
_WORD_AS_MINUS = re.compile(r"(?<![\d)])(?<![\d)] )\b(?:minus|negative)\s++(?=[\d.])", re.IGNORECASE)
_GROUPED = re.compile(r"(?<=\d)[\u00a0\u202f\u2009'’_](?=\d{3}(?!\d))")
_GROUPED_BY_SPACES = re.compile(r"(?<![\w.,/])(?<!\d )\d{1,3}(?: \d{3})++(?![\w/]| \d)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})++),(\d++)(?![.,])")
_LARGE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LARGE_AFTER = re.compile(rf"(?<=\d) ?({'|'.join(_LARGE)})\b", re.IGNORECASE)


def _plain(text: str) -> str:
    """Write every number of a text in one way, and all characters in the same width."""
    # NFKC makes 10³ and 2½ to 103 and 21⁄2, so these come first.
    text = _SUPERSCRIPT.sub(lambda found: f"^({unicodedata.normalize('NFKC', found[0])})", text[-_MAX_CHARS:])
    text = _GROUPED.sub(",", _VULGAR.sub(_as_decimal, text))
    text = unicodedata.normalize("NFKC", text)
    text = _WORD_AS_MINUS.sub("-", _DASH_AS_MINUS.sub("-", text)).replace("\N{MINUS SIGN}", "-")
    text = _DECIMAL_COMMA.sub(lambda found: f"{found[1].replace('.', '')}.{found[2]}", text)
    text = _GROUPED_BY_SPACES.sub(lambda found: found[0].replace(" ", ""), text)
    return _LARGE_AFTER.sub(lambda found: f"e{_LARGE[found[1].lower()]}", text)


def _as_decimal(found: re.Match[str]) -> str:
    """Write a number such as 2½ as a decimal if that is exact, else as a fraction."""
    above, _, below = unicodedata.normalize("NFKC", found[2]).partition("\N{FRACTION SLASH}")
    value = int(found[1] or 0) + Fraction(int(above), int(below))
    ends = below in {"2", "4", "5", "8", "10"}
    return str(float(value)) if ends and value < 2**40 else f"({value})"


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
    text = _ABOUT.sub("=", text)
    boxed = text.rfind(_BOXED)
    if boxed >= 0:
        return _up_to_closing_brace(text[boxed + len(_BOXED) :]).strip()
    lines = text.strip().splitlines()
    # Four of # mark the answer in a common set of questions.
    return _without_punctuation(_EMPHASIS.sub(r"\1", lines[-1]).strip(" $#")).strip(" $") if lines else ""


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
