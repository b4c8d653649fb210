"""How long attempts take, learned from those that were seen."""

import math
import threading
from collections import deque
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

from sampling.results import Slice

__all__ = ["Latencies"]

_MADE_UP = 16
_ENDED_BY_THEMSELVES = frozenset({"valid", "invalid"})


class Latencies:
    """
    The latencies of the last attempts, from any number of threads, and their quantiles.

    An attempt that was cancelled or failed says only that it would have taken longer (a censored observation):
    leaving those out would make the slow ones look rare, since the slow ones are what gets cancelled.
    Quantiles are those of the product-limit estimate (Kaplan and Meier 1958), which counts each kind for what it says.

    Before anything is seen there are 16 made-up latencies around `typical_s`, spread as those of real models often are
    (lognormal, sigma 1). Each of the first 16 that are seen takes the place of one of them.
    """

    def __init__(self, typical_s: float, window: int) -> None:
        self._seen: deque[tuple[float, bool]] = deque(maxlen=window)
        self._made_up = _around(typical_s)
        self._known: dict[float, float] = {}
        self._lock = threading.Lock()

    def add(self, attempts: Iterable[Slice[Any]]) -> None:
        """Learn from attempts that are over."""
        with self._lock:
            self._seen.extend((one.elapsed_s, one.outcome not in _ENDED_BY_THEMSELVES) for one in attempts)
            self._known.clear()

    def quantile(self, share: float) -> float:
        """Return the time within which this share of attempts ends by itself."""
        with self._lock:
            known = self._known.get(share)
            if known is None:
                seen = [*self._seen, *self._made_up[len(self._seen) :]]
                known = self._known[share] = _product_limit_quantile(seen, share)
            return known

    def __len__(self) -> int:
        return len(self._seen)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, in another process for example, knows what was known, and learns by itself from then on.
        with self._lock:
            return {"_seen": self._seen.copy(), "_made_up": self._made_up}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _known={}, _lock=threading.Lock())


def _around(typical_s: float) -> list[tuple[float, bool]]:
    shares = ((2 * index + 1) / (2 * _MADE_UP) for index in range(_MADE_UP))
    latencies = [typical_s * math.exp(NormalDist().inv_cdf(share)) for share in shares]
    # From both ends in turn, so that what is left when some are replaced has about the same middle.
    half = _MADE_UP // 2
    in_turn = [latency for pair in zip(latencies[:half], reversed(latencies[half:]), strict=True) for latency in pair]
    return [(latency, False) for latency in in_turn]


def _product_limit_quantile(observations: list[tuple[float, bool]], share: float) -> float:
    """Return the least time by which `share` have ended; the longest time seen if so many never did."""
    at_risk = len(observations)
    surviving = 1.0
    longest_s = 0.0
    # Of equal times, those that ended come first: who was cut off then was still there.
    for latency_s, censored in sorted(observations):
        longest_s = latency_s
        if not censored:
            surviving *= 1 - 1 / at_risk
            if 1 - surviving >= share:
                break
        at_risk -= 1
    return longest_s
