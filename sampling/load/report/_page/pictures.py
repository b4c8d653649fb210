"""The charts of a report."""

import statistics
from collections.abc import Sequence

from sampling._result_page.report.chart import Bars, Chart, ChartAxis, Curve, Dot, Rule, Tone
from sampling._result_page.report.document import Picture
from sampling.load.capacity._answer import CapacityAnswer, Step
from sampling.load.model._report import LoadReport
from sampling.load.model._series import Summary
from sampling.load.model._slo import LatencyLimit, Slo
from sampling.load.model._units import format_seconds, number_or_dash, seconds_or_dash, share_or_dash
from sampling.load.report._table import SUMMARY_COLUMNS, summary_rows

__all__ = ["find_knee", "load_pictures", "step_pictures"]

_PERCENTS: tuple[tuple[int, Tone], ...] = ((50, "first"), (95, "second"), (99, "third"))
_WIDE_RANGE = 10.0
"""Values that differ by more than this factor are drawn on a logarithmic axis."""

_MOST_ROWS = 30


def _tick_seconds(seconds: float) -> str:
    return "0" if not seconds else format_seconds(seconds)


def _time_axis(name: str, values: Sequence[float | None]) -> ChartAxis:
    positive = [value for value in values if value]
    log = bool(positive) and max(positive) > _WIDE_RANGE * min(positive)
    return ChartAxis(f"{name}, logarithmic" if log else name, _tick_seconds, least=None if log else 0.0, log=log)


# A capacity search.


def step_pictures(answer: CapacityAnswer) -> list[Picture]:
    """
    Return the chart of latency by rate.

    It shows the limits, the highest rate that passed, and the knee.
    """
    measured = [step for step in answer.steps if step.report is not None and step.report.latency.count]
    return [_rates(answer, measured)] if measured else []


def find_knee(points: Sequence[tuple[float, float]]) -> float | None:
    """
    Return the rate where a curve starts to rise steeply.

    It is the point farthest below the straight line from the first point to the last, with both axes scaled to that
    line. At least four points are needed.
    """
    ordered = sorted(points)
    if len(ordered) < 4:
        return None
    (x0, y0), (x1, y1) = ordered[0], ordered[-1]
    if x1 == x0 or y1 <= 2 * y0:
        return None
    depth, rate = max(((x - x0) / (x1 - x0) - (y - y0) / (y1 - y0), x) for x, y in ordered)
    return rate if depth > 0.2 else None


def _rates(answer: CapacityAnswer, steps: Sequence[Step]) -> Picture:
    unit = "users" if answer.axis == "users" else "requests per second"
    lines = [
        Curve(f"p{percent}", [(rate, value) for rate, value in _by_rate(steps, percent)], tone)
        for percent, tone in _PERCENTS
    ]
    values = [value for line in lines for _, value in line.points]
    limits = [limit.limit_s for limit in answer.slo.latency_limits if limit.series == "latency"]
    return Picture(
        Chart(
            title=f"{unit.capitalize()} against latency",
            description=f"Latency percentiles at each step. {answer}.",
            x=ChartAxis(unit, lambda rate: f"{rate:g}", least=0.0),
            y=_time_axis("latency", [*values, *limits]),
            lines=lines,
            dots=[dot for step in steps for dot in _step_dots(step)],
            rules=[*_limits(answer.slo), *_marks(answer, steps)],
        ),
        "Filled: passed. Hollow: tripped, or proved nothing. The dashed lines are the limits on latency.",
        (unit, "reached", "verdict", "p50", "p95", "p99", "errors", "valid", "dropped", "why"),
        [_step_row(step) for step in answer.steps],
        full=True,
    )


def _by_rate(steps: Sequence[Step], percent: int) -> list[tuple[float, float]]:
    """Return the median of all runs at each rate."""
    found: dict[float, list[float]] = {}
    for step in steps:
        value = None if step.report is None else step.report.latency.at(percent)
        if value is not None:
            found.setdefault(step.target_rate, []).append(value)
    return [(rate, statistics.median(values)) for rate, values in sorted(found.items())]


def _step_dots(step: Step) -> list[Dot]:
    latency = Summary() if step.report is None else step.report.latency
    return [
        Dot(step.target_rate, value, tone, f"{step.target_rate:g}: p{percent} {format_seconds(value)}, {step.verdict}",
            hollow=step.verdict != "PASS")
        for percent, tone in _PERCENTS
        if (value := latency.at(percent)) is not None
    ]  # fmt: skip


def _limits(slo: Slo) -> list[Rule]:
    """
    Return the latency limits as horizontal rules. Equal limits share one.

    Limits on tokens are left out, because their times are not those that are drawn.
    """
    names: dict[float, list[str]] = {}
    for limit in slo.latency_limits:
        if limit.series == "latency":
            names.setdefault(limit.limit_s, []).append(limit.name)
    return [Rule(limit_s, f"{', '.join(of)} ≤ {format_seconds(limit_s)}", "limit") for limit_s, of in names.items()]


def _marks(answer: CapacityAnswer, steps: Sequence[Step]) -> list[Rule]:
    knee = find_knee(_by_rate(steps, 95))
    marks = [Rule(knee, f"knee at {knee:g}", "quiet", upright=True)] if knee is not None else []
    if knee is not None and answer.max_rate == knee:
        return [Rule(knee, f"holds {knee:g}, the knee", "good", upright=True)]
    if answer.max_rate is not None:
        marks.append(Rule(answer.max_rate, f"holds {answer.max_rate:g}", "good", upright=True))
    return marks


