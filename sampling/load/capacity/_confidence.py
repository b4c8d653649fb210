"""
How sure a verdict is. Pure.

That the 95th percentile is under a limit means that at most 5 % of requests exceed it. How many of n did is a draw from
a binomial distribution, so the share that was seen comes with an interval (Wilson's), and how far the allowed share is
from it says how sure the verdict is. This takes requests for independent of each other. Those that wait in the same
queue are not, so the truth is less certain than the number; that is why a verdict at the edge is repeated.
"""

import math
from statistics import NormalDist

__all__ = ["confidence_within", "is_at_edge", "wilson"]

_Z = NormalDist().inv_cdf(0.975)


def wilson(found: int, count: int, z: float = _Z) -> tuple[float, float]:
    """Return the interval in which the true share lies with 95 % confidence, when `found` of `count` were seen."""
    if count < 1:
        return 0.0, 1.0
    share, spread = found / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def is_at_edge(found: int, count: int, allowed: float) -> bool:
    """Tell whether another run might as well find the opposite: the allowed share is inside the interval."""
    low, high = wilson(found, count)
    return low <= allowed <= high


def confidence_within(found: int, count: int, allowed: float) -> float | None:
    """Return how sure it is that the true share is no more than `allowed`; None where no number of samples can tell."""
    if not count or not 0 < allowed < 1:
        return None
    return NormalDist().cdf((allowed - found / count) / math.sqrt(allowed * (1 - allowed) / count))
