"""The charts of a run: progress, spending and time per item."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sampling._result_page.report.chart import Bars, Chart, ChartAxis, Curve, Rule, Tone
from sampling._result_page.report.document import Picture
from sampling.fanout.journal._page.amounts import long_time, short_time, tick_time
from sampling.fanout.journal._page.findings import Findings
from sampling.fanout.journal._page.timeline import Interval

__all__ = ["run_pictures"]

T = TypeVar("T")

_MAX_ROWS: Final = 30
_MAX_RULES: Final = 6
_MAX_PAUSES: Final = 50


def run_pictures(findings: Findings) -> list[Picture]:
    """Return the charts. There is none without an outcome whose time is known."""
    if findings.ended == findings.unplaced:
        return []
    pictures = [_progress(findings)]
    if any(interval.tokens or interval.cost for interval in findings.timeline.intervals.values()):
        pictures.append(_spending(findings))
    if findings.durations.count:
        pictures.append(_durations(findings))
    return pictures


def _progress(findings: Findings) -> Picture:
    names: list[tuple[str, Tone]] = [("succeeded", "good"), ("failed", "limit"), ("errored", "bad")]
    shown = [(name, tone) for name, tone in names if findings.counts[name] or name == "succeeded"]
    lines = [
        Curve(name, _sums(findings, lambda interval, name=name: float(getattr(interval, name))), tone)  # type: ignore[misc]
        for name, tone in shown
    ]
    highest = max(y for line in lines for _, y in line.points if y is not None)
    return Picture(
        Chart(
            title="Items over time",
            description=f"The number of items with an outcome, over {long_time(findings.span_s)}.",
            x=_time_axis(findings),
            y=ChartAxis("items", lambda count: f"{count:,.0f}" if count == int(count) else "", least=0.0),
            lines=lines,
            bars=_pauses(findings, highest),
            rules=_resumes(findings),
        ),
        _caption(findings),
        ("after", *[name for name, _ in shown], "time per item, p50"),
        _rows(findings, [name for name, _ in shown]),
        full=True,
    )


def _caption(findings: Findings) -> str:
    parts = ["An item counts when its call ends."]
    if findings.pauses:
        bars = _drawn(len(findings.pauses), "pauses")
        parts.append(f"Bars are {bars}, in which the run waited for the backend.")
    if len(findings.processes) > 1:
        lines = _drawn(len(findings.processes) - 1, "later processes")
        parts.append(f"Vertical lines mark where {lines} resumed.")
    if findings.unplaced:
        parts.append(f"{findings.unplaced:,} outcomes have no time, and are not drawn.")
    return " ".join(parts)


def _drawn(count: int, what: str) -> str:
    """Return the name of marks, of which only the first are drawn."""
    return what if count <= _MAX_PAUSES else f"the first {_MAX_PAUSES} of {count:,} {what}"


def _time_axis(findings: Findings) -> ChartAxis:
    unit_s, name = tick_time(findings.span_s)
    return ChartAxis(f"{name} since the start", lambda value: f"{value:g}", least=0.0, most=findings.span_s / unit_s)


def _sums(findings: Findings, amount: Callable[[Interval], float]) -> list[tuple[float, float | None]]:
    """Return the running sum of an amount, with a point at the end of each pause."""
    unit_s, _ = tick_time(findings.span_s)
    timeline, total = findings.timeline, 0.0
    points: list[tuple[float, float | None]] = [(0.0, 0.0)]
    for number, interval in sorted(timeline.intervals.items()):
        points.append((number * timeline.every_s / unit_s, total))
        total += amount(interval)
        points.append((min((number + 1) * timeline.every_s, findings.span_s) / unit_s, total))
    return [*points, (findings.span_s / unit_s, total)]


def _pauses(findings: Findings, height: float) -> list[Bars]:
    unit_s, _ = tick_time(findings.span_s)
    bars: list[Bars] = []
    for number, pause in findings.pauses[:_MAX_PAUSES]:
        end_s = pause.ended_s if pause.ended_s is not None else _end_of(findings, number)
        start = max(pause.began_s - findings.created_s, 0.0) / unit_s
        length = max(end_s - pause.began_s, 0.0) / unit_s
        bars.append(Bars([(start, height)], min(length, findings.span_s / unit_s), "quiet"))
    return bars


def _end_of(findings: Findings, number: int) -> float:
    """Return the latest time at which a process without a recorded end can have ended."""
    following = [process.started_s for process in findings.processes if process.number == number + 1]
    return next(iter(following), findings.created_s + findings.span_s)


def _resumes(findings: Findings) -> list[Rule]:
    unit_s, _ = tick_time(findings.span_s)
    later = findings.processes[1:]
    # Labels of many would cover the curves. The table below has all of them.
    named = len(later) <= _MAX_RULES
    return [
        Rule(
            max(one.started_s - findings.created_s, 0.0) / unit_s,
            f"process {one.number}" if named else "",
            "quiet",
            upright=True,
        )
        for one in later[:_MAX_PAUSES]
    ]


def _spending(findings: Findings) -> Picture:
    costs = any(interval.cost for interval in findings.timeline.intervals.values())
    name = "cost" if costs else "tokens"
    points = _sums(findings, lambda interval: interval.cost if costs else float(interval.tokens))
    _, unit = tick_time(findings.span_s)
    return Picture(
        Chart(
            title="Cost over time" if costs else "Tokens over time",
            description=f"The {name} of the run, summed up over time.",
            x=_time_axis(findings),
            y=ChartAxis(name, lambda value: f"{value:,.4g}" if costs else _amount(value), least=0.0),
            lines=[Curve(name, points, "second")],
        ),
        f"An item adds its {name} when its call ends, and an item that was cut off when its process ends.",
        (f"{unit} since the start", name),
        [[_since(x), f"{y or 0.0:,.6g}"] for x, y in _thinned(points)],
    )


def _since(amount: float) -> str:
    """Return a time since the start in the unit of the axis, without an exponent."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _amount(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _durations(findings: Findings) -> Picture:
    unit_s, unit = tick_time(findings.span_s)
    percents: tuple[tuple[int, Tone], ...] = ((50, "first"), (95, "second"))
    lines = [Curve(f"p{percent}", _percentiles(findings, percent), tone) for percent, tone in percents]
    values = [y for line in lines for _, y in line.points if y]
    log = bool(values) and max(values) > 10 * min(values)
    rows = [
        [_since((number + 0.5) * findings.timeline.every_s / unit_s), *_cells(interval)]
        for number, interval in _thinned(findings.timeline.with_outcomes())
    ]
    return Picture(
        Chart(
            title="Time per item",
            description="Percentiles of the time that items took, by when they ended.",
            x=_time_axis(findings),
            y=ChartAxis(
                "time per item, logarithmic" if log else "time per item",
                lambda value: "0" if not value else short_time(value),
                least=None if log else 0.0,
                log=log,
            ),
            lines=lines,
        ),
        "Percentiles to within 9 %, of the items that ended in each interval.",
        (f"{unit} since the start", "items", "p50", "p95"),
        rows,
    )


