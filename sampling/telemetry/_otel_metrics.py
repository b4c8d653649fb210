"""The metrics of calls, requests and fan-outs for OpenTelemetry."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sampling._requests import SentRequest
from sampling.errors import MissingExtra
from sampling.fanout.items import ItemFinished
from sampling.hooks import IterationFinished, LoopFinished, LoopStarted
from sampling.telemetry._request_figures import (
    DURATION_BUCKETS_S,
    TOKEN_BUCKETS,
    describe_request,
    error_of,
    tokens_by_type,
    wasted_tokens,
    without_none,
)

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import Meter, MeterProvider
except ImportError as _error:
    raise MissingExtra("metrics", "opentelemetry-api", "otel") from _error

__all__ = ["SCHEMA_URL", "OtelMetrics", "installed_version", "meter_named"]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""The version of the conventions that spans and metrics follow."""


def installed_version() -> str | None:
    """Return the version of this library, or None if it is not installed as a package."""
    try:
        return version("sampling")
    except PackageNotFoundError:
        return None


def meter_named(name: str, provider: MeterProvider | None) -> Meter:
    """Return a meter with the version of this library and of the conventions."""
    return metrics.get_meter(name, installed_version() or "", provider, SCHEMA_URL)


class OtelMetrics:
    """The instruments, and what is recorded with them."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = meter_named("sampling", provider)
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._first_chunk = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            unit="s",
            description="Time from the request to the first chunk of a streamed response.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self._attempts = meter.create_counter(
            "sampling.attempts", unit="{attempt}", description="Attempts that ended, by how."
        )
        self._attempt_duration = meter.create_histogram(
            "sampling.attempt.duration",
            unit="s",
            description="Duration of attempts, by how they ended.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._running = meter.create_up_down_counter(
            "sampling.calls.running", unit="{call}", description="Calls under way."
        )
        self._calls = meter.create_counter("sampling.calls", unit="{call}", description="Calls that ended, by why.")
        self._call_duration = meter.create_histogram(
            "sampling.call.duration",
            unit="s",
            description="Duration of calls.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._cost = meter.create_counter("sampling.cost", unit="1", description="Money spent, as the backends say.")
        self._time_to_valid = meter.create_histogram(
            "sampling.time_to_valid",
            unit="s",
            description="Time from the start of a call to its valid answer.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._wasted = meter.create_counter(
            "sampling.wasted_tokens",
            unit="{token}",
            description="Tokens of attempts other than the valid answer.",
        )
        self._items = meter.create_counter(
            "sampling.fan_out.items", unit="{item}", description="Items of fan-outs that ended, by how."
        )

    def request_ended(self, sent: SentRequest) -> None:
        """Record a request."""
        generation = sent.generation
        attributes = without_none(
            {**describe_request(sent), "gen_ai.response.model": None if generation is None else generation.model}
        )
        failed = without_none({"error.type": error_of(sent)})
        self._duration.record(sent.elapsed_s, {**attributes, **failed})
        if sent.first_chunk_s is not None:
            self._first_chunk.record(sent.first_chunk_s, attributes)
        for kind, tokens in tokens_by_type(sent.usage):
            self._tokens.record(tokens, {**attributes, "gen_ai.token.type": kind})

    def attempt_finished(self, event: IterationFinished) -> None:
        """Count an attempt."""
        attributes = {"sampling.strategy": event.strategy, "sampling.outcome": event.slice.outcome}
        self._attempts.add(1, attributes)
        self._attempt_duration.record(event.slice.elapsed_s, attributes)

    def call_started(self, event: LoopStarted) -> None:
        """Count a call that is under way."""
        self._running.add(1, {"sampling.strategy": event.strategy})

    def call_finished(self, event: LoopFinished) -> None:
        """Record a call."""
        strategy = {"sampling.strategy": event.strategy}
        self._running.add(-1, strategy)
        self._call_duration.record(event.elapsed_s, strategy)
        if event.usage.cost:
            self._cost.add(event.usage.cost, strategy)
        self._calls.add(1, {**strategy, "sampling.stop_reason": event.stop_reason or "raised"})
        if event.success:
            self._time_to_valid.record(event.elapsed_s, strategy)
        for kind, tokens in wasted_tokens(event):
            self._wasted.add(tokens, {**strategy, "gen_ai.token.type": kind})

    def item_finished(self, event: ItemFinished) -> None:
        """Count an item. One from the journal of an earlier run was counted then."""
        if not event.recorded:
            self._items.add(1, {"sampling.strategy": event.strategy, "sampling.status": event.outcome.status})
