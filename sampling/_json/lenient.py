"""Find the JSON in an answer that has more than JSON."""

import re

from sampling._json.bounded import MAX_DEPTH, loads
from sampling._json.extraction import MAX_CHARS
from sampling._text import unfenced

__all__ = ["answer_without_thoughts", "find_json", "mend"]

# Each attempt may read the whole text, so their number bounds the time.
_MAX_VALUES = 8

_THOUGHTS = re.compile(r"</(?:think|thinking|thought)>")
# Possessive: no input can cause backtracking.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_MENDABLE = re.compile(r'"(?:[^"\\]|\\.)*+"?|,\s*+(?=[\]}])|\b(?:True|False|None)\b', re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CONTROLS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def find_json(text: str, openings: str = "{[") -> str:
    """
    Return the JSON value in a text, as JSON.

    What may be around it: `<think>` blocks, a code fence, and prose. Trailing commas, line breaks inside of strings,
    and Python's True, False and None are mended. Where prose holds several values, none is chosen.
    The text itself is returned if there is no value. It takes linear time.
    """
    text = text.strip()
    if len(text) > MAX_CHARS or _is_json(text):
        return text
    body = unfenced(answer_without_thoughts(text))
    mended = mend(body)
    for candidate in (body, mended):
        if _is_json(candidate):
            return candidate
    for opening in openings:
        values = _values(mended, opening)
        if values:
            return values[0] if len(values) == 1 else body
    return body


def answer_without_thoughts(text: str) -> str:
    """Return what follows the last `</think>`."""
    return _THOUGHTS.split(text)[-1]


def mend(text: str) -> str:
    """Return JSON without trailing commas, line breaks in strings, and Python's constants."""
    return _MENDABLE.sub(_mend, text)


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True


def _mend(match: re.Match[str]) -> str:
    found = match[0]
    if found.startswith(","):
        return ""
    return _CONSTANTS.get(found) or found.translate(_CONTROLS)


def _values(text: str, opening: str) -> list[str]:
    """Return the outermost objects or arrays in prose."""
    values: list[str] = []
    start = 0
    for _ in range(_MAX_VALUES):
        start = text.find(opening, start)
        if start == -1:
            break
        end = _end_of_value(text, start)
        if end is not None and _is_json(text[start:end]):
            values.append(text[start:end])
            start = end
        else:
            start += 1
    return values


def _end_of_value(text: str, start: int) -> int | None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return None
        elif match[0] in "]}":
            depth -= 1
            if depth == 0:
                return match.end()
    return None
