"""Aggregate a recording into a report."""

import math
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from sampling.load.model._profiles import ClosedLoop, Profile
from sampling.load.model._recording import ANSWERED, OUTCOMES, USER_ENDS, Recording
from sampling.load.model._report import ANSWERED_SERIES, Bin, LoadReport, Operation
from sampling.load.model._series import Summary, cumulative, slope
from sampling.load.model._slo import Slo

__all__ = ["build_report"]


def build_report(
    recording: Recording, profile: Profile, *, seed: int, workers: int = 1, slo: Slo | None = None
) -> LoadReport:
    """
    Build the report of a recording.

    `LoadReport` checks the counts of the generator against the samples.
    """
    tally, outcomes = recording.tally, recording.outcomes()
    warmup_s = profile.warmup_s
    duration_s = max(0.0, recording.ended_s - warmup_s)
    if not duration_s and tally.admitted:
        # All requests were sent at once, so the time until their answers is the only one there is.
        duration_s = max(0.0, recording.drained_s - warmup_s)
    levels, times = _levels(recording, warmup_s, duration_s)
    return LoadReport(
        profile=profile,
        seed=seed,
        workers=workers,
        scheduled=tally.scheduled,
        admitted=tally.admitted,
        dropped=tally.dropped,
        missed=sum(1 for instant in recording.missed_s if instant >= warmup_s),
        succeeded=tally.succeeded,
        failed=tally.failed,
        cancelled=tally.cancelled,
        valid=outcomes["valid"],
        invalid=outcomes["invalid"],
        good=None if slo is None else _good(recording, slo),
        slo=slo,
        warmup_sent=recording.warmup.admitted,
        user_ends=_user_ends(recording, profile) if isinstance(profile, ClosedLoop) else None,
        active_users=recording.active_users if isinstance(profile, ClosedLoop) else None,
        duration_s=duration_s,
        elapsed_s=recording.drained_s,
        last_sent_s=max(0.0, max(recording.columns["sent_s"], default=0.0) - warmup_s),
        **_summaries(recording),
        schedule_lag=Summary.of(recording.times("intended_s", "sent_s")),
        error_latency=Summary.of(recording.times("intended_s", "done_s", outcomes=("failed",))),
        peak_in_flight=recording.levels.peak,
        mean_in_flight=sum(levels) / len(levels) if levels else 0.0,
        backlog_growth=float(levels[-1] - levels[0]) if levels else 0.0,
        backlog_slope=slope(times, levels),
        errors=dict(sorted(recording.errors.items())),
        error_messages=dict(sorted(recording.error_messages.items())),
        operations=_operations(recording),
        requests=sum(recording.columns["requests"]),
        input_tokens=sum(recording.columns["input_tokens"]),
        output_tokens=sum(recording.columns["output_tokens"]),
        cost=recording.cost,
        timeline=_timeline(recording, warmup_s),
        latency_distribution=tuple(cumulative(recording.times("intended_s", "done_s", outcomes=ANSWERED))),
        service_distribution=tuple(cumulative(recording.times("sent_s", "done_s", outcomes=ANSWERED))),
        stalls=tuple(attrs.evolve(stall, at_s=stall.at_s - warmup_s) for stall in recording.stalls),
        interrupted=recording.interrupted,
        exhausted=recording.exhausted,
        ignored=dict(sorted(recording.ignored.items())),
        backoffs=recording.backoffs,
        samples=recording,
    )


def _user_ends(recording: Recording, profile: ClosedLoop) -> dict[str, int]:
    ends: dict[str, int] = {end: recording.user_ends[end] for end in USER_ENDS}
    if recording.interrupted:
        # A user that is stopped before its task first runs can't count itself.
        ends["cancelled"] += profile.users - sum(ends.values())
    return ends


def _summaries(recording: Recording) -> dict[str, Any]:
    return {name: Summary.of(recording.values(name)) for name in ANSWERED_SERIES}


def _operations(recording: Recording) -> dict[str, Operation]:
    found = {name: _operation(part) for name, part in recording.by_operation()}
    return dict(sorted(found.items()))


