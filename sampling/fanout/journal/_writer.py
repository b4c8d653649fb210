"""One writer: whatever has come together is written in one transaction, while the next comes together."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import anyio
import attrs
from anyio.lowlevel import checkpoint

from sampling.errors import JournalError
from sampling.fanout.journal._store import Intent

__all__ = ["Batch", "Writer"]

E = TypeVar("E")

_GATHERINGS = 16
"""How often, at most, the others get a turn to add to a batch before it is written: each write waits for the disk."""

_QUIET_GATHERINGS = 3
"""After how many turns in which nothing came: an outcome frees a slot, which lets an item be read, which then comes."""


@attrs.define(eq=False)
class Batch(Generic[E]):
    """What is written in one transaction."""

    intents: list[Intent] = attrs.field(factory=list[Intent])
    outcomes: list[E] = attrs.field(factory=list[Any])
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    stored: bool = False
    """Once it has ended: whether all of it is on disk, or nothing."""

    async def on_disk(self) -> bool:
        """Wait for the end, and say whether it is on disk. Who stops waiting changes nothing: it is written."""
        await self.ended.wait()
        return self.stored


class Writer(Generic[E]):
    """Takes what is to be written from any number of tasks, and writes it in a task of its own."""

    def __init__(self, write: Callable[[Sequence[Intent], Sequence[E]], Awaitable[None]]) -> None:
        self._write = write
        self._batch: Batch[E] = Batch()
        self._wake: anyio.Event | None = None
        self._closing = False
        self.failure: BaseException | None = None
        """Why nothing more is written, if something went wrong."""

        self.unsaved: list[E] = []
        """Outcomes that were to be written after that, or are lost with it."""

    def put_intent(self, intent: Intent) -> Batch[E]:
        """Have it written that an item is about to be asked."""
        self._batch.intents.append(intent)
        return self._put()

    def put_outcome(self, outcome: E) -> Batch[E]:
        """Have an outcome written. From here on it will be, whatever is cancelled."""
        self._batch.outcomes.append(outcome)
        return self._put()

    def _put(self) -> Batch[E]:
        batch = self._batch
        if self.failure is not None:
            self._give_up(batch)
        elif self._wake is not None:
            self._wake.set()
        return batch

    def _give_up(self, batch: Batch[E]) -> None:
        self.unsaved += batch.outcomes
        batch.ended.set()
        if batch is self._batch:
            self._batch = Batch()

    def close(self) -> None:
        """Let the writer end when all is written."""
        self._closing = True
        if self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        """Write until closed. A cancellation does not reach it: what is paid for is written."""
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - it ends when it is closed
            while self.failure is None and await self._something_to_write():
                await self._gather()
                batch, self._batch = self._batch, Batch()
                await self._write_batch(batch)

    async def _something_to_write(self) -> bool:
        while not (self._batch.intents or self._batch.outcomes):
            if self._closing:
                return False
            self._wake = anyio.Event()
            await self._wake.wait()
            self._wake = None
        return True

    async def _gather(self) -> None:
        batch, before, quiet = self._batch, 0, 0
        for _ in range(_GATHERINGS):
            size = len(batch.intents) + len(batch.outcomes)
            quiet = quiet + 1 if size == before else 0
            if quiet == _QUIET_GATHERINGS:
                break
            before = size
            await checkpoint()

    async def _write_batch(self, batch: Batch[E]) -> None:
        try:
            await self._write(batch.intents, batch.outcomes)
        except BaseException as error:  # noqa: ASYNC103 - no cancellation gets here: it is shielded
            self.failure = error
            self._give_up(batch)
            self._give_up(self._batch)
            if not isinstance(error, JournalError):
                raise
        else:
            batch.stored = True
            batch.ended.set()
