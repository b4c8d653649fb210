"""
Judge a step by an SLO.

`judge` is a pure function from a report to a verdict with reasons.
The order of the checks matters. A failed measurement is INCONCLUSIVE. A broken limit is a TRIP, even if the target
rate was not reached, because backpressure by the server is not a limit of the load generator. A shortfall or
a late generator makes the step INCONCLUSIVE only if the service looks healthy.

Limits on latencies apply to every request that was due. One that failed, was dropped or was never answered exceeds
every limit, so a server can't pass because only its fast answers are counted. In a closed loop, users who wait send
nothing, so times in which nobody was answered, and users who were never answered again, count against the limits too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import TypeAlias

import attrs

from sampling.load.model._confidence import clustering, confidence_within, is_at_edge
from sampling.load.model._profiles import ClosedLoop, OpenLoop
from sampling.load.model._rates import planned_rate
from sampling.load.model._recording import SERIES
from sampling.load.model._report import LoadReport, Operation, Verdict, required_in_flight
from sampling.load.model._series import Summary, least_samples
from sampling.load.model._slo import LatencyLimit, Slo
from sampling.load.model._standstill import count_lost_users, standstill_s
from sampling.load.model._steadiness import BATCHES, batch_medians, confidence_of_growth, confidence_of_level
from sampling.load.model._units import format_seconds, format_share

__all__ = ["Backlog", "Judgement", "Verdict", "judge", "with_verdict"]


_Show: TypeAlias = Callable[[float, int], str]

_LAG_SHARE = 0.1
"""Maximum p99 schedule lag, as a share of the tightest latency limit."""

_ACTIVE_SHARE = 0.95
"""Minimum share of a step's users that must have become active."""

_GROWTH = 0.005
"""Growth of the latency per second that is too much: the server falls behind by this share of the rate."""

_SURE = 0.95
_DOUBTFUL = 0.3
"""Probability of a steady latency below which the rate trips."""

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
    found: float | None = None
    """Number of independent samples beyond the limit, or None if they can't be counted."""

    count: float = 0
    """Number of independent samples."""

    allowed: float = 0.0
    """Share of samples that may be beyond the limit."""

    close: bool = False
    too_few: str | None = None
    suffers_from_lag: bool = False
    """True for latencies and drops, which a late load generator makes worse by itself."""

    service_time_breaks: bool = False
    """True if the service time alone breaks the limit, so that the generator's lag is not the cause."""

    sure: float | None = None
    """The confidence that the limit is met in the long run, where it does not follow from counts."""

    too_small_pool: float | None = None
    """The latency limit, if only drops break it, and the pool is too small to blame the server for them."""

    @property
    def edge(self) -> bool:
        if self.sure is not None and 1 - _SURE < self.sure < _SURE:
            return True
        return self.close if self.found is None else is_at_edge(self.found, self.count, self.allowed)

    @property
    def confidence(self) -> float | None:
        counted = None if self.found is None else confidence_within(self.found, self.count, self.allowed)
        return min((sure for sure in (counted, self.sure) if sure is not None), default=None)


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
        never = _never_answered(report, slo)
        if never:
            return Judgement("TRIP", (never,))
        return Judgement("INCONCLUSIVE", (unmeasured,))
    findings = list(_findings(report, slo, backlog))
    if not any(finding.broken for finding in findings):
        findings += _growth_findings(report, slo)
    late = _client_lag(report, slo)
    # A late generator adds its lag to all latencies, and fills the pool when it catches up. Then only the service time
    # and errors can prove that a limit is broken.
    broken = [
        finding
        for finding in findings
        if finding.broken and (late is None or not finding.suffers_from_lag or finding.service_time_breaks)
    ]
    if broken:
        # A late generator makes no server fail. But who reads the reasons should know both.
        also = (f"the load generator was late, too: its p99 lag was {_lag(report)}",) if late else ()
        reasons = (*(finding.reason for finding in broken), *also)
        return Judgement("TRIP", reasons, edge=all(f.edge for f in broken))
    doubts = [*_shortfalls(report, rate_tolerance, findings), *([late] if late else [])]
    doubts += [finding.too_few for finding in findings if finding.too_few]
    if doubts:
        return Judgement("INCONCLUSIVE", tuple(doubts))
    sure = [finding.confidence for finding in findings if finding.confidence is not None]
    return Judgement("PASS", edge=any(f.edge for f in findings), confidence=min(sure, default=None))


def with_verdict(report: LoadReport) -> LoadReport:
    """Return the report with the verdict on its SLO, if it has one."""
    if report.slo is None:
        return report
    found = judge(report, report.slo)
    return attrs.evolve(report, verdict=found.verdict, reasons=found.reasons, confidence=found.confidence)


