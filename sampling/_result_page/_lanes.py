"""Draw the attempts of a call over time: a lane for each subsample, a bar for each attempt."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from sampling._result_page._markup import escaped
from sampling.results import SamplingResult, Slice

__all__ = ["draw_lanes"]

_WIDTH: Final = 760
_LEFT: Final = 112
_RIGHT: Final = 28
_TOP: Final = 64
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_MAX_LANES: Final = 100
_MAX_TALL_LANES: Final = 16
_MAX_BARS: Final = 5_000
"""A picture with more bars would be unreadable, and take seconds to load."""
_OUTCOMES: Final = ("valid", "invalid", "errored", "cancelled")
_COLOURS: Final = {  # fill, border and text, light then dark
    "valid": ("#d3f5dc", "#1a7f37", "#0b5a23", "#12361f", "#3fb950", "#aff5b4"),
    "invalid": ("#fff1d6", "#bf8700", "#7d4e00", "#3a2a08", "#d29922", "#f8e3a1"),
    "errored": ("#ffe3e0", "#cf222e", "#82071e", "#47171b", "#f85149", "#ffc9c4"),
    "cancelled": ("#eef0f3", "#8c959f", "#57606a", "#21262d", "#6e7681", "#b1bac4"),
}
_FONT: Final = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"


@attrs.frozen
class _Bar:
    """One attempt in the picture."""

    attempt: Slice[Any]
    lane: int
    x: float
    width: float


@attrs.frozen
class _Scale:
    """The coordinates of the picture."""

    lanes: tuple[int, ...]
    span_s: float
    """The time from the left to the right. 0 if nothing took any time."""

    longest: int
    """The number of attempts in the longest lane."""

    @property
    def tall(self) -> bool:
        return len(self.lanes) <= _MAX_TALL_LANES

    @property
    def bar_height(self) -> int:
        return 32 if self.tall else 12

    @property
    def step(self) -> int:
        return 54 if self.tall else 16

    @property
    def bottom(self) -> int:
        return _TOP + len(self.lanes) * self.step

    def y(self, lane: int) -> int:
        return _TOP + lane * self.step + (16 if self.tall else 2)

    def x(self, seconds: float) -> float:
        return _LEFT + _PLOT * min(max(seconds, 0.0) / self.span_s, 1.0)

    def bar(self, attempt: Slice[Any], lane: int, place: int) -> _Bar:
        if self.span_s:
            start, end = self.x(attempt.started_s), self.x(attempt.finished_s)
        else:
            # Nothing took any time, as with a scripted backend: draw the order instead.
            width = _PLOT / self.longest
            start, end = _LEFT + place * width, _LEFT + (place + 1) * width
        # Many short bars beside each other have no room for gaps.
        gap = 1 if end - start > 8 else 0
        return _Bar(attempt, lane, round(start + gap, 2), round(max(end - start - 2 * gap, 1), 2))


def draw_lanes(result: SamplingResult[Any]) -> str:
    """
    Return a picture of a call as SVG.

    It has ids, requirements and types of errors, but no text of a prompt or an answer.
    """
    scale, hidden = _scale_of(result)
    places = {subsample: lane for lane, subsample in enumerate(scale.lanes)}
    shown = [one for one in result.attempts if one.subsample in places]
    if len(shown) > _MAX_BARS:
        shown = [one for place, one in enumerate(shown) if place < _MAX_BARS or one is result.best]
    in_order = [[one for one in shown if one.subsample == subsample] for subsample in scale.lanes]
    bars = [
        scale.bar(one, lane, place)
        for lane, attempts in enumerate(in_order)
        for place, one in enumerate(sorted(attempts, key=lambda one: one.started_s))
    ]
    key = f"sampling-{hashlib.sha256(result.sampling_id.encode('utf-8', 'replace')).hexdigest()[:12]}"
    height = scale.bottom + 66 + (20 if hidden else 0)
    best = None if result.best is None else result.best.iteration_id
    parts = [
        _opening(result, key, height),
        _style(key),
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="10"/>',
        f'<text class="strong" x="20" y="30" font-size="14">{escaped(_headline(result))}</text>',
        *_lane_labels(scale),
        *_axis(scale),
        _end_line(result, scale),
        *[_drawn(bar, scale, key, best=bar.attempt.iteration_id == best, success=result.success) for bar in bars],
        *_repairs(bars, scale, key),
        *_legend(result, scale, key),
    ]
    if hidden:
        parts.append(f'<text class="quiet" x="20" y="{height - 14}" font-size="12">{hidden}</text>')
    return "\n".join([*[part for part in parts if part], "</svg>"])


def _scale_of(result: SamplingResult[Any]) -> tuple[_Scale, str]:
    """Return the scale, and a note on what is not drawn."""
    lanes = sorted({one.subsample for one in result.attempts})
    span_s = max([result.elapsed_s, *[one.finished_s for one in result.attempts]])
    longest = max(Counter(one.subsample for one in result.attempts).values(), default=1)
    drawn = lanes[:_MAX_LANES]
    if result.best is not None and result.best.subsample not in drawn:
        drawn[-1:] = [result.best.subsample]
    scale = _Scale(tuple(drawn), max(span_s, 0.0), longest)
    left_out = len(lanes) - len(scale.lanes)
    if left_out:
        return scale, f"{left_out:,} more subsamples are not drawn."
    left_out = len(result.attempts) - _MAX_BARS
    return scale, f"{left_out:,} more attempts are not drawn." if left_out > 0 else ""


def _headline(result: SamplingResult[Any]) -> str:
    outcome = "success" if result.success else f"no valid answer ({result.stop_reason})"
    tokens = f" · {result.usage.total_tokens:,} tokens" if result.usage.total_tokens else ""
    return (
        f"{outcome} in {_seconds(result.elapsed_s)} · {len(result.attempts)} of {result.max_attempts} attempts{tokens}"
    )


def _describe(result: SamplingResult[Any]) -> str:
    """Describe the picture for screen readers."""
    counts = Counter(one.outcome for one in result.attempts)
    outcomes = ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES if counts[name]) or "none"
    lanes = len({one.subsample for one in result.attempts})
    best = result.best
    ending = "There is no answer."
    if best is not None:
        what = "answer" if result.success else "best failure"
        ending = (
            f"The {what} is iteration {best.iteration}, of subsample {best.subsample}, at {_seconds(best.finished_s)}."
        )
    return f"Lanes over time, one for each of {lanes} subsamples, with a bar for each attempt: {outcomes}. {ending}"


def _opening(result: SamplingResult[Any], key: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sampling-lanes" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-labelledby="{key}-title {key}-desc" '
        f'font-family="{_FONT}" font-size="13">\n'
        f'<title id="{key}-title">{escaped(_headline(result))}</title>\n'
        f'<desc id="{key}-desc">{escaped(_describe(result))}</desc>'
    )


def _style(key: str) -> str:
    # All rules begin with the class of the picture: in a web page, they apply to the whole document.
    light = [".card{fill:#fff;stroke:#d0d7de}", ".strong{fill:#24292f;font-weight:600}", ".label{fill:#24292f}"]
    light += [
        ".quiet{fill:#57606a}",
        ".line{stroke:#8c959f;fill:none}",
        ".grid{stroke:#d0d7de}",
        ".arrow{fill:#57606a}",
    ]
    dark = [".card{fill:#0d1117;stroke:#30363d}", ".strong{fill:#f0f6fc}", ".label{fill:#e6edf3}"]
    dark += [".quiet{fill:#9ea7b3}", ".line{stroke:#8b949e}", ".grid{stroke:#30363d}", ".arrow{fill:#9ea7b3}"]
    for name, (fill, border, text, dark_fill, dark_border, dark_text) in _COLOURS.items():
        light += [f".{name} rect{{fill:{fill};stroke:{border}}}", f".{name} text{{fill:{text};font-weight:600}}"]
        dark += [f".{name} rect{{fill:{dark_fill};stroke:{dark_border}}}", f".{name} text{{fill:{dark_text}}}"]
    light += [".end{stroke:#1a7f37}", ".stripe{stroke:#d5dae0}"]
    dark += [".end{stroke:#3fb950}", ".stripe{stroke:#30363d}"]
    rules = "".join(f".sampling-lanes {rule}" for rule in light)
    dark_rules = "".join(f".sampling-lanes {rule}" for rule in dark)
    return (
        f"<style>{rules}@media (prefers-color-scheme: dark){{{dark_rules}}}</style>\n"
        f'<defs><pattern id="{key}-cut" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="stripe" x1="0" y1="0" x2="0" y2="8" stroke-width="5"/></pattern>'
        f'<marker id="{key}-arrow" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="arrow" d="M0 0 10 5 0 10z"/></marker></defs>'
    )


def _lane_labels(scale: _Scale) -> Iterator[str]:
    size = 13 if scale.tall else 10
    for lane, subsample in enumerate(scale.lanes):
        y = scale.y(lane) + scale.bar_height / 2 + size / 3
        yield f'<text class="label" x="20" y="{y:g}" font-size="{size}">subsample {subsample}</text>'


def _axis(scale: _Scale) -> Iterator[str]:
    if not scale.span_s:
        return
    for seconds in _ticks(scale.span_s):
        x = f"{scale.x(seconds):.1f}"
        yield f'<line class="grid" x1="{x}" y1="{_TOP - 4}" x2="{x}" y2="{scale.bottom + 6}"/>'
        yield (
            f'<text class="quiet" x="{x}" y="{scale.bottom + 22}" font-size="12" text-anchor="middle">'
            f"{_seconds(seconds)}</text>"
        )


def _ticks(span_s: float) -> list[float]:
    """Return four to nine round numbers from 0 on."""
    power = 1.0
    while power * 10 <= span_s:
        power *= 10
    while power > span_s:
        power /= 10
    step = next((power * part for part in (0.2, 0.5, 1) if span_s / (power * part) <= 8), power)
    return [step * number for number in range(int(span_s / step * (1 + 1e-9)) + 1)]


def _seconds(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if not seconds or seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"


def _end_line(result: SamplingResult[Any], scale: _Scale) -> str:
    if not scale.span_s:
        return ""
    x = f"{scale.x(result.elapsed_s):.1f}"
    kind = "end" if result.success else "line"
    line = f'<line class="{kind}" x1="{x}" y1="{_TOP - 10}" x2="{x}" y2="{scale.bottom + 6}" '
    return f'{line}stroke-width="2" stroke-dasharray="5 4"/>'


def _drawn(bar: _Bar, scale: _Scale, key: str, *, best: bool, success: bool) -> str:
    attempt, y, height = bar.attempt, scale.y(bar.lane), scale.bar_height
    thick = 3 if best else round(min(max(bar.width / 10, 0.4), 1.5), 2)
    radius = min(5 if scale.tall else 2, bar.width / 2)
    box = f'x="{bar.x:g}" y="{y}" width="{bar.width:g}" height="{height}" rx="{radius:g}"'
    parts = [f'<g class="{attempt.outcome}"><title>{escaped(_tooltip(attempt, best=best, success=success))}</title>']
    parts.append(f'<rect {box} stroke-width="{thick}"/>')
    if attempt.outcome == "cancelled":
        parts.append(f'<rect {box} style="fill:url(#{key}-cut);stroke:none"/>')
    label = _label(bar, best=best, success=success) if scale.tall else ""
    mark = _mark(best=best, success=success)
    if label:
        parts.append(f'<text x="{bar.x + bar.width / 2:.1f}" y="{y + 21}" text-anchor="middle">{label}</text>')
    if mark not in label:
        # Beside it, to the right of which there is always room.
        parts.append(f'<text x="{bar.x + bar.width + 5:.1f}" y="{y + height / 2 + 5:g}">{mark}</text>')
    return "".join([*parts, "</g>"])


def _label(bar: _Bar, *, best: bool, success: bool) -> str:
    """Return the longest label that fits into a bar."""
    mark = f" {_mark(best=best, success=success)}".rstrip()
    name = ("the answer" if success else "the best failure") if best else ""
    number = bar.attempt.iteration
    candidates = [f"{number} {bar.attempt.outcome}{mark}", f"{number}{mark}", f"{number}"]
    if name:
        candidates.insert(0, f"{number} {bar.attempt.outcome}{mark} {name}")
    return next((text for text in candidates if len(text) * 7.6 + 8 <= bar.width), "")


def _mark(*, best: bool, success: bool) -> str:
    return ("✓" if success else "●") if best else ""


def _tooltip(attempt: Slice[Any], *, best: bool, success: bool) -> str:
    what = (", the answer" if success else ", the best failure") if best else ""
    lines = [
        f"iteration {attempt.iteration} (subsample {attempt.subsample}, attempt {attempt.attempt}): "
        f"{attempt.outcome}{what}",
        f"{_seconds(attempt.started_s)} to {_seconds(attempt.finished_s)}",
    ]
    if attempt.usage.total_tokens:
        lines.append(f"{attempt.usage.total_tokens:,} tokens")
    if attempt.outcome == "errored" and attempt.error is not None:
        lines.append(type(attempt.error).__name__)
    failed = [one.requirement for one in attempt.validations if not one.passed]
    lines.extend(f"failed: {one.description[:200]}" for one in failed if one is not None)
    return "\n".join(lines)


def _repairs(bars: Sequence[_Bar], scale: _Scale, key: str) -> Iterator[str]:
    """Yield an arrow from each invalid attempt to the next one of its lane."""
    if not scale.tall or len(bars) > 200:
        return
    for bar, after in pairwise(bars):
        if bar.attempt.outcome != "invalid" or bar.lane != after.lane or min(bar.width, after.width) < 16:
            continue
        x, to, y = bar.x + bar.width - 8, after.x + 8, scale.y(bar.lane) - 3
        yield (
            f'<path class="line" d="M{x:g} {y} C{x + 2:g} {y - 12} {to - 2:g} {y - 12} {to:g} {y}" '
            f'marker-end="url(#{key}-arrow)"/>'
        )


def _legend(result: SamplingResult[Any], scale: _Scale, key: str) -> Iterator[str]:
    counts = Counter(one.outcome for one in result.attempts)
    x, y = 20, scale.bottom + 40
    for outcome in _OUTCOMES:
        if not counts[outcome]:
            continue
        text = f"{counts[outcome]:,} {outcome}"
        hatch = f'<rect x="{x}" y="{y}" width="14" height="14" style="fill:url(#{key}-cut);stroke:none"/>'
        yield (
            f'<g class="{outcome}"><rect x="{x}" y="{y}" width="14" height="14" rx="3"/>'
            f"{hatch if outcome == 'cancelled' else ''}"
            f'<text x="{x + 20}" y="{y + 12}">{text}</text></g>'
        )
        x += 44 + len(text) * 8
