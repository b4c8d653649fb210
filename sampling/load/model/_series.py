"""Exact percentiles and other statistics of a series."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs

from sampling.load.model._schema import build

__all__ = ["EMPTY", "PERCENTS", "Summary", "cumulative", "least_samples", "nearest_rank", "slope"]

PERCENTS = (50, 90, 95, 99)


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """
    Return the nearest-rank percentile of numbers in ascending order.

    The rank is rounded up in exact arithmetic: the 99th percentile of 100 samples is the 99th of them.
    """
    if not ordered:
        raise ValueError("an empty series has no percentiles")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be > 0 and <= 100, got {percent}")
    return ordered[math.ceil(Fraction(str(percent)) * len(ordered) / 100) - 1]


def least_samples(percent: float) -> int:
    """
    Return the least number of samples for a percentile.

    With fewer, the percentile is just the maximum.
    """
    return math.ceil(100 / (100 - Fraction(str(percent)))) if percent < 100 else 1


@attrs.frozen
class Summary:
    """
    Summary statistics of a series.

    An empty series has a count of 0 and None for the rest.
    """

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary":
        """Summarize a series exactly, without estimates, bins or dropped samples."""
        ordered = sorted(values)
        if not ordered:
            return EMPTY
        p50, p90, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTS)
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])

    def at(self, percent: int) -> float | None:
        """Return a percentile. It must be 50, 90, 95, 99, or 100 for the maximum."""
        kept = {50: self.p50, 90: self.p90, 95: self.p95, 99: self.p99, 100: self.max}
        if percent not in kept:
            raise ValueError(f"percent must be one of {', '.join(map(str, kept))}, got {percent}")
        return kept[percent]

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> "Summary":
        """Rebuild a summary from the result of `attrs.asdict`."""
        return build(cls, {field.name: numbers[field.name] for field in attrs.fields(cls)})


EMPTY = Summary()


def cumulative(values: Iterable[float], points: int = 200) -> list[tuple[float, float]]:
    """
    Return the cumulative distribution at even shares.

    Each point is a value and the share of samples up to it.
    """
    ordered = array("d", sorted(values))
    if not ordered:
        return []
    shares = [number / points for number in range(1, points + 1)]
    return [(ordered[max(0, math.ceil(share * len(ordered)) - 1)], share) for share in shares]


def slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """
    Return the growth per unit of time.

    It is fitted by least squares, and None for fewer than three times.
    """
    if len(times) < 3:
        return None
    middle_time, middle = math.fsum(times) / len(times), math.fsum(values) / len(values)
    spread = math.fsum((time - middle_time) ** 2 for time in times)
    if not spread:
        return None
    together = math.fsum((time - middle_time) * (value - middle) for time, value in zip(times, values, strict=True))
    return together / spread
