"""
Arrival schedules.

They are pure functions from a profile to times, in seconds from the start.
Nothing here waits or reads a clock. An arrival time depends only on the profile, the seed and its number,
so that a stalled server can't shift it.
"""

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice, takewhile

from sampling._arguments import short_repr
from sampling._log import Logger
from sampling.load.model._profiles import ClosedLoop, OpenLoop
from sampling.load.model._rates import RateIntegral, base_rate, planned_s
from sampling.load.model._seeds import derive_seed

__all__ = [
    "count_arrivals",
    "first_requests",
    "instants",
    "read_trace",
    "sending_ends_s",
    "share",
    "start_time",
]

log = Logger()

_LATEST_S = 1e11
"""The largest number that is read as seconds, which is three thousand years."""


def instants(profile: OpenLoop, seed: int) -> Iterator[float]:
    """Yield the arrival times of an open loop, in order. The warm-up is included."""
    return _only(profile, _every(profile, seed))


def _every(profile: OpenLoop, seed: int) -> Iterator[float]:
    """Yield the arrival times within the duration. Without one, constant arrivals have no end."""
    if profile.trace is not None:
        if profile.duration_s is None:
            return iter(profile.trace)
        ends_s = profile.warmup_s + profile.duration_s
        return takewhile(lambda instant: instant < ends_s, profile.trace)
    if profile.arrivals == "poisson":
        return _random(profile, random.Random(derive_seed(seed, "arrivals")))  # noqa: S311 - traffic is no secret
    if profile.to_rate is not None or profile.shape is not None:
        integral = RateIntegral(profile)
        return (integral.instant(number) for number in range(_whole(integral.total)))
    return _constant(profile)


def _constant(profile: OpenLoop) -> Iterator[float]:
    """
    Yield evenly spaced times.

    Each is computed from its number, because a running sum would drift.
    """
    rate = base_rate(profile)
    group = profile.burst if profile.arrivals == "burst" else 1
    if profile.duration_s is None:
        return (number // group * group / rate for number in count())
    ticks = _whole((profile.warmup_s + profile.duration_s) * rate)
    return (number // group * group / rate for number in range(ticks))


def _whole(ticks: float) -> int:
    """
    Count the whole numbers in [0, ticks).

    Rounding corrects floating-point errors such as 0.1 * 30 > 3.
    """
    return math.ceil(round(ticks, 6))


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


def _random(profile: OpenLoop, rng: random.Random) -> Iterator[float]:
    """
    Yield Poisson arrivals, the pattern of many independent users.

    Their number is fixed, because a run that happens to send fewer requests measures another rate. Given
    its number of arrivals, a Poisson process is a set of independent uniform times.
    """
    integral = RateIntegral(profile)
    for number in _uniform(round(integral.warmup), rng):
        yield integral.instant(number * integral.warmup)
    measured = integral.total - integral.warmup
    for number in _uniform(round(measured), rng):
        yield integral.instant(integral.warmup + number * measured)


def _uniform(draws: int, rng: random.Random) -> Iterator[float]:
    """Yield independent uniform draws from [0, 1), sorted, without keeping them."""
    log_left = 0.0
    for left in range(draws, 0, -1):
        # The smallest of `left` uniform draws leaves a share of u ** (1 / left) above it.
        log_left += math.log(1.0 - rng.random()) / left
        yield min(-math.expm1(log_left), math.nextafter(1.0, 0.0))


def count_arrivals(profile: OpenLoop) -> int:
    """Return the number of arrivals of a profile without making them."""
    if profile.trace is not None:
        return sum(1 for _ in instants(profile, 0))
    integral = RateIntegral(profile)
    if profile.arrivals == "poisson":
        warmup, measured = round(integral.warmup), round(integral.total - integral.warmup)
    else:
        warmup = _whole(integral.warmup)
        measured = _whole(integral.total) - warmup
    return warmup + (measured if profile.requests is None else min(measured, profile.requests))


def sending_ends_s(profile: OpenLoop, seed: int) -> float:
    """
    Return the end of the time in which traffic is sent.

    That is the end of the duration, or the time of the first arrival that `requests` cuts off.
    """
    latest_s = profile.warmup_s + planned_s(profile) if profile.trace is None else _trace_ends_s(profile)
    if profile.requests is None or (profile.duration_s is None and profile.trace is None):
        return latest_s
    measured = (instant for instant in _every(profile, seed) if instant >= profile.warmup_s)
    return next(islice(measured, profile.requests, None), latest_s)


def _trace_ends_s(profile: OpenLoop) -> float:
    if profile.duration_s is not None:
        return profile.warmup_s + profile.duration_s
    return max(profile.trace[-1], profile.warmup_s) if profile.trace else profile.warmup_s


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

    They are seconds on any clock, or ISO 8601 timestamps. The earliest is the start, and unsorted ones are sorted.
    Text after a comma, empty lines and a header are ignored, so a log with more columns works too.
    """
    stamps: list[float] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        field = line.partition(",")[0].strip()
        if not field or (number == 1 and _is_heading(field)):
            continue
        stamp = _parse_stamp(field)
        if stamp is None:
            raise ValueError(
                f"line {number} of the trace must begin with a number of seconds or an ISO time, "
                f"got {short_repr(field)}"
            )
        stamps.append(stamp)
    if not stamps:
        raise ValueError("the trace is empty: write one arrival time per line, in seconds or as ISO 8601")
    ordered = sorted(stamps)
    if ordered != stamps:
        log.warning("trace_sorted", reason="the arrival times of the trace were not in order")
    return tuple(stamp - ordered[0] for stamp in ordered)


def _is_heading(field: str) -> bool:
    """Return True for a name. A damaged time also begins with a digit or a sign, and is not skipped."""
    if field[0].isdigit() or field[0] in "+-.":
        return False
    try:
        float(field)  # nan and inf are numbers, not names
    except ValueError:
        return True
    return False


def _parse_stamp(field: str) -> float | None:
    """Return seconds, or None for a text that is not a time. Milliseconds since 1970 are too large."""
    try:
        stamp = float(field)
    except ValueError:
        return _parse_iso(field)
    return stamp if abs(stamp) <= _LATEST_S else None


def _parse_iso(field: str) -> float | None:
    try:
        moment = datetime.fromisoformat(field)
        # A time without a zone is read as UTC, so that no change to summer time can tear the trace apart.
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def share(every: Iterator[float], worker: int, workers: int) -> Iterator[tuple[int, float]]:
    """
    Number the ticks, and yield those of one worker.

    They are every `workers`-th of the common schedule.
    So all workers together generate the same traffic as one, and no two of them draw the same gaps.
    """
    return islice(enumerate(every), worker, None, workers)