def _unmeasured(report: LoadReport) -> str | None:
    if report.interrupted:
        return "the measurement was interrupted"
    if not report.admitted:
        return "nothing was sent: check that the workload is not empty and that max_in_flight is large enough"
    if report.exhausted:
        return "the workload ran out of requests during the measurement: give it more, or an endless one"
    return None


def _never_answered(report: LoadReport, slo: Slo) -> str | None:
    """
    Return a reason if the server answered nothing that was sent in the warm-up.

    Then nothing could be sent in the measurement, because the pool was full or all users waited.
    """
    if report.interrupted or report.admitted or report.duration_s <= (_longest_limit_s(slo) or 0.0):
        return None
    waiting = report.dropped > report.missed or count_lost_users(report, _longest_limit_s(slo)) > 0
    # Nothing else was in flight, and every answer would have made room for a request.
    unanswered = min(report.peak_in_flight, report.warmup_sent)
    return (
        f"unanswered: {unanswered:,} requests of the warm-up, and then nothing could be sent"
        if report.warmup_sent and waiting
        else None
    )


def _longest_limit_s(slo: Slo) -> float | None:
    return max((limit.limit_s for limit in slo.latency_limits if limit.is_from_due), default=None)


# Limits.


@attrs.frozen
class _Part:
    """A report, or an operation of it, with the number of its arrivals that were not served."""

    found: LoadReport | Operation
    report: LoadReport
    prefix: str = ""
    operation: str | None = None

    @property
    def sent(self) -> int:
        return self.found.admitted if isinstance(self.found, LoadReport) else self.found.sent

    @property
    def lost(self) -> int:
        """Number of sent requests that failed or were never answered."""
        return self.found.failed + self.found.cancelled

    @property
    def shed(self) -> int:
        """
        Number of arrivals that found the pool full.

        A dropped arrival has no operation yet, so an operation has its share of them.
        """
        report = self.report
        return math.ceil((report.dropped - report.missed) * self.sent / report.admitted) if report.admitted else 0

    def over_due(self, series: str, percent: int, lost: int) -> float:
        """
        Return a percentile of a series in which `lost` further values are infinite.

        Without samples it is rounded up to the next percentile of the summary.
        """
        summary: Summary = getattr(self.found, series)
        rank = math.ceil(Fraction(percent) * (summary.count + lost) / 100)
        if rank > summary.count:
            return math.inf
        if lost and self.report.samples is not None:
            return sorted(self.report.samples.values(series, self.operation))[rank - 1]
        kept = next(known for known in (50, 90, 95, 99, 100) if known * summary.count >= 100 * rank or known == 100)
        value = summary.at(kept if lost else percent)
        return math.inf if value is None else value

    def beyond(self, limit: LatencyLimit) -> list[tuple[int, int]] | None:
        """Return (beyond the limit, all) for each part of the measurement, or None without samples."""
        samples, report = self.report.samples, self.report
        if samples is None or limit.series not in SERIES:
            return None
        batch_s = (report.duration_s or 1.0) / BATCHES
        counts = [[0, 0] for _ in range(BATCHES + 1)]
        start, end, outcomes = SERIES[limit.series]
        answered = samples.due_and_took(start, end, outcomes=outcomes, operation=self.operation)
        lost = samples.due_and_took(start, "done_s", outcomes=("failed", "cancelled"), operation=self.operation)
        for due_s, took_s in chain(answered, ((due_s, math.inf) for due_s, _ in lost)):
            batch = counts[min(int(max(due_s - report.profile.warmup_s, 0.0) / batch_s), BATCHES)]
            batch[0] += took_s > limit.limit_s
            batch[1] += 1
        return [(beyond, count) for beyond, count in counts]


def _findings(report: LoadReport, slo: Slo, backlog: Backlog | None) -> Iterator[_Finding]:
    whole = _Part(report, report)
    yield from _common_findings(whole, slo)
    for name, limits in slo.operations.items():
        operation = report.operations.get(name)
        if operation is None:
            yield _Finding(name, "", broken=False, too_few=f"operation {name!r} was never sent")
        else:
            yield from _common_findings(_Part(operation, report, f"{name}.", name), limits)
    yield from _drop_findings(whole, slo)
    yield from _waiting_findings(report, slo)
    yield from _backlog_findings(report, slo, backlog)


