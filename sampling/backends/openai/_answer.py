"""Assemble the chunks of a stream into a `Generation`, or raise a typed error."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from sampling._engine.scope import report_usage
from sampling._json.bounded import loads
from sampling._openai_generation import OpenAIGeneration, ToolCall
from sampling._redaction import Redactor
from sampling.backends.openai._errors import ErrorResponse
from sampling.errors import Incomplete, MalformedResponse
from sampling.usage import Usage

__all__ = ["StreamedAnswer"]

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]

MAX_TOKENS = 1_000_000_000
"""The highest token count that is believed. Higher ones are ignored."""

UNKNOWN_FINISH = "unknown"
"""The finish_reason if the server gives none and that is allowed."""


class _Text:
    """Text that arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""
        """The first half of a surrogate pair whose second half has not arrived."""

    def add(self, piece: str) -> str:
        """
        Append a piece and return it.

        Surrogate pairs that the server split are joined.
        """
        if not piece or (piece.isascii() and not self._half):
            self._pieces.append(piece)
            return piece
        piece = self._half + piece
        self._half = piece[-1] if "\ud800" <= piece[-1] <= "\udbff" else ""
        if self._half:
            piece = piece[:-1]
        whole = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self._pieces.append(whole)
        return whole

    def __str__(self) -> str:
        return "".join(self._pieces) + ("\ufffd" if self._half else "")

    def __bool__(self) -> bool:
        return any(self._pieces)


class _Choice:
    """One of the requested choices."""

    def __init__(self) -> None:
        self.text = _Text()
        self.reasoning = _Text()
        self.refusal = _Text()
        self.tool_calls: dict[int, ToolCall] = {}
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None


