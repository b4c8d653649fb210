"""Assemble the chunks of Gemini's streams into a `Generation`, or raise a typed error."""

import json
from typing import Any, cast

import attrs

from sampling._json.bounded import loads
from sampling._redaction import Redactor
from sampling.backends.gemini._contents import MADE_UP_ID
from sampling.backends.gemini._errors import GeminiErrorResponse
from sampling.backends.gemini._partial_arguments import add_arguments
from sampling.backends.gemini._signatures import SignedPlace, signed_reasoning, signed_thought
from sampling.backends.gemini._usage import read_usage
from sampling.backends.http._fields import Json, list_of_objects, object_or_none, optional
from sampling.backends.http._streamed import UNKNOWN_FINISH, AnswerText, StreamedResponse
from sampling.errors import AnswerRejected, Incomplete, MalformedResponse
from sampling.messages import Generation
from sampling.parts import Reasoning, ToolCall

__all__ = ["StreamedGeminiAnswer"]

_FINISH_REASONS = {
    "BLOCKLIST": "content_filter",
    # The limit of one request, which ends before that of the answer.
    "CONTINUATION": "length",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "MAX_TOKENS": "length",
    "PROHIBITED_CONTENT": "content_filter",
    "RECITATION": "content_filter",
    "SAFETY": "content_filter",
    "SPII": "content_filter",
    "STOP": "stop",
}
# The server could not use what the model wrote, or gave up. Another sample may pass.
_REJECTED = frozenset(
    {
        "IMAGE_OTHER",
        "LANGUAGE",
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "NO_IMAGE",
        "OTHER",
        "TOO_MANY_TOOL_CALLS",
        "UNEXPECTED_TOOL_CALL",
    }
)
_NOT_FINISHED = frozenset({"", "FINISH_REASON_UNSPECIFIED"})
_NOT_RAW = frozenset({"candidates", "error", "usageMetadata"})


@attrs.define
class _Call:
    """A tool call, whose arguments may come in pieces."""

    id: str
    name: str
    arguments: Json

    def whole(self) -> ToolCall:
        return ToolCall(self.id, self.name, json.dumps(self.arguments, ensure_ascii=False))


