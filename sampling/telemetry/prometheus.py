"""
Count calls, attempts, requests, tokens, cost and durations for Prometheus.

    strategy = MultiTurnStrategy(loop_budget=3, hooks=prometheus_hooks())

Show the metrics of a load run in progress:

    with prometheus_load(run):
        report = await run.run()
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Token

from sampling._arguments import check_str
from sampling._observers.requests import Observers, SentRequest, ToolRun, observe, stop_observing
from sampling.errors import MissingExtra
from sampling.fanout.items import ItemFinished
from sampling.hooks import Hooks, IterationFinished, LoopFinished, LoopStarted
from sampling.load import LoadRun, PopulationsRun
from sampling.telemetry._load_figures import BUCKETS_S, COUNTS, LoadFigures, PopulationFigures
from sampling.telemetry._request_figures import (
    DURATION_BUCKETS_S,
    TOKEN_BUCKETS,
    describe_request,
    error_of,
    tokens_by_type,
    wasted_tokens,
)

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise MissingExtra("metrics", "prometheus-client", "prometheus") from _error

__all__ = ["prometheus_hooks", "prometheus_load"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
"""Histogram buckets, from a cached answer to a long chain of repairs."""

_REQUEST = ("provider", "model")
"""The labels of requests."""


def prometheus_hooks(registry: CollectorRegistry = REGISTRY, *, prefix: str = "sampling") -> Hooks:
    """
    Return hooks that update metrics.

    Create them once per registry, and share them between strategies.
    Labels have few values: the name of the strategy, the outcome, the model. Ids and texts are never labels.

    Args:
        registry: The registry of the metrics.

        prefix: The prefix of their names.
    """
    metrics = _Metrics(registry, check_str("prefix", prefix, empty=False))
    hooks = Hooks()
    hooks.on(LoopStarted)(metrics.loop_started)
    hooks.on(IterationFinished)(metrics.iteration_finished)
    hooks.on(LoopFinished)(metrics.loop_finished)
    hooks.on(ItemFinished)(metrics.item_finished)
    return hooks


class _Metrics:
    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._observed: dict[str, Token[Observers] | None] = {}
        """The observer to restore at the end of each running call, by the id of the call."""

        self._running = Gauge(f"{prefix}_calls_running", "Calls under way.", ["strategy"], registry=registry)
        self._calls = Counter(
            f"{prefix}_calls", "Calls by stop reason.", ["strategy", "stop_reason"], registry=registry
        )
        self._attempts = Counter(
            f"{prefix}_attempts", "Attempts by outcome.", ["strategy", "outcome"], registry=registry
        )
        self._tokens = Counter(
            f"{prefix}_tokens", "Tokens spent, losers and judges included.", ["strategy", "kind"], registry=registry
        )
        self._cost = Counter(
            f"{prefix}_cost", "Money spent, as reported by the backends.", ["strategy"], registry=registry
        )
        self._call_seconds = Histogram(
            f"{prefix}_call_seconds", "Duration of calls.", ["strategy"], registry=registry, buckets=_SECONDS
        )
        self._attempt_seconds = Histogram(
            f"{prefix}_attempt_seconds",
            "Duration of attempts by outcome.",
            ["strategy", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._time_to_valid = Histogram(
            f"{prefix}_time_to_valid_seconds",
            "Time from the start of a call to its valid answer.",
            ["strategy"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._wasted = Counter(
            f"{prefix}_wasted_tokens",
            "Tokens of attempts other than the valid answer.",
            ["strategy", "kind"],
            registry=registry,
        )
        self._items = Counter(
            f"{prefix}_fan_out_items",
            "Items of fan-outs by status.",
            ["strategy", "status"],
            registry=registry,
        )
        self._request_seconds = Histogram(
            f"{prefix}_request_seconds",
            "Duration of requests. The type of the error is empty if there was none.",
            [*_REQUEST, "error_type"],
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._first_chunk_seconds = Histogram(
            f"{prefix}_request_first_chunk_seconds",
            "Time from a request to the first chunk of its response.",
            _REQUEST,
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._request_tokens = Histogram(
            f"{prefix}_request_tokens",
            "Tokens of requests, where they are known.",
            [*_REQUEST, "kind"],
            registry=registry,
            buckets=TOKEN_BUCKETS,
        )

    def loop_started(self, event: LoopStarted) -> None:
        self._observed[event.sampling_id] = observe(self)
        self._running.labels(event.strategy).inc()

    def iteration_finished(self, event: IterationFinished) -> None:
        labels = event.strategy, event.slice.outcome
        self._attempts.labels(*labels).inc()
        self._attempt_seconds.labels(*labels).observe(event.slice.elapsed_s)

    def loop_finished(self, event: LoopFinished) -> None:
        if event.sampling_id not in self._observed:
            # An earlier critical hook failed on `LoopStarted`, so this call was never counted as running.
            return
        observed = self._observed.pop(event.sampling_id)
        if observed is not None:
            stop_observing(observed)
        strategy = event.strategy
        self._running.labels(strategy).dec()
        self._calls.labels(strategy, event.stop_reason or "raised").inc()
        self._call_seconds.labels(strategy).observe(event.elapsed_s)
        self._tokens.labels(strategy, "input").inc(event.usage.input_tokens)
        self._tokens.labels(strategy, "output").inc(event.usage.output_tokens)
        self._cost.labels(strategy).inc(event.usage.cost)
        if event.success:
            self._time_to_valid.labels(strategy).observe(event.elapsed_s)
        for kind, tokens in wasted_tokens(event):
            self._wasted.labels(strategy, kind).inc(tokens)

    def item_finished(self, event: ItemFinished) -> None:
        # One from the journal of an earlier run was counted then.
        if not event.recorded:
            self._items.labels(event.strategy, event.outcome.status).inc()

    def request_started(self, sent: SentRequest) -> None:
        """Do nothing: requests are counted when they have ended."""

    def request_ended(self, sent: SentRequest) -> None:
        about = describe_request(sent)
        labels = about["gen_ai.provider.name"], about.get("gen_ai.request.model", "")
        self._request_seconds.labels(*labels, error_of(sent) or "").observe(sent.elapsed_s)
        if sent.first_chunk_s is not None:
            self._first_chunk_seconds.labels(*labels).observe(sent.first_chunk_s)
        for kind, tokens in tokens_by_type(sent.usage):
            self._request_tokens.labels(*labels, kind).observe(tokens)

    def tool_started(self, ran: ToolRun) -> None:
        """Do nothing: tools are in traces only."""

    def tool_ended(self, ran: ToolRun) -> None:
        """Do nothing."""


@contextmanager
def prometheus_load(
    run: LoadRun | PopulationsRun, registry: CollectorRegistry = REGISTRY, *, prefix: str = "sampling_load"
) -> Generator[None]:
    """
    Add the metrics of a load run to a registry while the block runs.

    They are read at each scrape: counts of arrivals and requests, requests in flight, latency and schedule lag. Labels
    are the population and the arrival model. Latencies count from when a request was due, without the warm-up.

    Args:
        run: The run, which may already have started.

        registry: The registry to add them to.

        prefix: The prefix of their names.
    """
    collector = _LoadCollector(LoadFigures(run), check_str("prefix", prefix, empty=False))
    registry.register(collector)
    try:
        yield
    finally:
        registry.unregister(collector)


_LABELS = ("population", "model")


class _Buckets:
    """A histogram that is filled at each scrape."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self.sum = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._counts[bisect_left(BUCKETS_S, value)] += 1
            self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound with the number of values up to it, in the format of Prometheus."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*BUCKETS_S, math.inf), self._counts, strict=True):
            total += count
            found.append(("+Inf" if math.isinf(bound) else str(bound), total))
        return found


