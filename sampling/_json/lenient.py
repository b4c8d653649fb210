"""Find the JSON in an answer that contains other text."""

import re

from sampling._json.bounded import MAX_DEPTH, loads
from sampling._json.extraction import MAX_CHARS
from sampling._text import unfenced

__all__ = ["answer_without_thoughts", "find_json", "fix_json"]

# Each attempt may read the whole text, so their number bounds the time.
_MAX_VALUES = 8

_THOUGHTS = re.compile(r"</(?:think|thinking|thought)>")
# Possessive: no input can cause backtracking.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_FIXABLE = re.compile(r'"(?:[^"\\]|\\.)*+"?|,\s*+(?=[\]}])|\b(?:True|False|None)\b', re.DOTALL)
_FOREIGN = re.compile(
    r"""
    "(?:[^"\\]|\\.)*+"?                            # a string, which stays as it is
    | /\*(?:[^*]|\*(?!/))*+(?:\*/)? | (?<!:)//[^\n]*+    # a comment
    | '(?:[^'\\]|\\.)*+'?                           # a string in single quotes
    | (?P<before>[{,]\s*+)(?P<key>[A-Za-z_]\w*+)(?=\s*+:)
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTES = re.compile(r'''\\.|"''', re.DOTALL)
_SWAPPED = {"\\'": "'", '"': '\\"'}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CONTROLS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def find_json(text: str, openings: str = "{[") -> str:
    """
    Return the JSON value in a text, as JSON.

    What may be around it: `<think>` blocks, code fences, and prose. Trailing commas, line breaks inside of strings,
    and Python's True, False and None are fixed. If nothing else is JSON, so are comments, single quotes, and keys
    without quotes. Where prose holds several different values, none is chosen.
    The text itself is returned if there is no value. It takes linear time.
    """
    text = text.strip()
    if len(text) > MAX_CHARS or _is_json(text):
        return text
    answer = answer_without_thoughts(text)
    body = unfenced(answer)
    fixed = fix_json(body)
    for candidate in (body, fixed):
        if _is_json(candidate):
            return candidate
    # The first fence may hold something else, such as code.
    for candidate in (fixed, fix_json(answer), _as_json(body, openings)):
        if _is_cut_off(candidate, openings):
            continue
        for opening in openings:
            values = _values(candidate, opening)
            if values:
                return values[0] if all(loads(one) == loads(values[0]) for one in values) else body
    return body


def answer_without_thoughts(text: str) -> str:
    """Return what follows the last `</think>`."""
    return _THOUGHTS.split(text)[-1]


def fix_json(text: str) -> str:
    """Return JSON without trailing commas, line breaks in strings, and Python's constants."""
    return _FIXABLE.sub(_fix_match, text)


def _as_json(text: str, openings: str) -> str:
    """Convert the syntax of JavaScript and Python after the first bracket to JSON."""
    start = _first_place(text, openings)
    # Skip the text before the bracket, where an apostrophe would begin a string.
    return fix_json(_FOREIGN.sub(_from_foreign, text[start:]))


def _from_foreign(match: re.Match[str]) -> str:
    found = match[0]
    if found.startswith('"'):
        return found
    if found.startswith("/"):
        return " "
    if match["key"] is not None:
        return f'{match["before"]}"{match["key"]}"'
    if len(found) < 2 or not found.endswith("'"):
        return found
    # A quote needs a backslash now, and an apostrophe none.
    return f'"{_QUOTES.sub(lambda one: _SWAPPED.get(one[0], one[0]), found[1:-1])}"'


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True


def _fix_match(match: re.Match[str]) -> str:
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
        if end is None:
            # It was cut off, and what is inside is not the answer.
            break
        if _is_json(text[start:end]):
            values.append(text[start:end])
            start = end
        else:
            start += 1
    return values


def _is_cut_off(text: str, openings: str) -> bool:
    """Return whether the first value has no end, so that those inside of it are not the answer."""
    start = _first_place(text, openings)
    return start < len(text) and _end_of_value(text, start) is None


def _first_place(text: str, openings: str) -> int:
    return min([place for opening in openings if (place := text.find(opening)) >= 0], default=len(text))


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
