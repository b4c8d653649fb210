"""
Reduce English words to their stems, with Porter's algorithm of 1980.

"connected", "connecting" and "connections" become "connect". Words in other scripts stay as they are.
"""

import re
from functools import lru_cache

__all__ = ["stem"]

_LONGEST = 50
"""Longer texts are not words, and could take long."""

_CONSONANT = "(?:[^aeiouy]|(?<![^aeiou])y|^y)"
_VOWEL = "(?:[aeiou]|(?<=[^aeiou])y)"
_MEASURE = re.compile(f"{_VOWEL}+{_CONSONANT}+")
_HAS_VOWEL = re.compile(_VOWEL)
_ENDS_SHORT = re.compile(f"{_CONSONANT}{_VOWEL}(?:(?![wxy]){_CONSONANT})$")
_DOUBLE = re.compile(r"([^aeiou])\1$")

_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "abli": "able",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate"),
    *("iti", "ous", "ive", "ize"),
)


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Return the stem of a word in lower case. Words of up to three letters, and others than English, stay."""
    if not 3 < len(word) <= _LONGEST or not (word.isascii() and word.isalpha()):
        return word
    word = _without_plural(word)
    word = _without_past(word)
    if word.endswith("y") and _HAS_VOWEL.search(word[:-1]):
        word = f"{word[:-1]}i"
    word = _replaced(_replaced(word, _STEP_2), _STEP_3)
    return _without_last_e(_without_suffix(word))


def _measure(word: str) -> int:
    """Return how often a vowel is followed by a consonant."""
    return len(_MEASURE.findall(word))


def _without_plural(word: str) -> str:
    for suffix, replacement in (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")):
        if word.endswith(suffix):
            return word.removesuffix(suffix) + replacement
    return word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        root = word.removesuffix(suffix)
        if root != word and _HAS_VOWEL.search(root):
            return _repaired(root)
    return word


def _repaired(root: str) -> str:
    """Restore the end of a word that lost its -ed or -ing: hop(p)ing, fil(e)ing."""
    if root.endswith(("at", "bl", "iz")):
        return f"{root}e"
    if _DOUBLE.search(root) and not root.endswith(("l", "s", "z")):
        return root[:-1]
    return f"{root}e" if _measure(root) == 1 and _ENDS_SHORT.search(root) else root


def _replaced(word: str, suffixes: dict[str, str]) -> str:
    for length in range(min(len(word), 7), 1, -1):
        suffix = word[-length:]
        if suffix in suffixes:
            root = word[:-length]
            return root + suffixes[suffix] if _measure(root) else word
    return word


def _without_suffix(word: str) -> str:
    suffix = max((one for one in _STEP_4 if word.endswith(one)), key=len, default="")
    root = word.removesuffix(suffix)
    if not suffix or _measure(root) < 2 or (suffix == "ion" and not root.endswith(("s", "t"))):
        return word
    return root


def _without_last_e(word: str) -> str:
    root = word.removesuffix("e")
    if root != word and (_measure(root) > 1 or (_measure(root) == 1 and not _ENDS_SHORT.search(root))):
        word = root
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
