"""
Show the progress of calls in a terminal or a notebook, with the text of their attempts.

    with progress(lanes=True) as hooks:
        result = await strategy.sample("…", None, backend, reqs, hooks=hooks)
"""

import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import attrs

from sampling._arguments import check_bool
from sampling.errors import MissingExtra
from sampling.hooks import (
    Hooks,
    IterationEvent,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    TextGrown,
)
from sampling.results import Outcome, Slice
from sampling.telemetry._live import live_display

try:
    from rich.cells import cell_len
    from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text
except ImportError as _error:
    raise MissingExtra("a progress bar", "rich", "cli") from _error

__all__ = ["progress"]

_MAX_BARS = 20
"""The number of separate bars. Beyond it, the oldest finished calls and those without room share one more bar."""

_MIN_BAR_WIDTH, _MAX_BAR_WIDTH = 6, 24
_STYLES: dict[Outcome, str] = {"valid": "green", "invalid": "yellow", "errored": "red", "cancelled": "dim"}

_MAX_LANES = 16
"""The number of attempts that are shown for each call. Beyond it, the oldest that have ended make room."""

_MAX_REMARK_CHARS = 60
_MARKS: dict[Outcome | None, str] = {None: "…", "valid": "✓", "invalid": "✗", "errored": "!", "cancelled": "✂"}
_REMARKS: dict[Outcome, str] = {"cancelled": "cut off", "valid": "right", "errored": "failed"}


@contextmanager
def progress(*, lanes: bool = False, console: Console | None = None, show: bool | None = None) -> Generator[Hooks]:
    """
    Yield hooks that show a bar for each call.

    Pass them to a call or to a strategy.
    A bar shows the attempts made and allowed, their outcomes, the tokens used, and the end of the call.
    It shows no prompts, and answers only in lanes. After the block, the bars stay visible and the terminal is restored.

    Args:
        lanes: Show the text of every attempt below the bar, as it grows, and then how it ended.

        console: The console to draw on. None means the output of the cell in a notebook, and else standard error,
            which leaves standard output to you.

        show: Whether to draw. None draws only on a terminal or in a notebook. Elsewhere, True writes the bars once,
            at the end.
    """
    bars = _Bars(lanes=check_bool("lanes", lanes))
    with live_display(bars.render, console, show=show) as drawn:
        yield bars.hooks() if drawn else Hooks()


@attrs.define
class _Lane:
    """The line of one attempt."""

    subsample: int
    text: str = ""
    outcome: Outcome | None = None
    """None while it runs."""

    remark: str = ""

    def finish(self, ended: Slice[Any]) -> None:
        self.outcome, self.remark = ended.outcome, _remark(ended)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = "" if self.outcome is None else _STYLES[self.outcome]
        start, end = f"  {self.subsample + 1} {_MARKS[self.outcome]} ", f"   {self.remark}" if self.remark else ""
        shown = _on_one_line(self.text, options.max_width - len(start) - cell_len(end), at_end=self.outcome is None)
        line = Text.assemble((start, style), (shown, style), (end, "dim"), no_wrap=True, overflow="ellipsis")
        yield line


def _on_one_line(text: str, width: int, *, at_end: bool) -> str:
    """Fit a text on one line: its end while it grows, else its start. Control characters are removed."""
    width = max(width, 8)
    part = text[-2 * width :] if at_end else text[: 2 * width]
    part = " ".join("".join([char if char.isprintable() else " " for char in part]).split())
    if cell_len(part) <= width:
        return part
    # Letters of Chinese and emoji take two columns, so letters are taken off until the rest fits.
    while cell_len(part) > width - 1:
        part = part[1:] if at_end else part[:-1]
    return f"…{part}" if at_end else f"{part}…"


def _remark(ended: Slice[Any]) -> str:
    if ended.outcome != "invalid":
        return _REMARKS[ended.outcome]
    failed = [validation for validation in ended.validations if not validation.passed]
    # The first sentence of a reason says what is wrong. The rest is advice for the model.
    reasons = [(validation.reason or validation.complaint).partition(". ")[0] for validation in failed]
    return _on_one_line("; ".join(reasons), _MAX_REMARK_CHARS, at_end=False)


@attrs.define
class _Bar:
    """The state of one bar. It shows one call, or several calls together."""

    label: str
    allowed: int
    started_at_s: float = attrs.field(factory=time.monotonic)
    outcomes: Counter[Outcome] = attrs.field(factory=Counter[Outcome])
    tokens: int = 0
    ending: str = ""
    """The end of the call. Empty while it runs."""

    elapsed_s: float | None = None
    """The duration of the call. None while it runs."""

    lanes: dict[tuple[int, int], _Lane] = attrs.field(factory=dict[tuple[int, int], _Lane])
    """The attempts of the call, by subsample and attempt."""

    def start_lane(self, event: IterationStarted) -> None:
        if len(self.lanes) >= _MAX_LANES:
            ended = next((place for place, lane in self.lanes.items() if lane.outcome is not None), None)
            if ended is not None:
                del self.lanes[ended]
        self.lanes[event.subsample, event.attempt] = _Lane(event.subsample)

    @property
    def finished(self) -> bool:
        return self.elapsed_s is not None

    def finish(self, event: LoopFinished) -> None:
        self.ending = _ending(event)
        self.elapsed_s = event.elapsed_s
        if event.result is not None:
            # A later hook on `LoopStarted` may have changed the budgets.
            self.allowed = event.result.max_attempts

    def merge(self, other: "_Bar") -> None:
        self.allowed += other.allowed
        self.outcomes += other.outcomes
        self.tokens += other.tokens

    def facts(self, width: int) -> Text:
        """Return what is known of the call, without the facts that matter least if the width is not enough."""
        facts = list(self._facts())
        while len(facts) > 1:
            line = Text(", ").join(text for _, text in facts)
            if line.cell_len <= width:
                return line
            facts.remove(min(facts, key=itemgetter(0)))
        return facts[0][1]

    def _facts(self) -> Iterator[tuple[int, Text]]:
        """Yield each fact with how much it matters."""
        yield 9, Text(f"{self.outcomes.total():,} of {self.allowed:,}")
        for matters, (outcome, style) in zip((7, 6, 5, 4), _STYLES.items(), strict=True):
            if self.outcomes[outcome]:
                yield matters, Text(f"{self.outcomes[outcome]:,} {outcome}", style)
        if self.tokens:
            yield 2, Text(f"{self.tokens:,} tokens")
        elapsed_s = time.monotonic() - self.started_at_s if self.elapsed_s is None else self.elapsed_s
        yield 3, Text(f"{elapsed_s:.1f} s")
        if self.ending:
            yield 8, Text(self.ending)


