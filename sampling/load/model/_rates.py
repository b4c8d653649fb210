"""The rate of an open loop over time, and its integral."""

import math
from bisect import bisect_right
from itertools import accumulate

from sampling._arguments import short_repr
from sampling.load.model._profiles import OpenLoop

__all__ = ["RateIntegral", "base_rate", "planned_rate", "planned_s", "shape_factors"]

_SHAPE_CELLS = 10_000
"""Number of intervals in which a shape is integrated."""


class RateIntegral:
    """The expected number of arrivals up to each time, and its inverse."""

    def __init__(self, profile: OpenLoop) -> None:
        self._profile = profile
        self._start = base_rate(profile) * _factor(profile, 0.0)
        self._measured_s = planned_s(profile)
        self.warmup: float = self._start * profile.warmup_s
        """The expected number of arrivals in the warm-up, which has the initial rate."""

        self._cells: list[float] = []
        if profile.shape is not None:
            middles = ((number + 0.5) / _SHAPE_CELLS for number in range(_SHAPE_CELLS))
            cell_s = self._measured_s / _SHAPE_CELLS
            rates = (base_rate(profile) * _factor(profile, middle) for middle in middles)
            self._cells = [0.0, *accumulate(rate * cell_s for rate in rates)]
        self.total: float = self.warmup + self._measured()

    def _measured(self) -> float:
        if self._cells:
            return self._cells[-1]
        to_rate = self._profile.to_rate
        return self._measured_s * (self._start if to_rate is None else (self._start + to_rate) / 2)

    def instant(self, number: float) -> float:
        """Return the time at which this many arrivals are expected."""
        if number <= self.warmup or not (self._cells or self._profile.to_rate is not None):
            return number / self._start
        rest = number - self.warmup
        return self._profile.warmup_s + (self._in_cell(rest) if self._cells else self._in_ramp(rest))

    def _in_ramp(self, rest: float) -> float:
        """Solve `rest = start * t + growth * t**2 / 2` without cancellation."""
        growth = ((self._profile.to_rate or self._start) - self._start) / self._measured_s
        root = math.sqrt(max(self._start**2 + 2 * growth * rest, 0.0))
        return 2 * rest / (self._start + root)

    def _in_cell(self, rest: float) -> float:
        cell = min(bisect_right(self._cells, rest), _SHAPE_CELLS) - 1
        inside = (rest - self._cells[cell]) / (self._cells[cell + 1] - self._cells[cell])
        return (cell + inside) * self._measured_s / _SHAPE_CELLS


def shape_factors(profile: OpenLoop) -> tuple[float, ...]:
    """Return the factors of a shape at every hundredth of the duration, which tell two shapes apart."""
    return tuple(_factor(profile, percent / 100) for percent in range(101))


def _factor(profile: OpenLoop, fraction: float) -> float:
    """Return the factor of a shape, or 1 without one."""
    if profile.shape is None:
        return 1.0
    try:
        factor = float(profile.shape(fraction))
    except Exception as error:
        raise ValueError(
            f"shape raised {type(error).__name__} at {fraction:.3g} of the duration: {short_repr(str(error))}"
        ) from error
    if not 0 < factor < math.inf:
        raise ValueError(f"shape must return a finite factor > 0, got {factor} at {fraction:.3g} of the duration")
    return factor


def base_rate(profile: OpenLoop) -> float:
    """Return the rate before any ramp or shape."""
    if profile.rate is None:
        raise ValueError("a trace has no rate")
    return profile.rate


def planned_s(profile: OpenLoop) -> float:
    """Return the length of the measurement, if `requests` does not end it earlier."""
    if profile.duration_s is not None:
        return profile.duration_s
    return (profile.requests or 0) / base_rate(profile)


def planned_rate(profile: OpenLoop) -> float | None:
    """Return the average rate of a profile, or None for a trace, or a ramp that `requests` may cut off."""
    if profile.trace is not None:
        return None
    if profile.to_rate is None and profile.shape is None:
        return base_rate(profile)
    if profile.requests is not None:
        return None
    integral = RateIntegral(profile)
    return (integral.total - integral.warmup) / planned_s(profile)
