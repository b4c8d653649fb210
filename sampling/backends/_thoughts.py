"""
Store reasoning in the form that its server expects back.

A `Reasoning` has a text and a signature. Anything else that a server sent with a thought is put in front of the
signature, followed by a colon. The signatures of providers are base64, which has no colon, so a provider can
tell its own thoughts from those of another one. Only Anthropic's have nothing in front.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs

from sampling.parts import Part, Reasoning, ToolCall

__all__ = [
    "ENCRYPTED",
    "REDACTED",
    "SHOWN",
    "ThoughtAssembler",
    "is_bare",
    "text_of_chunk",
    "thinking_block",
    "thinking_chunks",
    "thought_of_block",
    "wire_reasoning",
    "with_details",
]

Json: TypeAlias = dict[str, Any]

REDACTED = "redacted_thinking:"
"""Begins the signature of a thought that Anthropic encrypted as a whole."""

ENCRYPTED = "encrypted_content:"
"""Begins the signature of a thought that OpenAI's Responses API encrypted."""

SHOWN = "reasoning_text:"
"""Begins the signature of a thought that a server with the Responses API showed as a whole."""

_DETAIL = "reasoning_details:"
"""Begins the signature of an item of OpenRouter's `reasoning_details`. The item follows, without its text."""

_CHUNK = "thinking_chunk:"
"""Begins the signature of a `thinking` part of Mistral's content. The part follows, without its text."""

_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The field with the text, by the types of `reasoning_details` that arrive in pieces."""

_FIELDS = ("reasoning_content", "reasoning")
"""The fields of a chat message for unsigned reasoning."""


def is_bare(signature: str) -> bool:
    """Return whether a signature has no prefix."""
    return ":" not in signature


# Anthropic's blocks, which litellm and LangChain pass on.


def thought_of_block(block: Mapping[str, Any]) -> Reasoning:
    """Return a `thinking` or `redacted_thinking` block as a part."""
    if block.get("type") == "redacted_thinking":
        return Reasoning("", REDACTED + str(block.get("data") or ""))
    return Reasoning(str(block.get("thinking") or ""), str(block.get("signature") or "") or None)


def thinking_block(part: Reasoning) -> Json | None:
    """Return a part as Anthropic's block, or None if Anthropic did not sign it and would refuse it."""
    signature = part.signature
    if signature is not None and signature.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED)}
    if signature is None or not is_bare(signature):
        return None
    return {"type": "thinking", "thinking": part.text, "signature": signature}


# Chat completions.


def _reasoning_field(delta: Mapping[str, Any]) -> str | None:
    """Return the name of the field with the reasoning of a chat message."""
    return next((name for name in _FIELDS if isinstance(delta.get(name), str) and delta[name]), None)


