"""Assemble the events of Anthropic's Messages API into a `Generation`, or raise a typed error."""

import json
from collections.abc import Sequence
from typing import Any, cast

import attrs

from sampling._redaction import Redactor
from sampling.backends._thoughts import REDACTED
from sampling.backends.http._fields import Json, list_of_objects, object_or_none, optional, token_count
from sampling.backends.http._streamed import UNKNOWN_FINISH, AnswerText, Plain, StreamedResponse, finish_reason_of
from sampling.errors import Incomplete, MalformedResponse
from sampling.messages import Generation
from sampling.parts import Reasoning, ToolCall
from sampling.usage import Usage

__all__ = ["StreamedMessage"]

_FINISH_REASONS = {
    # The server paused a turn with its own tools, or after it shortened the conversation: there is only a part.
    "pause_turn": "incomplete",
    "compaction": "incomplete",
    "model_context_window_exceeded": "length",
}

_DELTAS = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""The field that each kind of delta adds to."""

_GROWING = frozenset({"text_delta", "input_json_delta", "thinking_delta"})
"""The kinds of delta that make a block longer."""


@attrs.define
class _Block:
    """One block of the answer: a text, a thought or a tool call."""

    kind: str
    id: str
    name: str
    text: AnswerText = attrs.field(factory=AnswerText)
    """The text, the thought, or the JSON of the arguments."""

    signature: str = ""


class StreamedMessage(StreamedResponse):
    """A response of the Messages API. Malformed input raises a `BackendError`."""

    def __init__(self, redactor: Redactor, input_tokens_estimate: int = 0) -> None:
        super().__init__(redactor, input_tokens_estimate)
        self._blocks: dict[int, _Block] = {}
        self._message: Json = {}
        self._counts: Json = {}
        self._delta: Json = {}

    @property
    def started(self) -> bool:
        """True once the server has begun the message."""
        return bool(self._message)

    @property
    def finished(self) -> bool:
        """True once the server has sent a stop_reason."""
        return self._delta.get("stop_reason") is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join([str(block.text) for block in self._ordered("text")])

    @property
    def spent(self) -> Usage:
        """The usage that the server reported. Until the end, the output is an estimate of one token per piece."""
        used = super().spent
        if self.finished and self._usage is not None:
            return used
        return attrs.evolve(used, output_tokens=max(used.output_tokens, self.pieces))

    def _ordered(self, *kinds: str) -> list[_Block]:
        return [self._blocks[index] for index in sorted(self._blocks) if self._blocks[index].kind in kinds]

    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text. Unknown events are skipped."""
        # Some gateways end the stream as OpenAI does.
        if self._is_end_mark(data):
            return ""
        event = self._parsed(data)
        kind = optional(event, "type", str) or ""
        if kind == "error" or (not kind and event.get("error") is not None):
            self._fail(event.get("error"))
        if kind == "message_start":
            return self._begin(object_or_none(event, "message") or {})
        if kind == "content_block_start":
            return self._begin_block(event, object_or_none(event, "content_block") or {})
        if kind == "content_block_delta":
            return self._add_delta(event, object_or_none(event, "delta") or {})
        if kind == "message_delta":
            self._end(object_or_none(event, "delta") or {}, object_or_none(event, "usage"))
        elif kind == "message_stop":
            self.done = True
        return ""

    def plain(self, chunk: Json) -> Plain | None:
        """Return what an event adds, if it only adds to a block."""
        delta = chunk.get("delta")
        if chunk.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return None
        kind: Any = cast("Json", delta).get("type")
        if kind not in _GROWING:
            return None
        text = optional(cast("Json", delta), _DELTAS[kind], str)
        return Plain(text, chunk, optional(chunk, "index", int) or 0) if text else None

    def accepts(self, plain: Plain) -> bool:
        """Return True if the message continues."""
        return plain.place in self._blocks and not self.finished

    def repeat(self, plain: Plain, texts: Sequence[str]) -> str:
        """Add the texts of events like this one, and return what they add to the text."""
        self.pieces += len(texts) - 1
        return self._grow(self._blocks[plain.place], "".join(texts))

    def add_whole(self, data: str) -> str:
        """Parse a message that was not streamed, and return its text."""
        message = self._parsed(data)
        if message.get("type") != "message":
            raise MalformedResponse("the reply is not a message of the Messages API")
        self.done = True
        return self._begin(message)

    def _begin(self, message: Json) -> str:
        """Begin the message, which is empty in a stream, except for results of server tools."""
        if self._message:
            self._check_same(message)
            return ""
        self._message = {"type": "message", **message}
        self._model = optional(message, "model", str)
        self._take_counts(object_or_none(message, "usage"))
        blocks = enumerate(list_of_objects(message, "content"))
        pieces = [self._begin_block({"index": index}, block) for index, block in blocks]
        if message.get("stop_reason") is not None:
            self._end({name: message.get(name) for name in ("stop_reason", "stop_sequence", "stop_details")}, None)
        return "".join(pieces)

    def _check_same(self, message: Json) -> None:
        # Some gateways send the beginning twice.
        if self._blocks or message.get("id") != self._message.get("id"):
            raise MalformedResponse("a second message begins: the stream may contain two answers")

    def _begin_block(self, event: Json, given: Json) -> str:
        self._check_open()
        index = optional(event, "index", int) or 0
        if index in self._blocks:
            raise MalformedResponse(f"block {index} begins twice: the stream may contain two answers")
        kind = optional(given, "type", str) or ""
        block = _Block(kind, optional(given, "id", str) or f"call_{index}", optional(given, "name", str) or "")
        self._blocks[index] = block
        if kind == "redacted_thinking":
            block.signature = REDACTED + (optional(given, "data", str) or "")
            self.pieces += 1
            return ""
        block.signature = optional(given, "signature", str) or ""
        # Empty at the start of a stream, and whole in a message that was not streamed.
        return self._grow(block, _content(given))

    def _add_delta(self, event: Json, delta: Json) -> str:
        self._check_open()
        block = self._blocks.get(optional(event, "index", int) or 0)
        if block is None:
            raise MalformedResponse("a delta belongs to a block that has not begun")
        kind = optional(delta, "type", str) or ""
        if kind not in _DELTAS:
            # Citations, and fields that the API may add later.
            return ""
        given = optional(delta, _DELTAS[kind], str) or ""
        if kind == "signature_delta":
            block.signature += given
            return ""
        return self._grow(block, given)

    def _check_open(self) -> None:
        if not self._message:
            raise MalformedResponse("a block comes before the beginning of its message")
        if self.finished:
            raise MalformedResponse("more content after a stop_reason: the stream may contain two answers")

    def _grow(self, block: _Block, given: str) -> str:
        self.pieces += bool(given)
        added = block.text.add(given)
        return added if block.kind == "text" else ""

    def _end(self, delta: Json, usage: Json | None) -> None:
        optional(delta, "stop_reason", str)
        self._delta = {**self._delta, **delta}
        self._take_counts(usage)

    def _take_counts(self, usage: Json | None) -> None:
        # The counts at the end are cumulative, and may leave out those of the beginning.
        self._counts.update({name: value for name, value in (usage or {}).items() if value is not None})
        self._take_usage(_read_usage(self._counts))

    def generation(self, *, allow_missing_finish: bool = False) -> Generation:
        """Return the generation, or raise if the stream had no message or no end."""
        if not self.started:
            raise Incomplete("the stream ended before the answer started")
        if not self.finished and not allow_missing_finish:
            raise Incomplete("the stream ended without a stop_reason: the answer may be cut off")
        thoughts = self._ordered("thinking", "redacted_thinking")
        calls = self._ordered("tool_use")
        return Generation(
            self.text,
            self.spent,
            self._finish_reason(),
            self._model,
            reasoning="".join([str(block.text) for block in thoughts]) or None,
            tool_calls=tuple([ToolCall(call.id, call.name, str(call.text) or "{}") for call in calls]),
            refusal=self._refusal(),
            thoughts=tuple([Reasoning(str(block.text), block.signature or None) for block in thoughts]),
            raw=self._raw(),
        )

    def _finish_reason(self) -> str:
        given: str = self._delta.get("stop_reason") or UNKNOWN_FINISH
        return _FINISH_REASONS.get(given) or finish_reason_of(given)

    def _refusal(self) -> str | None:
        details = object_or_none(self._delta, "stop_details") or {}
        return optional(details, "explanation", str) if self._delta.get("stop_reason") == "refusal" else None

    def _raw(self) -> Json:
        """Return the fields of the response other than the answer."""
        known = {"content", "model", "role", "type", "usage"}
        rest = {name: value for name, value in {**self._message, **self._delta}.items() if name not in known}
        return {name: value for name, value in {**rest, "usage": self._counts}.items() if value not in (None, {})}


def _content(given: Json) -> str:
    if given.get("type") == "tool_use":
        arguments: Any = given.get("input")
        return json.dumps(arguments, ensure_ascii=False) if arguments else ""
    return optional(given, "thinking" if given.get("type") == "thinking" else "text", str) or ""


def _read_usage(counts: Json) -> Usage | None:
    """
    Return the usage of a response, or None if a count is missing or implausible.

    The API counts input that it read from or wrote to the cache separately.
    """
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    read, cached, written, output = [token_count(counts.get(name, 0)) for name in names]
    if read is None or cached is None or written is None or output is None or "input_tokens" not in counts:
        return None
    details: Any = counts.get("output_tokens_details")
    thought = token_count(cast("Json", details).get("thinking_tokens")) if isinstance(details, dict) else None
    return Usage(
        read + cached + written,
        output,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=min(thought or 0, output),
    )
