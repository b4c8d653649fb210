"""
Evaluate mathematics that a model wrote, without `eval`.

Rational results are exact. Everything is bounded, because a hostile answer may hold 9^9^9^9 or a million brackets.
"""

import cmath
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, sub
from typing import Any, TypeAlias

__all__ = ["NotArithmetic", "Number", "evaluate", "in_plain_notation", "without_text_commands"]

Number: TypeAlias = Fraction | complex
"""An exact number, or a complex one if the exact one is irrational."""

_MAX_CHARS = 1_000
_MAX_DEPTH = 50
_MAX_POWER = 64
_MAX_BITS = 4_096
"""Maximum size of a numerator or denominator. Real answers are far smaller."""

# Possessive quantifiers (++) never backtrack, so a long run of digits takes linear time.
# Letters in a row are a word, not a product, except for x, y and z.
_TOKEN = re.compile(
    r"\s*+(?:(\d++(?:\.\d++)?+(?:[eE][-+]?\d{1,2}(?!\d))?+|\.\d++)|(\*\*|[-+*/^()%√])"
    r"|(\\[a-z]++|π|[xyz](?=[xyz])|[a-zA-Z](?![a-zA-Z])))"
)
_MARKUP = re.compile(
    r"\\(?:left|right|displaystyle|[,;:! ]|quad)(?![a-z])|\\[()\[\]$]|[$€£¥~°]|\^\s*\\circ|\^\s*\{\s*\\circ\s*\}"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|operatorname)\s*\{([^{}]*)\}")
