"""Parse and format numbers with units: `250ms`, `2s`, `0.1%`, `1.5k`."""

import re
from fractions import Fraction
from typing import TypeAlias

__all__ = [
    "format_seconds",
    "format_share",
    "number_or_dash",
    "parse_count",
    "parse_duration",
    "parse_share",
    "seconds_or_dash",
    "share_or_dash",
]

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([^\s\d]*)\s*")
_Units: TypeAlias = dict[str, Fraction]
_ONE, _THOUSANDTH = Fraction(1), Fraction(1, 1000)
_MINUTE = Fraction(60)
_SECONDS: _Units = {
    "": _ONE,
    "s": _ONE,
    "ms": _THOUSANDTH,
    "us": _THOUSANDTH**2,
    "µs": _THOUSANDTH**2,
    "m": _MINUTE,
    "min": _MINUTE,
    "h": _MINUTE**2,
}
_COUNTS: _Units = {"": _ONE, "k": 1 / _THOUSANDTH, "K": 1 / _THOUSANDTH, "M": 1 / _THOUSANDTH**2}
_SHARES: _Units = {"": _ONE, "%": Fraction(1, 100)}
_LARGEST = 1e15


def parse_duration(name: str, text: str) -> float:
    """Parse a duration: `2s`, `250ms`, `1.5m`, `1h`. A bare number is in seconds."""
    return _parse(name, text, _SECONDS, "a time such as 250ms, 2s or 1m")


def parse_share(name: str, text: str) -> float:
    """Parse a share: `0.1%` or `0.001`."""
    return _parse(name, text, _SHARES, "a share such as 0.1% or 0.001")


def parse_count(name: str, text: str) -> float:
    """Parse a number: `50`, `1.5k`."""
    return _parse(name, text, _COUNTS, "a number such as 50 or 1.5k")


def _parse(name: str, text: str, units: _Units, allowed: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None or found[2] not in units:
        raise ValueError(f"{name} must be {allowed}, got {text.strip()!r}")
    if float(found[1]) > _LARGEST:
        raise ValueError(f"{name} is too large, got {text.strip()!r}")
    # Fractions keep 95 % at 0.95, where floats would give 0.9500000000000001.
    return float(Fraction(found[1]) * units[found[2]])


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Format a duration: `143ms`, `2.5s`."""
    # Round before choosing the unit: 0.9999 is 1s, not 1e+03ms.
    if float(f"{seconds:.{digits}g}") < 1:
        return f"{seconds * 1000:.{digits}g}ms"
    return f"{seconds:.{digits}g}s" if seconds < 1000 else f"{seconds:.0f}s"


def format_share(share: float, digits: int = 3) -> str:
    """Format a share: `0.1%`. A share below 1 is never rounded up to 100%."""
    shown = f"{share * 100:.{digits}g}%"
    return ">99.9%" if shown == "100%" and share < 1 else shown


def seconds_or_dash(seconds: float | None) -> str:
    """Format a time, or return a dash for None."""
    return "—" if seconds is None else format_seconds(seconds)


def share_or_dash(share: float | None) -> str:
    """Format a share, or return a dash for None."""
    return "—" if share is None else format_share(share)


def number_or_dash(number: float | None) -> str:
    """Format a number briefly, or return a dash for None."""
    return "—" if number is None else f"{number:,.4g}" if abs(number) < 1_000 else f"{number:,.0f}"
