"""A writer that batches entries. While one transaction is written, the next batch fills up."""

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import attrs
from anyio.lowlevel import checkpoint

from sampling.errors import JournalError
from sampling.fanout.engines import Note
from sampling.fanout.items import Item

__all__ = ["Batch", "Intent", "Writer"]

E = TypeVar("E")

Intent: TypeAlias = tuple[Item[Any], int, Context]
"""An item that is about to be sampled, its digest, and the context in which it is to be started."""

_MAX_CHECKPOINTS = 16
"""The number of turns that other tasks get to add to a batch before it is written. Each write waits for the disk."""

_MAX_INTENTS = 256
"""The number of intents in a batch. Its items start together, and thousands would block the event loop."""

_MAX_IDLE_CHECKPOINTS = 2
"""
The number of turns without a new entry after which a batch is written.

More than one, because an outcome frees a slot, and only then the next item is read and its intent is added.
"""


@attrs.define(eq=False)
class Batch(Generic[E]):
    """The entries of one transaction."""

    intents: list[Intent] = attrs.field(factory=list[Intent])
    outcomes: list[E] = attrs.field(factory=list[Any])
    withdrawn: list[int] = attrs.field(factory=list[int])
    """Items whose intent is deleted, because nothing was sent for them."""

    notes: list[Note] = attrs.field(factory=list[Note])
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    stored: bool = False
    """Whether the batch is on disk. Valid once `ended` is set."""

    @property
    def size(self) -> int:
        """The number of entries."""
        return len(self.intents) + len(self.outcomes) + len(self.withdrawn) + len(self.notes)

    async def on_disk(self) -> bool:
        """
        Wait for the write, and return whether it succeeded.

        Cancelling the wait does not cancel the write.
        """
        await self.ended.wait()
        return self.stored


class Writer(Generic[E]):
    """Writes the entries of all tasks, in its own task."""

    def __init__(self, write: Callable[[Batch[E]], Awaitable[None]], *, max_intents: int) -> None:
        self._write = write
        self._max_intents = min(max_intents, _MAX_INTENTS)
        """If as many intents wait as items may be in flight, all items do, and no entry can follow."""

        self.on_end: Callable[[Batch[E]], None] = lambda _: None
        """Called when a batch is on disk, or could not be written."""

        self._batch: Batch[E] = Batch()
        self._wake: anyio.Event | None = None
        self._closing = False
        self.failure: BaseException | None = None
        """The error that stopped the writer, if any."""

        self.unsaved: list[E] = []
        """Outcomes of the failed batch and of all later ones."""

    @property
    def has_enough_intents(self) -> bool:
        """True if further intents are to wait for the next batch."""
        return len(self._batch.intents) >= self._max_intents

    def put_intent(self, intent: Intent) -> None:
        """Queue the intent to sample an item."""
        self._batch.intents.append(intent)
        self._put()

    def put_outcome(self, outcome: E) -> Batch[E]:
        """Queue an outcome. It is written even if the run is cancelled."""
        self._batch.outcomes.append(outcome)
        return self._put()

    def withdraw_intent(self, item: int) -> Batch[E]:
        """Queue the deletion of an intent."""
        self._batch.withdrawn.append(item)
        return self._put()

    def put_note(self, note: Note) -> Batch[E]:
        """Queue a note."""
        self._batch.notes.append(note)
        return self._put()

    def _put(self) -> Batch[E]:
        batch = self._batch
        if self.failure is not None:
            self._give_up(batch)
        elif self._wake is not None:
            self._wake_up()
        return batch

    def _wake_up(self) -> None:
        """Wake the writer. It is woken once, though more entries may come before its turn."""
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def _give_up(self, batch: Batch[E]) -> None:
        self.unsaved += batch.outcomes
        if batch is self._batch:
            self._batch = Batch()
        self._end(batch)

    def _end(self, batch: Batch[E]) -> None:
        batch.ended.set()
        self.on_end(batch)

    def close(self) -> None:
        """Let the writer end after its last batch."""
        self._closing = True
        self._wake_up()

    async def run(self) -> None:
        """Write until closed. Shielded from cancellation, because outcomes were paid for."""
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - it ends when it is closed
            while self.failure is None and await self._wait_for_entries():
                await self._gather()
                batch, self._batch = self._batch, Batch()
                await self._write_batch(batch)

    async def _wait_for_entries(self) -> bool:
        while not self._batch.size:
            if self._closing:
                return False
            wake = self._wake = anyio.Event()
            await wake.wait()
        return True

    async def _gather(self) -> None:
        batch, before, idle = self._batch, 0, 0
        for _ in range(_MAX_CHECKPOINTS):
            size = batch.size
            idle = idle + 1 if size == before else 0
            if idle == _MAX_IDLE_CHECKPOINTS or self.has_enough_intents:
                break
            before = size
            await checkpoint()

    async def _write_batch(self, batch: Batch[E]) -> None:
        try:
            await self._write(batch)
            batch.stored = True
            self._end(batch)
        except BaseException as error:  # noqa: ASYNC103 - no cancellation gets here: it is shielded
            self.failure = error
            if not batch.stored:
                self._give_up(batch)
            self._give_up(self._batch)
            if not isinstance(error, JournalError):
                raise
