"""
Show the progress of a run on one line, in a terminal, a notebook or a log.

    with fan_out_progress() as hooks:
        result = await fan_out(strategy, items, None, backend, hooks=hooks)

    with load_progress(run, total_s=60):
        report = await run.run()

For any other run, report the progress yourself:

    with run_progress() as update:
        update("30 of 60 s", 0.5)
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sampling._arguments import check_int, check_number
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

if TYPE_CHECKING:
    from sampling.load import LoadRun, PopulationsRun, Tally

__all__ = ["describe_tally", "fan_out_progress", "load_progress", "run_progress"]

_MAX_BAR_WIDTH = 30
_RATE_WINDOW_S = 30.0
"""The window of the rate. The recent rate predicts the end of a run better than the average since its start."""

_MAX_MARKS = 300
_STYLES: dict[ItemStatus, str] = {"failed": "yellow", "errored": "red"}


@contextmanager
def fan_out_progress(
    *,
    total: int | None = None,
    console: Console | None = None,
    show: bool | None = None,
    print_every_s: float | None = None,
) -> Generator[Hooks]:
    """
    Yield hooks that show the progress of a run.

    It shows the items done and failed, tokens, cost, the rate, and the time left.
    The line shows no prompts and no answers. After the block, it stays visible and the terminal is restored.

    Args:
        total: The number of items, if the run can't know it. A list has a length, a generator does not.

        console: The console to draw on. None means the output of the cell in a notebook, and else standard error,
            which leaves standard output to you.

        show: Whether to draw. None draws only on a terminal or in a notebook. Elsewhere, True writes the line once, at
            the end.

        print_every_s: If nothing is drawn, print the line at this interval, for logs.
    """
    line = _RunLine(None if total is None else check_int("total", total, least=0))
    if print_every_s is not None:
        check_number("print_every_s", print_every_s, above=0)
    with live_display(line.render, console, show=show, line=line.plain, line_every_s=print_every_s) as drawn:
        yield line.hooks() if drawn else Hooks()


@contextmanager
def run_progress(
    *, console: Console | None = None, show: bool | None = None, print_every_s: float | None = None
) -> Generator[Callable[[str, float | None], None]]:
    """
    Yield a function that shows a text and the fraction done, from 0 to 1, or None if unknown.

    The arguments are those of `fan_out_progress`. After the block, the line is gone from a terminal.
    """
    shown: list[tuple[str, float | None]] = [("", None)]

    def update(text: str, share: float | None = None) -> None:
        shown[0] = (text, share)

    def render() -> Table:
        text, share = shown[0]
        return _line(ProgressBar(total=None if share is None else 1.0, completed=share or 0.0), Text(text))

    with live_display(render, console, show=show, transient=True, line=lambda: shown[0][0], line_every_s=print_every_s):
        yield update


@contextmanager
def load_progress(
    run: "LoadRun | PopulationsRun",
    *,
    total_s: float | None = None,
    console: Console | None = None,
    show: bool | None = None,
    print_every_s: float | None = None,
) -> Generator[None]:
    """
    Show the counts of a load run while the block runs.

    `total_s` is its duration with the warm-up, if you want a bar. The other arguments are those of `fan_out_progress`.
    """
    if total_s is not None:
        check_number("total_s", total_s, above=0)
    started_s = time.monotonic()

    def plain() -> str:
        return f"{time.monotonic() - started_s:.0f} s: {describe_tally(run.progress)}"

    def render() -> Table:
        share = 0.0 if total_s is None else min((time.monotonic() - started_s) / total_s, 1.0)
        return _line(ProgressBar(total=None if total_s is None else 1.0, completed=share), Text(plain()))

    with live_display(render, console, show=show, line=plain, line_every_s=print_every_s):
        yield


def describe_tally(counts: "Tally") -> str:
    """Return the counts of a load run as text."""
    parts = [f"{counts.admitted:,} sent", f"{counts.in_flight:,} in flight", f"{counts.succeeded:,} answered"]
    parts += [
        f"{number:,} {name}" for name, number in (("failed", counts.failed), ("dropped", counts.dropped)) if number
    ]
    return ", ".join(parts)


def _line(bar: ProgressBar, facts: Text) -> Table:
    table = Table.grid(Column(max_width=_MAX_BAR_WIDTH), Column(no_wrap=True), padding=(0, 1))
    table.add_row(bar, facts)
    return table


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
        facts = self._all_facts()
        return _line(ProgressBar(total=self._total or None, completed=self._statuses.total()), facts)

    def plain(self) -> str:
        """Return the line for a log."""
        return self._all_facts().plain

    def _all_facts(self) -> Text:
        done = self._statuses.total()
        self._marks.append((time.monotonic(), done - self._recorded))
        return Text(", ").join(self._facts(done))

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
