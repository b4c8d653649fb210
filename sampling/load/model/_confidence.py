"""
Statistical confidence of a verdict.

A 95th percentile below a limit means that at most 5 % of the requests exceed it. The number that do is a draw from a
binomial distribution, so the observed share has a confidence interval (Wilson's), and the distance of the allowed
share from it gives the confidence. This assumes independent requests. Requests that wait in the same queue are not
independent: a pause makes many of them late together. `clustering` measures how much the share varies between parts
of the measurement, and converts the requests into fewer, independent samples.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

__all__ = ["clustering", "confidence_within", "is_at_edge", "wilson"]

_Z = NormalDist().inv_cdf(0.975)


def wilson(found: float, count: float, z: float = _Z) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share. `found` of `count` were observed."""
    if not count:
        return 0.0, 1.0
    share, spread = found / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def is_at_edge(found: float, count: float, allowed: float) -> bool:
    """
    Return True if another run could have the opposite verdict.

    That is so if the allowed share is inside the confidence interval.
    """
    low, high = wilson(found, count)
    return low <= allowed <= high


def confidence_within(found: float, count: float, allowed: float) -> float | None:
    """Return the confidence that the share is at most `allowed`, or None if it can't be computed."""
    if not count or not 0 < allowed < 1:
        return None
    return NormalDist().cdf((allowed - found / count) / math.sqrt(allowed * (1 - allowed) / count))


def clustering(parts: Sequence[tuple[int, int]]) -> float:
    """
    Return the number of requests that count as one independent request.

    Each part of the measurement has a number of requests beyond the limit, and a number of all requests. For
    independent requests the share varies between parts as a binomial draw does, which gives 1.
    """
    parts = [(found, count) for found, count in parts if count]
    found, count = sum(found for found, _ in parts), sum(count for _, count in parts)
    if len(parts) < 2 or not 0 < found < count:
        return 1.0
    share = found / count
    spread = sum((each - share * size) ** 2 / size for each, size in parts) / (share * (1 - share))
    return max(1.0, spread / (len(parts) - 1))