def _common_findings(part: _Part, slo: Slo) -> Iterator[_Finding]:
    """Check the limits of a report or an operation."""
    found, prefix = part.found, part.prefix
    for limit in slo.latency_limits:
        yield _latency_finding(part, limit)
    if slo.error_rate is not None and found.error_rate is not None:
        yield _share_finding(
            f"{prefix}error rate",
            found.error_rate,
            slo.error_rate,
            (part.lost, part.sent, slo.error_rate),
            most=True,
        )
    if slo.validity_rate is not None and found.validity_rate is not None:
        counts = (found.succeeded - found.valid, found.succeeded, 1 - slo.validity_rate)
        yield _share_finding(f"{prefix}validity rate", found.validity_rate, slo.validity_rate, counts, most=False)
    elif slo.validity_rate is not None:
        yield _Finding("validity", "", broken=False, too_few=f"{prefix}validity rate: there were no answers")


def _latency_finding(part: _Part, limit: LatencyLimit) -> _Finding:
    series: Summary = getattr(part.found, limit.series)
    name = f"{part.prefix}{limit.name}"
    lost, shed = part.lost, part.shed if limit.is_from_due else 0
    due = series.count + lost + shed
    if not due or (not series.count and not lost):
        return _Finding(name, "", broken=False, too_few=f"{name} can't be computed: the series is empty")
    sent_value = part.over_due(limit.series, limit.percent, lost)
    value = part.over_due(limit.series, limit.percent, lost + shed) if shed else sent_value
    service = part.over_due("service_time", limit.percent, lost) if limit.is_from_due else sent_value
    excused = value > limit.limit_s >= sent_value and _is_pool_too_small(part.report, limit.limit_s)
    found, count = _counts(part, limit, lost + shed, due)
    least = least_samples(limit.percent)
    return _Finding(
        name,
        f"{name}={_compared(value, limit.limit_s, format_seconds)}{_unserved(part, value, due)}",
        broken=value > limit.limit_s and not excused,
        found=found,
        count=count,
        allowed=1 - limit.percent / 100,
        close=abs(value - limit.limit_s) <= _NEAR * limit.limit_s,
        too_few=f"{name} needs {least} samples, there are {due}: hold longer" if due < least else None,
        suffers_from_lag=limit.is_from_due,
        # The time to first token has no separate service time, unless nothing was answered.
        service_time_breaks=math.isinf(service) or (limit.series != "time_to_first_token" and service > limit.limit_s),
        too_small_pool=limit.limit_s if excused else None,
        sure=_level_confidence(part, limit, value),
    )


def _level_confidence(part: _Part, limit: LatencyLimit, value: float) -> float | None:
    """Return the confidence that the level of a series stays below its limit, or None if it can't be computed."""
    profile = part.report.profile
    if not 0 < limit.percent < 100 or (isinstance(profile, OpenLoop) and not _is_constant(profile)):
        return None
    medians = batch_medians(part.report, limit.series, part.operation)
    return None if medians is None else confidence_of_level(medians, value, limit.limit_s, limit.percent)


def _counts(part: _Part, limit: LatencyLimit, lost: int, due: int) -> tuple[float | None, float]:
    """Return the numbers of independent samples beyond the limit, and of all."""
    if part.report.samples is None:
        return None, due
    batches = part.beyond(limit)
    if batches is None:
        values = part.report.samples.values(limit.series, part.operation)
        return lost + sum(value > limit.limit_s for value in values), due
    each = clustering(batches)
    shed = due - sum(count for _, count in batches)
    return (shed + sum(beyond for beyond, _ in batches)) / each, due / each


def _is_pool_too_small(report: LoadReport, limit_s: float) -> bool:
    """Return True if the pool is too small for the target even if no answer exceeds its limit."""
    profile = report.profile
    return isinstance(profile, OpenLoop) and profile.max_in_flight < _target(report) * limit_s


def _unserved(part: _Part, value: float, due: int) -> str:
    if not math.isinf(value):
        return ""
    counts = {"failed": part.found.failed, "unanswered": part.found.cancelled, "dropped": part.shed}
    return f" (of {due:,} due: {', '.join(f'{count:,} {name}' for name, count in counts.items() if count)})"


def _drop_findings(part: _Part, slo: Slo) -> Iterator[_Finding]:
    """Compare the share of dropped arrivals with the error limit, because they are not served either."""
    shed, due = part.shed, part.sent + part.shed
    if slo.error_rate is None or not shed:
        return
    # Without a limit on latencies, any pool is too small for some answer.
    limit_s = _longest_limit_s(slo) or math.inf
    excused = _is_pool_too_small(part.report, limit_s)
    finding = _share_finding("dropped", shed / due, slo.error_rate, (shed, due, slo.error_rate), most=True)
    yield attrs.evolve(
        finding,
        broken=finding.broken and not excused,
        suffers_from_lag=True,
        too_small_pool=limit_s if finding.broken and excused else None,
    )