def _step_row(step: Step) -> list[str]:
    report = step.report
    numbers = ["—"] * 6
    if report is not None:
        latency = report.latency
        numbers = [
            *(seconds_or_dash(time) for time in (latency.p50, latency.p95, latency.p99)),
            share_or_dash(report.error_rate),
            share_or_dash(report.validity_rate),
            number_or_dash(report.dropped),
        ]
    why = "; ".join([*step.reasons, *step.warnings])
    return [f"{step.target_rate:g}", f"{step.achieved_rate:.4g}", step.verdict, *numbers, why]


# One run.


def load_pictures(report: LoadReport) -> list[Picture]:
    """
    Return the charts of a run.

    They show latency over time, requests in flight, and the latency distribution.
    """
    pictures = [_over_time(report), _in_flight(report), _spread(report)]
    return [picture for picture in pictures if picture is not None]


def _bin_s(report: LoadReport) -> float:
    return report.timeline[1].at_s - report.timeline[0].at_s if len(report.timeline) > 1 else report.duration_s or 1.0


def _every(rows: list[list[str]]) -> list[list[str]]:
    """Shorten a table by keeping every n-th row."""
    return rows[:: -(-len(rows) // _MOST_ROWS)] if rows else rows


def _over_time(report: LoadReport) -> Picture | None:
    bins = [part for part in report.timeline if part.latency.count]
    if not bins:
        return None
    lines = [
        Curve("p99, from sent", [(part.at_s, part.service_time.p99) for part in report.timeline], "quiet", broad=True),
        Curve("p50", [(part.at_s, part.latency.p50) for part in report.timeline], "first"),
        Curve("p99", [(part.at_s, part.latency.p99) for part in report.timeline], "third"),
    ]
    values = [value for line in lines for _, value in line.points]
    return Picture(
        Chart(
            title="Latency over time",
            description="Latency from when each request was due, p50 and p99, and p99 from when it was really sent.",
            x=ChartAxis("seconds", lambda s: f"{s:g}", least=0.0),
            y=_time_axis("latency", values),
            lines=lines,
        ),
        "By the time at which requests were due. p50 and p99 count from then: that is how long a user waits. "
        "The broad line counts from when they were sent. Where the two differ, the load generator ran late.",
        ("from, s", "sent", "p50", "p99", "p99, from sent"),
        _every(
            [
                [
                    f"{part.at_s:.4g}",
                    str(part.sent),
                    *(seconds_or_dash(time) for time in (part.latency.p50, part.latency.p99, part.service_time.p99)),
                ]
                for part in bins
            ]
        ),
        full=True,
    )


def _in_flight(report: LoadReport) -> Picture | None:
    if not report.timeline:
        return None
    every_s = _bin_s(report)
    bars = [
        Bars([(part.at_s, float(part.dropped + part.failed)) for part in report.timeline], every_s, "limit"),
        Bars([(part.at_s, float(part.dropped)) for part in report.timeline], every_s, "bad"),
    ] * bool(report.dropped or report.failed)
    lost = f"{report.dropped:,} arrivals were dropped and {report.failed:,} requests failed"
    return Picture(
        Chart(
            title="In flight, dropped and failed",
            description=f"{report.mean_in_flight:.3g} requests in flight on average, "
            f"{report.peak_in_flight} at most; {lost}.",
            x=ChartAxis("seconds", lambda s: f"{s:g}", least=0.0),
            y=ChartAxis("requests", lambda count: f"{count:g}", least=0.0),
            lines=[
                Curve("in flight", [(part.at_s, part.in_flight) for part in report.timeline], "second", stepped=True)
            ],
            bars=bars,
        ),
        "The line: sent and not yet answered. If it keeps rising, a queue keeps growing."
        + (f" Bars, for each {seconds_or_dash(every_s)}: {lost} (the lighter part)." if bars else " Nothing was lost."),
        ("from, s", "in flight", "sent", "dropped", "of these missed", "failed"),
        _every(
            [
                [f"{part.at_s:.4g}", *map(str, (part.in_flight, part.sent, part.dropped, part.missed, part.failed))]
                for part in report.timeline
            ]
        ),
    )


def _spread(report: LoadReport) -> Picture | None:
    if not report.latency_distribution:
        return None
    values = [seconds for seconds, _ in (*report.latency_distribution, *report.service_distribution)]
    limits = [limit for limit in report.slo.latency_limits if limit.series == "latency"] if report.slo else []
    axis = _time_axis("latency", [*values, *(limit.limit_s for limit in limits)])
    summary = report.latency
    return Picture(
        Chart(
            title="Distribution of latencies",
            description=f"Half within {seconds_or_dash(summary.p50)}, 99 of 100 within {seconds_or_dash(summary.p99)}.",
            x=axis,
            y=ChartAxis("share of answers that took no longer", lambda share: f"{share:.0%}", least=0.0, most=1.0),
            lines=[
                Curve("from sent", report.service_distribution, "quiet", broad=True),
                Curve("from due", report.latency_distribution, "second"),
            ],
            dots=[
                Dot(
                    limit.limit_s,
                    limit.percent / 100,
                    "limit",
                    f"limit: {limit.name} ≤ {format_seconds(limit.limit_s)}",
                )
                for limit in limits
            ],
            rules=[Rule(limit.limit_s, _limit_name(limit), "limit", upright=True) for limit in limits],
        ),
        "The share of answers received within a time, from when they were due and from when they were sent.",
        SUMMARY_COLUMNS,
        summary_rows(report),
    )


def _limit_name(limit: LatencyLimit) -> str:
    return f"{limit.name} ≤ {format_seconds(limit.limit_s)}"
