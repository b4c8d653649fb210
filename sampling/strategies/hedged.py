"""Breadth that starts late."""

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

from sampling._arguments import check_int, check_number
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._latencies import Latencies
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["HedgedSamplingStrategy"]

T = TypeVar("T")

_EARLY = 0.8
"""How much of a gap the first hedge comes early: one attempt is slow more often than two, so this one gains most."""

_NOW_S = 1e-9
"""Less than this is no time to wait for: a clock that counts in floats may never get past it."""


class HedgedSamplingStrategy(BaseSamplingStrategy):
    """
    Ask once, and once more only where that is slow or has failed, up to `concurrency_budget` subsamples.

    A new subsample starts when the oldest attempt that runs is slow, and at once when an attempt was invalid or failed.
    How slow is slow, is learned: the starts are spread over the time within which a share of attempts ends, `quantile`,
    the first of them early. A subsample goes on after an invalid attempt as in every strategy, up to `loop_budget`.

    How long attempts take is learned by this object, over all calls that it makes, from the last `window` attempts;
    before it has seen any it goes by `typical_s`. So keep one object for one kind of call, and use it again.

    What it saves is requests, and so prompt tokens, against full breadth; what it costs is that hedges start late.
    With `deterministic=True` nothing may depend on timing, so all subsamples start at once.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    concurrency_budget: int = 4

    quantile: float = 0.65
    """The share of attempts that end before the last hedge starts: lower it to hedge earlier, with more requests."""

    typical_s: float = 2.0
    """How long an attempt is taken to need, in the median, before any was seen."""

    window: int = 256
    """How many attempts are remembered."""

    def __init__(
        self,
        *,
        quantile: float | None = None,
        typical_s: float | None = None,
        window: int | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """Set how early to hedge and what to learn from, and what the base takes."""
        self._take(quantile=quantile, typical_s=typical_s, window=window)
        super().__init__(**settings)
        self._latencies = Latencies(self.typical_s, self.window)

    def _check_settings(self) -> None:
        super()._check_settings()
        if check_number("quantile", self.quantile, above=0) >= 1:
            raise ValueError(f"quantile must be < 1, got {self.quantile}")
        check_number("typical_s", self.typical_s, above=0)
        check_int("window", self.window, least=1)

    def next_subsample_in_s(self, progress: Progress[T]) -> float:
        """Start one more where one has failed, or nothing runs; else when the oldest attempt has become slow."""
        if self.deterministic or not progress.running or _failures(progress.attempts) >= progress.started:
            return 0.0
        oldest_s = min([attempt.started_s for attempt in progress.running])
        wait_s = oldest_s + self._hedge_after_s(progress) - progress.now_s
        return wait_s if wait_s > _NOW_S else 0.0

    def _hedge_after_s(self, progress: Progress[Any]) -> float:
        """Return how old an attempt gets before one more is started, with as many as there are."""
        hedges = progress.concurrency_budget - 1
        share = (progress.started - _EARLY) / (hedges - _EARLY)
        return share * self._latencies.quantile(self.quantile)

    def learn(self, attempts: Sequence[Slice[T]]) -> None:
        """Remember how long these took."""
        self._latencies.add(attempts)


def _failures(attempts: Sequence[Slice[Any]]) -> int:
    return sum([attempt.outcome in {"invalid", "errored"} for attempt in attempts])
