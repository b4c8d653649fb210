"""Describe requests by the conventions of OpenTelemetry for generative AI."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import anyio

from sampling._engine.validation import CutShort
from sampling._observers.requests import SentRequest, ToolRun
from sampling.hooks import LoopFinished
from sampling.messages import Generation
from sampling.options import Options
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "DURATION_BUCKETS_S",
    "TOKEN_BUCKETS",
    "Attributes",
    "describe_request",
    "describe_tool",
    "error_of",
    "request_options",
    "request_outcome",
    "response_id",
    "spent_tokens",
    "tokens_by_type",
    "wasted_tokens",
    "without_none",
]

Attributes: TypeAlias = dict[str, Any]

DURATION_BUCKETS_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_BUCKETS: Final = tuple(4.0**power for power in range(14))
"""The histogram bounds that the conventions recommend."""

_OPERATION: Final = "chat"
_UNKNOWN_PROVIDER: Final = "custom"
_PROVIDERS: Final[Mapping[str, str]] = {
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}
"""Providers of OpenAI's API whose names the conventions define, by host."""

_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def without_none(attributes: Attributes) -> Attributes:
    """Return the attributes that are not None."""
    return {name: value for name, value in attributes.items() if value is not None}


def describe_request(sent: SentRequest) -> Attributes:
    """Return the attributes that spans and metrics of a request share."""
    address, port = _server_of(sent.backend)
    provider = getattr(sent.backend, "provider_name", None)
    return without_none(
        {
            "gen_ai.operation.name": _OPERATION,
            "gen_ai.provider.name": _PROVIDERS.get(address or "") or _text(provider) or _UNKNOWN_PROVIDER,
            "gen_ai.request.model": sent.request.options.model or _text(getattr(sent.backend, "model", None)),
            "server.address": address,
            "server.port": port,
        }
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _server_of(backend: object) -> tuple[str | None, int | None]:
    url = _text(getattr(backend, "base_url", None))
    if url is None:
        return None, None
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None, None


def describe_tool(ran: ToolRun) -> Attributes:
    """Return the attributes of a tool that is run."""
    tool = ran.tool
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": None if tool is None else tool.name,
        "gen_ai.tool.description": None if tool is None else tool.description or None,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": ran.call.id,
    }


def request_options(options: Options) -> Attributes:
    """Return the attributes of options."""
    return without_none(
        {
            "gen_ai.request.temperature": options.temperature,
            "gen_ai.request.max_tokens": options.max_tokens,
            "gen_ai.request.seed": options.seed,
            "gen_ai.request.stop_sequences": tuple(options.stop) or None,
            "gen_ai.request.top_p": options.top_p,
            "gen_ai.request.top_k": None if options.top_k is None else float(options.top_k),
            "gen_ai.request.frequency_penalty": options.frequency_penalty,
            "gen_ai.request.presence_penalty": options.presence_penalty,
            "gen_ai.output.type": None if options.schema is None else "json",
        }
    )


def response_id(generation: Generation | None) -> str | None:
    """Return the id that the server gave to its response."""
    raw = None if generation is None else generation.raw
    if not isinstance(raw, Mapping):
        return None
    said = cast("Mapping[str, Any]", raw)
    return _text(said.get("id")) or _text(said.get("responseId"))


def spent_tokens(sent: SentRequest) -> Attributes:
    """Return the attributes of the usage. Unknown values are left out, not 0."""
    usage = sent.usage
    if usage is None:
        return {}
    return without_none(
        {
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens or None,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        }
    )


def tokens_by_type(usage: Usage | None) -> tuple[tuple[str, int], ...]:
    """Return the tokens by the values of `gen_ai.token.type`. Nothing if they are not known."""
    return () if usage is None else (("input", usage.input_tokens), ("output", usage.output_tokens))


def wasted_tokens(event: LoopFinished) -> tuple[tuple[str, int], ...]:
    """Return the tokens that a call spent on anything but its valid answer."""
    if event.usage == NO_USAGE:
        return ()
    best = None if event.result is None or not event.success else event.result.best
    return tokens_by_type(event.usage if best is None else event.usage.minus(best.usage))


def request_outcome(sent: SentRequest) -> str:
    """Return "answered", "cancelled" for a loser, "cut" by a partial check, or "failed"."""
    if sent.error is None:
        return "answered"
    if isinstance(sent.error, anyio.get_cancelled_exc_class() | GeneratorExit):
        return "cancelled"
    return "cut" if isinstance(sent.error, CutShort) else "failed"


def error_of(sent: SentRequest) -> str | None:
    """Return the type of the error of a request that failed. Losers did not fail."""
    return type(sent.error).__name__ if request_outcome(sent) == "failed" else None
