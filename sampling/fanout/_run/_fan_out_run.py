"""
The run of a fan-out.

One task reads items: it takes a slot, reads an item, and starts a task for it, with its own context and cancel scope.
A terminal event, a halt or an exception, ends the run early, and the one with the lowest index wins.
Then nothing more is started, items above that index are cancelled, and items below it finish, because one of them may
end the run at a still lower index. So the outcome equals that of a sequential run, in any order of completion.

With a journal, an item is sampled once its intent is on disk, and its outcome is handed out once that is on disk.
The slot is released when the outcome is queued for writing. The intent of the next item is in the same transaction or
in a later one, so the number of calls whose outcome could be lost never exceeds the number of slots.
"""

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint, current_token

from sampling._engine.scope import new_sampling_id, parent_id
from sampling._log import Logger
from sampling.errors import JournalError, JournalWriteFailed, Timeout
from sampling.fanout._announcer import Announcer
from sampling.fanout._arguments import FanOutArguments
from sampling.fanout._delivery import OutcomeBuffer
from sampling.fanout._run._ending import Ending, RunStatus
from sampling.fanout._run._outage import Outage, has_answer, is_cached, is_judged, transient_error
from sampling.fanout._run._slots import Slots
from sampling.fanout._run._spending import ItemAccount
from sampling.fanout._source import END, Source
from sampling.fanout.engines import LocalEngine, SampleItem, Work
from sampling.fanout.items import (
    HOW_TO_GO_ON,
    FanOutResult,
    Item,
    ItemOutcome,
    ItemStatus,
    StopReason,
    as_item,
    cut_off_by,
)
from sampling.fanout.journal._fingerprint import item_digest
from sampling.fanout.journal._journal import PendingOutcome, Session
from sampling.fanout.journal._pauses import Pause
from sampling.fanout.journal._store import Spent
from sampling.fanout.journal._writer import Batch
from sampling.usage import NO_USAGE, Usage

__all__ = ["FanOut"]

T = TypeVar("T")

log = Logger()

_MAX_ITEMS_PER_TURN = 128
"""
The number of items to start or replay before other tasks get a turn. Thousands would block the event loop.

Counted since the last turn of other tasks, not since the first item: a turn in the middle of items that start together
would spread them over more turns of the event loop, and each of those has a cost.
"""


