"""The fields that only the OpenAI API returns."""

from typing import Any

import attrs

from sampling.messages import Generation

__all__ = ["OpenAIGeneration", "ToolCall"]


@attrs.frozen
class ToolCall:
    """A tool call of the model."""

    id: str
    name: str
    arguments: str
    """The JSON text as the model wrote it. It may be invalid."""


@attrs.frozen
class OpenAIGeneration(Generation):
    """A `Generation` with the extra fields of the OpenAI API."""

    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), kw_only=True)
    refusal: str | None = attrs.field(default=None, kw_only=True)
    """The refusal text, where the server separates it from the answer."""

    logprobs: tuple[Any, ...] = attrs.field(default=(), kw_only=True, hash=False)
    """The raw log probabilities, one item per token. Request them with `Options(extra={"logprobs": True})`."""

    choices: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    """The text of every choice if `Options(extra={"n": …})` requested several. `text` is that of the first."""

    response_id: str | None = attrs.field(default=None, kw_only=True)
    """The id that the server gave the response."""
