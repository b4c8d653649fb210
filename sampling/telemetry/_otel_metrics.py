"""The metrics of calls, requests and fan-outs for OpenTelemetry."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sampling._observers.requests import SentRequest
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
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
except ImportError as _error:
    raise MissingExtra("metrics", "opentelemetry-api", "otel") from _error

__all__ = ["SCHEMA_URL", "OtelMetrics", "histogram", "installed_version", "meter_named"]

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


def histogram(
    meter: Meter, name: str, description: str, unit: str = "s", buckets: Sequence[float] = DURATION_BUCKETS_S
) -> Histogram:
    """Return a histogram with buckets, by default those of the conventions for seconds."""
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)


class OtelMetrics:
    """Records metrics with OpenTelemetry instruments."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = meter_named("sampling", provider)
        self._duration = histogram(meter, "gen_ai.client.operation.duration", "GenAI operation duration.")
        self._first_chunk = histogram(
            meter,
            "gen_ai.client.operation.time_to_first_chunk",
            "Time from the request to the first chunk of a streamed response.",
        )
        self._tokens = histogram(
            meter, "gen_ai.client.token.usage", "Number of input and output tokens used.", "{token}", TOKEN_BUCKETS
        )
        self._attempts = meter.create_counter("sampling.attempts", "{attempt}", "Attempts by outcome.")
        self._attempt_duration = histogram(meter, "sampling.attempt.duration", "Duration of attempts by outcome.")
        self._running = meter.create_up_down_counter("sampling.calls.running", "{call}", "Calls under way.")
        self._calls = meter.create_counter("sampling.calls", "{call}", "Calls by stop reason.")
        self._call_duration = histogram(meter, "sampling.call.duration", "Duration of calls.")
        self._cost = meter.create_counter("sampling.cost", "1", "Money spent, as reported by the backends.")
        self._time_to_valid = histogram(
            meter, "sampling.time_to_valid", "Time from the start of a call to its valid answer."
        )
        self._wasted = meter.create_counter(
            "sampling.wasted_tokens", "{token}", "Tokens of attempts other than the valid answer."
        )
        self._items = meter.create_counter("sampling.fan_out.items", "{item}", "Items of fan-outs by status.")

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
        """Count a running call."""
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
        """Count an item, unless it comes from the journal of an earlier run."""
        if not event.recorded:
            self._items.add(1, {"sampling.strategy": event.strategy, "sampling.status": event.outcome.status})
