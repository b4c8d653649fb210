"""The state of a streamed response: its text, its usage and its end."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn, cast

import attrs

from sampling._engine.scope import report_usage
from sampling._json.bounded import loads
from sampling._redaction import Redactor
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.http._fields import Json
from sampling.errors import MalformedResponse
from sampling.messages import Generation
from sampling.usage import Usage

__all__ = ["UNKNOWN_FINISH", "AnswerText", "Plain", "StreamedResponse", "finish_reason_of"]

UNKNOWN_FINISH = "unknown"
"""The finish_reason if the server gives none and that is allowed."""

_FINISH_REASONS = {
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "function_call": "tool_calls",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_length": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}
"""OpenAI's names for the finish reasons of other servers."""


def finish_reason_of(given: str) -> str:
    """Return OpenAI's name of a finish_reason."""
    return _FINISH_REASONS.get(given.lower(), given)


class AnswerText:
    """Text that arrives in pieces."""

    __slots__ = ("_half", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""
        """The first half of a surrogate pair whose second half has not arrived."""

    def add(self, piece: str) -> str:
        """
        Append a piece and return it.

        Surrogate pairs that the server split are joined.
        """
        if not piece:
            return piece
        if piece.isascii() and not self._half:
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


@attrs.define
class Plain:
    """A chunk that only adds text, so that similar chunks can be read without parsing their JSON."""

    text: str
    chunk: Json
    place: int
    """The index of the choice or block that the text belongs to."""

    is_reasoning: bool = False


class StreamedResponse(ABC):
    """
    The state of a streamed response.

    A provider subclasses it to read its events. Malformed input raises a `BackendError`.
    """

    _error_type: type[ErrorResponse] = ErrorResponse
    """The parser of error objects."""

    varying: re.Pattern[bytes] | None = None
    """
    Fields that differ in every chunk and have no meaning.

    The name and the value of each are a group, without the quotes around them.
    """

    def __init__(self, redactor: Redactor, input_tokens_estimate: int) -> None:
        self._redactor = redactor
        self._input_tokens_estimate = input_tokens_estimate
        self._usage: Usage | None = None
        self._model: str | None = None
        self.pieces: int = 0
        """The number of pieces that had any content."""

        self.chunk: Json = {}
        """The chunk that was read last."""

        self.done = False
        """True once the server sent its last event."""

        self.sent = False
        """True once the request was sent."""

    def mark_sent(self) -> None:
        """Record that the request was sent, and report its estimated input tokens as spent."""
        self.sent = True
        report_usage(self.spent)

    @property
    @abstractmethod
    def started(self) -> bool:
        """True once a part of the answer has arrived."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True once the answer is complete, whatever follows."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The text so far."""

    @property
    def spent(self) -> Usage:
        """The usage that the server reported, else an estimate of one token per piece."""
        return self._usage or Usage(self._input_tokens_estimate, self.pieces)

    @abstractmethod
    def add(self, data: str) -> str:
        """Parse one event and return what it adds to the text."""

    def add_whole(self, data: str) -> str:
        """Parse a response that was not streamed, and return its text."""
        return self.add(data)

    def plain(self, chunk: Json) -> Plain | None:
        """
        Return what a chunk adds, if it only adds text that is not empty.

        It is called for a chunk that `add` has read without an error. A provider overrides it together with
        `accepts` and `repeat`. They must treat every chunk that differs only in the text as `add` does.
        """
        return None

    def accepts(self, plain: Plain) -> bool:
        """Return True if `add` would now read a chunk like this one without an error."""
        return False

    def repeat(self, plain: Plain, texts: Sequence[str]) -> str:
        """Do what `add` does for chunks like this one with these texts, and return what they add to the text."""
        raise NotImplementedError

    def finish(self) -> str:
        """Return the last piece of text, once the stream has ended."""
        return ""

    @abstractmethod
    def generation(self, *, allow_missing_finish: bool = False) -> Generation:
        """Return the generation, or raise if the stream had no answer or no end."""

    def _is_end_mark(self, data: str) -> bool:
        """Return whether an event is empty or the end mark of OpenAI, and record the latter."""
        if data.strip() not in {"[DONE]", ""}:
            return False
        self.done = self.done or "[DONE]" in data
        return True

    def _parsed(self, data: str) -> Json:
        try:
            chunk = loads(data)
        except ValueError as error:
            problem = f"a chunk is not valid JSON ({error})"
        else:
            if isinstance(chunk, dict):
                self.chunk = cast("Json", chunk)
                return self.chunk
            problem = "a chunk is not a JSON object"
        raise MalformedResponse(f"{problem}: {self._redactor.sample(data)}")

    def _fail(self, error: object) -> NoReturn:
        failure = self._error_type.from_error_object(error, self._redactor).as_error()
        failure.maybe_billed = failure.maybe_billed or self.started
        raise failure

    def _take_usage(self, usage: Usage | None) -> None:
        # Where every chunk has the usage so far, the last one counts.
        if usage is not None and (usage.total_tokens or self._usage is None):
            self._usage = usage
