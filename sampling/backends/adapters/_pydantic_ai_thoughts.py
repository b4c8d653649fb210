"""Store what pydantic-ai needs back with the parts of an answer: signatures, ids and provider details."""

import json
from collections.abc import Iterable
from typing import Any, cast

from sampling.backends._thoughts import REDACTED, is_bare, with_details
from sampling.backends.adapters._requests import Json
from sampling.parts import Part, Reasoning

__all__ = ["TEXT", "carried_details", "is_carrier", "thinking_fields", "thought_of"]

_PREFIX = "pydantic-ai:"
"""The prefix of a signature that holds all fields of a pydantic-ai part."""

TEXT = ""
"""The key of the text, among the ids of tool calls."""

_PLACE = "of"
_REDACTED_ID = "redacted_thinking"


def thought_of(part: Any) -> Reasoning | None:
    """Return a part of pydantic-ai as reasoning. Details of other parts become reasoning without a text."""
    details = {
        name: value
        for name in ("id", "signature", "provider_name", "provider_details")
        if (value := getattr(part, name, None)) is not None
    }
    if part.part_kind == "thinking":
        return _thought(part.content, details)
    if part.part_kind not in {"text", "tool-call"} or not details.keys() & {"id", "provider_details"}:
        return None
    place = TEXT if part.part_kind == "text" else part.tool_call_id
    return with_details("", _PREFIX, {_PLACE: place, **details})


def _thought(text: str, details: Json) -> Reasoning:
    signature = details.get("signature")
    if details.get("id") == _REDACTED_ID and signature is not None:
        return Reasoning("", REDACTED + signature)
    if details.keys() & {"id", "provider_details"}:
        return with_details(text, _PREFIX, details)
    return Reasoning(text, signature)


def is_carrier(part: Part) -> bool:
    """Return whether a part only carries the details of another part."""
    return isinstance(part, Reasoning) and _PLACE in _details(part)


def carried_details(parts: Iterable[Part]) -> dict[str, Json]:
    """Return the details of the text and of tool calls, by the ids of the calls."""
    carried: dict[str, Json] = {}
    for part in parts:
        if isinstance(part, Reasoning) and _PLACE in (details := _details(part)):
            carried[str(details.pop(_PLACE))] = details
    return carried


def thinking_fields(part: Reasoning) -> Json:
    """Return the fields of a thought, apart from its text."""
    signature = part.signature
    if signature is None or is_bare(signature):
        return {"signature": signature}
    if signature.startswith(REDACTED):
        return {"id": _REDACTED_ID, "signature": signature.removeprefix(REDACTED)}
    return _details(part)


def _details(part: Reasoning) -> Json:
    signature = part.signature or ""
    return cast("Json", json.loads(signature.removeprefix(_PREFIX))) if signature.startswith(_PREFIX) else {}