class StreamedAnswer:
    """A response while it is streamed. Malformed input raises a `BackendError`."""

    def __init__(
        self, redactor: Redactor, *, expected_choices: int = 1, input_tokens_estimate: int = 0, check_ids: bool = True
    ) -> None:
        self._redactor = redactor
        self._expected_choices = expected_choices
        self._input_tokens_estimate = input_tokens_estimate
        self._check_ids = check_ids
        self._choices: dict[int, _Choice] = {}
        self._usage: Usage | None = None
        self._pieces = 0
        self._id: str | None = None
        self._model: str | None = None
        self.done = False
        """True once the server sent `[DONE]`."""

        self.sent = False
        """True once the request was sent."""

    def mark_sent(self) -> None:
        """Record that the request was sent, and report its estimated input tokens as spent."""
        self.sent = True
        report_usage(self.spent)

    @property
    def started(self) -> bool:
        """True once a chunk with a choice has arrived."""
        return bool(self._choices)

    @property
    def finished(self) -> bool:
        """True once every choice has a finish_reason."""
        return self.started and all(choice.finish_reason is not None for choice in self._choices.values())

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        first = self._choices.get(0)
        return "" if first is None else str(first.text)

    @property
    def spent(self) -> Usage:
        """The usage that the server reported, else an estimate of one token per piece."""
        guess = Usage(self._input_tokens_estimate, self._pieces)
        if self._usage is None:
            return guess
        if self._expected_choices > 1 and self._usage.output_tokens < guess.output_tokens:
            # llama.cpp reports the tokens of one choice only.
            return attrs.evolve(self._usage, output_tokens=guess.output_tokens)
        return self._usage

    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text of the first choice."""
        if data == "[DONE]" or data.strip() in {"[DONE]", ""}:
            self.done = self.done or "[DONE]" in data
            return ""
        chunk = self._parsed(data)
        if chunk.get("error") is not None:
            error = ErrorResponse.from_error_object(chunk["error"], self._redactor).as_error()
            error.maybe_billed = self.started
            raise error
        self._take_id(_optional(chunk, "id", str))
        self._model = _optional(chunk, "model", str) or self._model
        self._take_usage(_object(chunk, "usage"))
        piece = ""
        for choice in _objects(chunk, "choices"):
            piece += self._take_choice(choice)
        return piece

    def _parsed(self, data: str) -> Json:
        try:
            chunk = loads(data)
        except ValueError as error:
            problem = f"a chunk is not valid JSON ({error})"
        else:
            if isinstance(chunk, dict):
                return cast("Json", chunk)
            problem = "a chunk is not a JSON object"
        raise MalformedResponse(f"{problem}: {self._redactor.sample(data)}")

    def _take_id(self, given: str | None) -> None:
        if not given or not self._check_ids:
            return
        if self._id is None:
            self._id = given
        elif given != self._id:
            raise MalformedResponse(
                "a chunk belongs to another answer: its id differs from that of the first chunk",
                hint="If this server gives every chunk an id of its own, pass check_ids=False to the backend.",
            )

    def _take_usage(self, usage: Json | None) -> None:
        if usage is None:
            return
        given = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens", 0))
        # An implausible count is ignored, and the estimate is used instead.
        if given[0] is not None and given[1] is not None:
            self._usage = Usage(given[0], given[1], _price(usage.get("cost")))

    def _take_choice(self, given: Json) -> str:
        index = _optional(given, "index", int) or 0
        if not 0 <= index < self._expected_choices:
            raise MalformedResponse(f"a choice has index {index}, but {self._expected_choices} were requested")
        choice = self._choices.setdefault(index, _Choice())
        finished_before = choice.finish_reason is not None
        piece, is_more = self._take_delta(choice, given)
        if is_more and finished_before:
            raise MalformedResponse("more text after a finish_reason: the stream may contain two answers")
        self._pieces += is_more
        choice.finish_reason = _optional(given, "finish_reason", str) or choice.finish_reason
        return piece if index == 0 else ""

    def _take_delta(self, choice: _Choice, given: Json) -> tuple[str, bool]:
        """Add a delta to a choice, and return its text and whether it had any content."""
        delta = _object(given, "delta") or {}
        text = _optional(delta, "content", str) or _optional(given, "text", str) or ""
        reasoning = _optional(delta, "reasoning_content", str) or _optional(delta, "reasoning", str) or ""
        refusal = _optional(delta, "refusal", str) or ""
        calls = _objects(delta, "tool_calls")
        choice.reasoning.add(reasoning)
        choice.refusal.add(refusal)
        for call in calls:
            _take_tool_call(choice.tool_calls, call)
        choice.logprobs.extend(_logprobs(_object(given, "logprobs")))
        return choice.text.add(text), bool(text or reasoning or refusal or calls)

    def generation(self, *, allow_missing_finish: bool = False) -> OpenAIGeneration:
        """Return the generation, or raise if the stream had no choice or no end."""
        if not self.started:
            if self.done:
                raise MalformedResponse("the stream has no choice")
            raise Incomplete("the stream ended before the answer started")
        if not self.finished and not allow_missing_finish:
            raise Incomplete("the stream ended without a finish_reason: the answer may be cut off")
        if 0 not in self._choices:
            raise MalformedResponse("the stream lacks the first choice")
        return self._generation(self._choices[0])

    def _generation(self, first: _Choice) -> OpenAIGeneration:
        choices = tuple(str(self._choices[index].text) for index in sorted(self._choices))
        return OpenAIGeneration(
            str(first.text),
            self.spent,
            first.finish_reason or UNKNOWN_FINISH,
            self._model,
            reasoning=str(first.reasoning) or None,
            tool_calls=tuple(first.tool_calls[index] for index in sorted(first.tool_calls)),
            refusal=str(first.refusal) or None,
            logprobs=tuple(first.logprobs),
            choices=choices if self._expected_choices > 1 else (),
            response_id=self._id,
        )


def _optional(fields: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Return an optional field, or raise an error that names it if its type is wrong."""
    value = fields.get(name)
    return None if value is None else _required(name, value, kind)


def _object(fields: Mapping[str, Any], name: str) -> Json | None:
    return cast("Json | None", _optional(fields, name, dict))


def _objects(fields: Mapping[str, Any], name: str) -> list[Json]:
    items = cast("list[object]", _optional(fields, name, list) or [])
    return [cast("Json", _required(f"an item of {name}", item, dict)) for item in items]


def _required(name: str, value: object, kind: type[T]) -> T:
    # type() and not isinstance, because a bool is not a valid index.
    if type(value) is not kind:
        raise MalformedResponse(f"{name} in a chunk is of type {type(value).__name__}, not {kind.__name__}")
    return value


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def _price(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return 0.0
    return float(value)


def _take_tool_call(calls: dict[int, ToolCall], given: Json) -> None:
    index = _optional(given, "index", int)
    if index is None:
        index = len(calls)  # a server that omits the index sends each call in one chunk
    before = calls.get(index, ToolCall("", "", ""))
    function = _object(given, "function") or {}
    calls[index] = ToolCall(
        before.id or _optional(given, "id", str) or "",
        before.name + (_optional(function, "name", str) or ""),
        before.arguments + (_optional(function, "arguments", str) or ""),
    )


def _logprobs(given: Json | None) -> list[Any]:
    if given is None:
        return []
    # The chat API has one object per token. The completions API has parallel lists, which are passed on as they are.
    return _objects(given, "content") if "content" in given else [given]
