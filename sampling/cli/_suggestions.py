"""Suggest what was probably meant."""

from collections.abc import Iterable

__all__ = ["closest", "did_you_mean"]


def closest(given: str, choices: Iterable[str]) -> str | None:
    """Return the choice with the closest spelling, or None if none is close."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    return next(iter(get_close_matches(given, list(choices), n=1)), None)


def did_you_mean(meant: str | None) -> str:
    """Return the suggestion as the end of an error message, or nothing without one."""
    return "" if meant is None else f". Did you mean {meant}?"
