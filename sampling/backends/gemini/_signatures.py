"""
Remember which part of an answer each thought signature belongs to.

Gemini signs parts of an answer, and expects each signature back on the part that it came with. A `Reasoning` has no
place for that, so the signature gets a prefix, which also tells it from those of other providers: a conversation may
change its model. No signature has a colon, because it is base64.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from sampling.parts import Reasoning

__all__ = [
    "SKIP_VALIDATION",
    "SignedPlace",
    "is_own",
    "signed_reasoning",
    "signed_texts",
    "signed_thought",
    "split_signature",
]

Json: TypeAlias = dict[str, Any]

SKIP_VALIDATION = "skip_thought_signature_validator"
"""The signature that Google documents for calls that another model made."""

_PREFIX = re.compile(
    r"(?:thought|call (?P<call>\d{1,6})|text (?P<start>\d{1,9})-(?P<end>\d{1,9})):(?P<signature>.*)", re.DOTALL
)


@attrs.frozen
class SignedPlace:
    """The part of an answer that a signature belongs to: a call, or a piece of the text."""

    call: int | None = None
    """The number of the tool call, from 0."""

    start: int = 0
    """The first character of the piece of text. Gemini often signs an empty piece at the end."""

    end: int = 0


def signed_thought(text: str, signature: str) -> Reasoning:
    """Return a thought that Gemini signed."""
    return Reasoning(text, f"thought:{signature}")


def signed_reasoning(signature: str, place: SignedPlace) -> Reasoning:
    """Return a part that carries the signature of another part."""
    prefix = f"text {place.start}-{place.end}" if place.call is None else f"call {place.call}"
    return Reasoning("", f"{prefix}:{signature}")


def is_own(part: Reasoning) -> bool:
    """Return whether Gemini signed a thought."""
    return part.signature is not None and _PREFIX.fullmatch(part.signature) is not None


def split_signature(signature: str) -> tuple[SignedPlace, str]:
    """Return the place of a signature, and the signature as Gemini sent it."""
    found = _PREFIX.fullmatch(signature)
    if found is None:
        return SignedPlace(), signature
    if found["call"] is not None:
        return SignedPlace(int(found["call"])), found["signature"]
    return SignedPlace(None, int(found["start"] or 0), int(found["end"] or 0)), found["signature"]


def signed_texts(text: str, signed: Sequence[tuple[SignedPlace, str]]) -> list[Json]:
    """Split a text into parts, some of them with a signature."""
    parts: list[Json] = []
    done = 0
    for place, signature in sorted(signed, key=lambda one: (one[0].start, one[0].end)):
        start, end = max(done, min(place.start, len(text))), max(done, min(place.end, len(text)))
        if start > done:
            parts.append({"text": text[done:start]})
        parts.append({"text": text[start:end], "thoughtSignature": signature})
        done = end
    if done < len(text):
        parts.append({"text": text[done:]})
    return parts
