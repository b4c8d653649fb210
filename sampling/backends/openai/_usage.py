"""Read the token counts of a response, in the formats of different servers."""

from collections.abc import Mapping
from typing import Any, cast

from sampling.backends.http._fields import MAX_TOKENS, token_count
from sampling.usage import Usage

__all__ = ["read_timings", "read_usage"]


_NO_DETAILS: Mapping[str, Any] = {}


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """
    Return the usage in a `usage` object of the chat or the Responses API.

    Return None if a count is missing or implausible, so that an estimate is used instead.
    """
    given_input = _first(fields, "prompt_tokens", "input_tokens")
    given_output = _first(fields, "completion_tokens", "output_tokens", default=0)
    if given_input is None or given_output is None:
        return None
    read = _details(fields, "prompt_tokens_details", "input_tokens_details")
    written = _details(fields, "completion_tokens_details", "output_tokens_details")
    cached = _cached(fields, read)
    reasoning = token_count(written.get("reasoning_tokens")) or token_count(fields.get("reasoning_tokens")) or 0
    # Gemini and xAI leave the reasoning out of completion_tokens. Only the total has it.
    hidden = max(0, (token_count(fields.get("total_tokens")) or 0) - given_input - given_output)
    return Usage(
        given_input,
        given_output + hidden,
        _cost(fields.get("cost")),
        cached_input_tokens=min(cached, given_input),
        cache_write_tokens=min(_written(fields, read), given_input),
        reasoning_tokens=min(max(reasoning, hidden), given_output + hidden),
    )


def read_timings(fields: Mapping[str, Any]) -> Usage | None:
    """Return the usage in the `timings` of llama.cpp, which it sends without being asked."""
    cached = _first(fields, "cache_n", default=0)
    read, written = token_count(fields.get("prompt_n")), token_count(fields.get("predicted_n"))
    if cached is None or read is None or written is None:
        return None
    return Usage(cached + read, written, cached_input_tokens=cached)


def _cached(fields: Mapping[str, Any], details: Mapping[str, Any]) -> int:
    """Return the input tokens that came from a cache."""
    nested = token_count(details.get("cached_tokens"))
    # DeepSeek counts them as prompt_cache_hit_tokens, Moonshot as cached_tokens of the usage itself.
    return nested or _first(fields, "prompt_cache_hit_tokens", "cached_tokens", default=0) or 0


def _written(fields: Mapping[str, Any], details: Mapping[str, Any]) -> int:
    """Return the input tokens that were written to a cache."""
    # litellm names them as Anthropic does.
    return token_count(details.get("cache_write_tokens")) or _first(fields, "cache_creation_input_tokens") or 0


def _details(fields: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first of these objects that is there."""
    for name in names:
        details = fields.get(name)
        if details is not None and isinstance(details, Mapping):
            return cast("Mapping[str, Any]", details)
    return _NO_DETAILS


def _first(fields: Mapping[str, Any], *names: str, default: int | None = None) -> int | None:
    """Return the first of these counts that is present, or None if it is implausible."""
    for name in names:
        if fields.get(name) is not None:
            return token_count(fields[name])
    return default


def _cost(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return 0.0
    return float(value)
