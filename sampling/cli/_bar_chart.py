"""Render the scores of the demo."""

from collections.abc import Callable, Sequence
from typing import TypeAlias
from xml.sax.saxutils import escape

import attrs
from rich.bar import Bar
from rich.table import Column, Table
from rich.text import Text

from sampling.cli._demo_strategies import Score

__all__ = ["as_bars", "as_markdown", "as_svg", "as_table"]


@attrs.frozen
class _Metric:
    """A metric of a score, with its format and colour."""

    title: str
    value: Callable[[Score], float]
    template: str
    """A format string for the value."""

    color: str

    def text(self, score: Score) -> str:
        return self.template.format(self.value(score))


_RIGHT = _Metric("right", lambda score: score.accuracy, "{:.1%}", "#2e9e5b")
_P50 = _Metric("p50 ms", lambda score: 1_000 * score.p50_s, "{:,.0f}", "#5b8fd9")
_P95 = _Metric("p95 ms", lambda score: 1_000 * score.p95_s, "{:,.0f}", "#3b6fb9")
_TOKENS = _Metric("tokens", lambda score: score.output_tokens, "{:,.0f}", "#d9822b")
_PROMPT = _Metric("prompt", lambda score: score.input_tokens, "{:,.0f}", "#c9a227")
_METRICS = (_RIGHT, _P50, _P95, _TOKENS, _PROMPT)
_DRAWN = (_RIGHT, _P95, _TOKENS)
_LONGEST_BAR = 22

_Cells: TypeAlias = list[str]


def _cells(score: Score) -> _Cells:
    return [score.name, score.summary, *(metric.text(score) for metric in _METRICS)]


_TITLES = ("", "", *(metric.title for metric in _METRICS))
_LEAST_NEEDED_FIRST = (1, *(2 + _METRICS.index(metric) for metric in (_PROMPT, _P50, _TOKENS, _P95)))
"""The numbers of the columns that a narrow terminal has no room for."""


def as_table(scores: Sequence[Score], *, width: int) -> Table:
    """Return the scores as a table for a terminal of this width. A narrow one gets fewer columns."""
    columns = dict(enumerate(zip(_TITLES, *map(_cells, scores), strict=True)))
    for number in _LEAST_NEEDED_FIRST:
        if sum(2 + max(map(len, column)) for column in columns.values()) - 2 <= width:
            break
        del columns[number]
    shown = list(zip(*columns.values(), strict=True))
    table = Table(
        *(Column(title, justify="left" if not title else "right", no_wrap=True) for title in shown[0]),
        box=None,
        pad_edge=False,
    )
    for row in shown[1:]:
        table.add_row(*row)
    return table


def as_markdown(scores: Sequence[Score]) -> str:
    """Return the scores as a Markdown table."""
    rule = ["---", "---", *("---:" for _ in _METRICS)]
    rows = [_TITLES, rule, *(_cells(score) for score in scores)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_bars(scores: Sequence[Score], *, width: int) -> Table:
    """
    Return the scores as bars for a terminal of this width.

    Long green bars are better, and short blue and orange ones.
    """
    labels = max(len(score.name) for score in scores)
    longest = min(_LONGEST_BAR, (width - labels) // len(_DRAWN) - 1)
    table = Table.grid(padding=(0, 1))
    table.add_row("", *(metric.title for metric in _DRAWN))
    for score in scores:
        bars = [
            Bar(_maximum(metric, scores), 0, metric.value(score), width=longest, color=metric.color)
            for metric in _DRAWN
        ]
        table.add_row(Text(score.name, no_wrap=True), *bars)
    return table


def _maximum(metric: _Metric, scores: Sequence[Score]) -> float:
    # `or 1.0` avoids a division by zero if all values are zero.
    return 1.0 if metric is _RIGHT else max(metric.value(score) for score in scores) or 1.0


_LABELS, _PANEL, _GAP, _ROW, _TOP = 150, 190, 24, 30, 44


def as_svg(scores: Sequence[Score], *, caption: str) -> str:
    """Return the scores as bars in SVG."""
    width = _LABELS + len(_DRAWN) * (_PANEL + _GAP)
    height = _TOP + len(scores) * _ROW + 30
    # Grey text is readable on light and on dark pages.
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="#7a7a7a">',
        f"<title>{escape(caption)}</title>",
    ]
    for row, score in enumerate(scores):
        parts.append(f'<text x="{_LABELS - 10}" y="{_baseline(row)}" text-anchor="end">{escape(score.name)}</text>')
    for column, metric in enumerate(_DRAWN):
        parts += _panel(metric, scores, _LABELS + column * (_PANEL + _GAP))
    parts += [f'<text x="{_LABELS}" y="{height - 8}" font-size="11">{escape(caption)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(metric: _Metric, scores: Sequence[Score], left: int) -> list[str]:
    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(metric.title)}</text>']
    full_width, maximum = _PANEL - 50, _maximum(metric, scores)
    for row, score in enumerate(scores):
        length = round(full_width * metric.value(score) / maximum, 1)
        y = _baseline(row)
        parts.append(f'<rect x="{left}" y="{y - 14}" width="{length}" height="18" rx="3" fill="{metric.color}"/>')
        parts.append(f'<text x="{left + length + 6}" y="{y}">{escape(metric.text(score))}</text>')
    return parts


def _baseline(row: int) -> int:
    return _TOP + row * _ROW + 14
