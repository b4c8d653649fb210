"""
The one loop: generate, validate, repair, choose.

A call is a group of subsamples. Each subsample makes one attempt after the other and puts a record of each
into the result queue, without waiting; the strategy is asked at once, in the same step, whether that is enough.
So there is no moment at which an answer is known and not yet counted, and no second winner can slip in between.
Failures are records too: nothing but a cancellation leaves a subsample as an exception.
"""

import math
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar, overload

import anyio
import attrs
import structlog
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from sampling import identity
from sampling.attempts import Attempter, AttemptState, Call
from sampling.choice import failure_of, is_enough, repaired, selected
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
from sampling.messages import Attempt
from sampling.result_queue import Prefix, ResultQueue, order_key
from sampling.results import SamplingResult, Slice, StopReason
from sampling.usage import NO_USAGE, Usage

__all__ = ["Run"]

T = TypeVar("T")

log = structlog.get_logger("sampling")


class Run(Generic[T]):
    """One call of `sample()` while it runs."""

    _scope: anyio.CancelScope | None = None
    """Cancels all subsamples; one subsample without a deadline has none."""

    _stopped = False
    """Whether no new attempt may start."""

    _enough = False
    """Whether the strategy said that what there is will do."""

    _exhausted = False
    """Whether a subsample used its whole loop budget."""

    _subsamples_ended = 0

    _veto: BaseException | None = None
    """What ends the call with an exception whatever else there is: a veto by a critical hook, or a crash."""

    _fatal: Exception | None = None
    """What makes going on pointless, but does not undo an answer that is there already."""

    _bound: tuple[float, float] = (math.inf, math.inf)
    """In a deterministic call: no attempt that ranks after it can change the outcome."""

    def __init__(self, call: Call[T]) -> None:
        self._call = call
        self._emitter = call.emitter
        self._loop_budget = call.loop_budget
        self._concurrency_budget = call.concurrency_budget
        self._sampling_id = identity.new_sampling_id()
        self._parent_id = identity.parent_id()
        self._attempter = Attempter(call, self._sampling_id, self._parent_id)
        self._queue = self._new_queue()
        self._errors: list[tuple[str, Exception]] = []
        # What is needed in a deterministic call only: the scope of each subsample, and the attempt that it is at.
        self._own_scopes: dict[int, anyio.CancelScope] = {}
        self._attempts_at: dict[int, int] = {}

    def _new_queue(self) -> ResultQueue[T]:
        return ResultQueue(subsamples=self._concurrency_budget, deterministic=self._call.deterministic)

    # The call: LoopStarted, the subsamples, the choice, LoopFinished.

    async def run(self) -> SamplingResult[T]:
        """Run the call to its end."""
        entered = identity.enter(identity.outside_of_attempts(self._sampling_id, self._parent_id))
        try:
            if not self._emitter.silent:
                await self._announce_start()
            await self._run_subsamples()
            result = self._choose()
        except BaseException as error:
            if not self._emitter.silent:
                await self._announce_end(None, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            raise
        else:
            return result if self._emitter.silent else await self._announce_end(result, None)
        finally:
            identity.leave(entered)

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
        return None if result is None else attrs.evolve(result, hook_failures=tuple(self._emitter.failures))

    async def _run_subsamples(self) -> None:
        budget = self._call.budget
        deadline = math.inf if budget is None else budget.deadline(current_token(), anyio.current_time())
        if self._concurrency_budget > 1:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                self._scope.deadline = deadline
                for subsample in range(1, self._concurrency_budget):
                    group.start_soon(self._subsample, subsample)
                await self._subsample(0)
        elif deadline < math.inf:
            with anyio.CancelScope(deadline=deadline) as self._scope:
                await self._subsample(0)
        else:
            # A task group, or even a scope, costs more than the attempt itself, and one subsample needs neither.
            await self._subsample(0)
        if self._veto is not None:
            raise self._veto

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
            if self._call.deterministic:
                with anyio.CancelScope() as self._own_scopes[subsample]:
                    self._exhausted |= await self._attempt_repeatedly(subsample)
                self._queue.close(subsample)
                self._decide()
            else:
                self._exhausted |= await self._attempt_repeatedly(subsample)
            self._subsamples_ended += 1
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, bare, when the siblings have stopped
            self._end_with(error)

    async def _attempt_repeatedly(self, subsample: int) -> bool:
        """Go through the loop budget of one subsample; True if all of it was used."""
        history: list[Slice[T]] = []
        plan = self._call.first
        for number in range(self._loop_budget):
            state = self._start(plan, subsample, number)
            if state is None:
                return False
            entered = identity.enter(state)
            try:
                record = await self._attempt(state)
                next_plan = self._next(record, plan, history)
                if next_plan is not None and not self._emitter.silent:
                    await self._announce_repair(record, next_plan)
            finally:
                identity.leave(entered)
            if next_plan is None:
                return False
            plan = next_plan
        return True

    def _start(self, plan: Attempt[T], subsample: int, number: int) -> AttemptState[T] | None:
        """Set up an attempt; None if the call is over, or the budget has no room for it."""
        if self._stopped:
            return None
        if self._call.deterministic:
            if (number, subsample) > self._bound:
                return None
            self._attempts_at[subsample] = number
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
        try:
            return repaired(self._call.strategy, Prefix(history), self._call.max_context_chars)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - repair() is the user's code; it ends its own subsample only
            error.add_note("raised by the strategy's repair()")
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
        except anyio.get_cancelled_exc_class():
            record = self._attempter.record(state, "cancelled")
            self._put(record)
            if not self._emitter.silent:
                await self._announce_record(record)  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            raise
        except BaseException as error:  # noqa: BLE001 - what a backend raises must not end its siblings
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
        plan = state.plan
        return IterationStarted(**self._ids(state), action=plan.action, context=plan.context, options=state.options)

    def _ids(self, one: AttemptState[T] | Slice[T]) -> dict[str, Any]:
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
        if isinstance(record.error, Exception):
            self._errors.append((record.iteration_id, record.error))
        if record.outcome == "cancelled":
            return
        if self._call.deterministic:
            self._decide()
            self._give_up_what_cannot_win(record)
        elif not self._call.first_valid_ends:
            self._decide()
        elif record.outcome == "valid":
            # What the default decision says; it needs no asking, and would be asked after every single attempt.
            self._had_enough()

    def _decide(self) -> None:
        """Ask the strategy, in the very step in which something was added, whether the call may stop."""
        for slices in self._queue.newly_ready():
            if not self._stopped and self._is_enough(slices):
                self._had_enough()

    def _had_enough(self) -> None:
        self._enough = True
        self._stop()

    def _is_enough(self, slices: Sequence[Slice[T]]) -> bool:
        try:
            return is_enough(self._call.strategy, slices)
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return False

    def _give_up_what_cannot_win(self, record: Slice[T]) -> None:
        """In a deterministic call, cancel what ranks after an answer that would do; what ranks before it goes on."""
        known = self._queue.known_up_to(record)
        if self._stopped or not known or not self._is_enough(known):
            return
        self._bound = min(self._bound, order_key(record))
        for subsample, scope in self._own_scopes.items():
            if (self._attempts_at[subsample], subsample) > self._bound:
                scope.cancel()

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
            raise failure_of(self._errors, self._fatal)
        for iteration_id, error in self._errors:
            # Only the type: a message may quote the prompt, or a key.
            log.warning("attempt_failed", iteration_id=iteration_id, error_type=type(error).__name__)
        return SamplingResult(
            success=bool(valid),
            best=best,
            slices=tuple(slices),
            attempts=tuple(self._by_iteration(self._queue.records)),
            errors=tuple([error for _, error in sorted(self._errors, key=itemgetter(0))]),
            usage=self._usage(),
            stop_reason="validated" if valid else self._reason_to_stop(),
            sampling_id=self._sampling_id,
            elapsed_s=self._attempter.now(),
            max_attempts=self._loop_budget * self._concurrency_budget,
            parent_id=self._parent_id,
            stop_detail=None if valid else self._attempter.budget_detail,
        )

    def _reason_to_stop(self) -> StopReason:
        if self._fatal is not None:
            return "failed"
        if not self._stopped and self._subsamples_ended < self._concurrency_budget:
            return "deadline"
        if self._attempter.budget_detail is not None:
            return "budget"
        return "exhausted" if self._exhausted or self._enough else "failed"

    def _by_iteration(self, records: list[Slice[T]]) -> list[Slice[T]]:
        # One subsample puts its records in this order anyway.
        return records if self._concurrency_budget == 1 else sorted(records, key=attrgetter("iteration"))

    def _usage(self) -> Usage:
        return Usage.total([record.usage for record in self._queue.records if record.usage is not NO_USAGE])


def _may_try_again(record: Slice[Any]) -> bool:
    return isinstance(record.error, SamplingError) and record.error.retryable
