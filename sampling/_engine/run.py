"""
The one loop: generate, validate, repair, choose.

A call is a group of subsamples. Each subsample makes one attempt after the other and puts a record of each
into the result queue, without waiting; the strategy is asked at once, in the same step, whether that is enough.
So there is no moment at which an answer is known and not yet counted, and no second winner can slip in between.
Failures are records too: nothing but a cancellation leaves a subsample as an exception.
"""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar, overload

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from sampling._engine import scope as identity
from sampling._engine.attempt import Attempter, AttemptState, Call
from sampling._engine.decisions import failure_of, is_enough, repaired, selected, varied
from sampling._engine.records import Prefix, ResultQueue
from sampling._engine.validation import CutShort
from sampling._event_loop import running_loop
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

__all__ = ["Run"]

T = TypeVar("T")

log = structlog.get_logger("sampling")


class Run(Generic[T]):
    """One call of `sample()` while it runs."""

    _scope: anyio.CancelScope | None = None
    """Cancels all subsamples; one subsample without a deadline has none."""

    _enough = False
    """Whether the strategy said that what there is will do."""

    _exhausted = False
    """Whether a subsample used its whole loop budget."""

    _subsamples_ended = 0

    _veto: BaseException | None = None
    """What ends the call with an exception whatever else there is: a veto by a critical hook, or a crash."""

    _fatal: Exception | None = None
    """What makes going on pointless, but does not undo an answer that is there already."""

    failure: Exception | None = None
    """What the call raises because no attempt came to an answer, if that is how it ends."""

    def __init__(self, call: Call[T]) -> None:
        self._call = call
        self._emitter = call.emitter
        self._loop_budget = call.loop_budget
        self._concurrency_budget = call.concurrency_budget
        self._sampling_id = identity.new_sampling_id()
        self._parent_id = identity.parent_id()
        loop = running_loop()
        self._cancelled = loop.cancelled
        """What a cancellation raises; it is always let through."""

        self._attempter = Attempter(call, self._sampling_id, self._parent_id, loop.time)
        self._queue = self._new_queue()
        self._errors: list[tuple[str, Exception]] = []
        self._stopped = False
        """Whether no new attempt may start."""

        self._subsamples_due = call.concurrency_budget
        self._decides_on_all = not call.first_valid_ends
        """Whether the strategy is asked after every attempt; most stop at the first valid one, and need no asking."""

    def _new_queue(self) -> ResultQueue[T]:
        return ResultQueue()

    # The call: LoopStarted, the subsamples, the choice, LoopFinished.

    async def run(self) -> SamplingResult[T]:
        """Run the call to its end."""
        entered = identity.enter_call(self._sampling_id, self._parent_id)
        try:
            if not self._emitter.silent:
                await self._announce_start()
            try:
                await self._run_subsamples()
            finally:
                entered.leave_attempts()
                if self._call.seams.learns:
                    self._call.strategy.learn(Prefix(self._queue.records))
            result = self._choose()
        except BaseException as error:
            if not self._emitter.silent:
                await self._announce_end(None, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            raise
        else:
            return result if self._emitter.silent else await self._announce_end(result, None)
        finally:
            entered.leave()

    async def _announce_start(self) -> None:
        call = self._call
        event = LoopStarted(
            sampling_id=self._sampling_id,
            parent_id=self._parent_id,
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
        self._loop_budget, self._concurrency_budget = event.loop_budget, event.concurrency_budget
        self._subsamples_due = self._concurrency_budget
        self._queue = self._new_queue()

    @overload
    async def _announce_end(self, result: SamplingResult[T], error: None) -> SamplingResult[T]: ...
    @overload
    async def _announce_end(self, result: None, error: BaseException) -> None: ...
    async def _announce_end(
        self, result: SamplingResult[T] | None, error: BaseException | None
    ) -> SamplingResult[T] | None:
        """Tell that the call is over, and return the result with all that went wrong in hooks."""
        event = LoopFinished(
            sampling_id=self._sampling_id,
            parent_id=self._parent_id,
            success=result is not None and result.success,
            iterations=len(self._queue.slices),
            attempts=len(self._queue.records),
            usage=self._usage(),
            elapsed_s=self._attempter.now(),
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

    async def _run_subsamples(self) -> None:
        budget = self._call.budget
        deadline = math.inf if budget is None else budget.deadline(current_token(), anyio.current_time())
        if self._concurrency_budget > 1:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                self._scope.deadline = deadline
                await self._start_subsamples(group)
            # If the caller was cancelled while only tasks were left, they have kept that to themselves.
            await checkpoint_if_cancelled()
        elif deadline < math.inf:
            with anyio.CancelScope(deadline=deadline) as self._scope:
                await self._subsample(0)
        else:
            # A task group, or even a scope, costs more than the attempt itself, and one subsample needs neither.
            await self._subsample(0)
        if self._veto is not None:
            raise self._veto

    async def _start_subsamples(self, group: TaskGroup) -> None:
        """Start all at once; the first one needs no task of its own."""
        for subsample in range(1, self._concurrency_budget):
            self._start_task(group, subsample)
        await self._subsample(0)

    def _start_task(self, group: TaskGroup, subsample: int) -> None:
        group.create_task(self._subsample_in_task(subsample), name=f"subsample {subsample}")

    async def _subsample_in_task(self, subsample: int) -> None:
        """Run a subsample in a task of its own, which ends as if nothing had happened when it is cancelled."""
        try:
            await self._subsample(subsample)
        except self._cancelled:  # noqa: ASYNC103 - see `_run_subsamples`
            # The scope needs no telling. And an exception that ends a task of asyncio is part of a reference cycle,
            # which would keep the whole call in memory until the garbage collector finds it.
            return

    def _stop(self) -> None:
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    def _end_with(self, error: BaseException) -> None:
        if self._veto is None:
            self._veto = error
        self._stop()

    # One subsample: attempt after attempt, with repairs between.

    async def _subsample(self, subsample: int) -> None:
        try:
            await self._run_subsample(subsample)
            self._subsamples_ended += 1
        except self._cancelled:
            raise
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again, bare, when the siblings have stopped
            self._end_with(error)

    async def _run_subsample(self, subsample: int) -> None:
        """Go through the loop budget of one subsample, or through as much of it as is needed."""
        history: list[Slice[T]] = []
        plan, vary = self._call.first, self._call.vary
        for number in range(self._loop_budget):
            tried = plan if vary is None else varied(vary, plan, subsample, number)
            state = self._start(tried, subsample, number)
            if state is None:
                return
            identity.enter_attempt(state, state.request.iteration_id)
            record = await self._attempt(state)
            next_plan = self._next(record, plan, history)
            if next_plan is None:
                return
            if not self._emitter.silent:
                await self._announce_repair(record, next_plan)
            plan = next_plan
        self._exhausted = True

    def _start(self, plan: Attempt[T], subsample: int, number: int) -> AttemptState[T] | None:
        """Set up an attempt; None if the call is over, or the budget has no room for it."""
        if self._stopped:
            return None
        return self._attempter.prepare(plan, subsample * self._loop_budget + number + 1, subsample, number)

    def _next(self, record: Slice[T], plan: Attempt[T], history: list[Slice[T]]) -> Attempt[T] | None:
        """Return what to try after this record, or None if the subsample is over."""
        if record.outcome == "invalid":
            history.append(record)
            return self._repair(history) if record.attempt + 1 < self._loop_budget else plan
        return plan if _may_try_again(record) else None

    def _repair(self, history: list[Slice[T]]) -> Attempt[T] | None:
        if self._stopped:
            return None
        should_continue = self._call.should_continue
        try:
            if should_continue is not None and not should_continue(Prefix(history)):
                return None
            if not self._call.repairs:
                # What the default decision says, without asking for it after every single attempt.
                return first_tried(history)
            return repaired(self._call.strategy, Prefix(history), self._call.max_context_chars)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - repair() is the user's code; it ends its own subsample only
            error.add_note("raised by the strategy's repair() or should_continue()")
            self._errors.append((history[-1].iteration_id, error))
            return None

    async def _announce_repair(self, failed: Slice[T], plan: Attempt[T]) -> None:
        if failed.outcome == "invalid" and failed.attempt + 1 < self._loop_budget:
            await self._announce(Repaired(**self._ids(failed), failed=failed, next=plan))
            await checkpoint_if_cancelled()

    # One attempt, with its events around it.

    async def _attempt(self, state: AttemptState[T]) -> Slice[T]:
        try:
            if not self._emitter.silent:
                await self._emitter.emit(self._started(state))
                await checkpoint_if_cancelled()
            record = await self._attempter.attempt(state)
        except self._cancelled:
            record = self._attempter.record(state, "cancelled")
            self._put(record)
            if not self._emitter.silent:
                await self._announce_record(record)  # noqa: ASYNC120 - every hook is shielded, and has a timeout
            raise
        except BaseException as error:  # noqa: BLE001, ASYNC103 - what a backend raises must not end its siblings
            record = self._record_error(state, error)
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

    def _started(self, state: AttemptState[T]) -> IterationStarted:
        plan, request = state.plan, state.request
        return IterationStarted(**self._ids(request), action=plan.action, context=plan.context, options=request.options)

    def _ids(self, one: Request | Slice[T]) -> dict[str, Any]:
        return {
            "sampling_id": self._sampling_id,
            "parent_id": self._parent_id,
            "iteration": one.iteration,
            "iteration_id": one.iteration_id,
            "subsample": one.subsample,
            "attempt": one.attempt,
        }

    def _record_error(self, state: AttemptState[T], error: BaseException) -> Slice[T]:
        """Make a record of what an attempt raised, and stop the call if that makes going on pointless."""
        if isinstance(error, CutShort):
            return self._attempter.record_cut(state, error)
        if isinstance(error, CriticalHookError):
            error = error.error
            self._end_with(error)
        elif isinstance(error, MemoryError | RecursionError) or not isinstance(error, Exception):
            self._end_with(error)
        elif isinstance(error, FatalError | BadVerdict):
            if self._fatal is None:
                self._fatal = error
            self._stop()
        elif isinstance(error, BudgetExceeded):
            # From a layer that wanted to ask once more.
            self._attempter.budget_detail = str(error)
        return self._attempter.record(state, "errored", error=error)

    # The decision: is that enough, and which one is it?

    def _put(self, record: Slice[T]) -> None:
        self._queue.put(record)
        if record.error is not None and isinstance(record.error, Exception):
            self._errors.append((record.iteration_id, record.error))
        if record.outcome == "valid" or (self._decides_on_all and record.outcome != "cancelled"):
            self._decide_on(record)

    def _decide_on(self, record: Slice[T]) -> None:
        """Ask the strategy, in the very step in which a record was added, whether the call may stop."""
        if self._decides_on_all:
            self._decide()
        else:
            # What the default decision says; it needs no asking, and would be asked after every single attempt.
            self._had_enough()

    def _decide(self) -> None:
        """Ask the strategy about each slice that it has not seen."""
        for slices in self._queue.newly_ready():
            if not self._stopped and self._is_enough(slices):
                self._had_enough()

    def _had_enough(self) -> None:
        self._enough = True
        self._stop()

    def _is_enough(self, slices: Sequence[Slice[T]]) -> bool:
        try:
            return self._says_enough(slices)
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return False

    def _says_enough(self, slices: Sequence[Slice[T]]) -> bool:
        return is_enough(self._call.strategy, slices)

    def _choose(self) -> SamplingResult[T]:
        slices = self._by_iteration(self._queue.slices)
        valid = [candidate for candidate in self._queue.candidates(decided=self._enough) if candidate.valid]
        best: Slice[T] | None = None
        if valid:
            best = selected(self._call.strategy.select, valid)
        elif isinstance(self._fatal, BadVerdict):
            raise self._fatal
        elif slices:
            best = selected(self._call.strategy.select_from_failure, slices)
        elif self._errors:
            self.failure = failure_of(self._errors, self._fatal)
            raise self.failure
        if self._errors:
            log_errors(self._errors)
        return self._result(best, slices)

    def _result(self, best: Slice[T] | None, slices: list[Slice[T]]) -> SamplingResult[T]:
        valid = best is not None and best.valid
        return SamplingResult(
            success=valid,
            best=best,
            slices=tuple(slices),
            attempts=tuple(self._by_iteration(self._queue.records)),
            errors=tuple([error for _, error in sorted(self._errors, key=itemgetter(0))]) if self._errors else (),
            usage=self._usage(),
            stop_reason="validated" if valid else self._reason_to_stop(),
            sampling_id=self._sampling_id,
            elapsed_s=self._attempter.now(),
            max_attempts=self.max_attempts,
            parent_id=self._parent_id,
            stop_detail=None if valid else self._attempter.budget_detail,
        )

    @property
    def max_attempts(self) -> int:
        """How many attempts the call may make."""
        return self._loop_budget * self._concurrency_budget

    @property
    def hook_failures(self) -> tuple[HookFailure, ...]:
        """What went wrong in hooks."""
        return tuple(self._emitter.failures)

    def _reason_to_stop(self) -> StopReason:
        if self._fatal is not None:
            return "failed"
        if not self._stopped and self._subsamples_ended < self._subsamples_due:
            return "deadline"
        if self._attempter.budget_detail is not None:
            return "budget"
        return "exhausted" if self._exhausted or self._enough else "failed"

    def _by_iteration(self, records: list[Slice[T]]) -> list[Slice[T]]:
        # One subsample puts its records in this order anyway.
        return records if self._concurrency_budget == 1 else sorted(records, key=attrgetter("iteration"))

    def _usage(self) -> Usage:
        return Usage.total([record.usage for record in self._queue.records if record.usage is not NO_USAGE])


def log_errors(errors: Iterable[tuple[str, Exception]]) -> None:
    """Log what went wrong in attempts of a call that has a result all the same."""
    for iteration_id, error in errors:
        # Only the type: a message may quote the prompt, or a key.
        log.warning("attempt_failed", iteration_id=iteration_id, error_type=type(error).__name__)


def _may_try_again(record: Slice[Any]) -> bool:
    return isinstance(record.error, SamplingError) and record.error.retryable
