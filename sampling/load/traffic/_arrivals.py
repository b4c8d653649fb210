"""
When requests are to be sent: pure functions from a profile to instants, in seconds from the start.

Nothing here waits or looks at a clock. An instant depends on the profile, the seed and its number alone,
so that a server that stalls can't move it.
"""

import math
import random
from collections.abc import Iterator
from itertools import islice, takewhile

from sampling.load.model._profiles import ClosedLoop, OpenLoop
from sampling.load.model._seeds import derive_seed

__all__ = ["first_requests", "instants", "rate_at", "read_trace", "share", "start_time"]


def instants(profile: OpenLoop, seed: int) -> Iterator[float]:
    """Go through the instants of a whole open-loop run, warm-up included, in order."""
    if profile.trace is not None:
        every: Iterator[float] = iter(profile.trace)
    elif profile.arrivals == "poisson":
        every = _random(profile, random.Random(derive_seed(seed, "arrivals")))  # noqa: S311 - traffic is no secret
    elif profile.to_rate is not None or profile.shape is not None:
        every = _changing(profile)
    else:
        return _constant(profile)
    if profile.duration_s is not None:
        ends_s = profile.warmup_s + profile.duration_s
        every = takewhile(lambda instant: instant < ends_s, every)
    return _only(profile, every)


def _constant(profile: OpenLoop) -> Iterator[float]:
    """Each instant is computed from its number: no sum, so no drift, over any length."""
    rate = _rate(profile)
    group = profile.burst if profile.arrivals == "burst" else 1
    ends = [] if profile.requests is None else [_ticks(profile.warmup_s, rate) + profile.requests]
    if profile.duration_s is not None:
        ends.append(_ticks(profile.warmup_s + profile.duration_s, rate))
    return (number // group * group / rate for number in range(min(ends)))


def _ticks(seconds: float, rate: float) -> int:
    """Count the ticks in [0, seconds); the rounding undoes that 0.1 * 30 is a little more than 3."""
    return math.ceil(round(seconds * rate, 6))


def _only(profile: OpenLoop, every: Iterator[float]) -> Iterator[float]:
    """Stop after so many measured requests, if the profile says how many."""
    if profile.requests is None:
        yield from every
        return
    left = profile.requests
    for instant in every:
        if instant >= profile.warmup_s:
            if not left:
                return
            left -= 1
        yield instant


def _changing(profile: OpenLoop) -> Iterator[float]:
    """Read the rate at every step, and add the gaps up."""
    instant = 0.0
    while True:
        yield instant
        instant += 1 / rate_at(profile, instant)


def _random(profile: OpenLoop, rng: random.Random) -> Iterator[float]:
    """Exponential gaps: what many people who know nothing of each other look like."""
    instant = 0.0
    while True:
        instant += rng.expovariate(rate_at(profile, instant))
        yield instant


def rate_at(profile: OpenLoop, instant: float) -> float:
    """Return the rate at an instant of a ramp or a shape; the warm-up runs at the rate of the beginning."""
    rate = _rate(profile)
    if profile.duration_s is None or (profile.to_rate is None and profile.shape is None):
        return rate
    fraction = min(max(0.0, (instant - profile.warmup_s) / profile.duration_s), 1.0)
    if profile.to_rate is not None:
        return rate + (profile.to_rate - rate) * fraction
    factor = 1.0 if profile.shape is None else profile.shape(fraction)
    if not 0 < factor < math.inf:
        raise ValueError(f"shape must return a finite factor > 0, got {factor} at {fraction:.3g} of the duration")
    return rate * factor


def _rate(profile: OpenLoop) -> float:
    if profile.rate is None:
        raise ValueError("a trace has no rate")
    return profile.rate


def start_time(user: int, profile: ClosedLoop) -> float:
    """Return when a user makes the first request: spread over the think time, and no faster than may be activated."""
    spread = user * profile.think_time_s / profile.users
    return spread if profile.activate_per_s is None else max(spread, user / profile.activate_per_s)


def first_requests(profile: ClosedLoop) -> tuple[int, int | None]:
    """Return how many users get to make a first request, and how many follow-ups all of them may make; None for any."""
    if profile.requests is None:
        return profile.users, None
    first = min(profile.users, profile.requests)
    return first, profile.requests - first


def read_trace(text: str) -> tuple[float, ...]:
    """
    Read instants, one a line, in seconds on any clock: the first of them is the start.

    What follows a comma is ignored, and so are empty lines and a header, so that a log with more columns will do.
    """
    stamps: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        field = line.partition(",")[0].strip()
        if not field:
            continue
        try:
            stamps.append(float(field))
        except ValueError:
            if stamps or number > 1:
                raise ValueError(f"line {number} of the trace must begin with a number of seconds") from None
    stamps.sort()
    return tuple(stamp - stamps[0] for stamp in stamps)


def share(every: Iterator[float], worker: int, workers: int) -> Iterator[tuple[int, float]]:
    """
    Number the ticks, and keep those of one worker: every `workers`-th of the common schedule.

    So all workers together make the very traffic that one would, and no two of them draw the same gaps.
    """
    return islice(enumerate(every), worker, None, workers)
