"""Drain a run on the first Ctrl-C, and cancel it on the second."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio

from sampling.fanout import FanOut

__all__ = ["SignalHandler"]


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

    def attach(self, run: FanOut[Any]) -> None:
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
