"""
Evaluate arithmetic that a model wrote, without `eval`.

The result is exact. Everything is bounded, because a hostile answer may hold 9^9^9^9 or a million brackets.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub

__all__ = ["NotArithmetic", "evaluate"]

_MAX_CHARS = 1_000
_MAX_DEPTH = 50
_MAX_POWER = 64
_MAX_BITS = 4_096
"""Maximum size of a numerator or denominator. Real answers are far smaller."""

# Possessive quantifiers (++) never backtrack, so a long run of digits takes linear time.
_TOKEN = re.compile(r"\s*(?:(\d++(?:\.\d++)?|\.\d++)|(\*\*|[-+*/^()%]))")
_NOTATION = (("\\left", ""), ("\\right", ""), ("\\cdot", "*"), ("\\times", "*"), ("\\div", "/"), ("×", "*"), ("·", "*"))
_MORE_NOTATION = (("÷", "/"), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\%", "%"), ("$", ""), ("⁄", "/"))
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

_SUMS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": add, "-": sub}
_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"*": mul, "/": Fraction.__truediv__}


class NotArithmetic(ValueError):
    """The text is not arithmetic, or exceeds the bounds."""


def evaluate(text: str) -> Fraction:
    r"""
    Return the exact value of an arithmetic expression.

    It may have numbers, + - * / ^ % and brackets, and common LaTeX notation: \frac{1}{2}, \cdot, \times.
    Anything else raises `NotArithmetic`.
    """
    if len(text) > _MAX_CHARS:
        raise NotArithmetic(f"longer than {_MAX_CHARS} characters")
    parser = _Parser(_tokens(_in_plain_notation(text)))
    value = parser.read_sum()
    parser.expect_end()
    return value


def _in_plain_notation(text: str) -> str:
    for notation, plain in (*_NOTATION, *_MORE_NOTATION):
        text = text.replace(notation, plain)
    text = _THOUSANDS.sub("", text)
    for _ in range(_MAX_DEPTH):
        # Each round replaces the innermost fractions, which have no braces inside.
        text, replaced = _FRACTION.subn(r"((\1)/(\2))", text)
        if not replaced or len(text) > 10 * _MAX_CHARS:
            break
    return text.replace("{", "(").replace("}", ")")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotArithmetic(f"unexpected character at position {position}")
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens


class _Parser:
    """
    A recursive descent parser with one method per precedence.

    From low to high: sums, products, signs, powers, numbers and brackets.
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def _take(self, *wanted: str) -> str | None:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        if token not in wanted:
            return None
        self._next += 1
        return token

    def expect_end(self) -> None:
        if self._next < len(self._tokens):
            raise NotArithmetic("unexpected text after the expression")

    def read_sum(self) -> Fraction:
        value = self._read_product()
        while operator := self._take(*_SUMS):
            value = _bounded(_SUMS[operator](value, self._read_product()))
        return value

    def _read_product(self) -> Fraction:
        value = self._read_signed()
        while operator := self._take(*_PRODUCTS):
            factor = self._read_signed()
            if operator == "/" and not factor:
                raise NotArithmetic("division by zero")
            value = _bounded(_PRODUCTS[operator](value, factor))
        return value

    def _read_signed(self) -> Fraction:
        negative = False
        while sign := self._take("-", "+"):
            negative ^= sign == "-"
        value = self._read_power()
        return -value if negative else value

    def _read_power(self) -> Fraction:
        base = self._read_atom()
        if self._take("^", "**") is None:
            return base
        # The exponent may be a power itself, so 2^2^2^… would recurse without this bound.
        self._go_deeper()
        exponent = self._read_signed()
        self._depth -= 1
        if exponent.denominator != 1 or abs(exponent) > _MAX_POWER or (not base and exponent < 0):
            raise NotArithmetic("unsupported exponent")
        return _bounded(base ** int(exponent))

    def _read_atom(self) -> Fraction:
        if self._take("("):
            self._go_deeper()
            value = self.read_sum()
            self._depth -= 1
            if self._take(")") is None:
                raise NotArithmetic("missing closing bracket")
        else:
            value = self._read_number()
        while self._take("%"):
            value /= 100
        return value

    def _read_number(self) -> Fraction:
        if self._next >= len(self._tokens) or not self._tokens[self._next][-1].isdecimal():
            raise NotArithmetic("missing number")
        self._next += 1
        return _bounded(Fraction(self._tokens[self._next - 1]))

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotArithmetic(f"nested deeper than {_MAX_DEPTH}")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise NotArithmetic(f"a number of more than {_MAX_BITS} bits")
    return value
