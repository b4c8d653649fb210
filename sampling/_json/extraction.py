"""Read JSON answers, and describe their problems for a model."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sampling._json import bounded as bounded_json

__all__ = ["MAX_CHARS", "join_problems", "json_pointer", "read_json"]

MAX_CHARS = 1_000_000
"""The longest answer that is read as JSON."""

_MAX_PROBLEMS = 5

# No float is as large as a number with so many digits, or has such an exponent.
_MAY_OVERFLOW = re.compile(r"[eE]\+?\d{3}|\d{300}")

_HOW_TO_FIX = "answer with one JSON value, and with nothing before or after it"


def read_json(text: str) -> Any:
    """
    Parse an answer as JSON.

    Raise a ValueError with the position of the problem and how to fix it.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"it is longer than {MAX_CHARS:,} characters: {_HOW_TO_FIX}")
    try:
        data = bounded_json.loads(text.strip())
        if _MAY_OVERFLOW.search(text):
            # Rare, and a function for every number is slow.
            json.loads(text, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}): {_HOW_TO_FIX}") from None
    return data


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError("a number that is too large")
    return number


def json_pointer(path: Iterable[object]) -> str:
    """
    Return a JSON pointer such as `/flights/0/day`.

    For an empty path, return "the top level".
    """
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in path]
    return "/" + "/".join(steps) if steps else "the top level"


def join_problems(problems: Sequence[str]) -> str:
    """Join the first few problems, and count the rest."""
    first = list(islice(problems, _MAX_PROBLEMS))
    more = len(problems) - len(first)
    return "; ".join([*first, f"and {more} more"] if more else first)
