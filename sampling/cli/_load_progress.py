"""Run a load test, show its progress, and stop on Ctrl-C."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sampling.cli._status import print_status
from sampling.load import Tally

__all__ = ["ProgressUpdate", "describe_tally", "run_with_progress"]

T = TypeVar("T")

_LINE_EVERY_S = 5.0
_FRAME_EVERY_S = 0.2


@attrs.frozen
class ProgressUpdate:
    """The progress of a run at one moment."""

    text: str
    share: float | None = None
    """The share that is done, from 0 to 1, or None if unknown."""


def describe_tally(counts: Tally) -> str:
    """Return the counters of a load run as text."""
    parts = [f"{counts.admitted:,} sent", f"{counts.in_flight:,} in flight", f"{counts.succeeded:,} answered"]
    parts += [
        f"{number:,} {name}" for name, number in (("failed", counts.failed), ("dropped", counts.dropped)) if number
    ]
    return ", ".join(parts)


async def run_with_progress(
    run: Callable[[], Awaitable[T]], *, get_progress: Callable[[], ProgressUpdate], stop: Callable[[], object]
) -> T | None:
    """
    Await `run()` and show its progress.

    On a terminal the progress is a bar, elsewhere a line every few seconds. The first SIGINT or SIGTERM calls `stop`,
    and the run returns what it has. A second one cancels the run, and then this returns None.
    """
    result: T | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        # `start` returns once signals are handled, so that none is lost.
        await group.start(_handle_signals, stop, group.cancel_scope)
        group.start_soon(_show_progress, get_progress)
        try:
            result = await run()
        except Exception as error:  # noqa: BLE001 - raised below, as itself and not as a group of one
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def _handle_signals(  # noqa: ASYNC114 - it is started with start(), which waits for it
    stop: Callable[[], object], scope: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await _stop_then_cancel(signals, stop, scope)


async def _stop_then_cancel(
    signals: AsyncIterator[signal.Signals], stop: Callable[[], object], scope: anyio.CancelScope
) -> None:
    received = await anext(signals)
    print_status(f"{received.name}: stopping. Results so far are kept. Press Ctrl-C again to end at once.")
    stop()
    await anext(signals)
    scope.cancel()


async def _show_progress(get_progress: Callable[[], ProgressUpdate]) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        await _show_bar(console, get_progress)
    while True:
        await anyio.sleep(_LINE_EVERY_S)
        print_status(get_progress().text)


async def _show_bar(console: Console, get_progress: Callable[[], ProgressUpdate]) -> None:
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        while True:
            update = get_progress()
            progress.update(
                task,
                description=update.text,
                total=None if update.share is None else 1.0,
                completed=update.share or 0.0,
            )
            await anyio.sleep(_FRAME_EVERY_S)