@attrs.define
class ThoughtAssembler:
    """Assembles the reasoning that a chat server expects back: blocks, details, chunks, or the text of a field."""

    _blocks: list[Json] = attrs.field(factory=list[Json])
    _details: list[Json] = attrs.field(factory=list[Json])
    _chunks: list[Json] = attrs.field(factory=list[Json])
    _field: str | None = None

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add the reasoning of a delta."""
        self._field = self._field or _reasoning_field(delta)
        for block in _objects(delta.get("thinking_blocks")):
            self._add_block(block)
        for detail in _objects(delta.get("reasoning_details")):
            self._add_detail(detail)
        for chunk in _objects(delta.get("content")):
            if chunk.get("type") == "thinking":
                self._add_chunk(chunk)

    def _add_chunk(self, chunk: Json) -> None:
        last = self._chunks[-1] if self._chunks else {"signature": ""}
        text = text_of_chunk(chunk.get("thinking"))
        given = {name: value for name, value in chunk.items() if value is not None}
        # The signature ends a chunk.
        if "signature" in last:
            self._chunks.append({**given, "thinking": text})
        else:
            last.update({**given, "thinking": last["thinking"] + text})

    def _add_block(self, block: Json) -> None:
        last = self._blocks[-1] if self._blocks else {}
        # The signature ends a block.
        if block.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self._blocks.append(dict(block))
            return
        for name in ("thinking", "signature"):
            last[name] = f"{last.get(name) or ''}{block.get(name) or ''}"

    def _add_detail(self, detail: Json) -> None:
        last = self._details[-1] if self._details else {}
        text = _TEXTS.get(str(detail.get("type")))
        if text is None or any(last.get(name) != detail.get(name) for name in ("type", "index")):
            self._details.append(dict(detail))
            return
        joined = f"{last.get(text) or ''}{detail.get(text) or ''}"
        last.update({name: value for name, value in detail.items() if value is not None})
        last[text] = joined

    def thoughts(self, reasoning: str, *, has_calls: bool) -> tuple[Reasoning, ...]:
        """Return the parts of an answer with this reasoning, or none if the server expects nothing back."""
        if self._details:
            return tuple([_thought_of_detail(detail) for detail in self._details])
        if self._chunks:
            return tuple([_thought_of_chunk(chunk) for chunk in self._chunks])
        if any(block.get("signature") or block.get("data") for block in self._blocks):
            return tuple([thought_of_block(block) for block in self._blocks])
        if has_calls and reasoning and self._field is not None:
            # DeepSeek and Moonshot refuse the results of calls without the reasoning that led to them.
            return (Reasoning(reasoning, f"{self._field}:"),)
        return ()


def text_of_chunk(given: object) -> str:
    """Return the text of Mistral's `thinking` part: a list of text parts, or a text."""
    if isinstance(given, list):
        return "".join([text_of_chunk(item) for item in cast("list[object]", given)])
    text = cast("Json", given).get("text") if isinstance(given, dict) else given
    return text if isinstance(text, str) else ""


def _thought_of_chunk(chunk: Json) -> Reasoning:
    rest = {name: value for name, value in chunk.items() if name not in {"thinking", "type"}}
    return with_details(chunk["thinking"], _CHUNK, rest)


def thinking_chunks(content: Sequence[Part]) -> list[Json]:
    """Return the thoughts of a message that came as parts of Mistral's content, as such parts."""
    return [
        {"type": "thinking", "thinking": [{"type": "text", "text": part.text}], **json.loads(signature[len(_CHUNK) :])}
        for part in content
        if isinstance(part, Reasoning) and (signature := part.signature or "").startswith(_CHUNK)
    ]


def _objects(given: object) -> list[Json]:
    items = cast("list[object]", given) if isinstance(given, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]


def _thought_of_detail(detail: Json) -> Reasoning:
    field = _TEXTS.get(str(detail.get("type")), "")
    text = detail.get(field)
    rest = {name: value for name, value in detail.items() if name != field}
    return with_details(text if isinstance(text, str) else "", _DETAIL, rest)


def with_details(text: str, prefix: str, details: Mapping[str, Any]) -> Reasoning:
    """Return a part that carries details in its signature."""
    return Reasoning(text, prefix + json.dumps(details, ensure_ascii=False, separators=(",", ":"), default=str))


def wire_reasoning(content: Sequence[Part]) -> Json:
    """Return the fields with the reasoning of a message, as its server sent them."""
    thoughts = [part for part in content if isinstance(part, Reasoning) and part.signature is not None]
    fields: Json = {}
    if details := [_detail(part) for part in thoughts if (part.signature or "").startswith(_DETAIL)]:
        fields["reasoning_details"] = details
    # Only where it has to be: older models of DeepSeek refuse it without calls.
    if any(isinstance(part, ToolCall) for part in content):
        fields.update(_unsigned(thoughts))
    return fields


def _detail(part: Reasoning) -> Json:
    detail = cast("Json", json.loads((part.signature or "").removeprefix(_DETAIL)))
    text = _TEXTS.get(str(detail.get("type")))
    return detail if text is None else {**detail, text: part.text}


def _unsigned(thoughts: Iterable[Reasoning]) -> Json:
    return {name: part.text for part in thoughts for name in _FIELDS if part.signature == f"{name}:"}
