"""Limit the items in flight and the outcomes that wait."""

import anyio

__all__ = ["Slots"]


class Slots:
    """The free slots of a run."""

    def __init__(self, max_concurrency: int, *, max_buffered: int) -> None:
        self._free = max_concurrency
        self._max_outstanding = max_concurrency + max_buffered
        self._waiter: anyio.Event | None = None
        self.alive = 0
        """Items whose tasks have not ended. Some of them have given their slot back already."""

    def has_room(self, outstanding: int, *, extra: int = 0) -> bool:
        """
        Return whether another item may start.

        `outstanding` is the number of items that were read but not yet taken by the reader.
        `extra` is the number of slots whose items wait for the backend.
        """
        return self._free + extra > 0 and outstanding < self._max_outstanding + extra

    async def wait_for_change(self) -> None:
        """Wait until `notify` is called."""
        self._waiter = anyio.Event()
        await self._waiter.wait()

    def notify(self) -> None:
        """Wake the task that waits for room."""
        if self._waiter is not None:
            self._waiter.set()
            self._waiter = None

    def acquire(self) -> None:
        """Take a slot for a new task."""
        self._free -= 1
        self.alive += 1

    def release(self) -> None:
        """
        Free a slot.

        The caller calls `notify` once the outcome of the item is queued for the journal. A task that is woken earlier
        could record its intent before that outcome.
        """
        self._free += 1