def _operation(part: Recording) -> Operation:
    outcomes = part.outcomes()
    return Operation(
        sent=len(part),
        succeeded=sum(outcomes[outcome] for outcome in ANSWERED),
        failed=outcomes["failed"],
        cancelled=outcomes["cancelled"],
        valid=outcomes["valid"],
        **_summaries(part),
    )


def _good(recording: Recording, slo: Slo) -> int:
    """Count the valid answers within the SLO's request limits."""
    limits = slo.request_limits
    latency_s = min(limits.get("latency", math.inf), limits.get("time_to_valid", math.inf))
    first_s = limits.get("time_to_first_token", math.inf)
    per_token_s, gap_s = (limits.get(name, math.inf) for name in ("time_per_output_token", "time_between_tokens"))
    names = ("outcome", "intended_s", "first_token_s", "done_s", "requests", "output_tokens", "longest_gap_s")
    valid = OUTCOMES.index("valid")
    good = 0
    for code, due, first, done, requests, tokens, gap in zip(*(recording.columns[name] for name in names), strict=True):
        # `not >` instead of `<=`, because a figure that was not reported is NaN and breaks no limit.
        good += (
            code == valid
            and done - due <= latency_s
            and not first - due > first_s
            and not gap > gap_s
            # As for the limit itself, only a single request has a time per token.
            and not (requests == 1 and tokens > 1 and (done - first) / (tokens - 1) > per_token_s)
        )
    return good


def _levels(recording: Recording, warmup_s: float, duration_s: float) -> tuple[list[int], list[float]]:
    """Return the levels of requests in flight, and their times."""
    every_s = recording.levels.every_s
    inside = [
        (level, number * every_s)
        for number, level in enumerate(recording.levels.values)
        if warmup_s <= number * every_s <= warmup_s + duration_s
    ]
    return [level for level, _ in inside], [time for _, time in inside]


def _timeline(recording: Recording, warmup_s: float) -> tuple[Bin, ...]:
    """
    Divide the measurement into intervals.

    A request belongs to the interval in which it was due.
    """
    every_s = recording.levels.every_s
    due = (recording.columns["intended_s"], recording.dropped_s, recording.missed_s)
    last_s = max((max(instants) for instants in due if instants), default=None)
    if last_s is None:
        return ()
    count = max(1, math.floor((last_s - warmup_s) / every_s) + 1)

    def bin_of(instant: float) -> int:
        return min(int((instant - warmup_s) / every_s), count - 1)

    times = _times_by_bin(recording, bin_of, count)
    dropped, missed = (_histogram(each, warmup_s, bin_of, count) for each in (recording.dropped_s, recording.missed_s))
    first = round(warmup_s / every_s)
    # Padded, because the last interval may begin after the last sample.
    levels = [*recording.levels.values[first : first + count], *[0] * count]
    return tuple(
        Bin(
            at_s=number * every_s,
            sent=sent,
            dropped=dropped[number],
            missed=missed[number],
            failed=failed,
            in_flight=levels[number],
            latency=Summary.of(latencies),
            service_time=Summary.of(services),
        )
        for number, (sent, failed, latencies, services) in enumerate(times)
    )


def _times_by_bin(
    recording: Recording, bin_of: Callable[[float], int], count: int
) -> "Iterable[tuple[int, int, array[float], array[float]]]":
    """Yield (sent, failed, latencies, service times) for each interval."""
    sent, failed = [0] * count, [0] * count
    latencies, services = [array("d") for _ in range(count)], [array("d") for _ in range(count)]
    names = ("outcome", "intended_s", "sent_s", "done_s")
    for code, due, started, done in zip(*(recording.columns[name] for name in names), strict=True):
        number = bin_of(due)
        sent[number] += 1
        failed[number] += OUTCOMES[code] == "failed"
        if OUTCOMES[code] in ANSWERED:
            latencies[number].append(max(done - due, 0.0))
            services[number].append(done - started)
    return zip(sent, failed, latencies, services, strict=True)


def _histogram(instants: Iterable[float], from_s: float, bin_of: Callable[[float], int], count: int) -> list[int]:
    counts = [0] * count
    for instant in instants:
        if instant >= from_s:
            counts[bin_of(instant)] += 1
    return counts
