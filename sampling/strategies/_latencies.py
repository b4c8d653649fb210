"""Latency quantiles, learned from observed attempts."""

import math
import threading
from collections import deque
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

from sampling.results import Slice

__all__ = ["Latencies"]

_PRIOR_SIZE = 16
_UNCENSORED = frozenset({"valid", "invalid"})


class Latencies:
    """
    A thread-safe window of the latest latencies, with quantiles.

    A cancelled or failed attempt is a censored observation: it would have taken longer.
    Without those, slow attempts would look rare, because the slow ones get cancelled.
    The product-limit estimate (Kaplan and Meier 1958) of the quantiles accounts for both kinds.

    The window starts with 16 prior latencies around `typical_s`, spread like those of real models
    (lognormal, sigma 1). Each of the first 16 observations replaces one of them.
    """

    def __init__(self, typical_s: float, window: int) -> None:
        self._seen: deque[tuple[float, bool]] = deque(maxlen=window)
        self._prior = _prior_around(typical_s)
        self._cached: dict[float, float] = {}
        self._lock = threading.Lock()

    def add(self, attempts: Iterable[Slice[Any]]) -> None:
        """Add the latencies of finished attempts."""
        with self._lock:
            self._seen.extend((one.elapsed_s, one.outcome not in _UNCENSORED) for one in attempts if not one.from_cache)
            self._cached.clear()

    def quantile(self, share: float) -> float:
        """Return the time by which this share of attempts completes."""
        with self._lock:
            cached = self._cached.get(share)
            if cached is None:
                observations = [*self._seen, *self._prior[len(self._seen) :]]
                cached = self._cached[share] = _product_limit_quantile(observations, share)
            return cached

    def __len__(self) -> int:
        return len(self._seen)

    def __getstate__(self) -> dict[str, Any]:
        # A lock can't be pickled. A copy, in another process for example, keeps the observations and learns on its own.
        with self._lock:
            return {"_seen": self._seen.copy(), "_prior": self._prior}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cached={}, _lock=threading.Lock())


def _prior_around(typical_s: float) -> list[tuple[float, bool]]:
    shares = ((2 * index + 1) / (2 * _PRIOR_SIZE) for index in range(_PRIOR_SIZE))
    latencies = [typical_s * math.exp(NormalDist().inv_cdf(share)) for share in shares]
    # Alternate between both ends, so that the median stays about the same while they are replaced one by one.
    half = _PRIOR_SIZE // 2
    in_turn = [latency for pair in zip(latencies[:half], reversed(latencies[half:]), strict=True) for latency in pair]
    return [(latency, False) for latency in in_turn]


def _product_limit_quantile(observations: list[tuple[float, bool]], share: float) -> float:
    """
    Return the time by which `share` have completed.

    If fewer ever did, because the slowest are censored, return the longest time.
    """
    at_risk = len(observations)
    surviving = 1.0
    longest_s = 0.0
    # Of equal times, completed attempts sort first: a censored one was still running then.
    for latency_s, censored in sorted(observations):
        longest_s = latency_s
        if not censored:
            surviving *= 1 - 1 / at_risk
            if 1 - surviving >= share:
                break
        at_risk -= 1
    return longest_s
