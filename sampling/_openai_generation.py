"""What a server of the OpenAI kind answers beyond the text."""

from typing import Any

import attrs

from sampling.messages import Generation

__all__ = ["OpenAIGeneration", "ToolCall"]


@attrs.frozen
class ToolCall:
    """A tool that the model wants to be called."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it: it may be invalid, and is for you to check."""


@attrs.frozen
class OpenAIGeneration(Generation):
    """A `Generation` with what only this API gives."""

    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), kw_only=True)
    refusal: str | None = attrs.field(default=None, kw_only=True)
    """Why the model declines, where the server keeps that apart from the text."""

    logprobs: tuple[Any, ...] = attrs.field(default=(), kw_only=True, hash=False)
    """As they came, one token after the other; ask with Options(extra={"logprobs": True})."""

    choices: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    """The text of every choice, if Options(extra={"n": …}) asked for several; `text` is that of the first."""

    response_id: str | None = attrs.field(default=None, kw_only=True)