def _cells(interval: Interval) -> list[str]:
    times = [interval.durations.at(percent) for percent in (50, 95)]
    return [f"{interval.durations.count:,}", *["—" if time is None else short_time(time) for time in times]]


def _percentiles(findings: Findings, percent: int) -> list[tuple[float, float | None]]:
    unit_s, _ = tick_time(findings.span_s)
    timeline = findings.timeline
    points: list[tuple[float, float | None]] = []
    before = None
    for number, interval in timeline.with_outcomes():
        if before is not None and number > before + 3:
            # A long time without an item is a gap.
            points.append((number * timeline.every_s / unit_s, None))
        middle = min((number + 0.5) * timeline.every_s, findings.span_s) / unit_s
        points.append((middle, interval.durations.at(percent)))
        before = number
    return points


def _rows(findings: Findings, names: Sequence[str]) -> list[list[str]]:
    timeline, sums = findings.timeline, dict.fromkeys(names, 0)
    rows: list[list[str]] = []
    for number, interval in timeline.with_outcomes():
        sums = {name: count + getattr(interval, name) for name, count in sums.items()}
        after = min((number + 1) * timeline.every_s, findings.span_s)
        median = interval.durations.at(50)
        counts = [f"{count:,}" for count in sums.values()]
        rows.append([long_time(after), *counts, "—" if median is None else short_time(median)])
    return _thinned(rows)


def _thinned(rows: Sequence[T]) -> list[T]:
    """Return some of many rows, with the first and the last."""
    if len(rows) <= _MAX_ROWS:
        return [*rows]
    return [rows[round(number * (len(rows) - 1) / (_MAX_ROWS - 1))] for number in range(_MAX_ROWS)]
