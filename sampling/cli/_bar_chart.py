"""The scores of several ways of asking: as a table, as bars on the terminal, as Markdown and as an SVG file."""

from collections.abc import Callable, Sequence
from typing import TypeAlias
from xml.sax.saxutils import escape

import attrs
from rich.bar import Bar
from rich.table import Column, Table

from sampling.cli._demo_strategies import Score

__all__ = ["as_bars", "as_markdown", "as_svg", "as_table"]


@attrs.frozen
class _Measure:
    """One thing that is measured of every way."""

    title: str
    value: Callable[[Score], float]
    shown: str
    """How to write it, as a format."""

    color: str

    def text(self, score: Score) -> str:
        return self.shown.format(self.value(score))


_RIGHT = _Measure("right", lambda score: score.accuracy, "{:.1%}", "#2e9e5b")
_P50 = _Measure("p50 ms", lambda score: 1_000 * score.p50_s, "{:,.0f}", "#5b8fd9")
_P95 = _Measure("p95 ms", lambda score: 1_000 * score.p95_s, "{:,.0f}", "#3b6fb9")
_TOKENS = _Measure("tokens", lambda score: score.output_tokens, "{:,.0f}", "#d9822b")
_PROMPT = _Measure("prompt", lambda score: score.input_tokens, "{:,.0f}", "#c9a227")
_MEASURES = (_RIGHT, _P50, _P95, _TOKENS, _PROMPT)
_DRAWN = (_RIGHT, _P95, _TOKENS)

_Cells: TypeAlias = list[str]


def _cells(score: Score) -> _Cells:
    return [score.name, score.how, *(measure.text(score) for measure in _MEASURES)]


_TITLES = ("", "", *(measure.title for measure in _MEASURES))


def as_table(scores: Sequence[Score]) -> Table:
    """Draw the table."""
    table = Table(
        *(Column(title, justify="left" if not title else "right", no_wrap=True) for title in _TITLES),
        box=None,
        pad_edge=False,
    )
    for score in scores:
        table.add_row(*_cells(score))
    return table


def as_markdown(scores: Sequence[Score]) -> str:
    """Write the table for a page."""
    rule = ["---", "---", *("---:" for _ in _MEASURES)]
    rows = [_TITLES, rule, *(_cells(score) for score in scores)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_bars(scores: Sequence[Score], *, width: int = 22) -> Table:
    """Draw bars for the terminal: more green is better, less blue and orange is better."""
    table = Table.grid(padding=(0, 1))
    table.add_row("", *(measure.title for measure in _DRAWN))
    for score in scores:
        bars = [
            Bar(_most(measure, scores), 0, measure.value(score), width=width, color=measure.color) for measure in _DRAWN
        ]
        table.add_row(score.name, *bars)
    return table


def _most(measure: _Measure, scores: Sequence[Score]) -> float:
    return 1.0 if measure is _RIGHT else max(measure.value(score) for score in scores) or 1.0


_LABELS, _PANEL, _GAP, _ROW, _TOP = 150, 190, 24, 30, 44


def as_svg(scores: Sequence[Score], *, caption: str) -> str:
    """Draw the bars as a picture for a page, readable on a light and on a dark one."""
    width = _LABELS + len(_DRAWN) * (_PANEL + _GAP)
    height = _TOP + len(scores) * _ROW + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="#7a7a7a">',
        f"<title>{escape(caption)}</title>",
    ]
    for row, score in enumerate(scores):
        parts.append(f'<text x="{_LABELS - 10}" y="{_baseline(row)}" text-anchor="end">{escape(score.name)}</text>')
    for column, measure in enumerate(_DRAWN):
        parts += _panel(measure, scores, _LABELS + column * (_PANEL + _GAP))
    parts += [f'<text x="{_LABELS}" y="{height - 8}" font-size="11">{escape(caption)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(measure: _Measure, scores: Sequence[Score], left: int) -> list[str]:
    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(measure.title)}</text>']
    widest, most = _PANEL - 50, _most(measure, scores)
    for row, score in enumerate(scores):
        length = round(widest * measure.value(score) / most, 1)
        y = _baseline(row)
        parts.append(f'<rect x="{left}" y="{y - 14}" width="{length}" height="18" rx="3" fill="{measure.color}"/>')
        parts.append(f'<text x="{left + length + 6}" y="{y}">{escape(measure.text(score))}</text>')
    return parts


def _baseline(row: int) -> int:
    return _TOP + row * _ROW + 14
