"""A long run, watched: how far it is, and what Ctrl-C does to it."""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sampling.load import Tally

__all__ = ["Sight", "conduct", "say", "told"]

T = TypeVar("T")

_LINE_EVERY_S = 5.0
_FRAME_EVERY_S = 0.2


@attrs.frozen
class Sight:
    """How far a run is."""

    says: str
    share: float | None = None
    """How much of it is done, if that is known."""


def say(line: str) -> None:
    """Tell something that is not the result: on the standard error, which a pipe does not take."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def told(counts: Tally) -> str:
    """Say how a load run stands."""
    parts = [f"{counts.admitted:,} sent", f"{counts.in_flight:,} in flight", f"{counts.succeeded:,} answered"]
    parts += [
        f"{number:,} {name}" for name, number in (("failed", counts.failed), ("dropped", counts.dropped)) if number
    ]
    return ", ".join(parts)


async def conduct(
    run: Callable[[], Awaitable[T]], *, look: Callable[[], Sight], stop: Callable[[], object]
) -> T | None:
    """
    Run something that can be stopped, and show how far it is: as a bar on a terminal, else as a line now and then.

    The first SIGINT or SIGTERM stops it, and it returns what it has. A second one cancels it; then this is None.
    """
    found: T | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(_obey_signals, stop, beside.cancel_scope)
        beside.start_soon(_show, look)
        try:
            found = await run()
        except Exception as error:  # noqa: BLE001 - it is raised below, as itself and not as a group of one
            failure = error
        beside.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found


async def _obey_signals(  # noqa: ASYNC114 - it is started with start(), which waits for it
    stop: Callable[[], object], everything: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await _stop_then_cancel(signals, stop, everything)


async def _stop_then_cancel(
    signals: AsyncIterator[signal.Signals], stop: Callable[[], object], everything: anyio.CancelScope
) -> None:
    received = await anext(signals)
    say(f"{received.name}: stopping; what was gathered is kept. Once more ends it at once.")
    stop()
    await anext(signals)
    everything.cancel()


async def _show(look: Callable[[], Sight]) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        await _show_bar(console, look)
    while True:
        await anyio.sleep(_LINE_EVERY_S)
        say(look().says)


async def _show_bar(console: Console, look: Callable[[], Sight]) -> None:
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        while True:
            seen = look()
            progress.update(
                task, description=seen.says, total=None if seen.share is None else 1.0, completed=seen.share or 0.0
            )
            await anyio.sleep(_FRAME_EVERY_S)
