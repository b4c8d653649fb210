"""
Draw a chart as SVG.

It has curves over two axes, limits across them, and labels at the curves.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

from sampling._result_page.report.markup import Markup, element

__all__ = ["Bars", "Chart", "ChartAxis", "Curve", "Dot", "Rule", "Size", "draw", "ticks"]

Tone: TypeAlias = Literal["first", "second", "third", "quiet", "limit", "good", "bad"]
"""The role of a colour. The style sheet maps it to colours for light and dark."""


@attrs.frozen
class Size:
    """
    The size of a chart.

    Text keeps its size, so a small chart is drawn separately, not scaled.
    """

    width: float
    height: float


@attrs.frozen
class Curve:
    """A curve with a label at its end. None as a value is a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]
    tone: Tone
    broad: bool = False
    """True for a wide, pale band, which stays visible behind another curve."""

    stepped: bool = False


@attrs.frozen
class Dot:
    """One measurement."""

    x: float
    y: float
    tone: Tone
    description: str
    hollow: bool = False


@attrs.frozen
class Bars:
    """Vertical bars, each `every` wide from its x value."""

    values: Sequence[tuple[float, float]]
    every: float
    tone: Tone


@attrs.frozen
class Rule:
    """A labelled line across the chart. It is horizontal or, with `upright`, vertical."""

    at: float
    name: str
    tone: Tone
    upright: bool = False


@attrs.frozen
class ChartAxis:
    """An axis: its label, its number format and its range."""

    name: str
    show: Callable[[float], str]
    least: float | None = None
    """Lower end, or None for the least value."""

    most: float | None = None
    log: bool = False


@attrs.frozen(kw_only=True)
class Chart:
    """The content of a chart."""

    title: str
    description: str
    """A text alternative for screen readers."""

    x: ChartAxis
    y: ChartAxis
    lines: Sequence[Curve] = ()
    dots: Sequence[Dot] = ()
    bars: Sequence[Bars] = ()
    rules: Sequence[Rule] = ()


_LINE_HEIGHT = 15.0
_ROW = 36.0
"""Minimum distance of tick labels on the vertical axis."""

_LETTER = 7.8
"""Approximate width of a letter. Text can't be measured here."""


