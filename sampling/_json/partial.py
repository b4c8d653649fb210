"""Read incomplete JSON."""

import re
from typing import Any

from sampling._json.extraction import MAX_CHARS
from sampling._json.lenient import answer_without_thoughts, fix_json

__all__ = ["read_partial_json"]

# Converting more digits to a number takes quadratic time.
_HUGE_NUMBER = re.compile(r"[0-9]{300}")
_THINKING = re.compile(r"\s*<(?:think|thinking|thought)>")


def read_partial_json(text: str, openings: str) -> Any:
    """
    Return the first, possibly incomplete value of a text that begins with one of these brackets, or None.

    What may be before it: a `<think>` block, a code fence, and prose. A string at the end is as long as it is so far.
    """
    from pydantic_core import from_json  # noqa: PLC0415 - an extra, installed if a typed action exists

    text = answer_without_thoughts(text)
    starts = [start for opening in openings if (start := text.find(opening)) != -1]
    if not starts or len(text) > MAX_CHARS or _THINKING.match(text) or _HUGE_NUMBER.search(text):
        return None
    body = text[min(starts) :]
    for candidate in (body, fix_json(body)):
        try:
            # It stops where the value ends, whatever follows.
            return from_json(candidate, allow_partial="trailing-strings")
        except ValueError:
            continue
    return None
