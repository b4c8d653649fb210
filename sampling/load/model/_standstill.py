"""
Waits that the latencies of a closed loop hide.

Users who wait for an answer send nothing. So a server that stands still has one slow request per user, however long it
stands still, and a server that never answers again has no more than one unanswered request per user.
"""

from collections.abc import Iterator
from itertools import pairwise

from sampling.load.model._profiles import ClosedLoop
from sampling.load.model._recording import Recording
from sampling.load.model._report import LoadReport

__all__ = ["count_lost_users", "standstill_s"]

_LEAST_WAITING = 10
"""Users who must wait together. The slow answers of a few users can come at the same time by chance."""


def count_lost_users(report: LoadReport, limit_s: float | None) -> int:
    """
    Return the number of users of a closed loop who were still waiting at the end of the run.

    They waited for longer than the limit, or than the drain if there is none, and for longer than every answer took.
    """
    profile, ends = report.profile, report.user_ends
    if not isinstance(profile, ClosedLoop) or ends is None or profile.drain_s is None:
        return 0
    patience_s = max(profile.drain_s if limit_s is None else limit_s, report.latency.max or 0.0)
    # A request of the warm-up that is unanswered at the end has waited for the whole measurement.
    since_warmup = max(0, ends["cancelled"] - report.cancelled) if profile.on_error == "continue" else 0
    waited_s = report.duration_s + profile.drain_s
    return _count_unanswered(report, patience_s) + (since_warmup if waited_s > patience_s else 0)


def _count_unanswered(report: LoadReport, patience_s: float) -> int:
    if report.samples is None:
        drain_s = report.profile.drain_s or 0.0
        return report.cancelled if drain_s > patience_s else 0
    waits = report.samples.times("intended_s", "done_s", outcomes=("cancelled",))
    return sum(waited_s > patience_s for waited_s in waits)


def standstill_s(report: LoadReport, limit_s: float) -> float:
    """
    Return the time in which many users of a closed loop waited and none was answered within the limit.

    A request sent in that time would have been beyond the limit.
    """
    if report.samples is None or not isinstance(report.profile, ClosedLoop):
        return 0.0
    from_s = report.profile.warmup_s
    until_s = from_s + report.duration_s
    found_s = 0.0
    for start_s, end_s in _gaps(report, report.samples, limit_s):
        blocked_s = min(end_s - limit_s, until_s) - max(start_s, from_s) - _generator_stall_s(report, start_s, end_s)
        if blocked_s > 0 and _count_waiting(report.samples, end_s - limit_s, end_s) >= _LEAST_WAITING:
            found_s += blocked_s
    return found_s


def _gaps(report: LoadReport, samples: Recording, longer_than_s: float) -> Iterator[tuple[float, float]]:
    """Yield the long times between two requests that ended, and until the end of the run."""
    ended = samples.due_and_took("intended_s", "done_s", outcomes=("valid", "invalid", "failed"))
    instants = [report.profile.warmup_s, *sorted(due_s + took_s for due_s, took_s in ended), report.elapsed_s]
    return ((start_s, end_s) for start_s, end_s in pairwise(instants) if end_s - start_s > longer_than_s)


def _generator_stall_s(report: LoadReport, start_s: float, end_s: float) -> float:
    """Return the time in which the load generator itself stood still."""
    stalls = ((stall.at_s + report.profile.warmup_s, stall.blocked_s) for stall in report.stalls)
    return sum(blocked_s for at_s, blocked_s in stalls if at_s <= end_s and start_s <= at_s + blocked_s)


def _count_waiting(samples: Recording, from_s: float, until_s: float) -> int:
    waits = samples.due_and_took("intended_s", "done_s")
    return sum(due_s <= from_s and due_s + took_s >= until_s for due_s, took_s in waits)
