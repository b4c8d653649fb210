"""
Statistical confidence of a verdict.

A 95th percentile below a limit means that at most 5 % of the requests exceed it. The number that do is a draw from a
binomial distribution, so the observed share has a confidence interval (Wilson's), and the distance of the allowed
share from it gives the confidence. This assumes independent requests. Requests that wait in the same queue are not
independent, so the true confidence is lower. That is why the search repeats uncertain verdicts.
"""

import math
from statistics import NormalDist

__all__ = ["confidence_within", "is_at_edge", "wilson"]

_Z = NormalDist().inv_cdf(0.975)


def wilson(found: int, count: int, z: float = _Z) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share. `found` of `count` were observed."""
    if count < 1:
        return 0.0, 1.0
    share, spread = found / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def is_at_edge(found: int, count: int, allowed: float) -> bool:
    """
    Return True if another run could have the opposite verdict.

    That is so if the allowed share is inside the confidence interval.
    """
    low, high = wilson(found, count)
    return low <= allowed <= high


def confidence_within(found: int, count: int, allowed: float) -> float | None:
    """Return the confidence that the share is at most `allowed`, or None if it can't be computed."""
    if not count or not 0 < allowed < 1:
        return None
    return NormalDist().cdf((allowed - found / count) / math.sqrt(allowed * (1 - allowed) / count))
