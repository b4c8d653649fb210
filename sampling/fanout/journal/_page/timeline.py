"""Count outcomes over time in a fixed number of intervals, however long a run takes."""

import math
from collections import Counter, defaultdict

import attrs

__all__ = ["Durations", "Interval", "Timeline"]

_INTERVALS = 240
_STEPS_PER_DOUBLING = 8


class Durations:
    """Counts durations in classes that are 9 % wide, so that a million of them need little memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sums: defaultdict[int, float] = defaultdict(float)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        step = round(math.log2(max(seconds, 1e-6)) * _STEPS_PER_DOUBLING)
        self._counts[step] += 1
        self._sums[step] += seconds

    def merge(self, other: "Durations") -> None:
        """Add the counts of another."""
        self._counts.update(other._counts)
        for step, seconds in other._sums.items():
            self._sums[step] += seconds

    @property
    def count(self) -> int:
        """The number of durations."""
        return self._counts.total()

    def at(self, percent: float) -> float | None:
        """
        Return a percentile by nearest rank, or None without any durations.

        It is the mean of its class, so it is never less than the shortest duration or more than the longest.
        """
        rank, seen = math.ceil(self.count * percent / 100), 0
        for step, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return self._sums[step] / count
        return None


@attrs.define
class Interval:
    """The outcomes of one interval."""

    succeeded: int = 0
    failed: int = 0
    errored: int = 0
    tokens: int = 0
    cost: float = 0.0
    durations: Durations = attrs.field(factory=Durations)

    @property
    def outcomes(self) -> int:
        """The number of items that ended."""
        return self.succeeded + self.failed + self.errored

    def add(self, other: "Interval") -> None:
        """Add the outcomes of another interval."""
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.errored += other.errored
        self.tokens += other.tokens
        self.cost += other.cost
        self.durations.merge(other.durations)


class Timeline:
    """Intervals of equal length since the start of a run. Their length doubles when there are too many."""

    def __init__(self) -> None:
        self.every_s = 0.001
        self.intervals: dict[int, Interval] = {}
        """The intervals with outcomes or spending, by number."""

    def with_outcomes(self) -> list[tuple[int, Interval]]:
        """Return the intervals in which an item ended, in their order, with their numbers."""
        return [(number, interval) for number, interval in sorted(self.intervals.items()) if interval.outcomes]

    def at(self, seconds: float) -> Interval:
        """Return the interval at this time after the start."""
        while seconds >= self.every_s * _INTERVALS:
            self._double()
        return self.intervals.setdefault(max(int(seconds / self.every_s), 0), Interval())

    def _double(self) -> None:
        self.every_s *= 2
        merged: dict[int, Interval] = {}
        for number, interval in self.intervals.items():
            merged.setdefault(number // 2, Interval()).add(interval)
        self.intervals = merged
