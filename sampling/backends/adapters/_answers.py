"""Read the streams of other libraries into a `Generation`, count the tokens, and close the stream."""

from collections.abc import Callable
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from sampling._engine.scope import report_usage
from sampling._redaction import Redactor
from sampling._text import estimate_tokens
from sampling.backends.http._streamed import UNKNOWN_FINISH
from sampling.backends.http._transport import CLOSE_GRACE_S
from sampling.backends.openai._answer import StreamedAnswer
from sampling.errors import BadRequest, Incomplete
from sampling.messages import Generation, Request
from sampling.parts import Reasoning, ToolCall
from sampling.usage import Usage

__all__ = ["Receive", "StreamedText", "close_stream", "read_chunks"]

Receive: TypeAlias = Callable[[str], None]


def _estimate_input_tokens(request: Request) -> int:
    return estimate_tokens(sum(message.chars for message in request.messages))


async def read_chunks(stream: Any, request: Request, receive: Receive) -> Generation:
    """Read a stream of OpenAI chunks to its end."""
    if not hasattr(stream, "__aiter__"):
        raise BadRequest(f"expected a stream of chunks, got a {type(stream).__name__}")
    answer = StreamedAnswer(Redactor(), input_tokens_estimate=_estimate_input_tokens(request), check_ids=False)
    try:
        async for chunk in stream:
            # A library that is slower than the server always finds the next chunk in a buffer. Without a checkpoint
            # it would never wait, and not notice a cancellation (litellm took 0.7 s).
            await checkpoint()
            piece = answer.add(chunk.model_dump_json())
            if piece:
                receive(piece)
    finally:
        if answer.started:
            report_usage(answer.spent)
        await close_stream(stream)  # noqa: ASYNC102 - it shields itself, with a timeout
    if _invented_finish_reason(stream):
        raise Incomplete("the stream ended without a finish_reason: the answer may be cut off")
    return answer.generation()


def _invented_finish_reason(stream: Any) -> bool:
    """Return whether litellm added a finish_reason itself, as it does when a connection breaks."""
    given = (getattr(stream, name, "") for name in ("received_finish_reason", "intermittent_finish_reason"))
    return all(reason is None for reason in given)


async def close_stream(stream: Any) -> None:
    """Close a stream, even when cancelled, because that stops the server."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if close is not None:
        with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
            await close()


class StreamedText:
    """A partial answer of a library that does not use OpenAI chunks."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self._receive = receive
        self._pieces: list[str] = []
        self._input_tokens = _estimate_input_tokens(request)
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.model: str | None = None
        self.tool_calls: tuple[ToolCall, ...] = ()
        self.thoughts: tuple[Reasoning, ...] = ()
        self.logprobs: tuple[Any, ...] = ()
        self.refusal = ""
        self.raw: Any = None

    def add(self, piece: str) -> None:
        """Append a piece of text and pass it on."""
        if piece:
            self._pieces.append(piece)
            self._receive(piece)

    def report(self) -> None:
        """Report the usage that the library gave, else an estimate of one token per piece."""
        if self._pieces or self.usage.total_tokens:
            report_usage(self.usage if self.usage.total_tokens else Usage(self._input_tokens, len(self._pieces)))

    def generation(self, *, allow_missing_finish: bool) -> Generation:
        if self.finish_reason is None and not allow_missing_finish:
            raise Incomplete(
                "the stream ended without a finish_reason: the answer may be cut off",
                hint="If this model never sends one, pass allow_missing_finish=True to the adapter.",
            )
        return Generation(
            "".join(self._pieces),
            self.usage,
            self.finish_reason or UNKNOWN_FINISH,
            self.model,
            tool_calls=self.tool_calls,
            thoughts=self.thoughts,
            refusal=self.refusal or None,
            logprobs=self.logprobs,
            raw=self.raw,
        )
