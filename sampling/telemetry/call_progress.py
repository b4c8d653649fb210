"""
Show on the terminal how calls get on: a bar for each.

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
from sampling.telemetry._live import drawing

try:
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text
except ImportError as error:
    raise MissingExtra("a progress bar", "rich", "cli") from error

__all__ = ["progress"]

_MOST_BARS = 20
"""With more calls than this, the oldest finished ones, and those that find no room, share one more bar."""

_WIDEST_BAR = 24
_STYLES: dict[Outcome, str] = {"valid": "green", "invalid": "yellow", "errored": "red", "cancelled": "dim"}


@contextmanager
def progress(*, console: Console | None = None, show: bool | None = None) -> Generator[Hooks]:
    """
    Yield hooks that show a bar for each call they are given to, or for each call of a strategy they are given to.

    A bar tells how many of the allowed attempts are done, how they ended, what they used, and how the call ended.
    Neither the question nor an answer is on it. When the block is left, however it is left, the bars stay as they are,
    and the terminal is as it was.

    Args:
        console: Where to show them; None for the standard error output, so that the standard output is left to you.

        show: Whether to. None: only on a terminal. On anything else, True writes the bars once, at the end.
    """
    bars = _Bars()
    with drawing(bars.render, console, show=show) as drawn:
        yield bars.hooks() if drawn else Hooks()


@attrs.define
class _Bar:
    """What there is to show of a call, or of many together."""

    label: str
    allowed: int
    started_at_s: float = attrs.field(factory=time.monotonic)
    outcomes: Counter[Outcome] = attrs.field(factory=Counter[Outcome])
    tokens: int = 0
    ending: str = ""
    """How the call ended; nothing while it runs."""

    elapsed_s: float | None = None
    """How long it took; None while it runs."""

    @property
    def finished(self) -> bool:
        return self.elapsed_s is not None

    def finish(self, event: LoopFinished) -> None:
        self.ending = _ending(event)
        self.elapsed_s = event.elapsed_s
        if event.result is not None:
            # A hook after ours may have changed the budgets.
            self.allowed = event.result.max_attempts

    def absorb(self, other: "_Bar") -> None:
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
    # Whatever is not an Exception is a cancellation, or the end of the program, and has another name on each loop.
    return type(event.error).__name__ if isinstance(event.error, Exception) else "cancelled"


def _short(strategy: str) -> str:
    """Leave out what most strategies have in their names: room on a line is scarce."""
    return strategy.removesuffix("Strategy").removesuffix("Sampling") or strategy


class _Bars:
    """The bars of all calls. Events only count; everything that takes time happens when the bars are drawn."""

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
        if len(self._bars) >= _MOST_BARS:
            self._make_room()
        if len(self._bars) < _MOST_BARS:
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
        self._others.absorb(bar)
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
        """Draw all bars: those of single calls, oldest first, then what they have no room for."""
        # Where the terminal is narrow, it is the bar that gives way.
        table = Table.grid(Column(no_wrap=True), Column(max_width=_WIDEST_BAR), Column(no_wrap=True), padding=(0, 1))
        # Another thread than the one that counts: it takes a copy, so that no call is added while it looks.
        for bar in list(self._bars.values()):
            table.add_row(*bar.cells())
        if self._other_calls:
            table.add_row(*self._others.cells())
        return table