class FanOut(Generic[T]):
    """
    A run in progress.

    It is an async context manager, and an async iterator of the outcomes.
    It starts when the block is entered. Leaving the block, in any way, cancels the items in flight.
    Every outcome that was paid for is in the journal by then.
    """

    def __init__(self, arguments: FanOutArguments) -> None:
        self._arguments = arguments
        self._source = Source(arguments.items)
        self._session = self._new_session(arguments)
        self._buffer = OutcomeBuffer(ordered=arguments.ordered)
        self._slots = Slots(arguments.max_concurrency, max_buffered=arguments.max_buffered)
        self._ending = Ending(arguments)
        self._outage = Outage(
            arguments.outage_grace_s, self._after_hold, self._has_one_item_left, self._record_pause, self._latest
        )
        self._announcer = Announcer(arguments)
        self._stack: AsyncExitStack | None = None
        self._entered = False
        self._tasks: TaskGroup
        self._sample: SampleItem
        self._running: dict[int, anyio.TaskHandle[None] | None] = {}
        """The items in flight, and their tasks. There is none yet for an item whose intent is being written."""

        self._ended = False
        """Whether the block was left. The writer may still be writing intents then."""

        self._over = anyio.Event()
        self._stopping = False
        self._draining = False
        """Whether nothing more is to be started, not even an item whose intent is being written."""

        self._admitting = True
        self._usage = NO_USAGE
        self._unrecorded = Spent()
        self._parent_id: str | None = None
        self.run_id: str = new_sampling_id()
        """The id of the run. A resumed run keeps the id in its journal."""

        self.status: RunStatus = "running"

    @staticmethod
    def _new_session(arguments: FanOutArguments) -> Session | None:
        if arguments.journal is None:
            return None
        return Session(
            arguments.journal,
            strategy=arguments.strategy,
            requirements=arguments.requirements,
            context=arguments.context,
            options=arguments.options,
            total=arguments.total,
            max_concurrency=arguments.max_concurrency,
            backend=arguments.backend,
            retry=arguments.retry,
        )

    # State.

    @property
    def halted_by(self) -> int | None:
        """The index of the item that halted the run."""
        return self._ending.halted_by

    @property
    def stop_reason(self) -> StopReason | None:
        """The limit of the budget that ended the run: "budget" or "deadline"."""
        return self._ending.stop_reason

    @property
    def usage(self) -> Usage:
        """The usage so far. It includes cancelled items, and the time before a resume."""
        return self._usage if self._session is None else self._session.state.spent.usage + self._usage

    @property
    def maybe_billed_twice(self) -> tuple[int, ...]:
        """
        Indexes of items that may have been billed twice.

        An earlier process started them and did not finish, so they were sampled again.
        """
        return () if self._session is None else tuple(sorted(self._session.sampled_again))

    def __repr__(self) -> str:
        read, in_flight = self._source.count, self._slots.alive
        return f"<FanOut {self.run_id}: {self.status}, {read:,} items read, {in_flight} in flight>"

    # Enter and exit.

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this fan-out was entered before: call open_fan_out again for another run")
        self._stack = AsyncExitStack()
        self._parent_id = parent_id()
        try:
            await self._begin(self._stack)
        except BaseException as error:
            await self._end_run(error)  # noqa: ASYNC102 - everything in it is shielded, or has a limit
            raise
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        # The stack unwinds in reverse: the items end, then the engine, then the writer, and then the file is closed.
        session, arguments = self._session, self._arguments
        if session is not None:
            await session.open(arguments.items, arguments.budget)
            self.run_id = session.state.run_id
            self._outage.answer_seen = session.state.answered
            stack.push_async_callback(self._close_journal, session)
            writers = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(session.stop_writer)
            session.call_after_batch(partial(self._after_batch, session=session))
            writers.start_soon(session.run_writer, name="sampling fan-out: journal")
        await self._announcer.emit_started(self.run_id, 0 if session is None else session.state.recorded)
        self._sample = await stack.enter_async_context(arguments.engine.open(self._work()))
        if session is not None:
            await session.check_notes()
        self._tasks = await stack.enter_async_context(anyio.create_task_group())
        self._entered = True
        self._tasks.start_soon(self._admit, name="sampling fan-out: items")

    def _work(self) -> Work:
        arguments = self._arguments
        return Work(
            run_id=self.run_id,
            strategy=arguments.strategy,
            context=arguments.context,
            backend=arguments.backend,
            requirements=arguments.requirements,
            options=arguments.options,
            budget=arguments.budget,
            hooks=arguments.call_hooks,
            max_concurrency=arguments.max_concurrency,
            max_requests=arguments.max_requests,
            notes=None if self._session is None else self._session.notes,
        )

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end_run(exc)  # noqa: ASYNC102 - everything in it is shielded, or cancelled and over soon
        failure = self._journal_failure()
        if failure is not None and exc is not None and exc is not failure:
            unsaved = 0 if self._session is None else len(self._session.unsaved)
            log.warning("journal_not_written", run_id=self.run_id, error_type=type(failure).__name__, unsaved=unsaved)
        unseen = self._ending.crash or (failure if exc is None else None)
        if unseen is not None and unseen is not self._ending.raised and unseen is not exc:
            raise unseen

    async def _end_run(self, error: BaseException | None) -> None:
        """Cancel the items in flight, and close all resources."""
        self._ended = True
        self._stop_admitting()
        if self._entered and not self._over.is_set():
            self._tasks.cancel_scope.cancel()
        self._ending.left_with = error
        if self._stack is not None:
            try:
                # Not `__aexit__` with the caller's exception: a task group would wrap it in an ExceptionGroup.
                await self._stack.aclose()
            except BaseExceptionGroup as group:
                raise _unwrap(group) from None
            except BaseException as failure:
                _cut_cycle(failure)
                raise
            finally:
                self.status = self._final_status()
                if self.maybe_billed_twice:
                    log.warning("maybe_billed_twice", run_id=self.run_id, items=len(self.maybe_billed_twice))
                await self._announcer.emit_finished(self.status, self.usage, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout

    def _final_status(self) -> RunStatus:
        return self._ending.status(self._journal_failure(), exhausted=self._source.exhausted)

    async def _close_journal(self, session: Session) -> None:
        ending = self._ending
        try:
            await session.close(
                self._final_status(),
                items=self._source.count if self._source.exhausted else None,
                reason=ending.reason(self._journal_failure()),
                unrecorded=self._unrecorded,
                budget=self._arguments.budget,
            )
        except JournalError as error:
            # Only the end is missing. It must not hide why the run ended, least of all a cancellation.
            if ending.left_with is None and ending.crash is None:
                raise
            log.warning("journal_end_not_written", run_id=self.run_id, error_type=type(error).__name__)

    # Control and results.

    def drain(self) -> None:
        """
        Start no more items.

        Those in flight finish and are handed out, and then the iteration ends.
        Items that wait for the end of an outage are cancelled, and stay open in the journal.
        """
        self._draining = True
        self._stop_admitting()
        self._cancel_held()

    def cancel(self) -> None:
        """
        Start no more items, and cancel those in flight.

        Outcomes of finished items are still handed out.
        """
        self._ending.cut_short |= bool(self._running)
        self._stop_admitting()
        self._cancel_above(-1)

    def __aiter__(self) -> AsyncIterator[ItemOutcome[T]]:
        if self._stack is None:
            raise RuntimeError("this fan-out has not begun: enter it with `async with open_fan_out(…) as outcomes`")
        return self

    async def __anext__(self) -> ItemOutcome[T]:
        buffer = self._buffer
        while (outcome := buffer.take()) is None:
            if self._over.is_set():
                self._raise_error()
                raise StopAsyncIteration
            await buffer.wait()
        self._slots.notify()
        return outcome

    async def collect(self) -> tuple[ItemOutcome[T], ...]:
        """Wait for all outcomes, and return them in order."""
        await self._over.wait()
        self._raise_error()
        return tuple(self._buffer.take_all())

    def result(self, outcomes: tuple[ItemOutcome[T], ...]) -> FanOutResult[T]:
        """Return the result of a run that has ended."""
        return FanOutResult(
            run_id=self.run_id,
            status="completed" if self.halted_by is None and self.stop_reason is None else "halted",
            stop_reason=self.stop_reason,
            outcomes=outcomes,
            halted_by=self.halted_by,
            usage=self.usage,
            maybe_billed_twice=self.maybe_billed_twice,
            hook_failures=self._announcer.failures,
        )

    def _raise_error(self) -> None:
        error = self._ending.error(self._journal_failure())
        if error is not None:
            self._ending.raised = error
            raise error

    def _journal_failure(self) -> BaseException | None:
        session = self._session
        if session is None or session.failure is None:
            return None
        if isinstance(session.failure, JournalWriteFailed):
            session.failure.unsaved = session.unsaved
        return session.failure

    # Reading items.

    async def _admit(self) -> None:
        """Read and start items until the run stops."""
        try:
            async with self._source.open():
                await self._admit_all()
            if not self._stopping and not self._source.exhausted:
                # The next item did not come in time.
                self._end_by_budget("deadline")
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are read
            if isinstance(error, Exception):
                self._end_at(self._source.count, error)
            else:
                self._end_with_crash(error)
        finally:
            self._admitting = False
            self._check_over()

    async def _admit_all(self) -> None:
        source, session, run_id = self._source, self._session, self.run_id
        # The clock of the budget starts with the first item.
        latest = math.inf
        in_turn = 0
        while not self._stopping:
            extra = 1 if self._outage.needs_another_item else 0
            has_room = self._slots.has_room(source.count - self._buffer.taken, extra=extra)
            if not has_room or (session is not None and session.has_enough_intents):
                await self._slots.wait_for_change()
                in_turn = 0
                continue
            given = await source.next(latest)
            if given is END:
                source.exhausted = not self._stopping
                break
            digest = 0 if session is None else item_digest(given, source.count)
            if session is None or session.is_new(source.count) or not await self._replay(given, digest, session):
                self._admit_item(as_item(given, source.count, run_id), digest)
                latest = self._latest()
            source.count += 1
            in_turn += 1
            if in_turn == _MAX_ITEMS_PER_TURN:
                await checkpoint()
                in_turn = 0
        if source.exhausted and session is not None:
            session.check_end(source.count)

    async def _replay(self, given: object, digest: int, session: Session) -> bool:
        """Hand out the recorded outcome of an item. Return False if there is none."""
        index = self._source.count
        slot = session.find(given, index, digest)
        if session.must_read(slot):
            await session.read(slot)
        outcome = session.recorded(given, index, digest, slot)
        if outcome is None:
            return False
        if self._decide(outcome, recorded=True):
            # Most runs have no hook on items, and a resume may replay a million of them.
            if self._announcer.has_item_hooks:
                await self._hand_out(outcome, recorded=True)
            else:
                self._buffer.put(outcome)
        return True

    def _admit_item(self, item: Item[T], digest: int) -> None:
        """Start an item. With a journal, it starts when its intent is on disk."""
        if self._session is None:
            self._start(item, digest)
        else:
            self._running[item.index] = None
            # In the context of now: the source may have set variables for this item.
            self._session.intend(item, digest, copy_context())
        # Last: if the above was interrupted, there is no task that gives the slot back, and the run would wait for it.
        self._slots.acquire()

    def _start(self, item: Item[T], digest: int) -> None:
        # The handle cancels this task alone, even before its first step.
        self._running[item.index] = self._tasks.start_soon(self._run_item, item, digest)

    def _start_intended(self, batch: Batch[PendingOutcome], session: Session) -> None:
        """Start the items whose intents were written, unless the run has ended meanwhile."""
        goes_on = batch.stored and not self._draining and not self._ended
        self._slots.notify()
        for item, digest, context in batch.intents:
            if goes_on and item.index < self._ending.cancelled_from:
                context.run(self._start, item, digest)
                continue
            del self._running[item.index]
            self._slots.release()
            self._slots.alive -= 1
            if batch.stored:
                self._skip(item)
            else:
                session.forget(item)

    def _skip(self, item: Item[T]) -> None:
        """Leave an item open for which nothing was sent."""
        self._ending.cut_short |= item.index < self._ending.cancelled_from
        if self._session is not None:
            self._session.withdraw(item)

    def _stop_admitting(self) -> None:
        self._stopping = True
        self._source.stop()
        self._slots.notify()

    # Running one item.

    async def _run_item(self, item: Item[T], digest: int) -> None:
        """
        Sample one item in its own task.

        Only a cancellation of the whole run is raised.
        """
        account = ItemAccount(item.item_id, self._parent_id)
        outcome: ItemOutcome[T] | None = None
        is_queued = False
        try:
            try:
                # The run may have ended since this task was started.
                if self._ended or item.index >= self._ending.cancelled_from:
                    self._skip(item)
                else:
                    outcome = await self._sample_item(item, account)
                    if outcome is not None and not self._decide(outcome):
                        outcome = None
            finally:
                # No longer cancellable by index from here on: an outcome that was paid for is kept.
                del self._running[item.index]
                self._slots.release()
                batch = self._settle(item, digest, outcome, account)
                is_queued = batch is not None and not self._announcer.has_item_hooks
                self._slots.notify()
            if not is_queued and outcome is not None and (batch is None or await batch.on_disk()):
                await self._hand_out(outcome, recorded=False)
        except anyio.get_cancelled_exc_class():
            self._ending.cut_short |= item.index < self._ending.cancelled_from
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are read
            self._end_with_crash(error)
        finally:
            self._end_item(is_queued=is_queued)

    def _end_item(self, *, is_queued: bool) -> None:
        """End the task of an item. The writer hands out its queued outcome."""
        if not is_queued:
            self._slots.alive -= 1
        if not self._slots.alive:
            self._check_over()

    def _after_batch(self, batch: Batch[PendingOutcome], session: Session) -> None:
        """
        Start the items of a batch that is on disk, and hand out its outcomes.

        No task has to wait for that itself, which would cost as much as writing the outcome.
        """
        if not self._announcer.has_item_hooks:
            for entry in batch.outcomes:
                self._slots.alive -= 1
                if batch.stored:
                    self._buffer.put(entry.outcome)
        self._start_intended(batch, session)
        if not batch.stored:
            # Outcomes can't be saved any more, so no item waits for the end of an outage.
            self.drain()
        self._check_over()

    async def _sample_item(self, item: Item[T], account: ItemAccount) -> ItemOutcome[T] | None:
        """Sample an item, and again after an outage. Return None if the budget is spent before that."""
        outage, timeout_s, first_failed_at = self._outage, self._arguments.item_timeout_s, math.inf
        while True:
            started_at = anyio.current_time()
            outcome: ItemOutcome[T] | None = None
            if timeout_s is None:
                outcome = await self._call(item, account)
            else:
                with anyio.move_on_after(timeout_s):
                    outcome = await self._call(item, account)
            if outcome is None:
                return _timed_out(item, account, timeout_s)
            if transient_error(outcome) is None:
                if has_answer(outcome):
                    outage.answered(started_at, judged=is_judged(outcome), cached=is_cached(outcome))
                return outcome
            failed_at = anyio.current_time()
            if not await outage.wait(outcome, started_at, first_failed_at):
                return outcome
            first_failed_at = min(first_failed_at, failed_at)
            account.start_another_call(outcome.result)
            if self._ending.stop_reason == "budget":
                return None

    def _after_hold(self) -> None:
        """Make room for another item, or cancel the held ones if the run is to end."""
        self._slots.notify()
        if self._draining:
            self._cancel_held()

    def _cancel_held(self) -> None:
        """Cancel the items that wait for the end of an outage. They stay open in the journal."""
        for index in self._outage.held:
            self._ending.cut_short = True
            cast("anyio.TaskHandle[None]", self._running[index]).cancel()

    def _record_pause(self, pause: Pause) -> None:
        if self._session is not None:
            self._session.record_pause(pause)

    def _latest(self) -> float:
        """Return the time at which the budget ends the run, on the clock of the event loop."""
        if self._ending.stop_reason == "budget":
            return -math.inf
        budget = self._arguments.budget
        return math.inf if budget is None else budget.deadline(current_token(), anyio.current_time())

    def _has_one_item_left(self) -> bool:
        return not self._admitting and len(self._running) == 1

    async def _call(self, item: Item[T], account: ItemAccount) -> ItemOutcome[T]:
        try:
            result = await self._sample(item)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - it is the item's outcome
            return _errored(item, error, account)
        spent = account.spent(result)
        counts = (spent.attempts, spent.requests)
        status: ItemStatus = "succeeded" if result.success else "failed"
        return ItemOutcome(item.index, item.key, status, result, usage=spent.usage, counts=counts)

    def _decide(self, outcome: ItemOutcome[T], *, recorded: bool = False) -> bool:
        """
        End the run if this outcome ends it.

        Return False if its error is raised instead of handed out.
        """
        ending = self._ending
        # Such an item is never recorded, and reading the results of recorded ones would be most of a resume.
        limit = None if recorded else self._cut_off_by(outcome)
        if limit is not None:
            # Not the item's own failure, whatever `on_failure` and `on_error` say.
            self._end_by_budget(limit)
            return True
        is_outcome = ending.is_outcome(outcome)
        if ending.ends_run(outcome):
            self._end_at(outcome.index, None if is_outcome else outcome.error)
        return is_outcome

    def _cut_off_by(self, outcome: ItemOutcome[T]) -> StopReason | None:
        """Return the limit of the run's budget that cut an item off. A resume samples such an item again."""
        return None if self._arguments.budget is None else cut_off_by(outcome)

    def _end_by_budget(self, limit: StopReason) -> None:
        """Start no more items: the budget has no room for them. Those in flight finish."""
        if self._ending.stop_reason is None:
            self._ending.stop_reason = limit
            log.warning("fan_out_stopped", run_id=self.run_id, reason=self._ending.stop_reason, hint=HOW_TO_GO_ON)
            # Items that wait for the end of an outage would only find out one by one, after hours.
            self._outage.wake()
        self._stop_admitting()

    def _settle(
        self, item: Item[T], digest: int, outcome: ItemOutcome[T] | None, account: ItemAccount
    ) -> Batch[PendingOutcome] | None:
        """
        Count the usage of an item, and queue its outcome.

        Return the batch to wait for before the outcome is handed out, or None if nothing is written.
        """
        result = None if outcome is None else outcome.result
        spent = account.spent(result)
        if spent.usage is not NO_USAGE:
            self._usage += spent.usage
        if self._session is None:
            return None
        if outcome is None or self._cut_off_by(outcome) is not None:
            if account.left_to_resume:
                return None
            self._unrecorded = self._unrecorded.plus(spent)
            # Other engines don't know the requests of an item that was cancelled.
            is_known = outcome is not None or isinstance(self._arguments.engine, LocalEngine)
            if is_known and not spent.requests:
                self._session.withdraw(item)
            return None
        elapsed_s = account.elapsed_s if result is None else None
        return self._session.record(PendingOutcome(item, digest, outcome, spent, elapsed_s))

    async def _hand_out(self, outcome: ItemOutcome[T], *, recorded: bool) -> None:
        if self._announcer.has_item_hooks:
            try:
                await self._announcer.emit_item_finished(outcome, recorded=recorded)
            except Exception as veto:  # noqa: BLE001 - of a critical hook: it ends the run as if the item had raised it
                self._end_at(outcome.index, veto)
                return
        self._buffer.put(outcome)

    # Ending.

    def _end_at(self, index: int, error: BaseException | None) -> None:
        """End the run at this item, unless an earlier one does."""
        if self._ending.end_at(index, error):
            self._buffer.last = index
            self._stop_admitting()
            self._cancel_above(index)

    def _cancel_above(self, index: int) -> None:
        # A task that has not had its first step would start before the cancellation reaches it, so it checks this.
        self._ending.cancelled_from = min(self._ending.cancelled_from, index + 1)
        for other, handle in self._running.items():
            if other > index and handle is not None:
                handle.cancel()

    def _check_over(self) -> None:
        if not self._admitting and not self._slots.alive:
            self._over.set()
            self._buffer.close()

    def _end_with_crash(self, error: BaseException) -> None:
        """End the run at once, after an interrupt or MemoryError."""
        self._ending.end_with_crash(error)
        self.cancel()


def _timed_out(item: Item[Any], account: ItemAccount, timeout_s: float | None) -> ItemOutcome[Any]:
    error = Timeout(
        f"item {item.key} had no result after {timeout_s:g} s",
        hint="Raise item_timeout_s, or lower the strategy's budgets.",
    )
    return _errored(item, error, account)


def _errored(item: Item[Any], error: Exception, account: ItemAccount) -> ItemOutcome[Any]:
    spent = account.spent(None)
    counts = (spent.attempts, spent.requests)
    return ItemOutcome(item.index, item.key, "errored", None, error, usage=spent.usage, counts=counts)


def _cut_cycle(error: BaseException) -> None:
    """
    End the chain of contexts of an error before it repeats.

    An exit stack makes an error that two of its task groups raise the context of itself, and anyio follows the contexts
    of a cancellation to their end.
    """
    seen = {id(error)}
    while (context := error.__context__) is not None:
        if id(context) in seen:
            error.__context__ = None
            return
        seen.add(id(context))
        error = context


def _unwrap(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first interrupt, else the first error."""
    first = (group.split(Exception)[1] or group).exceptions[0]
    return _unwrap(cast("BaseExceptionGroup[BaseException]", first)) if isinstance(first, BaseExceptionGroup) else first
