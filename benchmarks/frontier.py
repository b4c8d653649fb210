"""
Draw a small chart as SVG.

It has panels side by side, with curves of labelled points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#57606a", "#0f766e")
WIDTH, HEIGHT = 420, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 56, 52


@dataclass(frozen=True)
class Curve:
    """Points (x, y, label), joined by a line."""

    name: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    curves: tuple[Curve, ...]


def draw(title: str, description: str, panels: Sequence[Panel]) -> str:
    """Return the chart as SVG. Requests are on the x-axis, and seconds on a logarithmic y-axis."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        'role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="12">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{HEIGHT - 1}" rx="10" fill="#ffffff" stroke="#d0d7de"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    right = math.ceil(max(x for x, _, _ in points))
    low = 2.0 ** math.floor(math.log2(min(y for _, y, _ in points)))
    high = 2.0 ** math.ceil(math.log2(max(y for _, y, _ in points)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (WIDTH - LEFT - RIGHT) * x / right
        up = (HEIGHT - TOP - BOTTOM) * math.log2(y / low) / math.log2(high / low)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = [_text(WIDTH / 2, 24, panel.title, "middle", "#1f2328", weight="600")]
    parts += [_text(WIDTH / 2, HEIGHT - 12, "requests per call", "middle"), _text(12, 42, "p95, seconds", "start")]
    for doubling in range(round(math.log2(high / low)) + 1):
        x, y = place(0, low * 2**doubling)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#eaeef2"/>')
        parts.append(_text(x - 8, y + 4, f"{low * 2**doubling:g}", "end"))
    for requests in range(0, right + 1, 2):
        x, y = place(requests, low)
        parts.append(_text(x, y + 18, str(requests), "middle"))
    for colour, curve in zip(COLOURS, panel.curves, strict=False):
        parts += _curve(curve, colour, [place(x, y) for x, y, _ in curve.points])
    return parts


def _curve(curve: Curve, colour: str, places: list[tuple[float, float]]) -> list[str]:
    line = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="4 3"/>']
    for (x, y), (_, _, label) in zip(places, curve.points, strict=True):
        parts.append(f'<circle cx="{x}" cy="{y}" r="{4.5 if label else 2.5}" fill="{colour}"/>')
        if label.isdigit():
            parts.append(_text(x + 7, y - 7, label, "start", colour))
        elif label:
            parts.append(_text(x - 8, y + 14, label, "end", colour, weight="600"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#57606a", weight: str = "400") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'