class _LoadCollector(Collector):
    """The metrics of a load run."""

    def __init__(self, figures: LoadFigures, prefix: str) -> None:
        self._figures = figures
        self._prefix = prefix
        self._histograms: dict[tuple[str, str], _Buckets] = {}
        # Each scrape has a thread of its own.
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        # Without this, registering would scrape once.
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            found = list(self._figures.read())
            yield from self._counts(found)
            latencies = {each: self._filled("latency", each, each.latencies) for each in found}
            lags = {each: self._filled("lag", each, each.lags) for each in found}
        yield self._histogram("latency_seconds", "Time from when a request was due to its answer.", latencies)
        yield self._histogram("schedule_lag_seconds", "Delay of requests that the load generator caused.", lags)

    def _counts(self, found: list[PopulationFigures]) -> Iterator[Metric]:
        for name, description in COUNTS.items():
            counter = CounterMetricFamily(f"{self._prefix}_{name}", description, labels=_LABELS)
            for each in found:
                counter.add_metric([each.population, each.model], getattr(each.tally, name))
            yield counter
        gauge = GaugeMetricFamily(f"{self._prefix}_in_flight", "Requests in flight.", labels=_LABELS)
        for each in found:
            gauge.add_metric([each.population, each.model], each.tally.in_flight)
        yield gauge

    def _filled(self, name: str, each: PopulationFigures, values: Iterable[float]) -> _Buckets:
        buckets = self._histograms.setdefault((name, each.population), _Buckets())
        buckets.add(values)
        return buckets

    def _histogram(self, name: str, description: str, filled: dict[PopulationFigures, _Buckets]) -> Metric:
        family = HistogramMetricFamily(f"{self._prefix}_{name}", description, labels=_LABELS)
        for each, buckets in filled.items():
            family.add_metric([each.population, each.model], buckets.cumulative(), buckets.sum)
        return family
