"""Start more subsamples only after slow or failed attempts."""

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

from sampling._arguments import check_int, check_number
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._latencies import Latencies
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["HedgedSamplingStrategy"]

T = TypeVar("T")

_FIRST_HEDGE_SHIFT = 0.8
"""Share of an interval by which the first hedge starts early. It gains most: two slow attempts are rarer than one."""

_MIN_WAIT_S = 1e-9
"""Shorter waits count as none, because adding them to a float clock may not change it."""


class HedgedSamplingStrategy(BaseSamplingStrategy):
    """
    Start one subsample, and more only after slow or failed attempts.

    Use it when you have a latency target and full breadth costs too many requests.
    A hedge, which is one more subsample, starts when the oldest running attempt is slow,
    and at once when an attempt is invalid or fails. There are at most `concurrency_budget` subsamples.
    Each one repairs invalid answers as in every strategy, up to `loop_budget`.

    The strategy learns latencies from the latest `window` attempts of all its calls.
    It spreads the hedges over the time within which the share `quantile` of attempts completes.
    Before the first observation it assumes a median of `typical_s`. So keep one object for each kind of call.

    Compared with full breadth it saves requests and prompt tokens, and takes longer.
    With `deterministic=True` nothing may depend on timing, so all subsamples start at once.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    concurrency_budget: int = 4

    quantile: float = 0.65
    """Share of attempts that complete before the last hedge starts. Lower it to hedge earlier, with more requests."""

    typical_s: float = 2.0
    """Assumed median latency before the first observation."""

    window: int = 256
    """Number of latest attempts to learn from."""

    def __init__(
        self,
        *,
        quantile: float | None = None,
        typical_s: float | None = None,
        window: int | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the hedging and the settings of `BaseSamplingStrategy`.

        None keeps a default.
        """
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
        """
        Return the time until the oldest attempt counts as slow.

        It is 0 after a failure, and when nothing runs.
        """
        # One subsample more than there are failures: each failure starts one hedge.
        if self.deterministic or not progress.running or _failures(progress.attempts) >= progress.started:
            return 0.0
        oldest_s = min([attempt.started_s for attempt in progress.running])
        wait_s = oldest_s + self._hedge_after_s(progress) - progress.now_s
        return wait_s if wait_s > _MIN_WAIT_S else 0.0

    def _hedge_after_s(self, progress: Progress[Any]) -> float:
        """Return the age at which the oldest attempt counts as slow."""
        hedges = progress.concurrency_budget - 1
        # The share is 1 for the last hedge. The shift moves all the others to an earlier time.
        share = (progress.started - _FIRST_HEDGE_SHIFT) / (hedges - _FIRST_HEDGE_SHIFT)
        return share * self._latencies.quantile(self.quantile)

    def learn(self, attempts: Sequence[Slice[T]]) -> None:
        """Record the latencies of these attempts."""
        self._latencies.add(attempts)


def _failures(attempts: Sequence[Slice[Any]]) -> int:
    return sum([attempt.outcome in {"invalid", "errored"} for attempt in attempts])
