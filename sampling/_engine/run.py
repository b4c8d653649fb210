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
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import anyio
import attrs
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled, current_token

from sampling._arguments import short_repr
from sampling._engine import decisions
from sampling._engine import scope as scopes
from sampling._engine.attempt import RunningAttempt, prepare
from sampling._engine.call import Call
from sampling._engine.records import OrderedQueue, Prefix, ResultQueue
from sampling._engine.scope import Scope, enter_attempt, enter_call, leave_attempts, leave_call
from sampling._engine.tracking import Tracker
from sampling._engine.validation import CheckDefect, CutShort
from sampling._event_loop import (
    cancellation_requested,
    heed_past_cancellations,
    ignore_past_cancellations,
    raise_if_cancelled,
    without_cancellations,
)
from sampling._log import Logger
from sampling.budgets import Budget
from sampling.errors import BadVerdict, BudgetExceeded, SelectionFailed, UnexpectedCancellation
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
from sampling.protocols import Variation
from sampling.results import HookFailure, SamplingResult, Slice, StopReason, first_tried
from sampling.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from sampling._engine.stages import Stages

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Run"]

T = TypeVar("T")

log = Logger()

_TURN_S = 0.1
"""The time after which other tasks get a turn between two attempts, for backends that never await."""


class Run(Generic[T]):
    """One running call, with all of its mutable state."""

    def __init__(self, call: Call[T], stages: "Stages[T] | None" = None) -> None:
        self.call: Call[T] = call
        self._stages = stages
        self._emitter = call.emitter
        self._tracker: Tracker[T] | None = None
        """The state of every subsample, if the strategy or a deterministic call needs it."""

        self.queue: ResultQueue[T] = self._new_queue()
        self.errors: list[tuple[str, Exception]] = []
        """The errors of attempts and repairs, with their iteration ids."""

        self.max_attempts: int = call.loop_budget * call.concurrency_budget
        self._subsamples_due = call.concurrency_budget
        self._ended: set[int] = set()
        """The subsamples that have ended."""

        self._latest: dict[int, RunningAttempt[T]] = {}
        """The latest attempt of every subsample."""

        self._scope: anyio.CancelScope | None = None
        """Cancels all subsamples. A single subsample without a deadline has none."""

        self._stopped = False
        """Whether no new attempt may start."""

        self._done = False
        """Whether the strategy decided that the call is done."""

        self._exhausted = False
        """Whether a subsample used its whole loop budget."""

        self._deadline = math.inf
        """The end of the call, on its clock."""

        self._timed_out = False
        """Whether an attempt was not started because the deadline had passed."""

        self._abort: BaseException | None = None
        """Ends the call with an exception, whatever answers there are: from a critical hook, or a crash."""

        self.fatal: Exception | None = None
        """Ends the call, but does not undo an answer that was already found."""

        self._defects: tuple[Exception, ...] = ()
        """Defects of checks, which are raised even if there are invalid answers."""

        self.failure: Exception | None = None
        """The exception that the call raises because no attempt got an answer."""

        self.budget_detail: str | None = None
        """The message of the budget when it had no room."""

        self.stop_reason: StopReason | None = None
        """The stop reason of the last stage, if the call has stages."""

        self.votes: tuple[float | None, float | None] = (None, None)
        """The agreement and the margin of the answer, if the strategy counts votes."""

        self.nested_hook_failures: tuple[HookFailure, ...] = ()
        """The failures of hooks in stages."""

    def _new_queue(self) -> ResultQueue[T]:
        """Return an empty queue of the kind that the call needs, and track it if necessary."""
        call = self.call
        if self._stages is not None or not (call.deterministic or call.overridden & decisions.TRACKED):
            return ResultQueue()
        queue = OrderedQueue[T](call.concurrency_budget) if call.deterministic else ResultQueue[T]()
        self._tracker = Tracker(call, queue, in_turn=call.in_turn)
        return queue

    # The call: LoopStarted, the subsamples, the choice, LoopFinished.

    async def run(self) -> SamplingResult[T]:
        """Run the call to its end."""
        call = self.call
        scope = Scope(call.sampling_id, call.parent_id)
        if call.holding:
            # For the calls of stages and hooks.
            scope.holding = call.holding
        silent = self._emitter.silent
        entered = enter_call(scope)
        past = ignore_past_cancellations(call.cancelled)
        try:
            if not silent:
                await self._announce_start()
            try:
                await (self._make_attempts() if self._stages is None else self._stages.run(self))
            finally:
                leave_attempts(scope, entered)
                if "learn" in call.overridden:
                    self._learn()
            result = self._choose() if self._stages is None else self._stages.choose(self)
        except BaseException as error:
            if not silent:
                await self._announce_end(None, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout
            raise
        else:
            return result if silent else await self._announce_end(result, None)
        finally:
            heed_past_cancellations(past)
            leave_call(entered)

    def _learn(self) -> None:
        try:
            self.call.strategy.learn(Prefix(self.queue.records))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - the user's code. Neither the answer nor a cancellation is lost by it
            log.warning("learn_failed", sampling_id=self.call.sampling_id, error_type=type(error).__name__)

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
            strategy=type(self.call.strategy).__name__,
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
            error.add_note(f"a critical hook on LoopFinished failed too: {short_repr(veto.error)}")
        return None if result is None else attrs.evolve(result, hook_failures=self.hook_failures)

    async def _make_attempts(self) -> None:
        """Run the subsamples until they have ended or the call is done."""
        budget = self.call.budget
        deadline = math.inf
        if budget is not None:
            deadline = self._deadline = budget.deadline(current_token(), anyio.current_time())
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

    async def _start_subsamples(self, group: "TaskGroup") -> None:
        if self._tracker is not None and "next_subsample_in_s" in self.call.overridden:
            await self._start_late(group, self._tracker)
            return
        for subsample in range(1, self.call.concurrency_budget):
            self._start_task(group, subsample)
        # The first one needs no task of its own.
        await self._subsample(0)

    async def _start_late(self, group: "TaskGroup", tracker: Tracker[T]) -> None:
        """Start each subsample when the strategy says so."""
        started = tracker.started = 0
        tracker.starting = True
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
                tracker.start_none()
                with anyio.move_on_after(wait_s):
                    await tracker.changed.wait()
        tracker.changed = None
        tracker.start_none()
        self._subsamples_due = started
        tracker.close_from(started)
        self._decide()

    def _wait_for_next_s(self, tracker: Tracker[T]) -> float:
        try:
            return decisions.wait_for_next_s(self.call.strategy, tracker.progress(self.queue.seen()))
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return math.inf

    def _start_task(self, group: "TaskGroup", subsample: int) -> None:
        group.create_task(self._subsample_in_task(subsample), name=f"subsample {subsample}")

    async def _subsample_in_task(self, subsample: int) -> None:
        """Run a subsample in its own task, and end quietly if it is cancelled."""
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
            self._ended.add(subsample)
        except self.call.cancelled as error:
            if self._stopped or cancellation_requested():
                raise
            self._end_with(_unexpected(error))
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
        plan, vary, budget = call.first, call.vary, call.budget
        turn_ends_s = _TURN_S
        for number in range(call.loop_budget):
            if self._stopped or (self._tracker is not None and not self._tracker.start_attempt(subsample, number)):
                return
            tried = plan if vary is None else self._vary(vary, plan, subsample, number)
            if tried is None:
                return
            attempt = self._latest[subsample] = prepare(call, tried, subsample, number)
            if budget is not None and not await self._reserve(attempt, budget):
                return
            enter_attempt(attempt.scope, attempt.request.iteration_id)
            record = await self._attempt(attempt)
            next_plan = self._next_plan(record, plan, history)
            if next_plan is None:
                return
            if not self._emitter.silent:
                await self._announce_repair(record, next_plan)
            plan = next_plan
            if record.finished_s > turn_ends_s:
                turn_ends_s = record.finished_s + _TURN_S
                await checkpoint()
        self._exhausted = True

    def _vary(self, vary: Variation, plan: Attempt[T], subsample: int, number: int) -> Attempt[T] | None:
        """Return the variant of an attempt, or None if that failed, which ends its subsample only."""
        call = self.call
        try:
            return decisions.vary(vary, plan, subsample, number)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - the user's code
            error.add_note("raised by the strategy's vary() or its variation")
            iteration = subsample * call.loop_budget + number + 1
            self.errors.append((scopes.iteration_id(call.sampling_id, iteration), error))
            return None

    async def _reserve(self, attempt: RunningAttempt[T], budget: Budget) -> bool:
        """Reserve the budget of an attempt. Return False if there is no room or time, or the call is over."""
        request, tracker = attempt.request, self._tracker
        if tracker is not None and tracker.in_turn:
            await tracker.wait_for_turn(request.subsample, request.attempt)
        if self._deadline <= self.call.clock():
            # A backend that never awaits is not interrupted by the deadline, but makes no further attempt.
            self._timed_out = True
            return False
        try:
            await attempt.reserve(budget)
        except BudgetExceeded as error:
            self.budget_detail = str(error)
            return False
        if self._stopped and attempt.reservation is not None:
            budget.withdraw(attempt.reservation)
        return not self._stopped

    def _next_plan(self, record: Slice[T], plan: Attempt[T], history: list[Slice[T]]) -> Attempt[T] | None:
        """Return what to try after this record, or None if the subsample is over."""
        if record.outcome == "invalid":
            history.append(record)
            return self._repair(history) if record.attempt + 1 < self.call.loop_budget else plan
        may_retry = record.error is not None and decisions.ended_by(record.error) is decisions.Ends.ATTEMPT
        return plan if may_retry else None

    def _repair(self, history: list[Slice[T]]) -> Attempt[T] | None:
        if self._stopped:
            return None
        call = self.call
        try:
            if call.should_continue is not None and not call.should_continue(Prefix(history)):
                return None
            if call.repair is None:
                return first_tried(history)
            return decisions.repair(call.repair, Prefix(history), call.strategy.max_context_chars)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - repair() is the user's code; it ends its own subsample only
            error.add_note("raised by the strategy's repair() or should_continue()")
            self.errors.append((history[-1].iteration_id, error))
            return None

    async def _announce_repair(self, failed: Slice[T], plan: Attempt[T]) -> None:
        if failed.outcome == "invalid" and failed.attempt + 1 < self.call.loop_budget:
            await self._announce(Repaired(**self.call.ids_of(failed), failed=failed, next=plan))
            await checkpoint_if_cancelled()

    # One attempt, with its events around it.

    async def _attempt(self, attempt: RunningAttempt[T]) -> Slice[T]:
        """Make one attempt, and put its record into the queue however it ends."""
        try:
            if not self._emitter.silent:
                await self._emitter.emit(self._started(attempt))
                await checkpoint_if_cancelled()
            record = await attempt.run()
        except BaseException as error:  # noqa: ASYNC103 - `raise_if_cancelled` raises every requested cancellation
            # What a backend raises must not end its siblings.
            cancelled = isinstance(error, self.call.cancelled) and (self._stopped or cancellation_requested())
            record = attempt.record("cancelled") if cancelled else self._record_exception(attempt, error)
            self._put(record)
            if not self._emitter.silent:
                await self._announce_record(record)  # noqa: ASYNC102, ASYNC120 - every hook is shielded, and has a timeout
            if cancelled:
                raise
            # Cleaning up may have turned the cancellation into another exception, or a part of a group.
            await raise_if_cancelled()  # noqa: ASYNC102, ASYNC120
            return record  # noqa: ASYNC104
        self._put(record)
        if not self._emitter.silent:
            await self._announce_record(record)
        return record

    async def _announce_record(self, record: Slice[T]) -> None:
        await self._announce(IterationFinished(**self.call.ids_of(record), slice=record))

    async def _announce(self, event: Event) -> None:
        try:
            await self._emitter.emit(event)
        except CriticalHookError as veto:
            self._end_with(veto.error)

    def _started(self, attempt: RunningAttempt[T]) -> IterationStarted:
        plan, request = attempt.plan, attempt.request
        return IterationStarted(
            **self.call.ids_of(request), action=plan.action, context=plan.context, options=request.options
        )

    def _record_exception(self, attempt: RunningAttempt[T], error: BaseException) -> Slice[T]:
        """Make a record of an exception, and end the call if the exception requires it."""
        if isinstance(error, CutShort):
            return attempt.record_cut(error, self.queue.longest_answer())
        if isinstance(error, CriticalHookError):
            self._end_with(error.error)
            return attempt.record("errored", error=error.error)
        if isinstance(error, CheckDefect):
            error = error.error
            self._defects += (error,)
        failed = without_cancellations(error)
        if failed is None:
            if cancellation_requested():
                return attempt.record("cancelled")
            failed = _unexpected(error)
        self._end_by(failed, attempt)
        return attempt.record("errored", error=failed)

    def _end_by(self, error: BaseException, attempt: RunningAttempt[T]) -> None:
        """End the call if this error does. Nothing that happens to a loser can undo a winner."""
        ends = self._ends(error)
        lost = self._done or (self._tracker is not None and self._tracker.has_lost(attempt.request))
        if isinstance(error, KeyboardInterrupt | SystemExit) or (ends is decisions.Ends.PROCESS and not lost):
            self._end_with(error)
        elif lost or not isinstance(error, Exception):
            return
        elif self.call.deterministic:
            # Ended when all attempts that rank before this one have ended, too: see `_end_in_order`.
            if ends >= decisions.Ends.CALL and self._tracker is not None:
                self._tracker.cancel_after(attempt.request)
        elif ends >= decisions.Ends.CALL or (ends is decisions.Ends.EQUAL_REQUESTS and self._all_send(attempt.request)):
            self._end_in_failure(error)

    def _ends(self, error: BaseException) -> decisions.Ends:
        return decisions.Ends.CALL if error in self._defects else decisions.ended_by(error)

    def _end_in_failure(self, error: Exception) -> None:
        if self.fatal is None:
            self.fatal = error
        self._stop()

    def _all_send(self, request: Request) -> bool:
        """Return whether every other subsample that has not ended sends this request, or would."""
        call = self.call
        for subsample in range(call.concurrency_budget):
            if subsample == request.subsample or subsample in self._ended:
                continue
            latest = self._latest.get(subsample)
            other = self._first_request(subsample) if latest is None else latest.request
            if other is None or not _equal(request, other):
                return False
        return True

    def _first_request(self, subsample: int) -> Request | None:
        """Return the request that a subsample starts with, or None if the strategy can't tell."""
        call = self.call
        try:
            plan = call.first if call.vary is None else decisions.vary(call.vary, call.first, subsample, 0)
        except Exception:  # noqa: BLE001 - the user's code, whose error counts when its own subsample starts
            return None
        return prepare(call, plan, subsample, 0).request

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
        """Record that the budget had no room for a further request of a layer or a judge."""
        for error in (record.error, *[validation.error for validation in record.validations]):
            if isinstance(error, BudgetExceeded):
                self.budget_detail = str(error)

    def _decide(self) -> None:
        """Ask the strategy about each slice that it has not seen, until it decides that the call is done."""
        if self._stopped:
            return
        ordered = None if self._tracker is None else self._tracker.ordered
        for slices in self.queue.newly_ready():
            if ordered is not None and ordered.last is not None and ordered.last.outcome not in {"valid", "invalid"}:
                self._end_in_order(ordered.last, slices)
            elif self._is_done(slices):
                self._finish()
            if self._stopped:
                return

    def _end_in_order(self, record: Slice[T], slices: Sequence[Slice[T]]) -> None:
        """End a deterministic call by an error, once nothing that ranks before it can win any more."""
        if not isinstance(record.error, Exception):
            return
        ends = self._ends(record.error)
        # An equal request that was answered shows that the error is not about the request.
        refused = ends is decisions.Ends.EQUAL_REQUESTS and not record.attempt and not slices
        if ends >= decisions.Ends.CALL or (refused and self._all_start_alike()):
            self._end_in_failure(record.error)

    def _all_start_alike(self) -> bool:
        first, *others = [self._first_request(number) for number in range(self.call.concurrency_budget)]
        return first is not None and all(other is not None and _equal(first, other) for other in others)

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
        """Choose the answer, or raise the failure if no attempt got one."""
        candidates = self.queue.candidates(decided=self._done or self.fatal is not None)
        valid = [candidate for candidate in candidates if candidate.outcome == "valid"]
        best: Slice[T] | None = None
        if valid:
            self._count_votes(valid)
            best = decisions.select(self.call.strategy.select, valid)
        elif self.fatal is not None and (isinstance(self.fatal, BadVerdict) or self.fatal in self._defects):
            raise self.fatal
        elif candidates:
            self._count_votes(candidates)
            best = decisions.select(self.call.strategy.select_from_failure, self._by_iteration(list(candidates)))
        elif self.errors:
            if self.call.deterministic:
                # Not the fastest error, but always the same one.
                self.errors.sort(key=itemgetter(0))
            self.failure = decisions.failure_of(self.errors, self.fatal)
            raise self.failure
        if self.errors:
            log_errors(self.errors)
        return self.result(best)

    def _count_votes(self, slices: Sequence[Slice[T]]) -> None:
        if "count_votes" in self.call.overridden:
            self.votes = decisions.count_votes(self.call.strategy, slices)

    def result(self, best: Slice[T] | None) -> SamplingResult[T]:
        """Return the result of the call as it stands, with this answer."""
        call = self.call
        valid = best is not None and best.outcome == "valid"
        agreement, margin = self.votes
        return SamplingResult(
            success=valid,
            best=best,
            slices=tuple(self.slices()),
            attempts=tuple(self._by_iteration(self.queue.records)),
            errors=tuple([error for _, error in sorted(self.errors, key=itemgetter(0))]) if self.errors else (),
            usage=self._usage(),
            stop_reason="validated" if valid else self._reason_to_stop(),
            sampling_id=call.sampling_id,
            elapsed_s=call.elapsed_s(),
            max_attempts=self.max_attempts,
            parent_id=call.parent_id,
            stop_detail=None if valid else self.budget_detail,
            agreement=agreement,
            margin=margin,
        )

    def slices(self) -> list[Slice[T]]:
        """Return the slices that count, by iteration."""
        slices = self.queue.slices
        if self.fatal is not None and self.call.deterministic and self._stages is None:
            # Whether an answer that ranks after the error was faster than it must not matter.
            slices = list(self.queue.candidates(decided=True))
        return self._by_iteration(slices)

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
        if self._timed_out or (not self._stopped and len(self._ended) < self._subsamples_due):
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
    """Log the errors of a call that still has a result."""
    for iteration_id, error in errors:
        # Only the type: a message may quote the prompt, or a key.
        log.warning("attempt_failed", iteration_id=iteration_id, error_type=type(error).__name__)


def _unexpected(error: BaseException) -> UnexpectedCancellation:
    unexpected = UnexpectedCancellation()
    unexpected.__cause__ = error
    return unexpected


def _equal(one: Request, other: Request) -> bool:
    """Return whether two requests are equal except for their seeds."""
    if one.messages != other.messages:
        return False
    return attrs.evolve(one.options, seed=None) == attrs.evolve(other.options, seed=None)
