"""
Judge a step by an SLO.

`judge` is a pure function from a report to a verdict with reasons.
The order of the checks matters. A failed measurement is INCONCLUSIVE. A broken limit is a TRIP, even if the target
rate was not reached, because backpressure by the server is not a limit of the load generator. Only when the service
looks healthy, a shortfall or a late generator makes the step INCONCLUSIVE.
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
"""Maximum p99 schedule lag, as a share of the tightest latency limit."""

_ACTIVE_SHARE = 0.95
"""Minimum share of a step's users that must have become active."""

_NEAR = 0.1
"""Without counts, a value within this share of its limit is uncertain."""


@attrs.frozen
class Backlog:
    """The change of the server's queue during a measurement."""

    growth: float | None = None
    """Growth of the queue from start to end, or None if it is unknown."""

    slope: float | None = None
    """Growth of the queue per second."""

    disappeared: bool = False
    """True if the queue stopped existing during the measurement."""

    warning: str | None = None
    """The reason why this signal was dropped, if it was."""


@attrs.frozen
class Judgement:
    """A verdict with its reasons and its confidence."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    edge: bool = False
    """True if another run could well have the opposite verdict."""

    confidence: float | None = None
    """The confidence of a PASS, for its least certain limit, or None if it can't be computed."""


@attrs.frozen
class _Finding:
    """One limit compared with its measured value."""

    name: str
    reason: str
    broken: bool
    found: int | None = None
    """Number of samples beyond the limit, or None if they can't be counted."""

    count: int = 0
    """Number of samples."""

    allowed: float = 0.0
    """Share of samples that may be beyond the limit."""

    close: bool = False
    too_few: str | None = None
    is_latency: bool = False
    """True for latencies, which a late load generator makes worse by itself."""

    service_time_breaks: bool = False
    """True if the service time alone breaks the limit, so that the generator's lag is not the cause."""

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
    """Return the verdict on a step, with every reason."""
    if report is None or failure is not None:
        return Judgement("INCONCLUSIVE", (failure or "the measurement itself failed",))
    unmeasured = _unmeasured(report)
    if unmeasured:
        return Judgement("INCONCLUSIVE", (unmeasured,))
    findings = list(_findings(report, slo, backlog))
    late = _client_lag(report, slo)
    # A late generator adds its lag to all latencies. Then only the service time can prove that a limit is broken.
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
        return "nothing was sent: check that the workload is not empty and that max_in_flight is large enough"
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
    """Check the limits of a report or an operation."""
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
        return _Finding(name, "", broken=False, too_few=f"{name} can't be computed: the series is empty")
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
            yield _Finding(name, "", broken=False, too_few=f"{name} can't be computed: too short a measurement")
            continue
        reason = f"{name}=+{value:.3g}{unit} > {limit:g}{unit}"
        yield _Finding(name, reason, value > limit, close=abs(value - limit) <= _NEAR * max(limit, 1))


def _compared(value: float, limit: float, show: _Show, sign: str = ">") -> str:
    """Format a value and its limit. They have enough digits to tell them apart."""
    for digits in (3, 6, 9):
        if show(value, digits) != show(limit, digits):
            return f"{show(value, digits)} {sign} {show(limit, digits)}"
    return f"{show(value, 17)} {sign} {show(limit, 17)}"


# Limits of the load generator.


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
