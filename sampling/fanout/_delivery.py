"""A buffer between finished items and the reader."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import anyio

from sampling.fanout.items import ItemOutcome

__all__ = ["OutcomeBuffer"]


class OutcomeBuffer:
    """
    Outcomes that the reader has not taken yet.

    They come out in the order of the items or as they finish.
    In order, an outcome waits for those of all earlier items, or for the end of the run, because a cancelled item has
    none. Outcomes after the item that ended the run are dropped.
    """

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._early: dict[int, ItemOutcome[Any]] = {}
        self._ready: deque[ItemOutcome[Any]] = deque()
        self._next = 0
        self._readers: anyio.Event | None = None
        self.last: float = math.inf
        """The index of the item that ended the run. Later outcomes are dropped."""

        self.taken = 0
        """The number of outcomes taken so far."""

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

    def close(self) -> None:
        """Make the outcomes ready that wait for earlier ones, which will not come, and wake the readers."""
        self._ready.extend(self._early[index] for index in sorted(self._early) if index <= self.last)
        self._early.clear()
        self.wake()

    def take(self) -> ItemOutcome[Any] | None:
        """Return the next outcome, or None if none is ready."""
        if not self._ready:
            return None
        self.taken += 1
        return self._ready.popleft()

    def take_all(self) -> Iterator[ItemOutcome[Any]]:
        """Yield all outcomes that are ready."""
        while (outcome := self.take()) is not None:
            yield outcome

    async def wait(self) -> None:
        """Wait until an outcome is ready or the run is over. Several readers may wait."""
        if self._readers is None:
            self._readers = anyio.Event()
        await self._readers.wait()

    def wake(self) -> None:
        """Wake the readers."""
        if self._readers is not None:
            self._readers.set()
            self._readers = None
