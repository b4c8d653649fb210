"""Outcomes on their way to whoever reads them."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import anyio

from sampling.fanout.items import ItemOutcome

__all__ = ["Delivery"]


class Delivery:
    """
    Holds outcomes until they are taken: in the order of the items, or as they come.

    In order, an outcome waits for those of all items before it, and nothing after the run's last item ever gets out.
    """

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._early: dict[int, ItemOutcome[Any]] = {}
        self._ready: deque[ItemOutcome[Any]] = deque()
        self._next = 0
        self._reader: anyio.Event | None = None
        self.last: float = math.inf
        """The index after which nothing is handed out: that of the item which ended the run."""

        self.taken = 0
        """How many have been taken."""

    def put(self, outcome: ItemOutcome[Any]) -> None:
        """Add an outcome."""
        if outcome.index > self.last:
            return
        if not self._ordered:
            self._ready.append(outcome)
        elif outcome.index != self._next:
            self._early[outcome.index] = outcome
            return
        else:
            self._ready.append(outcome)
            self._next += 1
            while self._next in self._early and self._next <= self.last:
                self._ready.append(self._early.pop(self._next))
                self._next += 1
        self.wake()

    def take(self) -> ItemOutcome[Any] | None:
        """Return the next outcome, if there is one."""
        if not self._ready:
            return None
        self.taken += 1
        return self._ready.popleft()

    def take_all(self) -> Iterator[ItemOutcome[Any]]:
        """Return all that can be taken by now."""
        while (outcome := self.take()) is not None:
            yield outcome

    async def wait(self) -> None:
        """Wait until something has changed."""
        self._reader = anyio.Event()
        await self._reader.wait()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._reader is not None:
            self._reader.set()
            self._reader = None
