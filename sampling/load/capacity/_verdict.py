"""
Does a step hold? Pure: a report and an SLO in, a verdict with its reasons out.

The order matters. What was not measured is INCONCLUSIVE. A broken limit is a TRIP, even if the target rate was not
reached: backpressure by the server is not a limit of the load generator. Only when the service looks healthy is a
shortfall, or a generator that ran late, the generator's own, and INCONCLUSIVE.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

from sampling.load.capacity._confidence import confidence_within, is_at_edge
from sampling.load.model._profiles import ClosedLoop
from sampling.load.model._recording import Outcome
from sampling.load.model._report import LoadReport, Operation, required_in_flight
from sampling.load.model._series import Summary, least_samples
from sampling.load.model._slo import LatencyLimit, Slo
from sampling.load.model._units import format_seconds, format_share

__all__ = ["Backlog", "Judgement", "Verdict", "judge"]

Verdict: TypeAlias = Literal["PASS", "TRIP", "INCONCLUSIVE"]

_Show: TypeAlias = Callable[[float, int], str]

_LAG_SHARE = 0.1
"""How much of the tightest latency limit the load generator may itself be late, at p99."""

_ACTIVE_SHARE = 0.95
"""How many of a step's users must have become active."""

_NEAR = 0.1
"""Where nothing can be counted, a value that is this close to its limit is at the edge."""


@attrs.frozen
class Backlog:
    """What a probe of the server's own queue saw during the measurement."""

    growth: float | None = None
    """How much longer the queue was at the end than at the start; None if it could not be seen."""

    slope: float | None = None
    """By how much it grew per second."""

    disappeared: bool = False
    """Whether there was a queue, and then there was none any more."""

    warning: str | None = None
    """Why this signal was dropped, if it was."""


@attrs.frozen
class Judgement:
    """A verdict, why, and how sure."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    edge: bool = False
    """Whether another run might as well have found the opposite."""

    confidence: float | None = None
    """How sure a PASS is that every limit holds, by the least sure of them; None where that can't be said."""


@attrs.frozen
class _Finding:
    """One limit, held against what was measured."""

    name: str
    reason: str
    broken: bool
    found: int | None = None
    """How many exceeded it, …"""

    count: int = 0
    """… of how many, …"""

    allowed: float = 0.0
    """… and which share may."""

    close: bool = False
    too_few: str | None = None
    is_latency: bool = False
    """Whether it is a latency, which a generator that runs late makes worse by itself."""

    service_time_breaks: bool = False
    """Whether the service time alone breaks it: then the generator's lateness is no excuse."""

    @property
    def edge(self) -> bool:
        return self.close if self.found is None else is_at_edge(self.found, self.count, self.allowed)

    @property
    def confidence(self) -> float | None:
        return None if self.found is None else confidence_within(self.found, self.count, self.allowed)


def judge(
    report: LoadReport | None,
    slo: Slo,
    *,
    rate_tolerance: float = 0.05,
    backlog: Backlog | None = None,
    failure: str | None = None,
) -> Judgement:
    """Say whether a step holds, trips, or proves nothing, with every reason."""
    if report is None or failure is not None:
        return Judgement("INCONCLUSIVE", (failure or "the measurement itself failed",))
    unmeasured = _unmeasured(report)
    if unmeasured:
        return Judgement("INCONCLUSIVE", (unmeasured,))
    findings = list(_findings(report, slo, backlog))
    late = _client_lag(report, slo)
    broken = [
        finding
        for finding in findings
        if finding.broken and (late is None or not finding.is_latency or finding.service_time_breaks)
    ]
    if broken:
        return Judgement("TRIP", tuple(finding.reason for finding in broken), edge=all(f.edge for f in broken))
    doubts = [*_shortfalls(report, rate_tolerance), *([late] if late else [])]
    doubts += [finding.too_few for finding in findings if finding.too_few]
    if doubts:
        return Judgement("INCONCLUSIVE", tuple(doubts))
    sure = [finding.confidence for finding in findings if finding.confidence is not None]
    return Judgement("PASS", edge=any(f.edge for f in findings), confidence=min(sure, default=None))


def _unmeasured(report: LoadReport) -> str | None:
    if report.interrupted:
        return "the measurement was interrupted"
    if not report.admitted:
        return "nothing was sent: check that the workload is not empty and that permits are free"
    if report.exhausted:
        return "the workload ran out of requests during the measurement: give it more, or an endless one"
    return None


# Limits.


def _findings(report: LoadReport, slo: Slo, backlog: Backlog | None) -> Iterator[_Finding]:
    yield from _common_findings(report, slo, "", None, report)
    for name, limits in slo.operations.items():
        operation = report.operations.get(name)
        if operation is None:
            yield _Finding(name, "", broken=False, too_few=f"operation {name!r} was never sent")
        else:
            yield from _common_findings(operation, limits, f"{name}.", name, report)
    yield from _backlog_findings(report, slo, backlog)


