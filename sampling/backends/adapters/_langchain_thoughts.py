"""Convert reasoning to and from the content blocks of LangChain's messages."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import attrs

from sampling.backends._thoughts import thinking_block, thought_of_block
from sampling.backends.adapters._requests import Json
from sampling.messages import Message
from sampling.parts import Reasoning

__all__ = ["BlockThoughts", "add_thoughts", "blocks_of", "more_of", "thoughts_writer"]


def blocks_of(chunk: Any) -> list[Json]:
    """Return the content blocks of a chunk. Some models send a text instead."""
    content: object = chunk.content
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    return [cast("Json", block) for block in blocks if isinstance(block, dict)]


def more_of(chunk: Any) -> Json:
    """Return the additional fields of a chunk."""
    return cast("Json", getattr(chunk, "additional_kwargs", None) or {})


@attrs.define
class BlockThoughts:
    """Assembles reasoning from the content blocks of chunks. Pieces of one block have the same index."""

    _thoughts: dict[object, Reasoning] = attrs.field(factory=dict[object, Reasoning])

    def add(self, chunk: Any) -> None:
        """Add the reasoning of a chunk."""
        for block in blocks_of(chunk):
            thought = _thought(block)
            if thought is not None:
                self._append(block.get("index"), thought)
        # Models of DeepSeek, Groq and Ollama.
        unsigned = more_of(chunk).get("reasoning_content")
        if isinstance(unsigned, str):
            self._append("reasoning_content", Reasoning(unsigned))

    def _append(self, index: object, piece: Reasoning) -> None:
        before = self._thoughts.get(index, Reasoning(""))
        signature = f"{before.signature or ''}{piece.signature or ''}"
        self._thoughts[index] = Reasoning(before.text + piece.text, signature or None)

    def whole(self) -> tuple[Reasoning, ...]:
        """Return the reasoning of the answer."""
        return tuple([thought for thought in self._thoughts.values() if thought != Reasoning("")])


def _thought(block: Json) -> Reasoning | None:
    """Return the reasoning of a block, or None if it has none."""
    kind = block.get("type")
    if kind in {"thinking", "redacted_thinking"}:
        return thought_of_block(block)
    if kind == "non_standard" and isinstance(value := block.get("value"), dict):
        return _thought(cast("Json", value))
    if kind == "reasoning":
        extras: Mapping[str, Any] = block.get("extras") or {}
        signature = extras.get("signature") or block.get("encrypted_content") or extras.get("encrypted_content")
        return Reasoning(block.get("reasoning") or _summary(block), signature)
    if kind == "reasoning_content" and isinstance(inner := block.get("reasoning_content"), dict):
        of_bedrock = cast("Json", inner)
        return Reasoning(of_bedrock.get("text") or "", of_bedrock.get("signature"))
    return None


def _summary(block: Json) -> str:
    """Return the text of OpenAI's summary of a thought."""
    summary: list[Json] = block.get("summary") or []
    return "".join([str(part.get("text") or "") for part in summary])


def _responses_item(part: Reasoning) -> Json:
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return {"type": "reasoning", "summary": summary, "encrypted_content": part.signature}


def _bedrock_block(part: Reasoning) -> Json:
    return {"type": "reasoning_content", "reasoning_content": {"text": part.text, "signature": part.signature}}


_WRITERS: Mapping[str, Callable[[Reasoning], Json]] = {
    "langchain_openai": _responses_item,
    "langchain_aws": _bedrock_block,
}
"""Functions that write a signed thought for a package. All others take Anthropic's blocks."""


def thoughts_writer(chat_model: Any) -> Callable[[Reasoning], Json] | None:
    """Return the function that turns a thought into a block for a model, or None for Anthropic's blocks."""
    packages = [kind.__module__.partition(".")[0] for kind in type(chat_model).__mro__]
    return next((_WRITERS[package] for package in packages if package in _WRITERS), None)


def add_thoughts(
    wire: Iterable[Json], messages: Iterable[Message], write: Callable[[Reasoning], Json] | None
) -> list[Json]:
    """Return messages with the signed reasoning of their answers in front of the text."""
    answers = iter([message for message in messages if message.role == "assistant"])
    return [_with_blocks(one, next(answers), write) if one["role"] == "assistant" else one for one in wire]


def _with_blocks(wire: Json, message: Message, write: Callable[[Reasoning], Json] | None) -> Json:
    parts = [part for part in message.content if isinstance(part, Reasoning)]
    blocks = [(block if write is None else write(part)) for part in parts if (block := thinking_block(part))]
    if not blocks:
        return wire
    text = [{"type": "text", "text": wire["content"]}] if wire["content"] else []
    return {**wire, "content": [*blocks, *text]}
