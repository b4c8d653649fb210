"""
Steadiness of the latencies of a measurement.

Requests that wait in the same queue are late together, so that a thousand of them can say as little as three
independent ones. Near its limit, a queue moves so slowly that a measurement sees only a part of its ups and downs, and
may end before the first request is too late. The correlation between the medians of equal parts of the measurement
reveals both.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median

from sampling.load.model._recording import ANSWERED, SERIES
from sampling.load.model._report import LoadReport
from sampling.load.model._series import slope

__all__ = ["BATCHES", "batch_medians", "confidence_of_growth", "confidence_of_level", "count_independent", "find_pause"]

BATCHES = 20
"""Number of parts of a measurement."""

_PAUSE_INTERVALS, _PAUSE_TIMES_NEXT = 10, 3
"""A pause is this many times the usual interval between answers, and this many times the next longest interval."""

_MOST_DEPENDENCE = 0.95
"""Highest correlation of neighbours. With more, a measurement would have no information at all."""


def batch_medians(report: LoadReport, series: str = "latency", operation: str | None = None) -> list[float] | None:
    """Return the median of a series in each part of the measurement, or None if there are too few requests."""
    if report.samples is None or not report.duration_s or series not in SERIES:
        return None
    batches: list[list[float]] = [[] for _ in range(BATCHES)]
    start, end, outcomes = SERIES[series]
    for due_s, took_s in report.samples.due_and_took(start, end, outcomes=outcomes, operation=operation):
        share = max(due_s - report.profile.warmup_s, 0.0) / report.duration_s
        batches[min(int(share * BATCHES), BATCHES - 1)].append(took_s)
    return [median(batch) for batch in batches] if min(map(len, batches)) > 2 else None


def find_pause(report: LoadReport) -> float:
    """Return the seconds of the only pause in which the server answered nothing, or 0."""
    if report.samples is None:
        return 0.0
    start_s, end_s = report.profile.warmup_s, report.profile.warmup_s + report.duration_s
    rows = report.samples.due_and_took("intended_s", "done_s", outcomes=ANSWERED)
    done = sorted(due_s + took_s for due_s, took_s in rows)
    gaps = sorted(later - earlier for earlier, later in pairwise(done) if start_s <= earlier < end_s)
    if len(gaps) < BATCHES or gaps[-1] < max(
        _PAUSE_INTERVALS * report.duration_s / len(gaps), _PAUSE_TIMES_NEXT * gaps[-2]
    ):
        return 0.0
    return gaps[-1]


def count_independent(values: Sequence[float]) -> float:
    """
    Return the number of independent values with as much information about the mean as this sequence.

    The correlation of neighbours is that of an autoregressive process, corrected for its bias in short series.
    """
    count, middle = len(values), math.fsum(values) / len(values)
    spread = math.fsum((value - middle) ** 2 for value in values)
    if not spread:
        return float(count)
    together = math.fsum((a - middle) * (b - middle) for a, b in pairwise(values))
    found = together / spread
    correlation = min(max(found + (1 + 3 * found) / count, 0.0), _MOST_DEPENDENCE)
    return max(count * (1 - correlation) / (1 + correlation), 1.0)


def confidence_of_level(medians: Sequence[float], value: float, limit: float, percent: int) -> float:
    """
    Return the confidence that a percentile stays below its limit in the long run.

    `value` is the percentile that was measured. Its error is that of a level that drifts as the medians do.
    """
    independent, middle = count_independent(medians), math.fsum(medians) / len(medians)
    spread = math.sqrt(math.fsum((each - middle) ** 2 for each in medians) / (len(medians) - 1))
    if not spread:
        return float(value <= limit)
    if math.isinf(value):
        return 0.0
    # The percentile is the mean plus some standard deviations, and both are uncertain.
    deviations = NormalDist().inv_cdf(percent / 100)
    error = spread * math.sqrt((1 + deviations**2 / 2) / independent)
    return _student((limit - value) / error, max(independent - 1, 1.0))


def confidence_of_growth(medians: Sequence[float], duration_s: float, limit: float) -> tuple[float, float]:
    """Return the growth of the medians per second, and the confidence that in truth it is at most `limit`."""
    times = [(number + 0.5) * duration_s / len(medians) for number in range(len(medians))]
    growth = slope(times, medians) or 0.0
    middle = math.fsum(medians) / len(medians)
    off = [value - middle - growth * (time - duration_s / 2) for time, value in zip(times, medians, strict=True)]
    noise = math.sqrt(math.fsum(each**2 for each in off) / (len(medians) - 2))
    error = noise * math.sqrt(12 / count_independent(off)) / duration_s
    if not error:
        return growth, float(growth <= limit)
    return growth, NormalDist().cdf((limit - growth) / error)


def _student(value: float, freedom: float) -> float:
    """Return the distribution function of Student's t, by Wallace's approximation."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    distance = scale * math.sqrt(freedom * math.log1p(value * value / freedom))
    return NormalDist().cdf(math.copysign(distance, value))