def _common_findings(
    part: LoadReport | Operation, slo: Slo, prefix: str, operation: str | None, report: LoadReport
) -> Iterator[_Finding]:
    """Hold against the limits what whole reports and single operations have in common."""
    for limit in slo.latency_limits:
        yield _latency_finding(part, limit, prefix, operation, report)
    sent = part.admitted if isinstance(part, LoadReport) else part.sent
    if slo.error_rate is not None and part.error_rate is not None:
        errors = part.failed + part.cancelled
        yield _share_finding(
            f"{prefix}error rate", part.error_rate, slo.error_rate, (errors, sent, slo.error_rate), most=True
        )
    if slo.validity_rate is not None and part.validity_rate is not None:
        counts = (part.succeeded - part.valid, part.succeeded, 1 - slo.validity_rate)
        yield _share_finding(f"{prefix}validity rate", part.validity_rate, slo.validity_rate, counts, most=False)
    elif slo.validity_rate is not None:
        yield _Finding("validity", "", broken=False, too_few=f"{prefix}validity rate: there were no answers")


def _latency_finding(
    part: LoadReport | Operation, limit: LatencyLimit, prefix: str, operation: str | None, report: LoadReport
) -> _Finding:
    series: Summary = getattr(part, limit.series)
    value = series.at(limit.percent)
    name = f"{prefix}{limit.name}"
    if value is None:
        return _Finding(name, "", broken=False, too_few=f"{name} can't be told: the series is empty")
    service = part.service_time.at(limit.percent)
    least = least_samples(limit.percent)
    return _Finding(
        name,
        f"{name}={_compared(value, limit.limit_s, format_seconds)}",
        broken=value > limit.limit_s,
        found=_count_exceeding(report, limit, operation),
        count=series.count,
        allowed=1 - limit.percent / 100,
        close=abs(value - limit.limit_s) <= _NEAR * limit.limit_s,
        too_few=f"{name} needs {least} samples, there are {series.count}: hold longer"
        if series.count < least
        else None,
        is_latency=True,
        service_time_breaks=limit.series != "time_to_first_token" and service is not None and service > limit.limit_s,
    )


def _count_exceeding(report: LoadReport, limit: LatencyLimit, operation: str | None) -> int | None:
    if report.samples is None:
        return None
    end = "first_token_s" if limit.series == "time_to_first_token" else "done_s"
    outcomes: tuple[Outcome, ...] = ("valid",) if limit.series == "time_to_valid" else ("valid", "invalid")
    times = report.samples.times("intended_s", end, outcomes=outcomes, operation=operation)
    return sum(time > limit.limit_s for time in times)


def _share_finding(name: str, value: float, limit: float, counts: tuple[int, int, float], *, most: bool) -> _Finding:
    broken = value > limit if most else value < limit
    found, count, allowed = counts
    sign = ">" if most else "<"
    return _Finding(name, f"{name}={_compared(value, limit, format_share, sign)}", broken, found, count, allowed)


def _backlog_findings(report: LoadReport, slo: Slo, backlog: Backlog | None) -> Iterator[_Finding]:
    if backlog is not None and backlog.disappeared:
        yield _Finding("backlog", "the queue disappeared during the measurement", broken=True)
    if backlog is not None and backlog.warning is not None:
        return
    growth = report.backlog_growth if backlog is None else backlog.growth
    slope = report.backlog_slope if backlog is None else backlog.slope
    for name, unit, value, limit in (
        ("backlog", "", growth, slo.backlog),
        ("backlog_slope", "/s", slope, slo.backlog_slope),
    ):
        if limit is None:
            continue
        if value is None:
            yield _Finding(name, "", broken=False, too_few=f"{name} can't be told: too short a measurement")
            continue
        reason = f"{name}=+{value:.3g}{unit} > {limit:g}{unit}"
        yield _Finding(name, reason, value > limit, close=abs(value - limit) <= _NEAR * max(limit, 1))


def _compared(value: float, limit: float, show: _Show, sign: str = ">") -> str:
    """Write a value against its limit, with as many digits as it takes to tell them apart."""
    for digits in (3, 6, 9):
        if show(value, digits) != show(limit, digits):
            return f"{show(value, digits)} {sign} {show(limit, digits)}"
    return f"{show(value, 17)} {sign} {show(limit, 17)}"


# The load generator's own limits.


def _client_lag(report: LoadReport, slo: Slo) -> str | None:
    lag, tightest_s = report.schedule_lag.p99, slo.tightest_s
    if lag is None or tightest_s is None or lag <= _LAG_SHARE * tightest_s:
        return None
    return (
        f"client-limited: the load generator could not emit on schedule (p99 lag {format_seconds(lag)}, "
        f"more than a tenth of {format_seconds(tightest_s)}): use more workers, or a lighter workload"
    )


def _shortfalls(report: LoadReport, tolerance: float) -> Sequence[str]:
    if isinstance(report.profile, ClosedLoop):
        return _too_few_users(report, report.profile.users)
    due = report.scheduled_rate
    if report.achieved_rate >= (1 - tolerance) * due:
        return ()
    short = f"sent {report.achieved_rate:.4g}/s of {due:.4g}/s"
    full = report.dropped - report.missed
    if full > report.missed:
        room = required_in_flight(due, report.service_time.p99)
        needed = "" if room is None else f" to about {room} (rate × p99 service time)"
        return (f"client-limited: {short}, {full} arrivals found the in-flight pool full: raise max_in_flight{needed}",)
    return (f"client-limited: {short}, the load generator could not emit on schedule: use more workers",)


def _too_few_users(report: LoadReport, users: int) -> Sequence[str]:
    active = report.active_users or 0
    if active >= _ACTIVE_SHARE * users:
        return ()
    return (
        f"client-limited: only {users}({active}) users became active before the measurement: "
        "warm up longer, or raise activate_per_s",
    )
