"""
Four engines with a planted race, made by overriding a part of the real one.

The bugs are typical of such engines. A harness that does not find them proves nothing.
"""

import anyio
from anyio.lowlevel import checkpoint

from sampling._engine.decisions import is_done
from sampling._engine.run import Run


class RacyDone(Run):
    """Completion bypasses the queue: records that are still in the queue are lost."""

    async def _make_attempts(self):
        self._send, receive = anyio.create_memory_object_stream(100)
        self._all_done = anyio.Event()
        self._running = self.call.concurrency_budget
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._consume, receive)
            for subsample in range(self.call.concurrency_budget):
                group.start_soon(self._subsample, subsample)
            await self._all_done.wait()
            group.cancel_scope.cancel()
        self._send.close()
        receive.close()

    async def _subsample(self, subsample):
        await super()._subsample(subsample)
        self._running -= 1
        if not self._running:
            self._all_done.set()

    async def _consume(self, receive):
        async for record in receive:
            super()._put(record)

    def _put(self, record):
        self._send.send_nowait(record)


class FailFast(Run):
    """The error of a producer reaches the task group and cancels a sibling that is about to win."""

    async def _announce_record(self, record):
        await super()._announce_record(record)
        if record.outcome == "errored":
            self._scope.cancel()


class DoubleWinner(Run):
    """The winner is checked and set with an await between: two can pass the check."""

    def _put(self, record):
        self.queue.put(record)
        if isinstance(record.error, Exception):
            self.errors.append((record.iteration_id, record.error))

    async def _announce_record(self, record):
        done = not self._stopped and record.valid and is_done(self.call.strategy, [record])
        await checkpoint()
        await super()._announce_record(record)
        if done:
            self._finish()


class LostSlice(Run):
    """An awaited send on a full stream is cancelled with its scope: a paid-for slice is lost."""

    async def _make_attempts(self):
        self._send, receive = anyio.create_memory_object_stream(0)
        async with self._send, receive, anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._consume, receive)
            async with anyio.create_task_group() as producers:
                for subsample in range(self.call.concurrency_budget):
                    producers.start_soon(self._subsample, subsample)
            group.cancel_scope.cancel()

    async def _consume(self, receive):
        async for record in receive:
            super()._put(record)
            await checkpoint()

    def _put(self, record):
        if record.outcome == "cancelled":
            super()._put(record)

    async def _announce_record(self, record):
        await super()._announce_record(record)
        if record.outcome != "cancelled":
            await self._send.send(record)


MUTANTS = [RacyDone, FailFast, DoubleWinner, LostSlice]
