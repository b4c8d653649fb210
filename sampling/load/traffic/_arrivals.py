"""
Arrival schedules.

They are pure functions from a profile to times, in seconds from the start.
Nothing here waits or reads a clock. An arrival time depends only on the profile, the seed and its number,
so that a stalled server can't shift it.
"""

import math
import random
from collections.abc import Iterator
from itertools import islice, takewhile

from sampling.load.model._profiles import ClosedLoop, OpenLoop
from sampling.load.model._seeds import derive_seed

__all__ = ["first_requests", "instants", "rate_at", "read_trace", "share", "start_time"]


def instants(profile: OpenLoop, seed: int) -> Iterator[float]:
    """Yield the arrival times of an open loop, in order. The warm-up is included."""
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
    """
    Yield evenly spaced times.

    Each is computed from its number, because a running sum would drift.
    """
    rate = _rate(profile)
    group = profile.burst if profile.arrivals == "burst" else 1
    ends = [] if profile.requests is None else [_ticks(profile.warmup_s, rate) + profile.requests]
    if profile.duration_s is not None:
        ends.append(_ticks(profile.warmup_s + profile.duration_s, rate))
    return (number // group * group / rate for number in range(min(ends)))


def _ticks(seconds: float, rate: float) -> int:
    """
    Count the ticks in [0, seconds).

    Rounding corrects floating-point errors such as 0.1 * 30 > 3.
    """
    return math.ceil(round(seconds * rate, 6))


def _only(profile: OpenLoop, every: Iterator[float]) -> Iterator[float]:
    """Stop after the profile's number of requests, if any. Requests of the warm-up don't count."""
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
    """Yield the times of a changing rate."""
    instant = 0.0
    while True:
        yield instant
        instant += 1 / rate_at(profile, instant)


def _random(profile: OpenLoop, rng: random.Random) -> Iterator[float]:
    """Yield Poisson arrivals, the pattern of many independent users."""
    instant = 0.0
    while True:
        instant += rng.expovariate(rate_at(profile, instant))
        yield instant


def rate_at(profile: OpenLoop, instant: float) -> float:
    """
    Return the rate at a time.

    The warm-up has the initial rate of the ramp or shape.
    """
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
    """
    Return the time of a user's first request.

    Users are spread over the think time, and limited by `activate_per_s`.
    """
    spread = user * profile.think_time_s / profile.users
    return spread if profile.activate_per_s is None else max(spread, user / profile.activate_per_s)


def first_requests(profile: ClosedLoop) -> tuple[int, int | None]:
    """
    Return the numbers of users and of follow-up requests.

    Only the users that start count. The number of follow-ups is None without a limit.
    """
    if profile.requests is None:
        return profile.users, None
    first = min(profile.users, profile.requests)
    return first, profile.requests - first


def read_trace(text: str) -> tuple[float, ...]:
    """
    Parse a trace of arrival times, one per line.

    They are in seconds on any clock. The earliest is the start.
    Text after a comma, empty lines and a header are ignored, so a log with more columns works too.
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
    Number the ticks, and yield those of one worker.

    They are every `workers`-th of the common schedule.
    So all workers together generate the same traffic as one, and no two of them draw the same gaps.
    """
    return islice(enumerate(every), worker, None, workers)