@attrs.frozen
class _Rows:
    """Bars below each other. Where there is no room, the bars go first, and then whole facts."""

    bars: list[_Bar]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        labels = max((len(bar.label) for bar in self.bars), default=0)
        facts = [bar.facts(options.max_width - labels - 1) for bar in self.bars]
        room = options.max_width - labels - 2 - max((line.cell_len for line in facts), default=0)
        has_bars = room >= _MIN_BAR_WIDTH
        table = Table.grid(padding=(0, 1))
        for _ in range(3 if has_bars else 2):
            table.add_column(no_wrap=True)
        for bar, line in zip(self.bars, facts, strict=True):
            drawn = [ProgressBar(bar.allowed, bar.outcomes.total(), min(room, _MAX_BAR_WIDTH))] if has_bars else []
            table.add_row(Text(bar.label), *drawn, line)
        yield table


def _ending(event: LoopFinished) -> str:
    if event.error is None:
        return event.stop_reason or ""
    # Other exceptions are cancellations or interrupts, and their names differ between event loops.
    return type(event.error).__name__ if isinstance(event.error, Exception) else "cancelled"


def _short(strategy: str) -> str:
    """Strip the common suffixes of strategy names, to save space."""
    return strategy.removesuffix("Strategy").removesuffix("Sampling") or strategy


class _Bars:
    """The bars of all calls. Hooks only count, and the slow work happens in `render`."""

    def __init__(self, *, lanes: bool) -> None:
        self._lanes = lanes
        self._calls = 0
        self._bars: dict[str, _Bar] = {}
        self._others = _Bar("", 0)
        self._other_calls = 0

    def hooks(self) -> Hooks:
        hooks = Hooks()
        hooks.on(LoopStarted)(self._start)
        hooks.on(IterationFinished)(self._count)
        hooks.on(LoopFinished)(self._finish)
        if self._lanes:
            hooks.on(IterationStarted)(self._start_lane)
            hooks.on(TextGrown)(self._grow_lane)
        return hooks

    def _start(self, event: LoopStarted) -> None:
        self._calls += 1
        bar = _Bar(f"#{self._calls:,} {_short(event.strategy)}", event.loop_budget * event.concurrency_budget)
        if len(self._bars) >= _MAX_BARS:
            self._make_room()
        if len(self._bars) < _MAX_BARS:
            self._bars[event.sampling_id] = bar
        else:
            self._add_to_others(bar)

    def _make_room(self) -> None:
        for sampling_id, bar in self._bars.items():
            if bar.finished:
                del self._bars[sampling_id]
                self._add_to_others(bar)
                return

    def _add_to_others(self, bar: _Bar) -> None:
        self._others.merge(bar)
        self._other_calls += 1
        self._others.label = f"{self._other_calls:,} other calls"

    def _start_lane(self, event: IterationStarted) -> None:
        if event.sampling_id in self._bars:
            self._bars[event.sampling_id].start_lane(event)

    def _lane(self, event: IterationEvent) -> _Lane | None:
        bar = self._bars.get(event.sampling_id)
        return None if bar is None else bar.lanes.get((event.subsample, event.attempt))

    def _grow_lane(self, event: TextGrown) -> None:
        lane = self._lane(event)
        if lane is not None:
            lane.text = event.text

    def _count(self, event: IterationFinished) -> None:
        lane = self._lane(event)
        if lane is not None:
            lane.finish(event.slice)
        bar = self._bars.get(event.sampling_id, self._others)
        bar.outcomes[event.slice.outcome] += 1
        bar.tokens += event.slice.usage.total_tokens

    def _finish(self, event: LoopFinished) -> None:
        bar = self._bars.get(event.sampling_id)
        if bar is not None:
            bar.finish(event)

    def render(self) -> RenderableType:
        """Return all bars, oldest first, then the shared one, then the lanes of running calls, or of the only call."""
        # This runs in the drawing thread. Copy, because the hooks may add a call meanwhile.
        bars = list(self._bars.values())
        rows = _Rows([*bars, self._others] if self._other_calls else bars)
        lanes = [
            lane
            for bar in bars
            if not bar.finished or len(bars) == 1
            for _, lane in sorted(dict(bar.lanes).items(), key=itemgetter(0))
        ]
        return Group(rows, *lanes)
