"""
Engines and budgets with a planted defect, made by overriding a part of the real ones.

The bugs are typical of such engines. A harness that does not find them proves nothing.
"""

import anyio
from anyio.lowlevel import checkpoint

import sampling.strategy
from sampling._engine import decisions
from sampling._engine.decisions import Ends, is_done
from sampling._engine.records import OrderedQueue
from sampling._engine.run import Run
from sampling._engine.tracking import Tracker
from sampling.budgets import Budget, Reservation
from tests.faults.scenarios import (
    budget_that_is_only_reserved,
    deterministic,
    errors_about_requests,
    errors_and_answers,
    hostile_cleanups,
    plain_race,
    same_outcome_in_any_timing,
)


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


class LoserUndoesWinner(Run):
    """An error in the cleanup of a loser ends the call, although there is a winner."""

    def _end_by(self, error, attempt):
        if self._done:
            self._end_with(error)
        super()._end_by(error, attempt)


class QuietCancellation(Run):
    """A cancellation that nobody requested counts as a cancelled attempt, and its subsample ends quietly."""

    def _record_exception(self, attempt, error):
        if isinstance(error, self.call.cancelled):
            return attempt.record("cancelled")
        return super()._record_exception(attempt, error)


class LostCancellation(Run):
    """The caller's cancellation is lost when a cleanup raises: the call goes on."""

    async def _make_attempts(self):
        with anyio.CancelScope(shield=True):
            await super()._make_attempts()


class NoRecordOfLosers(Run):
    """A cancelled attempt leaves no record."""

    def _put(self, record):
        if record.outcome != "cancelled":
            super()._put(record)


class FinishedTwice(Run):
    """The end of an attempt is announced twice."""

    async def _announce_record(self, record):
        await super()._announce_record(record)
        await super()._announce_record(record)


class RefusalEndsTheCall(Run):
    """A refused request ends the call, although siblings send others."""

    def _all_send(self, request):
        return True


class FatalAtOnce(Run):
    """A fatal error ends a deterministic call before those that rank before it have ended."""

    def _end_by(self, error, attempt):
        if decisions.ended_by(error) >= Ends.CALL:
            self._end_in_failure(error)
        super()._end_by(error, attempt)


class RetriesUnknownErrors(Run):
    """An error of an unknown type is retried."""

    def _next_plan(self, record, plan, history):
        return plan if record.outcome == "errored" else super()._next_plan(record, plan, history)


def engine(mutant):
    """Return a patch that replaces the engine."""
    return lambda patch: patch.setattr(sampling.strategy, "Run", mutant)


def refuses_what_is_reserved(patch):
    """A budget refuses requests because of reservations that would have been released."""

    async def acquire(self, *, holding=(), **wanted):
        return self.reserve(**wanted)

    patch.setattr(Budget, "acquire", acquire)


def never_wakes(patch):
    """A budget does not serve those who wait when a request is settled."""
    serve = Budget._serve
    patch.setattr(Budget, "_serve", lambda self: serve(self) if not self._spent.tokens else None)


def waits_for_itself(patch):
    """A call inside an attempt waits for the reservation of that attempt."""
    patch.setattr(Budget, "_is_stuck", lambda self: False)
    patch.setattr(Budget, "_held_by", lambda self, waiter: Reservation(0, 0, 0, 0.0))


def keeps_what_was_granted(patch):
    """A cancelled request keeps its reservation."""
    patch.setattr(Budget, "_unreserve", keep_some(Budget._unreserve))


def keep_some(unreserve):
    def mutated(self, reservation):
        if reservation.tokens < 30:
            unreserve(self, reservation)

    return mutated


def counts_what_came_early(patch):
    """A deterministic call chooses among all answers that are there, not among those that were decided on."""
    patch.setattr(OrderedQueue, "candidates", lambda self, *, decided: sorted(self.slices, key=lambda s: s.finished_s))


def spends_in_any_order(patch):
    """The attempts of a deterministic call spend a budget in the order in which they happen to run."""
    patch.setattr(Tracker, "in_turn", property(lambda self: False, lambda self, value: None))


MUTANTS = {
    "racy done": (engine(RacyDone), errors_and_answers),
    "fail fast": (engine(FailFast), errors_and_answers),
    "double winner": (engine(DoubleWinner), errors_and_answers),
    "lost slice": (engine(LostSlice), errors_and_answers),
    "loser undoes winner": (engine(LoserUndoesWinner), hostile_cleanups),
    "quiet cancellation": (engine(QuietCancellation), hostile_cleanups),
    "lost cancellation": (engine(LostCancellation), hostile_cleanups),
    "no record of losers": (engine(NoRecordOfLosers), plain_race),
    "finished twice": (engine(FinishedTwice), plain_race),
    "refusal ends the call": (engine(RefusalEndsTheCall), errors_about_requests),
    "fatal at once": (engine(FatalAtOnce), same_outcome_in_any_timing),
    "retries unknown errors": (engine(RetriesUnknownErrors), deterministic),
    "refuses what is reserved": (refuses_what_is_reserved, budget_that_is_only_reserved),
    "never wakes": (never_wakes, budget_that_is_only_reserved),
    "waits for itself": (waits_for_itself, budget_that_is_only_reserved),
    "keeps what was granted": (keeps_what_was_granted, budget_that_is_only_reserved),
    "counts what came early": (counts_what_came_early, same_outcome_in_any_timing),
    "spends in any order": (spends_in_any_order, same_outcome_in_any_timing),
}
"""Each defect as a patch, with the scenario that finds it."""
