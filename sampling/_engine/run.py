"""
The engine: run the subsamples of one call, collect their records, and choose the answer.

A call is a task group of subsamples. Each subsample makes one attempt after the other and puts a record of each into
the result queue without awaiting. In the same step, the strategy decides whether the call is done.
So an answer is counted as soon as it is known, and a second winner cannot come in between.
Failures are records, too: only a cancellation leaves a subsample as an exception.
"""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from sampling._engine import decisions
from sampling._engine.attempt import RunningAttempt, prepare
from sampling._engine.call import Call
from sampling._engine.records import OrderedQueue, Prefix, ResultQueue
from sampling._engine.scope import Scope, enter_attempt, enter_call, leave_attempts, leave_call
from sampling._engine.tracking import Tracker
from sampling._engine.validation import CutShort
from sampling.errors import BadVerdict, BudgetExceeded, FatalError, SamplingError, SelectionFailed
from sampling.hooks import (
    CriticalHookError,
    Event,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Repaired,
)
from sampling.messages import Attempt, Request
from sampling.results import HookFailure, SamplingResult, Slice, StopReason, first_tried
from sampling.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from sampling._engine.stages import Stages

__all__ = ["Run"]

T = TypeVar("T")

log = structlog.get_logger("sampling")


class Run(Generic[T]):
    """One call while it runs. All state of the call that changes is here."""

    _scope: anyio.CancelScope | None = None
    """Cancels all subsamples. A single subsample without a deadline has none."""

    _tracker: Tracker[T] | None = None
    """The state of every subsample, if the strategy or a deterministic call needs it."""

    _stopped = False
    """Whether no new attempt may start."""

    _done = False
    """Whether the strategy decided that the call is done."""

    _exhausted = False
    """Whether a subsample used its whole loop budget."""

    _subsamples_ended = 0

    _abort: BaseException | None = None
    """Ends the call with an exception, whatever answers there are: from a critical hook, or a crash."""

    fatal: Exception | None = None
    """Ends the call, but does not undo an answer that is there already."""

    failure: Exception | None = None
    """The exception that the call raises because no attempt came to an answer."""

    budget_detail: str | None = None
    """The message of the budget when it had no room."""

    stop_reason: StopReason | None = None
    """The stop reason of the last stage, if the call has stages."""

    def __init__(self, call: Call[T], stages: "Stages[T] | None" = None) -> None:
        self.call: Call[T] = call
        self._stages = stages
        self._emitter = call.emitter
        self.queue: ResultQueue[T] = self._new_queue()
        self.errors: list[tuple[str, Exception]] = []
        """The errors of attempts and repairs, with their iteration ids."""

        self.nested_hook_failures: list[HookFailure] = []
        self.max_attempts: int = call.loop_budget * call.concurrency_budget
        self._subsamples_due = call.concurrency_budget

    def _new_queue(self) -> ResultQueue[T]:
        """Return an empty queue of the kind that the call needs, and have it tracked if need be."""
        call = self.call
        if self._stages is not None or not (call.deterministic or call.overridden & decisions.TRACKED):
            return ResultQueue()
        queue = OrderedQueue[T](call.concurrency_budget) if call.deterministic else ResultQueue[T]()
        self._tracker = Tracker(call, queue)
        return queue

    # The call: LoopStarted, the subsamples, the choice, LoopFinished.

    async def run(self) -> SamplingResult[T]:
        """Run the call to its end."""
        call = self.call
        scope = Scope(call.sampling_id, call.parent_id)
        entered = enter_call(scope)
        try:
            if not self._emitter.silent:
                await self._announce_start()
            try:
                await (self._make_attempts() if self._stages is None else self._stages.run(self))
            finally:
                leave_attempts(scope, entered)
                if "learn" in call.overridden:
                    call.strategy.learn(Prefix(self.queue.records))
            result = self._choose() if self._stages is None else self._stages.choose(self)
        except BaseException as error:
            if not self._emitter.silent:
                await self._announce_end(None, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            raise
        else:
            return result if self._emitter.silent else await self._announce_end(result, None)
        finally:
            leave_call(entered)

    async def _announce_start(self) -> None:
        call = self.call
        event = LoopStarted(
            sampling_id=call.sampling_id,
            parent_id=call.parent_id,
            strategy=type(call.strategy).__name__,
            action=call.first.action,
            context=call.first.context,
            requirements=call.requirements,
            loop_budget=call.loop_budget,
            concurrency_budget=call.concurrency_budget,
        )
        try:
            event = await self._emitter.emit(event)
        except CriticalHookError as veto:
            raise veto.error from None
        await checkpoint_if_cancelled()
        self.call = attrs.evolve(call, loop_budget=event.loop_budget, concurrency_budget=event.concurrency_budget)
        self._subsamples_due = event.concurrency_budget
        self.max_attempts = event.loop_budget * event.concurrency_budget
        self.queue = self._new_queue()

    @overload
    async def _announce_end(self, result: SamplingResult[T], error: None) -> SamplingResult[T]: ...
    @overload
    async def _announce_end(self, result: None, error: BaseException) -> None: ...
    async def _announce_end(
        self, result: SamplingResult[T] | None, error: BaseException | None
    ) -> SamplingResult[T] | None:
        """Announce the end of the call, and return the result with all failures of hooks."""
        event = LoopFinished(
            sampling_id=self.call.sampling_id,
            parent_id=self.call.parent_id,
            success=result is not None and result.success,
            iterations=len(self.queue.slices),
            attempts=len(self.queue.records),
            usage=self._usage(),
            elapsed_s=self.call.elapsed_s(),
            stop_reason=None if result is None else result.stop_reason,
            result=result,
            error=error,
        )
        try:
            await self._emitter.emit(event)
        except CriticalHookError as veto:
            if error is None:
                raise veto.error from None
            error.add_note(f"a critical hook on LoopFinished failed too: {veto.error!r}")
        return None if result is None else attrs.evolve(result, hook_failures=self.hook_failures)

    async def _make_attempts(self) -> None:
        """Run the subsamples until they have ended or the call is done."""
        budget = self.call.budget
        deadline = math.inf if budget is None else budget.deadline(current_token(), anyio.current_time())
        if self.call.concurrency_budget > 1:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                self._scope.deadline = deadline
                await self._start_subsamples(group)
            # Tasks swallow their cancellation. If it was the caller's, it is raised here.
            await checkpoint_if_cancelled()
        elif deadline < math.inf:
            with anyio.CancelScope(deadline=deadline) as self._scope:
                await self._subsample(0)
        else:
            # A task group, or even a scope, costs more than the attempt itself, and one subsample needs neither.
            await self._subsample(0)
        if self._abort is not None:
            raise self._abort

    async def _start_subsamples(self, group: TaskGroup) -> None:
        if self._tracker is not None and "next_subsample_in_s" in self.call.overridden:
            await self._start_late(group, self._tracker)
            return
        for subsample in range(1, self.call.concurrency_budget):
            self._start_task(group, subsample)
        # The first one needs no task of its own.
        await self._subsample(0)

    async def _start_late(self, group: TaskGroup, tracker: Tracker[T]) -> None:
        """Start each subsample when the strategy says so."""
        started = tracker.started = 0
        while started < self.call.concurrency_budget and not self._stopped:
            # Whatever happens while it waits, the strategy decides again.
            tracker.changed = anyio.Event()
            wait_s = self._wait_for_next_s(tracker) if started else 0.0
            if wait_s <= 0:
                tracker.start_subsample(started)
                self._start_task(group, started)
                started += 1
            elif wait_s == math.inf and len(tracker.ended) == started:
                break
            else:
                with anyio.move_on_after(wait_s):
                    await tracker.changed.wait()
        self._subsamples_due = started
        tracker.close_from(started)
        self._decide()

    def _wait_for_next_s(self, tracker: Tracker[T]) -> float:
        try:
            return decisions.wait_for_next_s(self.call.strategy, tracker.progress(self.queue.seen()))
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return math.inf

    def _start_task(self, group: TaskGroup, subsample: int) -> None:
        group.create_task(self._subsample_in_task(subsample), name=f"subsample {subsample}")

    async def _subsample_in_task(self, subsample: int) -> None:
        """Run a subsample in a task of its own, and end quietly if it is cancelled."""
        try:
            await self._subsample(subsample)
        except self.call.cancelled:  # noqa: ASYNC103 - see `_make_attempts`
            # An exception that ends a task of asyncio is part of a reference cycle, which would keep the whole call
            # in memory until the garbage collector finds it.
            return

    def _stop(self) -> None:
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    def _end_with(self, error: BaseException) -> None:
        if self._abort is None:
            self._abort = error
        self._stop()

    # One subsample: attempt after attempt, with repairs between them.

    async def _subsample(self, subsample: int) -> None:
        try:
            if self._tracker is None:
                await self._run_subsample(subsample)
            else:
                await self._run_tracked(subsample, self._tracker)
            self._subsamples_ended += 1
        except self.call.cancelled:
            raise
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again, bare, when the siblings have stopped
            self._end_with(error)

    async def _run_tracked(self, subsample: int, tracker: Tracker[T]) -> None:
        if self.call.deterministic:
            with tracker.scope_of(subsample):
                await self._run_subsample(subsample)
        else:
            await self._run_subsample(subsample)
        tracker.end_subsample(subsample)
        if self.call.deterministic:
            self._decide()
        self._decide_again(tracker)

    async def _run_subsample(self, subsample: int) -> None:
        """Make the attempts of one subsample."""
        call = self.call
        history: list[Slice[T]] = []
        plan, vary = call.first, call.vary
        for number in range(call.loop_budget):
            tried = plan if vary is None else decisions.vary(vary, plan, subsample, number)
            attempt = self._prepare(tried, subsample, number)
            if attempt is None:
                return
            enter_attempt(attempt.scope, attempt.request.iteration_id)
            record = await self._attempt(attempt)
            next_plan = self._next_plan(record, plan, history)
            if next_plan is None:
                return
            if not self._emitter.silent:
                await self._announce_repair(record, next_plan)
            plan = next_plan
        self._exhausted = True

    def _prepare(self, plan: Attempt[T], subsample: int, number: int) -> RunningAttempt[T] | None:
        """Prepare an attempt, or return None if the call is over or the budget has no room."""
        if self._stopped or (self._tracker is not None and not self._tracker.start_attempt(subsample, number)):
            return None
        try:
            return prepare(self.call, plan, subsample, number)
        except BudgetExceeded as error:
            self.budget_detail = str(error)
            return None

    def _next_plan(self, record: Slice[T], plan: Attempt[T], history: list[Slice[T]]) -> Attempt[T] | None:
        """Return what to try after this record, or None if the subsample is over."""
        if record.outcome == "invalid":
            history.append(record)
            return self._repair(history) if record.attempt + 1 < self.call.loop_budget else plan
        return plan if _may_retry(record) else None

    def _repair(self, history: list[Slice[T]]) -> Attempt[T] | None:
        if self._stopped:
            return None
        call = self.call
        try:
            if call.should_continue is not None and not call.should_continue(Prefix(history)):
                return None
            if call.repair is None:
                return first_tried(history)
            return decisions.repair(call.repair, Prefix(history), call.max_context_chars)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - repair() is the user's code; it ends its own subsample only
            error.add_note("raised by the strategy's repair() or should_continue()")
            self.errors.append((history[-1].iteration_id, error))
            return None

    async def _announce_repair(self, failed: Slice[T], plan: Attempt[T]) -> None:
        if failed.outcome == "invalid" and failed.attempt + 1 < self.call.loop_budget:
            await self._announce(Repaired(**self._ids(failed), failed=failed, next=plan))
            await checkpoint_if_cancelled()

    # One attempt, with its events around it.

    async def _attempt(self, attempt: RunningAttempt[T]) -> Slice[T]:
        """Make one attempt, and put its record into the queue however it ends."""
        try:
            if not self._emitter.silent:
                await self._emitter.emit(self._started(attempt))
                await checkpoint_if_cancelled()
            record = await attempt.run()
        except self.call.cancelled:
            record = attempt.record("cancelled")
            self._put(record)
            if not self._emitter.silent:
                await self._announce_record(record)  # noqa: ASYNC120 - every hook is shielded, and has a timeout
            raise
        except BaseException as error:  # noqa: BLE001, ASYNC103 - what a backend raises must not end its siblings
            record = self._record_error(attempt, error)
        self._put(record)
        if not self._emitter.silent:
            await self._announce_record(record)
        return record

    async def _announce_record(self, record: Slice[T]) -> None:
        await self._announce(IterationFinished(**self._ids(record), slice=record))

    async def _announce(self, event: Event) -> None:
        try:
            await self._emitter.emit(event)
        except CriticalHookError as veto:
            self._end_with(veto.error)

    def _started(self, attempt: RunningAttempt[T]) -> IterationStarted:
        plan, request = attempt.plan, attempt.request
        return IterationStarted(**self._ids(request), action=plan.action, context=plan.context, options=request.options)

    def _ids(self, source: Request | Slice[T]) -> dict[str, Any]:
        return {
            "sampling_id": self.call.sampling_id,
            "parent_id": self.call.parent_id,
            "iteration": source.iteration,
            "iteration_id": source.iteration_id,
            "subsample": source.subsample,
            "attempt": source.attempt,
        }

    def _record_error(self, attempt: RunningAttempt[T], error: BaseException) -> Slice[T]:
        """Make a record of an exception, and stop the call if no attempt could do better."""
        if isinstance(error, CutShort):
            return attempt.record_cut(error, self.queue.longest_answer())
        if isinstance(error, CriticalHookError):
            error = error.error
            self._end_with(error)
        elif isinstance(error, MemoryError | RecursionError) or not isinstance(error, Exception):
            self._end_with(error)
        elif isinstance(error, FatalError | BadVerdict):
            if self.fatal is None:
                self.fatal = error
            self._stop()
        return attempt.record("errored", error=error)

    # The decision: is the call done, and which slice is the answer?

    def _put(self, record: Slice[T]) -> None:
        """Put a record into the queue, and decide in the same step whether the call is done."""
        self.queue.put(record)
        if isinstance(record.error, Exception):
            self.errors.append((record.iteration_id, record.error))
            self._note_budget(record)
        if self._tracker is not None:
            if record.outcome != "cancelled":
                self._decide_tracked(record, self._tracker)
        elif self.call.done is not None:
            self._decide()
        elif record.outcome == "valid":
            self._finish()

    def _note_budget(self, record: Slice[T]) -> None:
        """Note that the budget had no room for a layer or a judge that wanted to send one more request."""
        for error in (record.error, *[validation.error for validation in record.validations]):
            if isinstance(error, BudgetExceeded):
                self.budget_detail = str(error)

    def _decide(self) -> None:
        """Ask the strategy about each slice that it has not seen."""
        for slices in self.queue.newly_ready():
            if not self._stopped and self._is_done(slices):
                self._finish()

    def _decide_tracked(self, record: Slice[T], tracker: Tracker[T]) -> None:
        self._decide()
        if record.outcome == "errored":
            self._decide_again(tracker)
        if tracker.ordered is not None and self.call.done is None and not self._stopped:
            known = tracker.ordered.known_up_to(record)
            if known and self._is_done(known):
                tracker.cancel_after(record)
        tracker.wake()

    def _decide_again(self, tracker: Tracker[T]) -> None:
        """Ask again when no slice was added but fewer can follow: that alone may settle the outcome."""
        slices = self.queue.seen()
        if "settled" in self.call.overridden and slices and not self._stopped and self._is_done(slices):
            self._finish()
        tracker.wake()

    def _finish(self) -> None:
        self._done = True
        self._stop()

    def _is_done(self, slices: Sequence[Slice[T]]) -> bool:
        call = self.call
        try:
            if self._tracker is not None and "settled" in call.overridden:
                return decisions.is_settled(call.strategy, self._tracker.progress(slices))
            return decisions.is_done(call.strategy, slices)
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return False

    def _choose(self) -> SamplingResult[T]:
        """Choose the answer, or raise the failure if no attempt came to one."""
        slices = self._by_iteration(self.queue.slices)
        valid = [candidate for candidate in self.queue.candidates(decided=self._done) if candidate.valid]
        best: Slice[T] | None = None
        if valid:
            best = decisions.select(self.call.strategy.select, valid)
        elif isinstance(self.fatal, BadVerdict):
            raise self.fatal
        elif slices:
            best = decisions.select(self.call.strategy.select_from_failure, slices)
        elif self.errors:
            self.failure = decisions.failure_of(self.errors, self.fatal)
            raise self.failure
        if self.errors:
            log_errors(self.errors)
        return self.result(best)

    def result(self, best: Slice[T] | None) -> SamplingResult[T]:
        """Return the result of the call as it stands, with this answer."""
        call = self.call
        valid = best is not None and best.valid
        errors = [error for _, error in sorted(self.errors, key=itemgetter(0))] if self.errors else ()
        return SamplingResult(
            success=valid,
            best=best,
            slices=tuple(self._by_iteration(self.queue.slices)),
            attempts=tuple(self._by_iteration(self.queue.records)),
            errors=tuple(errors),
            usage=self._usage(),
            stop_reason="validated" if valid else self._reason_to_stop(),
            sampling_id=call.sampling_id,
            elapsed_s=call.clock() - call.started_at,
            max_attempts=self.max_attempts,
            parent_id=call.parent_id,
            stop_detail=None if valid else self.budget_detail,
        )

    def records(self) -> list[Slice[T]]:
        """Return the records of all attempts so far, by iteration."""
        return self._by_iteration(self.queue.records)

    @property
    def hook_failures(self) -> tuple[HookFailure, ...]:
        """The failures of hooks so far, those of stages first."""
        return (*self.nested_hook_failures, *self._emitter.failures)

    def _reason_to_stop(self) -> StopReason:
        if self.fatal is not None:
            return "failed"
        if self.stop_reason is not None:
            return self.stop_reason
        if not self._stopped and self._subsamples_ended < self._subsamples_due:
            return "deadline"
        if self.budget_detail is not None:
            return "budget"
        return "exhausted" if self._exhausted or self._done else "failed"

    def _by_iteration(self, records: list[Slice[T]]) -> list[Slice[T]]:
        # A single subsample puts its records in this order anyway, and so do stages.
        if self.call.concurrency_budget == 1 or self._stages is not None:
            return records
        return sorted(records, key=attrgetter("iteration"))

    def _usage(self) -> Usage:
        return Usage.total([record.usage for record in self.queue.records if record.usage is not NO_USAGE])


def log_errors(errors: Iterable[tuple[str, Exception]]) -> None:
    """Log the errors of a call that has a result all the same."""
    for iteration_id, error in errors:
        # Only the type: a message may quote the prompt, or a key.
        log.warning("attempt_failed", iteration_id=iteration_id, error_type=type(error).__name__)


def _may_retry(record: Slice[Any]) -> bool:
    return isinstance(record.error, SamplingError) and record.error.retryable