@attrs.frozen
class _Scale:
    """A mapping from values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high = self._along(self.low), self._along(self.high)
        share = (self._along(max(value, self.low)) - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def _along(self, value: float) -> float:
        return math.log10(value) if self.log else value


@attrs.frozen
class _PlotArea:
    """The rectangle inside the axes, with the scales."""

    x: _Scale
    y: _Scale
    size: Size
    left: float
    right: float
    top: float
    bottom: float


def draw(chart: Chart, size: Size, *, class_: str, number: str) -> Markup:
    """
    Draw a chart as an SVG element.

    `number` makes the ids in it unique on its page.
    """
    frame = _frame(chart, size)
    return element(
        "svg",
        element("title", chart.title, id=f"{number}-title"),
        element("desc", chart.description, id=f"{number}-description"),
        *_grid(chart, frame),
        *_bars(chart, frame),
        *_rules(chart, frame),
        *_lines(chart, frame),
        *_dots(chart, frame),
        # Over the curves, which would strike them through.
        *_rule_names(chart, frame),
        *_names(chart, frame),
        class_=class_,
        viewBox=f"0 0 {size.width:g} {size.height:g}",
        role="img",
        aria_labelledby=f"{number}-title {number}-description",
    )


def _frame(chart: Chart, size: Size) -> _PlotArea:
    names = [_LETTER * len(line.name) for line in chart.lines]
    right = size.width - max([*names, 12.0]) - 12
    top, bottom = 34.0, size.height - 38
    y_low, y_high = _range(chart.y, list(_heights(chart)))
    marks = ticks(y_low, y_high, most=_most_marks(bottom - top, _ROW), log=chart.y.log)
    left = 12 + max((_LETTER * len(chart.y.show(mark)) for mark in marks), default=20.0)
    x_low, x_high = _range(chart.x, list(_places(chart)))
    return _PlotArea(
        x=_Scale(x_low, x_high, left, right, chart.x.log),
        y=_Scale(y_low, y_high, bottom, top, chart.y.log),
        size=size,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
    )


def _heights(chart: Chart) -> Iterator[float]:
    for line in chart.lines:
        yield from (y for _, y in line.points if y is not None)
    yield from (dot.y for dot in chart.dots)
    yield from (value for bars in chart.bars for _, value in bars.values)
    yield from (rule.at for rule in chart.rules if not rule.upright)


def _places(chart: Chart) -> Iterator[float]:
    for line in chart.lines:
        yield from (x for x, _ in line.points)
    yield from (dot.x for dot in chart.dots)
    for bars in chart.bars:
        yield from (x for place, _ in bars.values for x in (place, place + bars.every))
    yield from (rule.at for rule in chart.rules if rule.upright)


def _range(axis: ChartAxis, values: list[float]) -> tuple[float, float]:
    """
    Return the range of an axis, never empty.

    It is a little wider than the values.
    """
    if axis.log:
        values = [value for value in values if value > 0] or [1.0]
        low, high = axis.least or min(values), axis.most or max(values)
        return low / 1.15, max(high * 1.15, low * 2)
    low = min(values, default=0.0) if axis.least is None else axis.least
    high = max(values, default=1.0) if axis.most is None else axis.most
    if high <= low:
        high = low + (abs(low) or 1.0)
    return low, high if axis.most is not None else low + (high - low) * 1.04


def ticks(low: float, high: float, *, most: int, log: bool = False) -> list[float]:
    """Return about `most` round numbers within a range."""
    if log:
        return _log_ticks(low, high, most)
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        marks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) <= most:
            return inside
    every = math.ceil(len(inside) / max(most, 1))
    return inside[::every]


def _most_marks(length: float, each: float) -> int:
    return max(2, int(length / each))


def _grid(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    """Draw grid lines, tick labels and axis labels."""
    yield element("text", chart.y.name, x=2, y=14, class_="axis")
    for mark in ticks(frame.y.low, frame.y.high, most=_most_marks(frame.bottom - frame.top, _ROW), log=chart.y.log):
        y = frame.y(mark)
        yield element("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid")
        yield element("text", chart.y.show(mark), x=frame.left - 6, y=y + 4, text_anchor="end", class_="mark")
    marks = ticks(frame.x.low, frame.x.high, most=_most_marks(frame.right - frame.left, 64), log=chart.x.log)
    for mark in marks:
        yield element(
            "text", chart.x.show(mark), x=frame.x(mark), y=frame.bottom + 17, text_anchor="middle", class_="mark"
        )
    yield element("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="base")
    yield element("text", chart.x.name, x=frame.right, y=frame.bottom + 33, text_anchor="end", class_="axis")


def _bars(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    for bars in chart.bars:
        for place, value in bars.values:
            if value <= 0:
                continue
            start, end = frame.x(place), frame.x(place + bars.every)
            top = min(frame.y(value), frame.bottom - 1)
            yield element(
                "rect",
                x=start,
                y=top,
                width=max(end - start - 1, 1),
                height=frame.bottom - top,
                class_=f"bar {bars.tone}",
            )


def _rules(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    for rule in chart.rules:
        if rule.upright:
            x = frame.x(rule.at)
            yield element("line", x1=x, x2=x, y1=frame.top - 4, y2=frame.bottom, class_=f"rule {rule.tone}")
        else:
            y = frame.y(rule.at)
            yield element("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_=f"rule {rule.tone}")


def _rule_names(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    upright = sorted((rule for rule in chart.rules if rule.upright), key=lambda rule: rule.at)
    for row, rule in enumerate(upright):
        x = frame.x(rule.at)
        near_the_end = x + _LETTER * len(rule.name) > frame.right
        yield element(
            "text",
            rule.name,
            x=x - 5 if near_the_end else x + 5,
            y=frame.top + 4 + row * _LINE_HEIGHT,
            text_anchor="end" if near_the_end else "start",
            class_=f"name {rule.tone}",
        )
    for rule in chart.rules:
        if not rule.upright:
            yield element("text", rule.name, x=frame.left + 4, y=frame.y(rule.at) - 5, class_=f"name {rule.tone}")


def _lines(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    for line in chart.lines:
        broad = " broad" if line.broad else ""
        for piece in _pieces(line):
            places = [(frame.x(x), frame.y(y)) for x, y in piece]
            if len(places) == 1:
                yield element("circle", cx=places[0][0], cy=places[0][1], r=2, class_=f"dot {line.tone}")
            else:
                yield element("path", d=_path(places, stepped=line.stepped), class_=f"line {line.tone}{broad}")


def _pieces(line: Curve) -> Iterator[list[tuple[float, float]]]:
    """Split a curve at its gaps."""
    piece: list[tuple[float, float]] = []
    for x, y in line.points:
        if y is not None:
            piece.append((x, y))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _path(places: list[tuple[float, float]], *, stepped: bool) -> str:
    (first_x, first_y), *others = places
    parts = [f"M{first_x:.1f} {first_y:.1f}"]
    parts += [f"H{x:.1f}V{y:.1f}" if stepped else f"L{x:.1f} {y:.1f}" for x, y in others]
    return "".join(parts)


def _dots(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    for dot in chart.dots:
        hollow = " hollow" if dot.hollow else ""
        yield element(
            "circle",
            element("title", dot.description),
            cx=frame.x(dot.x),
            cy=frame.y(dot.y),
            r=4,
            class_=f"dot {dot.tone}{hollow}",
        )


def _names(chart: Chart, frame: _PlotArea) -> Iterator[Markup]:
    """Label each curve at its end, without overlaps."""
    ends = [
        (frame.y(values[-1]), line) for line in chart.lines if (values := [y for _, y in line.points if y is not None])
    ]
    lowest = frame.bottom
    for y, line in sorted(ends, key=lambda end: end[0], reverse=True):
        place = min(y, lowest)
        lowest = place - _LINE_HEIGHT
        yield element("text", line.name, x=frame.right + 6, y=place + 4, class_=f"name {line.tone}")