class StreamedGeminiAnswer(StreamedResponse):
    """A response of the Gemini API. Malformed input raises a `BackendError`."""

    _error_type = GeminiErrorResponse

    def __init__(self, redactor: Redactor, *, input_tokens_estimate: int = 0) -> None:
        super().__init__(redactor, input_tokens_estimate)
        self._text = AnswerText()
        self._reasoning = AnswerText()
        self._chars = 0
        self._contents = 0
        """The number of parts with content so far."""

        self._calls: list[_Call] = []
        self._signed: list[tuple[SignedPlace, str]] = []
        self._thoughts: list[Reasoning] = []
        self._logprobs: list[Any] = []
        self._other_parts: list[Json] = []
        self._candidate: Json = {}
        self._raw: Json = {}
        self._has_candidate = False
        self._blocked: str | None = None
        """The reason why the prompt was blocked, if it was."""

        self._finish_reason: str | None = None
        self._finishes_every_chunk = True

    @property
    def started(self) -> bool:
        """True once a candidate, or the reason why there is none, has arrived."""
        return self._has_candidate or self._blocked is not None

    @property
    def finished(self) -> bool:
        """
        True once nothing can follow.

        A finishReason in every chunk, as with older models, does not mean that.
        """
        return self._blocked is not None or (self._has_ended and not self._finishes_every_chunk)

    @property
    def _has_ended(self) -> bool:
        return self._finish_reason is not None or self._blocked is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._text)

    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text."""
        # Gemini ends its streams without a mark. Gateways add that of OpenAI.
        if self._is_end_mark(data):
            return ""
        return self._add_chunk(self._parsed(data))

    def add_whole(self, data: str) -> str:
        """Parse a response that was not streamed as events: one object, or a list of chunks."""
        try:
            parsed = loads(data)
        except ValueError:
            parsed = None
        if not isinstance(parsed, list):
            return self.add(data)
        piece = ""
        for chunk in cast("list[object]", parsed):
            if not isinstance(chunk, dict):
                raise MalformedResponse("a chunk is not a JSON object")
            piece += self._add_chunk(cast("Json", chunk))
        return piece

    def _add_chunk(self, chunk: Json) -> str:
        usage = object_or_none(chunk, "usageMetadata")
        self._take_usage(None if usage is None else read_usage(usage))
        if chunk.get("error") is not None and not self._has_ended:
            self._fail(chunk["error"])
        self._raw.update({name: value for name, value in chunk.items() if name not in _NOT_RAW})
        self._model = optional(chunk, "modelVersion", str) or self._model
        feedback = object_or_none(chunk, "promptFeedback") or {}
        self._blocked = optional(feedback, "blockReason", str) or self._blocked
        piece = ""
        for candidate in list_of_objects(chunk, "candidates"):
            if index := optional(candidate, "index", int):
                raise MalformedResponse(f"a candidate has index {index}, but 1 was requested")
            piece += self._take_candidate(candidate)
        return piece

    def _take_candidate(self, candidate: Json) -> str:
        self._has_candidate = True
        reason = optional(candidate, "finishReason", str) or ""
        reason = "" if reason in _NOT_FINISHED else reason
        finished_before = self._finish_reason is not None
        self._finishes_every_chunk = self._finishes_every_chunk and bool(reason)
        before = self._contents
        piece = ""
        for part in list_of_objects(object_or_none(candidate, "content") or {}, "parts"):
            piece += self._take_part(part)
        is_more = self._contents > before
        # Older models send a finishReason with every chunk.
        if is_more and finished_before and not self._finishes_every_chunk:
            raise MalformedResponse("more text after a finishReason: the stream may contain two answers")
        self.pieces += is_more
        self._logprobs.extend(_logprobs(object_or_none(candidate, "logprobsResult")))
        self._candidate.update(candidate)
        if reason in _REJECTED:
            raise self._rejected(reason, optional(candidate, "finishMessage", str) or "")
        self._finish_reason = reason or self._finish_reason
        return piece

    def _take_part(self, part: Json) -> str:
        text = optional(part, "text", str)
        signature = optional(part, "thoughtSignature", str) or None
        call = object_or_none(part, "functionCall")
        if part.get("thought") is True:
            self._take_thought(text or "", signature)
            return ""
        start, piece = self._chars, "" if text is None else self._text.add(text)
        self._chars += len(piece)
        self._contents += bool(text or call)
        place = SignedPlace(None, start, self._chars)
        if call is not None and call.get("name"):
            place = SignedPlace(len(self._calls))
            self._calls.append(self._call(call))
        elif call is not None and self._calls:
            add_arguments(self._calls[-1].arguments, call)
        elif text is None and signature is None:
            # Images, and code that Gemini ran: there is no part of ours for them in an answer.
            self._other_parts.append(part)
        if signature is not None:
            self._signed.append((place, signature))
        return piece

    def _take_thought(self, text: str, signature: str | None) -> None:
        self._contents += bool(text)
        text = self._reasoning.add(text)
        last = self._thoughts[-1] if self._thoughts else None
        if last is not None and last.signature is None:
            self._thoughts[-1] = _thought(last.text + text, signature)
        elif text or signature is not None:
            self._thoughts.append(_thought(text, signature))

    def _call(self, call: Json) -> "_Call":
        arguments = dict(object_or_none(call, "args") or {})
        add_arguments(arguments, call)
        # The id of the response makes it unique in the conversation, and the same whenever the response is read.
        response_id = (optional(self._raw, "responseId", str) or "call")[:24]
        made_up = f"{MADE_UP_ID}{response_id}_{len(self._calls)}"
        return _Call(optional(call, "id", str) or made_up, optional(call, "name", str) or "", arguments)

    def _rejected(self, reason: str, message: str) -> AnswerRejected:
        said = f": {self._redactor.sample(message)}" if message else ""
        error = AnswerRejected(f"the server ended the answer with the finishReason {reason!r}{said}")
        error.partial_text = self._redactor.redact(message) or None
        return error

    def generation(self, *, allow_missing_finish: bool = False) -> Generation:
        """Return the generation, or raise if the stream had no answer or no end."""
        if not self.started:
            raise Incomplete("the stream ended before the answer started")
        if not self._has_ended and not allow_missing_finish:
            raise Incomplete("the stream ended without a finishReason: the answer may be cut off")
        return Generation(
            str(self._text),
            self.spent,
            self._ended(),
            self._model,
            reasoning=str(self._reasoning) or None,
            tool_calls=tuple([call.whole() for call in self._calls]),
            logprobs=tuple(self._logprobs),
            thoughts=(*self._thoughts, *[signed_reasoning(given, place) for place, given in self._signed]),
            raw=self._described() or None,
        )

    def _ended(self) -> str:
        if self._finish_reason is None:
            return UNKNOWN_FINISH if self._blocked is None else "content_filter"
        reason = _FINISH_REASONS.get(self._finish_reason, self._finish_reason.lower())
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _described(self) -> Json:
        """Return the fields of the response other than the answer, such as its id, ratings and sources."""
        described = {
            **self._raw,
            **{name: value for name, value in self._candidate.items() if name not in {"content", "logprobsResult"}},
            **({"parts": self._other_parts} if self._other_parts else {}),
        }
        described.pop("index", None)
        return described


def _thought(text: str, signature: str | None) -> Reasoning:
    return Reasoning(text) if signature is None else signed_thought(text, signature)


def _logprobs(given: Json | None) -> list[Json]:
    """Return one object per token, with the alternatives to it if there are any."""
    if given is None:
        return []
    chosen, top = list_of_objects(given, "chosenCandidates"), list_of_objects(given, "topCandidates")
    if len(top) != len(chosen):
        return chosen
    return [
        {**token, "topCandidates": list_of_objects(others, "candidates")}
        for token, others in zip(chosen, top, strict=True)
    ]
