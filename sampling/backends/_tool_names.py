"""
Names and ids of tool calls that every provider accepts.

A model may call a tool that does not exist, by a name that no tool could have, such as "functions.search", and a
conversation may continue with another provider than the one that chose the ids. A provider refuses the whole
conversation because of one name or id that it does not accept.
"""

import re

__all__ = ["nine_letter_id", "plain_id", "short_id", "wire_name"]

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_NINE_LETTERS = re.compile(r"[A-Za-z0-9]{9}")
_MAX_ID_CHARS = 40


def wire_name(name: str) -> str:
    """Return the name of a called tool, with invalid characters replaced."""
    return _NOT_IN_NAME.sub("_", name)[:64] or "unnamed"


def short_id(given: str) -> str:
    """Return the id of a call and its result, or its digest if it is too long for OpenAI."""
    # Other characters stay: models such as Kimi were trained on ids like "functions.search:0".
    return given if 0 < len(given) <= _MAX_ID_CHARS else _digest(given)


def plain_id(given: str) -> str:
    """Return the id of a call and its result, or its digest if Anthropic would refuse it."""
    return given if _PLAIN.fullmatch(given) else _digest(given)


def nine_letter_id(given: str) -> str:
    """Return the id of a call, for the call and for its result: itself, or its digest if Mistral would refuse it."""
    return given if _NINE_LETTERS.fullmatch(given) else _digest(given)[-9:]


def _digest(given: str) -> str:
    # Slow to import, and most ids are used as they are.
    from hashlib import sha256  # noqa: PLC0415

    return f"call_{sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