_SAME_LENGTH = str.maketrans({"×": "*", "·": "*", "÷": "/", "⁄": "/", "\N{MINUS SIGN}": "-"})
_SYNONYMS = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\cdot", "*"),
    ("\\times", "*"),
    ("\\div", "/"),
    ("\\%", "%"),
    ("{,}", ","),
)
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")
_MIXED = re.compile(
    r"(?<![\d.])(\d++)(?:\s++(\d++)\s*+/\s*+(\d++)(?![\d.])"
    r"|\s*+\\frac\s*+(?:\{(\d++)\}|(\d))\s*+(?:\{(\d++)\}|(\d)))"
)
_ROOT = re.compile(r"\\sqrt\s*+\[\s*+(\d{1,2})\s*+\]")
_PLAIN_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt(?=\s*+[({\d])")

_SUMS: dict[str, Callable[[Any, Any], Number]] = {"+": add, "-": sub}
_CONSTANTS: dict[str, Number] = {"\\pi": complex(math.pi), "π": complex(math.pi)}


class NotArithmetic(ValueError):
    """The text is not arithmetic, or exceeds the bounds."""


def evaluate(text: str, symbols: Mapping[str, Number] | None = None) -> Number:
    r"""
    Return the value of an expression.

    It may have numbers, + - * / ^ % and brackets, and common LaTeX notation: \frac{1}{2}, \sqrt{2}, \cdot, \pi.
    A single letter has its value in `symbols`. Anything else raises `NotArithmetic`.
    """
    if len(text) > _MAX_CHARS:
        raise NotArithmetic(f"longer than {_MAX_CHARS} characters")
    plain = in_plain_notation(text).replace("{", "(").replace("}", ")")
    parser = _Parser(_tokens(plain), symbols or {})
    try:
        value = parser.read_sum()
    except (OverflowError, ZeroDivisionError) as error:
        raise NotArithmetic(str(error)) from None
    parser.expect_end()
    return value


def in_plain_notation(text: str) -> str:
    """Return a text without markup, units of currency, and separators of thousands."""
    text = _THOUSANDS.sub("", without_text_commands(text.translate(_SAME_LENGTH)))
    text = _MARKUP.sub(" ", text)
    for notation, plain in _SYNONYMS:
        text = text.replace(notation, plain)
    text = _ROOT.sub(r"\\root(\1)", _PLAIN_ROOT.sub(r"\\sqrt", text))
    return _MIXED.sub(_as_sum, text).strip()


def without_text_commands(text: str) -> str:
    r"""Replace LaTeX commands such as \text{…} by the text inside."""
    return _TEXT.sub(r" \1", text)


def _as_sum(mixed: re.Match[str]) -> str:
    """Write a mixed number such as 2 1/2 as a sum."""
    whole, *parts = [part for part in mixed.groups() if part is not None]
    above, below = parts
    return f"({whole}+{above}/{below})"


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotArithmetic(f"unexpected character at position {position}")
        token = match[1] or match[2] or match[3]
        position = match.end()
        if tokens and tokens[-1] in {"\\frac", "\\sqrt"} and len(token) > 1 and token.isdecimal():
            # In LaTeX a number without braces is a single digit: \frac12 is one half.
            position -= len(token) - 1
            token = token[0]
        elif len(tokens) > 1 and tokens[-2] == "\\frac" and tokens[-1].isdecimal() and token.isdecimal():
            position -= len(token) - 1
            token = token[0]
        tokens.append(token)
    return tokens


class _Parser:
    """
    A recursive descent parser with one method per precedence.

    From low to high: sums, products, signs, powers, numbers and brackets.
    """

    def __init__(self, tokens: list[str], symbols: Mapping[str, Number]) -> None:
        self._tokens = tokens
        self._symbols = symbols
        self._next = 0
        self._depth = 0

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str | None:
        token = self._peek()
        if token not in wanted:
            return None
        self._next += 1
        return token

    def expect_end(self) -> None:
        if self._peek():
            raise NotArithmetic("unexpected text after the expression")

    def read_sum(self) -> Number:
        value = self._read_product()
        while operator := self._take(*_SUMS):
            value = _bounded(_SUMS[operator](value, self._read_product()))
        return value

    def _read_product(self) -> Number:
        value = self._read_signed()
        while True:
            if self._take("*"):
                value = _bounded(mul(value, self._read_signed()))
            elif self._take("/"):
                value = _bounded(_quotient(value, self._read_signed()))
            elif self._multiplies_next():
                value = _bounded(mul(value, self._read_power()))
            else:
                return value

    def _multiplies_next(self) -> bool:
        """Return True if a factor follows without a sign, as in 2x. Two numbers in a row are not a product."""
        following = self._peek()
        return following[:1] in {"(", "\\", "√", "π"} or following.isalpha()

    def _read_signed(self) -> Number:
        negative = False
        while sign := self._take("-", "+"):
            negative ^= sign == "-"
        value = self._read_power()
        return -value if negative else value

    def _read_power(self) -> Number:
        base = self._read_atom()
        if self._take("^", "**") is None:
            return base
        # The exponent may be a power itself, so 2^2^2^… would recurse without this bound.
        with self._deeper():
            exponent = self._read_signed()
        return _bounded(_power(base, exponent))

    def _read_atom(self) -> Number:
        if self._take("\\frac"):
            with self._deeper():
                above = self._read_atom()
                value = _quotient(above, self._read_atom())
        elif self._take("\\sqrt", "√"):
            with self._deeper():
                value = _power(self._read_atom(), Fraction(1, 2))
        elif self._take("\\root"):
            with self._deeper():
                degree = self._read_atom()
                value = _root(self._read_atom(), degree)
        elif self._take("("):
            with self._deeper():
                value = self.read_sum()
            if self._take(")") is None:
                raise NotArithmetic("missing closing bracket")
        else:
            value = self._read_number()
        while self._take("%"):
            value = _quotient(value, Fraction(100))
        return value

    def _read_number(self) -> Number:
        token = self._peek()
        self._next += 1
        if token[-1:].isdecimal():
            return _bounded(Fraction(token))
        value = _CONSTANTS.get(token, self._symbols.get(token))
        if value is None:
            raise NotArithmetic("missing number")
        return value

    def _deeper(self) -> "_Depth":
        return _Depth(self)

    def change_depth(self, by: int) -> None:
        self._depth += by
        if self._depth > _MAX_DEPTH:
            raise NotArithmetic(f"nested deeper than {_MAX_DEPTH}")


class _Depth:
    """One more level of nesting."""

    def __init__(self, parser: _Parser) -> None:
        self._parser = parser

    def __enter__(self) -> None:
        self._parser.change_depth(+1)

    def __exit__(self, *_error: object) -> None:
        self._parser.change_depth(-1)


def _quotient(value: Number, divisor: Number) -> Number:
    if not divisor:
        raise NotArithmetic("division by zero")
    return value / divisor


def _power(base: Number, exponent: Number) -> Number:
    if abs(complex(exponent)) > _MAX_POWER or (not base and not _is_positive(exponent)):
        raise NotArithmetic("unsupported exponent")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return base ** int(exponent)
        if (root := _exact_root(base, exponent.denominator)) is not None:
            return root**exponent.numerator
    return cmath.exp(complex(exponent) * cmath.log(complex(base))) if base else Fraction(0)


def _is_positive(value: Number) -> bool:
    return value == 0 or (isinstance(value, Fraction) and value > 0)


def _root(value: Number, degree: Number) -> Number:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or degree < 1:
        raise NotArithmetic("unsupported root")
    if isinstance(value, Fraction) and value < 0 and degree % 2:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the root if it is rational."""
    if value < 0:
        return None
    root = Fraction(_nearest_root(value.numerator, degree), _nearest_root(value.denominator, degree))
    return root if root**degree == value else None


def _nearest_root(value: int, degree: int) -> int:
    return math.isqrt(value) if degree == 2 else round(value ** (1 / degree))


def _bounded(value: Number) -> Number:
    if not isinstance(value, Fraction):
        if not cmath.isfinite(value):
            raise NotArithmetic("not a finite number")
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise NotArithmetic(f"a number of more than {_MAX_BITS} bits")
    return value
