"""Run a load test, show its progress, and stop on Ctrl-C."""

import signal
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus

from sampling.cli._files import reason_of
from sampling.cli._signals import open_stop_signals, wait_for_second_signal
from sampling.cli._status import print_status
from sampling.telemetry.run_progress import run_progress

__all__ = ["EndedRun", "ProgressUpdate", "run_with_progress"]

T = TypeVar("T")

_LINE_EVERY_S = 5.0
_FRAME_EVERY_S = 0.2


@attrs.frozen
class ProgressUpdate:
    """The progress of a run at one moment."""

    text: str
    share: float | None = None
    """The share that is done, from 0 to 1, or None if unknown."""


@attrs.frozen
class EndedRun(Generic[T]):
    """The end of a run."""

    result: T
    received: signal.Signals | None = None
    """The signal that stopped the run, if any."""

    problem: str | None = None
    """The reason why the system ended the run, such as a full disk, if it did."""


async def run_with_progress(
    run: Callable[[], Awaitable[T]],
    *,
    get_progress: Callable[[], ProgressUpdate],
    stop: Callable[[], object],
    result_so_far: Callable[[], T],
) -> EndedRun[T]:
    """
    Await `run()` and show its progress.

    On a terminal the progress is a bar, elsewhere a line every few seconds. The first signal that
    stops a command calls `stop`, and the run returns what it has. A second one, or an error of the system, ends it with
    the results so far.
    """
    signals = _Signals(stop)
    result: T | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        # `start` returns once signals are handled, so that none is lost.
        await group.start(signals.handle, group.cancel_scope)
        group.start_soon(_keep_updating, get_progress)
        try:
            result = await run()
        except Exception as error:  # noqa: BLE001 - raised below, as itself and not as a group of one
            failure = error
        group.cancel_scope.cancel()
    if failure is not None and not isinstance(failure, OSError):
        raise failure
    problem = None if failure is None else reason_of(failure)
    return EndedRun(result_so_far() if result is None else result, signals.received, problem)


class _Signals:
    """Stops a run at the first signal, and cancels it at the second."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self.received: signal.Signals | None = None

    async def handle(self, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:  # noqa: ASYNC114
        """Wait for signals."""
        with open_stop_signals() as signals:
            task_status.started()
            self.received = await anext(signals)
            print_status(f"{self.received.name}: stopping. Results so far are kept. Press Ctrl-C again to end at once.")
            self._stop()
            await wait_for_second_signal(signals)
            scope.cancel()


async def _keep_updating(get_progress: Callable[[], ProgressUpdate]) -> None:
    with run_progress(print_every_s=_LINE_EVERY_S) as update:
        while True:
            now = get_progress()
            update(now.text, now.share)
            await anyio.sleep(_FRAME_EVERY_S)
