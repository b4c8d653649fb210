"""Assemble the events of OpenAI's Responses API into a `Generation`, or raise a typed error."""

import re
from collections.abc import Sequence
from typing import Any

import attrs

from sampling._redaction import Redactor
from sampling.backends._thoughts import ENCRYPTED, SHOWN
from sampling.backends.http._fields import Json, list_of_objects, object_or_none, optional
from sampling.backends.http._streamed import UNKNOWN_FINISH, AnswerText, Plain, StreamedResponse
from sampling.backends.openai._usage import read_usage
from sampling.errors import Incomplete, MalformedResponse
from sampling.messages import Generation
from sampling.parts import Reasoning, ToolCall

__all__ = ["StreamedResponsesAnswer"]

_TEXT_EVENTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})

_BETWEEN_SUMMARIES = "\n\n"

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""The finish_reason for known reasons of an incomplete response."""


_UNFINISHED = frozenset({"in_progress", "queued"})


@attrs.define
class _PartialCall:
    id: str
    name: str
    arguments: str = ""


class StreamedResponsesAnswer(StreamedResponse):
    """A response of the Responses API. Malformed input raises a `BackendError`."""

    varying = re.compile(rb'"(obfuscation|sequence_number)": ?"?([0-9A-Za-z]+)')

    def __init__(self, redactor: Redactor, *, input_tokens_estimate: int = 0) -> None:
        super().__init__(redactor, input_tokens_estimate)
        self._text = AnswerText()
        self._reasoning = AnswerText()
        self._refusal = AnswerText()
        self._calls: dict[int, _PartialCall] = {}
        self._thoughts: list[Reasoning] = []
        self._logprobs: list[Any] = []
        self._finish_reason: str | None = None
        self._response: Json = {}

    @property
    def started(self) -> bool:
        """True once the server has accepted the request or sent a part of the answer."""
        return bool(self._response or self.pieces)

    @property
    def finished(self) -> bool:
        """True once the server has reported the end of the response."""
        return self._finish_reason is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._text)

    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text. Unknown events are skipped."""
        if self._is_end_mark(data):
            return ""
        event = self._parsed(data)
        kind = optional(event, "type", str) or ""
        if kind == "error" or (not kind and event.get("error") is not None):
            self._fail(event.get("error") or {**event, "type": None})
        if kind in _TEXT_EVENTS:
            return self._take_text(_TEXT_EVENTS[kind], event)
        if kind.startswith("response.output_item."):
            item, index = object_or_none(event, "item") or {}, optional(event, "output_index", int) or 0
            self._take_item(item, index, is_done=kind.endswith(".done"))
        elif kind == "response.function_call_arguments.delta":
            self._take_arguments(event)
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            self._reasoning.add(_BETWEEN_SUMMARIES)
        elif (response := object_or_none(event, "response")) is not None:
            return self._take_event(response, ended=kind in _ENDS)
        return ""

    def _take_event(self, response: Json, *, ended: bool) -> str:
        # Some gateways send nothing before the end, which has it all.
        is_all = ended and not (self.pieces or self._calls or self._thoughts)
        piece = self._take_output(response) if is_all else ""
        self._take_response(response, ended=ended)
        return piece

    def plain(self, chunk: Json) -> Plain | None:
        """Return what an event adds, if it only adds text or reasoning."""
        name = _TEXT_EVENTS.get(optional(chunk, "type", str) or "")
        if name not in {"text", "reasoning"} or chunk.get("logprobs"):
            return None
        text = optional(chunk, "delta", str)
        return Plain(text, chunk, 0, is_reasoning=name == "reasoning") if text else None

    def accepts(self, plain: Plain) -> bool:
        """Return True: texts may come at any time."""
        return True

    def repeat(self, plain: Plain, texts: Sequence[str]) -> str:
        """Add the texts of events like this one, and return what they add to the text."""
        self.pieces += len(texts)
        added = (self._reasoning if plain.is_reasoning else self._text).add("".join(texts))
        return "" if plain.is_reasoning else added

    def add_whole(self, data: str) -> str:
        """Parse a response that was not streamed, and return its text."""
        response = self._parsed(data)
        if response.get("object") != "response":
            raise MalformedResponse("the reply is not a response of the Responses API")
        return self._take_event(response, ended=True)

    def _take_output(self, response: Json) -> str:
        piece = ""
        for index, item in enumerate(list_of_objects(response, "output")):
            for part in list_of_objects(item, "content"):
                piece += self._take_part(part)
            for number, part in enumerate(list_of_objects(item, "summary")):
                self._reasoning.add(_BETWEEN_SUMMARIES if number else "")
                self._take_part(part)
            self._take_item(item, index, is_done=True)
        return piece

    def _take_part(self, part: Json) -> str:
        text = optional(part, "text", str) or ""
        self.pieces += 1
        if part.get("type") == "output_text":
            self._logprobs.extend(list_of_objects(part, "logprobs"))
            return self._text.add(text)
        if part.get("type") == "refusal":
            self._refusal.add(optional(part, "refusal", str) or "")
        elif part.get("type") in {"summary_text", "reasoning_text"}:
            self._reasoning.add(text)
        return ""

    def _take_text(self, name: str, event: Json) -> str:
        delta = optional(event, "delta", str) or ""
        self.pieces += bool(delta)
        if name == "reasoning":
            self._reasoning.add(delta)
        elif name == "refusal":
            self._refusal.add(delta)
        else:
            self._logprobs.extend(list_of_objects(event, "logprobs"))
            return self._text.add(delta)
        return ""

    def _take_item(self, item: Json, index: int, *, is_done: bool) -> None:
        kind = item.get("type")
        if kind == "function_call":
            name, arguments = optional(item, "name", str) or "", optional(item, "arguments", str) or ""
            call_id = optional(item, "call_id", str) or optional(item, "id", str) or f"call_{index}"
            # The last item has the complete arguments, and the first one has none.
            before = self._calls.get(index)
            self._calls[index] = _PartialCall(call_id, name, arguments or (before.arguments if before else ""))
        elif kind == "reasoning" and is_done:
            self._take_thought(item)

    def _take_thought(self, item: Json) -> None:
        signature = optional(item, "encrypted_content", str) or ""
        # Models with open weights show the reasoning itself, and OpenAI a summary of it.
        shown = "".join([optional(part, "text", str) or "" for part in list_of_objects(item, "content")])
        if shown:
            self._thoughts.append(Reasoning(shown, SHOWN + signature))
        elif signature:
            parts = list_of_objects(item, "summary")
            text = _BETWEEN_SUMMARIES.join([optional(part, "text", str) or "" for part in parts])
            self._thoughts.append(Reasoning(text, ENCRYPTED + signature))

    def _take_arguments(self, event: Json) -> None:
        call = self._calls.get(optional(event, "output_index", int) or 0)
        if call is None:
            raise MalformedResponse("arguments of a function call that has not begun")
        delta = optional(event, "delta", str) or ""
        self.pieces += bool(delta)
        call.arguments += delta

    def _take_response(self, response: Json, *, ended: bool) -> None:
        self._response = response
        self._model = optional(response, "model", str) or self._model
        usage = object_or_none(response, "usage")
        self._take_usage(None if usage is None else read_usage(usage))
        status = optional(response, "status", str) or "completed"
        # A response in the background is a reply before it is an answer.
        if not ended or status in _UNFINISHED:
            return
        if status in {"failed", "cancelled"}:
            self._fail(response.get("error") or f"the response is {status}")
        self.done = True
        details = object_or_none(response, "incomplete_details") or {}
        if status == "incomplete":
            self._finish_reason = _INCOMPLETE.get(optional(details, "reason", str) or "", "incomplete")
        else:
            self._finish_reason = "tool_calls" if self._calls else "stop"

    def generation(self, *, allow_missing_finish: bool = False) -> Generation:
        """Return the generation, or raise if the stream had no answer or no end."""
        if not self.started:
            raise Incomplete("the stream ended before the answer started")
        if self._finish_reason is None and not allow_missing_finish:
            raise Incomplete("the stream ended without response.completed: the answer may be cut off")
        calls = [self._calls[index] for index in sorted(self._calls)]
        kept = {name: self._response[name] for name in ("id", "service_tier") if self._response.get(name)}
        return Generation(
            str(self._text),
            self.spent,
            self._finish_reason or UNKNOWN_FINISH,
            self._model,
            reasoning=str(self._reasoning) or None,
            tool_calls=tuple([ToolCall(call.id, call.name, call.arguments) for call in calls]),
            refusal=str(self._refusal) or None,
            logprobs=tuple(self._logprobs),
            thoughts=tuple(self._thoughts),
            raw=kept or None,
        )
