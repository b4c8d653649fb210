"""What other libraries answer, as a `Generation`: read to its end, counted, and closed for good."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from sampling._engine.scope import report_usage
from sampling._redaction import Redactor
from sampling._text import estimate_tokens
from sampling.backends.openai._answer import UNKNOWN_FINISH, Answer
from sampling.errors import BadRequest, Incomplete
from sampling.messages import Generation, Request
from sampling.usage import Usage

__all__ = ["Pieces", "Receive", "read_chunks", "read_langchain"]

Receive: TypeAlias = Callable[[str], None]

_CLOSE_GRACE_S = 1.0


def _guessed_input_tokens(request: Request) -> int:
    return estimate_tokens(sum(len(message.content) for message in request.messages))


async def read_chunks(stream: Any, request: Request, receive: Receive) -> Generation:
    """Read a stream of OpenAI's chunks to its end."""
    if not hasattr(stream, "__aiter__"):
        raise BadRequest(f"the answer is no stream, although one was asked for, but a {type(stream).__name__}")
    answer = Answer(Redactor(), input_tokens_guess=_guessed_input_tokens(request), check_ids=False)
    try:
        async for chunk in stream:
            # A library that is slower than the server always finds the next chunk in a buffer: without a checkpoint
            # it would never wait, and never notice that it was cancelled. (litellm took 0.7 s to.)
            await checkpoint()
            piece = answer.add(chunk.model_dump_json())
            if piece:
                receive(piece)
    finally:
        if answer.started:
            report_usage(answer.spent)
        await _close(stream)  # noqa: ASYNC102 - it shields itself, with a timeout
    if _made_up_its_end(stream):
        raise Incomplete("the stream ended without a finish_reason: the answer may be cut off")
    return answer.generation()


def _made_up_its_end(stream: Any) -> bool:
    """Tell whether litellm ended a stream with a finish_reason of its own: it does so also when a connection breaks."""
    given = (getattr(stream, name, "") for name in ("received_finish_reason", "intermittent_finish_reason"))
    return all(reason is None for reason in given)


async def _close(stream: Any) -> None:
    """Close a stream for good, also when cancelled: that is what stops the server."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if close is not None:
        with anyio.move_on_after(_CLOSE_GRACE_S, shield=True):
            await close()


class Pieces:
    """An answer while it comes in, from a library that has no chunks of OpenAI's."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self._receive = receive
        self._pieces: list[str] = []
        self._guess = _guessed_input_tokens(request)
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.model: str | None = None

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._receive(piece)

    def report(self) -> None:
        """Say what this took: as the library said, else a guess, at a token for every piece that came."""
        if self._pieces or self.usage.total_tokens:
            report_usage(self.usage if self.usage.total_tokens else Usage(self._guess, len(self._pieces)))

    def generation(self, *, allow_missing_finish: bool) -> Generation:
        if self.finish_reason is None and not allow_missing_finish:
            raise Incomplete(
                "the stream ended without a finish_reason: the answer may be cut off",
                hint="If this model never gives one, pass allow_missing_finish=True to the adapter.",
            )
        return Generation("".join(self._pieces), self.usage, self.finish_reason or UNKNOWN_FINISH, self.model)


async def read_langchain(stream: Any, pieces: Pieces) -> Pieces:
    """Read the message chunks of a LangChain model to their end."""
    try:
        async for chunk in stream:
            await checkpoint()
            # Chunks of messages add up, and so do their counts.
            pieces.usage += _langchain_usage(chunk.usage_metadata or {})
            said: Mapping[str, Any] = chunk.response_metadata
            pieces.finish_reason = _first(said, _LANGCHAIN_FINISH_NAMES) or pieces.finish_reason
            pieces.model = _first(said, ("model_name", "model")) or pieces.model
            pieces.add(_langchain_text(chunk.content))
    finally:
        pieces.report()
        await _close(stream)  # noqa: ASYNC102 - it shields itself, with a timeout
    return pieces


_LANGCHAIN_FINISH_NAMES = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""What OpenAI's and Google's models call it, Anthropic's, Bedrock's, and Ollama's."""


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((str(fields[name]) for name in names if fields.get(name)), None)


def _langchain_usage(counts: Mapping[str, Any]) -> Usage:
    return Usage(int(counts.get("input_tokens", 0)), int(counts.get("output_tokens", 0)))


def _langchain_text(content: str | list[Any]) -> str:
    """Return the text of a chunk's content, which is a str, or a list of blocks of which some are text."""
    if isinstance(content, str):
        return content
    return "".join(block if isinstance(block, str) else _langchain_block_text(block) for block in content)


def _langchain_block_text(block: Mapping[str, Any]) -> str:
    return str(block.get("text", "")) if block.get("type") == "text" else ""
