"""What Ctrl-C means to a long run: first stop starting things, then stop."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio

from sampling.fanout import FanOut

__all__ = ["Interrupts"]


class Interrupts:
    """
    Watches for SIGINT and SIGTERM.

    At the first, nothing new is started, and what is in flight has `grace_s` seconds to finish. At the second,
    or when they are over, it is cancelled. Before anything is in flight, the first one cancels.
    """

    def __init__(self, *, grace_s: float, say: Callable[[str], None]) -> None:
        self._grace_s = grace_s
        self._say = say
        self._run: FanOut[Any] | None = None
        self.received: signal.Signals | None = None
        """The first one, if one came."""

    def open(self) -> AbstractContextManager[AsyncIterator[signal.Signals]]:
        """Take the signals over from here on."""
        return anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)

    def govern(self, run: FanOut[Any]) -> None:
        """Say which run to stop."""
        self._run = run

    async def watch(self, signals: AsyncIterator[signal.Signals], everything: anyio.CancelScope) -> None:
        """Act on signals, for as long as this runs."""
        self.received = await anext(signals)
        if self._run is None:
            everything.cancel()
            return
        self._run.drain()
        self._say(
            f"{self.received.name}: nothing new is started; what is in flight has {self._grace_s:g} s to finish. "
            "Once more cancels it."
        )
        with anyio.move_on_after(self._grace_s):
            await anext(signals)
        self._say("cancelling what is in flight")
        self._run.cancel()
