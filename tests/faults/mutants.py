"""
Four engines with a bug that this kind of engine invites, each planted in the real one by overriding a part of it.

A harness that does not find them proves nothing.
"""

import anyio
from anyio.lowlevel import checkpoint

from sampling.choice import is_enough
from sampling.engine import Run


class RacyDone(Run):
    """Completion is signalled beside the queue: what is still in the queue at that moment is lost."""

    async def _run_subsamples(self):
        self._send, receive = anyio.create_memory_object_stream(100)
        self._all_done = anyio.Event()
        self._running = self._concurrency_budget
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._consume, receive)
            for subsample in range(self._concurrency_budget):
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
    """A producer's error escapes into the task group, and cancels a sibling that was about to win."""

    def _record_error(self, state, error):
        record = super()._record_error(state, error)
        self._escaped = error
        return record

    async def _conclude(self, record):
        await super()._conclude(record)
        if record.outcome == "errored" and self._scope is not None:
            self._scope.cancel()


class DoubleWinner(Run):
    """Check, then act, on the winner, with an await between: two can pass the check."""

    async def _conclude(self, record):
        self._queue.put(record)
        if isinstance(record.error, Exception):
            self._errors.append((record.iteration_id, record.error))
        if not self._stopped and record.outcome in {"valid", "invalid"}:
            enough = is_enough(self._call.strategy, [record])
            await self._announce_end_of(record)
            if enough:
                self._enough = True
                self._stop()
        else:
            await self._announce_end_of(record)

    async def _announce_end_of(self, record):
        from sampling import IterationFinished

        await checkpoint()
        await self._announce(IterationFinished(**self._ids(record), slice=record))


class LostSlice(Run):
    """An awaited send on a full stream dies with its scope, and a paid-for slice is gone."""

    async def _run_subsamples(self):
        self._send, receive = anyio.create_memory_object_stream(0)
        async with self._send, receive, anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._consume, receive)
            async with anyio.create_task_group() as producers:
                for subsample in range(self._concurrency_budget):
                    producers.start_soon(self._subsample, subsample)
            group.cancel_scope.cancel()

    async def _consume(self, receive):
        async for record in receive:
            self._put(record)
            await checkpoint()

    async def _conclude(self, record):
        from sampling import IterationFinished

        await self._announce(IterationFinished(**self._ids(record), slice=record))
        if record.outcome == "cancelled":
            self._put(record)
        else:
            await self._send.send(record)


MUTANTS = [RacyDone, FailFast, DoubleWinner, LostSlice]
