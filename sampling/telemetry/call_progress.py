"""
Show a progress bar for each call on the terminal.

    with progress() as hooks:
        result = await strategy.sample("…", None, backend, reqs, hooks=hooks)
"""

import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import attrs

from sampling.errors import MissingExtra
from sampling.hooks import Hooks, IterationFinished, LoopFinished, LoopStarted
from sampling.results import Outcome
from sampling.telemetry._live import live_display

try:
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text
except ImportError as _error:
    raise MissingExtra("a progress bar", "rich", "cli") from _error

__all__ = ["progress"]

_MAX_BARS = 20
"""The number of separate bars. Beyond it, the oldest finished calls and those without room share one more bar."""

_MAX_BAR_WIDTH = 24
_STYLES: dict[Outcome, str] = {"valid": "green", "invalid": "yellow", "errored": "red", "cancelled": "dim"}


@contextmanager
def progress(*, console: Console | None = None, show: bool | None = None) -> Generator[Hooks]:
    """
    Yield hooks that show a bar for each call.

    Pass them to a call or to a strategy.
    A bar shows the attempts made and allowed, their outcomes, the tokens used, and the end of the call.
    It shows no prompts and no answers. After the block, the bars stay visible and the terminal is restored.

    Args:
        console: The console to draw on. None means standard error, which leaves standard output to you.

        show: Whether to draw. None draws only on a terminal. Elsewhere, True writes the bars once, at the end.
    """
    bars = _Bars()
    with live_display(bars.render, console, show=show) as drawn:
        yield bars.hooks() if drawn else Hooks()


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

    def cells(self) -> tuple[Text, ProgressBar, Text]:
        done = self.outcomes.total()
        return Text(self.label), ProgressBar(total=self.allowed, completed=done), Text(", ").join(self._facts(done))

    def _facts(self, done: int) -> Iterator[Text]:
        yield Text(f"{done:,} of {self.allowed:,}")
        for outcome, style in _STYLES.items():
            if self.outcomes[outcome]:
                yield Text(f"{self.outcomes[outcome]:,} {outcome}", style)
        if self.tokens:
            yield Text(f"{self.tokens:,} tokens")
        elapsed_s = time.monotonic() - self.started_at_s if self.elapsed_s is None else self.elapsed_s
        yield Text(f"{elapsed_s:.1f} s")
        if self.ending:
            yield Text(self.ending)


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

    def __init__(self) -> None:
        self._calls = 0
        self._bars: dict[str, _Bar] = {}
        self._others = _Bar("", 0)
        self._other_calls = 0

    def hooks(self) -> Hooks:
        hooks = Hooks()
        hooks.on(LoopStarted)(self._start)
        hooks.on(IterationFinished)(self._count)
        hooks.on(LoopFinished)(self._finish)
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

    def _count(self, event: IterationFinished) -> None:
        bar = self._bars.get(event.sampling_id, self._others)
        bar.outcomes[event.slice.outcome] += 1
        bar.tokens += event.slice.usage.total_tokens

    def _finish(self, event: LoopFinished) -> None:
        bar = self._bars.get(event.sampling_id)
        if bar is not None:
            bar.finish(event)

    def render(self) -> Table:
        """Return all bars, oldest first, then the shared one."""
        # On a narrow terminal, the bar column shrinks.
        table = Table.grid(Column(no_wrap=True), Column(max_width=_MAX_BAR_WIDTH), Column(no_wrap=True), padding=(0, 1))
        # This runs in the drawing thread. Copy, because the hooks may add a call meanwhile.
        for bar in list(self._bars.values()):
            table.add_row(*bar.cells())
        if self._other_calls:
            table.add_row(*self._others.cells())
        return table
