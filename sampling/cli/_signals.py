"""Drain a run on the first Ctrl-C, and cancel it on the second."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from sampling._picklable import Picklable

if TYPE_CHECKING:
    # `--help` needs none of it.
    from sampling.fanout import FanOut

__all__ = [
    "Interrupted",
    "SignalHandler",
    "ignore_hangup",
    "open_stop_signals",
    "raise_on_signals",
    "run_interruptible",
    "stop_signals",
    "wait_for_second_signal",
]

T = TypeVar("T")


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a command: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as after `nohup`."""
    ends = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    return ends


@contextmanager
def open_stop_signals() -> Generator[AsyncIterator[signal.Signals]]:
    """Receive the signals that stop a command inside the block. Their handlers are restored after it."""
    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        with anyio.open_signal_receiver(*before) as signals:
            yield signals
    finally:
        # asyncio leaves the default of the system, with which SIGTERM would kill a command that writes its results.
        for number, handler in before.items():
            # None is a handler that Python did not install, and can't restore.
            if handler is not None:
                signal.signal(number, handler)


async def wait_for_second_signal(signals: AsyncIterator[signal.Signals]) -> None:
    """
    Wait for the signal that cancels what the first one lets finish.

    SIGHUP is not one: when a connection drops, both the system and the shell may send it.
    """
    async for received in signals:
        if received.name != "SIGHUP":
            return


@contextmanager
def ignore_hangup() -> Generator[None]:
    """Ignore SIGHUP inside the block, which writes results. A shell may send it once more, and a loop has ended."""
    if not hasattr(signal, "SIGHUP") or signal.SIGHUP not in stop_signals():
        yield
        return
    # Not SIG_IGN, which programs that are started here would inherit.
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class SignalHandler:
    """
    Stops a run on SIGINT, SIGTERM or SIGHUP.

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
        """Receive the signals that stop a command inside the block."""
        return open_stop_signals()

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
            await wait_for_second_signal(signals)
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


def raise_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise in the main thread, so that the exit code is the documented one."""
    for number in stop_signals():
        # Python itself raises KeyboardInterrupt for SIGINT.
        if number != signal.SIGINT:
            signal.signal(number, _raise)


def _raise(number: int, _frame: object) -> None:
    raise Interrupted(signal.Signals(number))


async def run_interruptible(run: Callable[[], Awaitable[T]]) -> T:
    """Await `run()`. A signal that stops the command cancels it and raises `Interrupted`."""
    received: signal.Signals | None = None

    async def cancel_on_signal(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal received
        received = await anext(signals)
        group.cancel_scope.cancel()

    result: list[T] = []
    failure: Exception | None = None
    with open_stop_signals() as signals:
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
