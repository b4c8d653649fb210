"""Read the token counts of a response, in the formats of different servers."""

from collections.abc import Mapping
from typing import Any, cast

from sampling.backends.http._fields import MAX_TOKENS, token_count
from sampling.usage import Usage

__all__ = ["read_timings", "read_usage"]


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """
    Return the usage in a `usage` object of the chat or the Responses API.

    Return None if a count is missing or implausible, so that an estimate is used instead.
    """
    given_input = _first(fields, "prompt_tokens", "input_tokens")
    given_output = _first(fields, "completion_tokens", "output_tokens", default=0)
    if given_input is None or given_output is None:
        return None
    cached = _cached(fields)
    reasoning = _detail(fields, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens") or 0
    reasoning = reasoning or token_count(fields.get("reasoning_tokens")) or 0
    # Gemini and xAI leave the reasoning out of completion_tokens. Only the total has it.
    hidden = max(0, (token_count(fields.get("total_tokens")) or 0) - given_input - given_output)
    return Usage(
        given_input,
        given_output + hidden,
        _cost(fields.get("cost")),
        cached_input_tokens=min(cached, given_input),
        cache_write_tokens=min(_written(fields), given_input),
        reasoning_tokens=min(max(reasoning, hidden), given_output + hidden),
    )


def read_timings(fields: Mapping[str, Any]) -> Usage | None:
    """Return the usage in the `timings` of llama.cpp, which it sends without being asked."""
    cached = _first(fields, "cache_n", default=0)
    read, written = token_count(fields.get("prompt_n")), token_count(fields.get("predicted_n"))
    if cached is None or read is None or written is None:
        return None
    return Usage(cached + read, written, cached_input_tokens=cached)


def _cached(fields: Mapping[str, Any]) -> int:
    """Return the input tokens that came from a cache."""
    nested = _detail(fields, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    # DeepSeek counts them as prompt_cache_hit_tokens, Moonshot as cached_tokens of the usage itself.
    return nested or _first(fields, "prompt_cache_hit_tokens", "cached_tokens", default=0) or 0


def _written(fields: Mapping[str, Any]) -> int:
    """Return the input tokens that were written to a cache."""
    groups = ("prompt_tokens_details", "input_tokens_details")
    # litellm names them as Anthropic does.
    return _detail(fields, groups, "cache_write_tokens") or _first(fields, "cache_creation_input_tokens") or 0


def _detail(fields: Mapping[str, Any], groups: tuple[str, ...], name: str) -> int | None:
    for group in groups:
        details = fields.get(group)
        if details is not None and isinstance(details, Mapping):
            return token_count(cast("Mapping[str, Any]", details).get(name))
    return None


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
