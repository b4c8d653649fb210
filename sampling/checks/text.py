"""Requirements for choices, lengths, numbers and similarity."""

import math
import re
from collections.abc import Callable, Sequence

import attrs

from sampling._arguments import check_bool, check_int, check_number, check_str, short_repr
from sampling._text.similarity import Similarity, rouge_l
from sampling.requirements import Requirement, Validation, Verdict

__all__ = ["length", "number", "one_of", "similar_to"]


def one_of(*choices: str, ignore_case: bool = False) -> Requirement:
    """
    Require one of these texts and nothing else.

    Surrounding whitespace does not count.
    """
    if not choices:
        raise ValueError("choices must not be empty, got ()")
    for choice in choices:
        check_str("an item of choices", choice, empty=False)
    folded = str.casefold if check_bool("ignore_case", ignore_case) else str
    allowed = frozenset(folded(choice.strip()) for choice in choices)
    description = f"is one of {', '.join(map(repr, choices))}"
    how = f"answer with one of {', '.join(choices)}, and with nothing else"

    def is_one(text: str) -> Verdict:
        answer = text.strip()
        return folded(answer) in allowed, f"{short_repr(answer)} is not allowed: {how}"

    def may_become_one(text: str) -> Verdict:
        # Trailing whitespace may belong to a choice of two words, or follow a complete one.
        start = folded(text.lstrip())
        passes = any(choice.startswith(start) or choice == start.rstrip() for choice in allowed)
        return passes, f"{short_repr(text.strip())} is not allowed: {how}"

    return Requirement(description, is_one, partial=may_become_one)


def _range(words: str, bound: float | None) -> str:
    return "" if bound is None else f"{words} {bound:.15g}"


# Length.


def _lines(text: str) -> int:
    return len(text.splitlines())


def _words(text: str) -> int:
    return len(text.split())


_MEASURES: dict[str, Callable[[str], int]] = {"chars": len, "words": _words, "lines": _lines}
_NAMES = {"chars": "character", "words": "word", "lines": "line"}


def _name(unit: str, count: int | None) -> str:
    return _NAMES[unit] if count == 1 else f"{_NAMES[unit]}s"


@attrs.frozen
class _Bounds:
    """The allowed number of characters, words or lines."""

    unit: str
    least: int | None
    most: int | None

    def count(self, text: str) -> int:
        return _MEASURES[self.unit](text)

    @property
    def wanted(self) -> str:
        if self.least == self.most:
            return f"exactly {self.most}"
        return " and ".join(filter(None, (_range("at least", self.least), _range("at most", self.most))))

    def complaint(self, text: str) -> str | None:
        count = self.count(text)
        what = f"it has {count} {_name(self.unit, count)} instead of {self.wanted}"
        if self.most is not None and count > self.most:
            return f"{what}: make it shorter"
        if self.least is not None and count < self.least:
            return f"{what}: make it longer"
        return None

    def is_past(self, text: str) -> bool:
        return self.most is not None and self.count(text) > self.most


def length(
    *,
    min_chars: int | None = None,
    max_chars: int | None = None,
    min_words: int | None = None,
    max_words: int | None = None,
    min_lines: int | None = None,
    max_lines: int | None = None,
) -> Requirement:
    """
    Require a number of characters, words or lines.

    Surrounding whitespace does not count.
    """
    bounds = [
        _bounds("chars", min_chars, max_chars),
        _bounds("words", min_words, max_words),
        _bounds("lines", min_lines, max_lines),
    ]
    given = [bound for bound in bounds if bound is not None]
    if not given:
        raise ValueError("length() needs at least one bound, such as max_words=50, got none")

    def has_length(text: str) -> Verdict:
        return _verdict_of([bound.complaint(text.strip()) for bound in given])

    # Only a maximum can be exceeded early: a growing text may still reach a minimum.
    def is_not_past(text: str) -> Verdict:
        answer = text.strip()
        return _verdict_of([bound.complaint(answer) for bound in given if bound.is_past(answer)])

    bounds_in_words = ", ".join(f"{bound.wanted} {_name(bound.unit, bound.most or bound.least)}" for bound in given)
    return Requirement(f"has {bounds_in_words}", has_length, partial=is_not_past)


def _bounds(unit: str, least: int | None, most: int | None) -> _Bounds | None:
    if least is not None:
        check_int(f"min_{unit}", least, least=0)
    if most is not None:
        check_int(f"max_{unit}", most, least=1)
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_{unit} must be <= max_{unit}, got {least} and {most}")
    return None if least is None and most is None else _Bounds(unit, least, most)


def _verdict_of(complaints: Sequence[str | None]) -> Verdict:
    wrong = [complaint for complaint in complaints if complaint is not None]
    return not wrong, "; ".join(wrong) or None


# Numbers.

# Written so that it never backtracks. It accepts digits in groups of three, as in 1,000.
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,300})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?")


def number(*, at_least: float | None = None, at_most: float | None = None, whole: bool = False) -> Requirement:
    """
    Require a number within these bounds and nothing else.

    Numbers look like 1,000 or -2.5 or 1e3. `whole=True` allows no fraction.
    """
    low = -math.inf if at_least is None else check_number("at_least", at_least)
    high = math.inf if at_most is None else check_number("at_most", at_most)
    if low > high:
        raise ValueError(f"at_least must be <= at_most, got {at_least} and {at_most}")
    kind = "whole number" if check_bool("whole", whole) else "number"
    bounds = _range("of at least", at_least), _range("of at most", at_most)
    wanted = f"a {kind} {' and '.join(filter(None, bounds))}".strip()

    def is_in_range(text: str) -> Verdict:
        answer = text.strip()
        if _NUMBER.fullmatch(answer) is None:
            return False, f"{short_repr(answer)} is not a number: answer with {wanted} in digits, and with nothing else"
        value = float(answer.replace(",", ""))
        # 1e999 matches the pattern but is infinite.
        fits = low <= value <= high and math.isfinite(value) and (not whole or value.is_integer())
        return fits, f"{short_repr(answer)} is not {wanted}"

    return Requirement(f"is {wanted}", is_in_range)


# Similarity.


def similar_to(reference: str, *, at_least: float = 0.7, similarity: Similarity = rouge_l) -> Requirement:
    """
    Require an answer that is similar to a reference.

    `similarity` is any function of two texts. The default, `rouge_l`, counts words in the same order.
    The similarity is the score of the validation.
    The reason does not quote the reference, because the model could just repeat it.
    """
    check_str("reference", reference, empty=False)
    threshold = check_number("at_least", at_least)
    if not callable(similarity):
        raise TypeError(f"similarity must be a function of two texts, got {short_repr(similarity)}")

    def is_similar(text: str) -> Verdict:
        score = similarity(text, reference)
        return Validation(
            score >= threshold,
            f"its similarity to the expected answer is {score:.2f}, and {threshold:g} is needed",
            score,
        )

    return Requirement(f"has a similarity of at least {threshold:g} to the reference", is_similar)
