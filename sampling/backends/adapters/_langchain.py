"""Adapter for LangChain chat models."""

from collections.abc import Mapping, Sequence
from typing import Any

from anyio.lowlevel import checkpoint

from sampling._arguments import wrong_type
from sampling.backends._structured import Structured
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, StreamedText, close_stream
from sampling.backends.adapters._langchain_options import dialect_of
from sampling.backends.adapters._langchain_thoughts import (
    BlockThoughts,
    add_thoughts,
    blocks_of,
    more_of,
    thoughts_writer,
)
from sampling.backends.adapters._requests import check_loop, check_roles, options_of
from sampling.backends.http._streamed import finish_reason_of
from sampling.backends.openai._messages import wire_messages
from sampling.messages import Generation, Options, Request
from sampling.parts import Media, ToolCall
from sampling.usage import Usage

__all__ = ["from_langchain"]


def from_langchain(
    chat_model: Any,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    allow_missing_finish: bool = False,
    structured: Structured = "native",
    drop_unsupported: bool = False,
) -> AdaptedBackend:
    """
    Create a backend from a LangChain chat model. It needs asyncio.

    Options are renamed for the models of OpenAI, Google, Anthropic, Amazon, Groq and Ollama, and those that a model
    does not support raise `Unsupported`. Other models get OpenAI's names.
    Items of `Options.extra` become arguments of the model, so put parameters that only the server knows into
    `extra_body` there.

    Args:
        chat_model: A `BaseChatModel`, such as `ChatOpenAI(…, max_retries=0)`.

        timeout_s: The time limit for a whole request.

        allow_missing_finish: Accept answers without a finish_reason as complete.

        structured: How to ask for an answer that matches `Options.schema`: "native", "tool" or "prompt".
            Models without schemas need one of the last two.

        drop_unsupported: Drop options that the model does not support, with a warning.
    """
    if not callable(getattr(chat_model, "astream", None)):
        raise wrong_type("chat_model", chat_model, "a LangChain chat model")
    # Without it, LangChain's OpenAI models omit the usage in streams from other servers than OpenAI's.
    has_stream_usage = hasattr(chat_model, "stream_usage")
    dialect, write_thought = dialect_of(chat_model), thoughts_writer(chat_model)
    name = f"LangChain's {type(chat_model).__name__}"
    support = Support(name, (*TEXT_PARTS, Media), dialect.missing, drop_unsupported)

    async def ask(request: Request, receive: Receive) -> Generation:
        check_loop("LangChain")
        check_roles(request.messages, "LangChain")
        options, fields = dialect.arguments(options_of(request))
        stop = options.pop("stop", None)
        if has_stream_usage:
            # As a field, because an argument would reach the client of OpenAI's Responses API, which has none.
            fields["stream_usage"] = True
        model = chat_model.model_copy(update=fields) if fields else chat_model
        if tools := options.pop("tools", None):
            # Each LangChain model translates tools itself.
            model = model.bind_tools(tools, tool_choice=_tool_choice(request.options))
            options.pop("tool_choice", None)
        messages = add_thoughts(wire_messages(request.messages), request.messages, write_thought)
        stream = model.astream(messages, stop=stop, **options)
        answer = await _read(stream, StreamedText(request, receive))
        return answer.generation(allow_missing_finish=allow_missing_finish)

    return AdaptedBackend("langchain", ask, timeout_s, support=support, structured=structured)


async def _read(stream: Any, answer: StreamedText) -> StreamedText:
    """Read all message chunks of a LangChain model."""
    calls, thoughts = _Calls(), BlockThoughts()
    try:
        async for chunk in stream:
            await checkpoint()  # as in `read_chunks`
            # Each chunk carries the tokens since the last one, so the counts add up.
            answer.usage += _usage(chunk.usage_metadata or {})
            metadata: Mapping[str, Any] = chunk.response_metadata
            answer.finish_reason = _finish_reason(metadata) or answer.finish_reason
            answer.model = _first(metadata, ("model_name", "model")) or answer.model
            answer.logprobs += _logprobs(metadata.get("logprobs"))
            calls.add(chunk)
            thoughts.add(chunk)
            answer.refusal += _refusal(chunk)
            answer.add(_text(chunk.content))
    finally:
        answer.report()
        await close_stream(stream)  # noqa: ASYNC102 - it shields itself, with a timeout
    answer.tool_calls = calls.whole()
    answer.thoughts = thoughts.whole()
    return answer


def _logprobs(given: Mapping[str, Any] | list[Any] | None) -> tuple[Any, ...]:
    """Return the log probabilities of a chunk: one object per token."""
    content: list[Any] | None = given.get("content") if isinstance(given, Mapping) else given
    return tuple(content or ())


def _tool_choice(options: Options) -> str | None:
    # LangChain's word for a call of any tool.
    return "any" if options.tool_choice == "required" else options.tool_choice


class _Calls:
    """Tool calls that arrive in chunks."""

    def __init__(self) -> None:
        self._calls: dict[object, ToolCall] = {}

    def add(self, chunk: Any) -> None:
        for place, piece in enumerate(getattr(chunk, "tool_call_chunks", None) or ()):
            index: object = piece.get("index")
            # A model that gives no index sends each call in one chunk.
            key = (len(self._calls), place) if index is None else index
            before = self._calls.get(key, ToolCall("", "", ""))
            self._calls[key] = ToolCall(
                before.id or piece.get("id") or "",
                before.name + (piece.get("name") or ""),
                before.arguments + (piece.get("args") or ""),
            )

    def whole(self) -> tuple[ToolCall, ...]:
        return tuple(self._calls.values())


_FINISH_NAMES = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""The names that OpenAI and Google, Anthropic, Bedrock, and Ollama use."""


def _finish_reason(metadata: Mapping[str, Any]) -> str | None:
    """Return the finish_reason of a chunk, derived from the status for OpenAI's Responses API."""
    given = _first(metadata, _FINISH_NAMES)
    status = metadata.get("status")
    if given is not None or status not in {"completed", "incomplete"}:
        return given
    details: Mapping[str, Any] = metadata.get("incomplete_details") or {}
    return "stop" if status == "completed" else finish_reason_of(str(details.get("reason") or status))


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((str(fields[name]) for name in names if fields.get(name)), None)


def _usage(counts: Mapping[str, Any]) -> Usage:
    read: Mapping[str, Any] = counts.get("input_token_details") or {}
    written: Mapping[str, Any] = counts.get("output_token_details") or {}
    return Usage(
        int(counts.get("input_tokens", 0)),
        int(counts.get("output_tokens", 0)),
        cached_input_tokens=int(read.get("cache_read") or 0),
        reasoning_tokens=int(written.get("reasoning") or 0),
        cache_write_tokens=int(read.get("cache_creation") or 0),
    )


def _text(content: str | list[Any]) -> str:
    """Return the text of a chunk, whose content is a str or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(block if isinstance(block, str) else _block_text(block) for block in content)


def _refusal(chunk: Any) -> str:
    """Return the refusal in a chunk of a model of OpenAI."""
    blocks = [block for block in blocks_of(chunk) if block.get("type") == "refusal"]
    return "".join([str(block.get("refusal") or "") for block in [*blocks, more_of(chunk)]])


def _block_text(block: Mapping[str, Any]) -> str:
    return str(block.get("text", "")) if block.get("type") == "text" else ""
