"""
Count calls, attempts, tokens, cost and durations for Prometheus.

    strategy = MultiTurnStrategy(loop_budget=3, hooks=prometheus_hooks())
"""

from sampling._arguments import check_str
from sampling.errors import MissingExtra
from sampling.hooks import Hooks, IterationFinished, LoopFinished, LoopStarted

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as _error:
    raise MissingExtra("metrics", "prometheus-client", "prometheus") from _error

__all__ = ["prometheus_hooks"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
"""Histogram buckets, from a cached answer to a long chain of repairs."""


def prometheus_hooks(registry: CollectorRegistry = REGISTRY, *, prefix: str = "sampling") -> Hooks:
    """
    Return hooks that update metrics.

    Create them once per registry, and share them between strategies.
    Labels have few values: the name of the strategy, the outcome, the stop reason. Ids and texts are never labels.

    Args:
        registry: The registry of the metrics.

        prefix: The prefix of their names.
    """
    metrics = _Metrics(registry, check_str("prefix", prefix, empty=False))
    hooks = Hooks()
    hooks.on(LoopStarted)(metrics.loop_started)
    hooks.on(IterationFinished)(metrics.iteration_finished)
    hooks.on(LoopFinished)(metrics.loop_finished)
    return hooks


class _Metrics:
    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._strategies: dict[str, str] = {}
        """The strategy of each running call, by the id of the call."""

        self._running = Gauge(f"{prefix}_calls_running", "Calls under way.", ["strategy"], registry=registry)
        self._calls = Counter(
            f"{prefix}_calls", "Calls that ended, by why.", ["strategy", "stop_reason"], registry=registry
        )
        self._attempts = Counter(
            f"{prefix}_attempts", "Attempts that ended, by how.", ["strategy", "outcome"], registry=registry
        )
        self._tokens = Counter(
            f"{prefix}_tokens", "Tokens spent, losers and judges included.", ["strategy", "kind"], registry=registry
        )
        self._cost = Counter(f"{prefix}_cost", "Money spent, as the backends say.", ["strategy"], registry=registry)
        self._call_seconds = Histogram(
            f"{prefix}_call_seconds", "How long calls took.", ["strategy"], registry=registry, buckets=_SECONDS
        )
        self._attempt_seconds = Histogram(
            f"{prefix}_attempt_seconds",
            "How long attempts took, by how they ended.",
            ["strategy", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )

    def loop_started(self, event: LoopStarted) -> None:
        self._strategies[event.sampling_id] = event.strategy
        self._running.labels(event.strategy).inc()

    def iteration_finished(self, event: IterationFinished) -> None:
        labels = self._strategies.get(event.sampling_id, "unknown"), event.slice.outcome
        self._attempts.labels(*labels).inc()
        self._attempt_seconds.labels(*labels).observe(event.slice.elapsed_s)

    def loop_finished(self, event: LoopFinished) -> None:
        strategy = self._strategies.pop(event.sampling_id, None)
        if strategy is None:
            # An earlier critical hook failed on `LoopStarted`, so this call was never counted as running.
            return
        self._running.labels(strategy).dec()
        self._calls.labels(strategy, event.stop_reason or "raised").inc()
        self._call_seconds.labels(strategy).observe(event.elapsed_s)
        self._tokens.labels(strategy, "input").inc(event.usage.input_tokens)
        self._tokens.labels(strategy, "output").inc(event.usage.output_tokens)
        self._cost.labels(strategy).inc(event.usage.cost)