def _waiting_findings(report: LoadReport, slo: Slo) -> Iterator[_Finding]:
    """Compare the hidden waits of a closed loop with the shares that the limits allow."""
    if not isinstance(report.profile, ClosedLoop):
        return
    limits = [limit for limit in slo.latency_limits if limit.is_from_due]
    for limit in limits:
        allowed, stood_s = 1 - limit.percent / 100, standstill_s(report, limit.limit_s)
        share = stood_s / report.duration_s if report.duration_s else 0.0
        reason = (
            f"{limit.name}: for {format_seconds(stood_s)}, {_compared(share, allowed, format_share)} of the time, "
            f"nobody was answered within {format_seconds(limit.limit_s)}"
        )
        yield _Finding("standstill", reason, share > allowed, suffers_from_lag=True)
    lost, users = count_lost_users(report, _longest_limit_s(slo)), report.profile.users
    allowed = min((1 - limit.percent / 100 for limit in limits), default=1.0)
    allowed = allowed if slo.error_rate is None else slo.error_rate
    reason = f"{_compared(lost / users, allowed, format_share)} of the users ({lost:,}) were never answered again"
    yield _Finding("lost users", reason, lost / users > allowed)


def _growth_findings(report: LoadReport, slo: Slo) -> Iterator[_Finding]:
    """
    Find latencies that keep rising, because the server answers fewer requests than arrive.

    A short measurement can end before they reach the limit, but the rate is not sustainable.
    """
    if not isinstance(report.profile, OpenLoop) or not _is_constant(report.profile) or slo.tightest_s is None:
        return
    medians = batch_medians(report)
    if medians is None:
        return
    growth, sure = confidence_of_growth(medians, report.duration_s, _GROWTH)
    yield _Finding(
        "growth",
        f"not steady: latency grows by {format_seconds(growth)} every second, so this rate can't be held",
        broken=sure < _DOUBTFUL,
        suffers_from_lag=True,
        sure=sure,
    )


def _is_constant(profile: OpenLoop) -> bool:
    return profile.to_rate is None and profile.shape is None and profile.trace is None


def _share_finding(
    name: str, value: float, limit: float, counts: tuple[float, float, float], *, most: bool
) -> _Finding:
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
    if math.isinf(value):
        return f"unanswered {sign} {show(limit, 3)}"
    for digits in (3, 6, 9):
        if show(value, digits) != show(limit, digits):
            return f"{show(value, digits)} {sign} {show(limit, digits)}"
    return f"{show(value, 17)} {sign} {show(limit, 17)}"


# Limits of the load generator.


def _lag(report: LoadReport) -> str:
    return format_seconds(report.schedule_lag.p99 or 0.0)


def _client_lag(report: LoadReport, slo: Slo) -> str | None:
    lag, tightest_s = report.schedule_lag.p99, slo.tightest_s
    if lag is None or tightest_s is None or lag <= _LAG_SHARE * tightest_s:
        return None
    return (
        f"client-limited: the load generator could not emit on schedule (p99 lag {_lag(report)}, "
        f"more than a tenth of {format_seconds(tightest_s)}): use more workers, or a lighter workload"
    )


def _target(report: LoadReport) -> float:
    """Return the target rate, or that of the schedule if the profile has none."""
    asked = planned_rate(report.profile) if isinstance(report.profile, OpenLoop) else None
    return report.scheduled_rate if asked is None else asked


def _shortfalls(report: LoadReport, tolerance: float, findings: Sequence[_Finding]) -> Sequence[str]:
    if isinstance(report.profile, ClosedLoop):
        return _too_few_users(report, report.profile)
    target = _target(report)
    excused = [finding.too_small_pool for finding in findings if finding.too_small_pool is not None]
    if report.achieved_rate >= (1 - tolerance) * target and not excused:
        return ()
    short = f"sent {report.achieved_rate:.4g}/s of {target:.4g}/s"
    full = report.dropped - report.missed
    if full and (excused or full > report.missed):
        room = required_in_flight(target, report.service_time.p99)
        needed = "" if room is None else f" to about {room} (rate × p99 service time)"
        return (f"client-limited: {short}, {full} arrivals found the in-flight pool full: raise max_in_flight{needed}",)
    if report.scheduled_rate < (1 - tolerance) * target:
        return (f"{short}: the traffic ended early",)
    return (f"client-limited: {short}, the load generator could not emit on schedule: use more workers",)


def _too_few_users(report: LoadReport, profile: ClosedLoop) -> Sequence[str]:
    active = report.active_users or 0
    if active >= _ACTIVE_SHARE * profile.users:
        return ()
    pace = "" if profile.activate_per_s is None else ", or raise activate_per_s"
    return (
        f"client-limited: only {profile.users}({active}) users became active before the measurement: "
        f"warm up longer{pace}",
    )
