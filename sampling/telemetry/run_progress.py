"""
Show the progress of a fan-out on one line.

    with fan_out_progress() as hooks:
        result = await fan_out(strategy, items, None, backend, hooks=hooks)
"""

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from sampling._arguments import check_int
from sampling.errors import MissingExtra
from sampling.fanout.items import FanOutFinished, FanOutStarted, ItemFinished, ItemStatus
from sampling.hooks import Hooks
from sampling.telemetry._live import live_display
from sampling.usage import NO_USAGE

try:
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text
except ImportError as _error:
    raise MissingExtra("a progress bar", "rich", "cli") from _error

__all__ = ["fan_out_progress"]

_MAX_BAR_WIDTH = 30
_RATE_WINDOW_S = 30.0
"""The window of the rate. The recent rate predicts the end of a run better than the average since its start."""

_MAX_MARKS = 300
_STYLES: dict[ItemStatus, str] = {"failed": "yellow", "errored": "red"}


@contextmanager
def fan_out_progress(
    *, total: int | None = None, console: Console | None = None, show: bool | None = None
) -> Generator[Hooks]:
    """
    Yield hooks that show the progress of a run.

    It shows the items done and failed, tokens, cost, the rate, and the time left.
    The line shows no prompts and no answers. After the block, it stays visible and the terminal is restored.

    Args:
        total: The number of items, if the run can't know it. A list has a length, a generator does not.

        console: The console to draw on. None means standard error, which leaves standard output to you.

        show: Whether to draw. None draws only on a terminal. Elsewhere, True writes the line once, at the end.
    """
    line = _RunLine(None if total is None else check_int("total", total, least=0))
    with live_display(line.render, console, show=show) as drawn:
        yield line.hooks() if drawn else Hooks()


class _RunLine:
    """The state of a run. Hooks only count, and the slow work happens in `render`."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._statuses: Counter[ItemStatus] = Counter()
        self._recorded = 0
        self._usage = NO_USAGE
        self._started_s = time.monotonic()
        self._ended_s: float | None = None
        self._ending = ""
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MAX_MARKS)

    def hooks(self) -> Hooks:
        hooks = Hooks()
        hooks.on(FanOutStarted)(self._start)
        hooks.on(ItemFinished)(self._count)
        hooks.on(FanOutFinished)(self._finish)
        return hooks

    def _start(self, event: FanOutStarted) -> None:
        self._started_s = time.monotonic()
        if self._total is None:
            self._total = event.total

    def _count(self, event: ItemFinished) -> None:
        self._statuses[event.outcome.status] += 1
        self._usage += event.outcome.usage
        self._recorded += event.recorded

    def _finish(self, event: FanOutFinished) -> None:
        self._ended_s = time.monotonic()
        self._ending = event.status

    def render(self) -> Table:
        """Return the line in its current state."""
        done = self._statuses.total()
        self._marks.append((time.monotonic(), done - self._recorded))
        table = Table.grid(Column(max_width=_MAX_BAR_WIDTH), Column(no_wrap=True), padding=(0, 1))
        table.add_row(ProgressBar(total=self._total or None, completed=done), Text(", ").join(self._facts(done)))
        return table

    def _facts(self, done: int) -> Iterator[Text]:
        yield Text(f"{done:,}" if self._total is None else f"{done:,} of {self._total:,}")
        if self._recorded:
            yield Text(f"{self._recorded:,} from the journal", "dim")
        for status, style in _STYLES.items():
            if self._statuses[status]:
                yield Text(f"{self._statuses[status]:,} {status}", style)
        if self._usage.total_tokens:
            yield Text(f"{self._usage.total_tokens:,} tokens")
        if self._usage.cost:
            yield Text(f"cost {self._usage.cost:.4g}")
        yield from self._times(done)
        if self._ending:
            yield Text(self._ending)

    def _times(self, done: int) -> Iterator[Text]:
        if self._ended_s is not None:
            yield Text(_format_duration(self._ended_s - self._started_s))
            return
        rate = self._rate()
        if rate:
            yield Text(f"{rate:.3g} a second")
            if self._total is not None:
                yield Text(f"{_format_duration((self._total - done) / rate)} left")

    def _rate(self) -> float:
        """
        Return the recent number of items per second.

        Items from the journal don't count: they take no time.
        """
        now, count = self._marks[-1]
        since, before = next((mark for mark in self._marks if now - mark[0] <= _RATE_WINDOW_S), (now, count))
        if now == since:
            return 0.0
        return (count - before) / (now - since)


def _format_duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
