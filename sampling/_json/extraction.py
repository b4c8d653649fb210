"""Answers that are to be JSON: read without harm, and what is wrong said so that a model can mend it."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sampling._json import bounded as bounded_json

__all__ = ["MAX_CHARS", "brief", "pointer", "read_json", "told"]

MAX_CHARS = 1_000_000
"""How long an answer may be to be read as JSON."""

_MOST_PROBLEMS = 5
_LONGEST_VALUE = 60

_HOW = "answer with one JSON value, and with nothing before or after it"


def read_json(text: str) -> Any:
    """Parse an answer; a ValueError says where it stops being JSON, and how to write it instead."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"it is longer than {MAX_CHARS:,} characters: {_HOW}")
    try:
        return bounded_json.loads(text.strip())
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}): {_HOW}") from None


def pointer(path: Iterable[object]) -> str:
    """Return the JSON pointer to a place, such as `/flights/0/day`; the whole value is "the top level"."""
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in path]
    return "/" + "/".join(steps) if steps else "the top level"


def brief(value: object) -> str:
    """Return a value for a message, cut where it gets long; repr escapes what would steer a terminal."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def told(problems: Sequence[str]) -> str:
    """Put problems into one sentence: the first few, and how many more there are."""
    shown = list(islice(problems, _MOST_PROBLEMS))
    more = len(problems) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)
