"""Drain a run on the first Ctrl-C, and cancel it on the second."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from sampling._picklable import Picklable

if TYPE_CHECKING:
    # `--help` needs none of it.
    from sampling.fanout import FanOut

__all__ = ["Interrupted", "SignalHandler", "raise_on_sigterm", "run_interruptible"]

T = TypeVar("T")


class SignalHandler:
    """
    Stops a run on SIGINT or SIGTERM.

    The first signal starts nothing new and gives calls in flight `grace_s` seconds to finish. The second signal,
    or the end of that time, cancels them. Before the run has begun, the first signal cancels.
    """

    def __init__(self, *, grace_s: float, print_line: Callable[[str], None]) -> None:
        self._grace_s = grace_s
        self._print_line = print_line
        self._run: FanOut[Any] | None = None
        self.received: signal.Signals | None = None
        """The first signal received, if any."""

    def open(self) -> AbstractContextManager[AsyncIterator[signal.Signals]]:
        """Receive SIGINT and SIGTERM inside the block."""
        return anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)

    def attach(self, run: "FanOut[Any]") -> None:
        """Set the run that signals stop."""
        self._run = run

    async def handle(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        """Wait for signals, and drain or cancel the run."""
        self.received = await anext(signals)
        if self._run is None:  # nothing is in flight, so there is nothing to wait for
            scope.cancel()
            return
        self._run.drain()
        self._print_line(
            f"{self.received.name}: nothing new is started. Calls in flight have {self._grace_s:g} s to finish. "
            "Press Ctrl-C again to cancel them."
        )
        with anyio.move_on_after(self._grace_s):
            await anext(signals)
        self._print_line("cancelling the calls in flight")
        self._run.cancel()


class Interrupted(Picklable, BaseException):
    """
    A signal ended a command that has nothing to write.

    Not an Exception: no handler of errors may stop it.
    """

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received.name)
        self.received = received


def raise_on_sigterm() -> None:
    """Make SIGTERM raise in the main thread, so that the exit code is the documented one."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, _frame: object) -> None:
    raise Interrupted(signal.Signals(number))


async def run_interruptible(run: Callable[[], Awaitable[T]]) -> T:
    """Await `run()`. SIGINT and SIGTERM cancel it and raise `Interrupted`."""
    received: signal.Signals | None = None

    async def cancel_on_signal(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal received
        received = await anext(signals)
        group.cancel_scope.cancel()

    result: list[T] = []
    failure: Exception | None = None
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_on_signal, signals)
            try:
                result.append(await run())
            except Exception as error:  # noqa: BLE001 - raised below, as itself and not as a group of one
                failure = error
            group.cancel_scope.cancel()
    if received is not None and not result:
        raise Interrupted(received)
    if failure is not None:
        raise failure
    return result[0]
