"""
The one loop: generate, validate, repair, choose.

A call is a group of subsamples. Each subsample makes one attempt after the other and puts a record of each
into the result queue, without waiting; the strategy is asked at once, in the same step, whether that is enough.
So there is no moment at which an answer is known and not yet counted, and no second winner can slip in between.
Failures are records too: nothing but a cancellation leaves a subsample as an exception.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import attrs
import structlog
from anyio.lowlevel import checkpoint, current_token
from structlog.contextvars import bind_contextvars, reset_contextvars

from sampling import identity
from sampling._arguments import shown, wrong_type
from sampling.budgets import Budget, Reservation
from sampling.errors import BadVerdict, BudgetExceeded, ContextTooLarge, FatalError, SamplingError, SelectionFailed
from sampling.hooks import (
    CriticalHookError,
    Emitter,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Repaired,
)
from sampling.messages import Attempt, Context, Generation, Message, Options, Request
from sampling.protocols import Decisions
from sampling.requirements import Requirement, Validation, View
from sampling.result_queue import Prefix, ResultQueue, order_key
from sampling.results import Outcome, SamplingResult, Slice, StopReason
from sampling.usage import Usage
from sampling.validation import parse, validate

__all__ = ["Call", "run"]

T = TypeVar("T")

log = structlog.get_logger("sampling")

NOTHING_SPENT = Usage()


@attrs.frozen(kw_only=True)
class Call(Generic[T]):
    """Everything that one call of `sample()` was given; it does not change while the call runs."""

    strategy: Decisions[T]
    first: Attempt[T]
    generate: Callable[[Request], Awaitable[Generation | str]]
    requirements: tuple[Requirement, ...]
    options: Options
    loop_budget: int
    concurrency_budget: int
    deterministic: bool
    budget: Budget | None
    validation_ctx: Context | None
    emitter: Emitter
    check_timeout_s: float | None
    max_context_chars: int


async def run(call: Call[T]) -> SamplingResult[T]:
    """Run one call to its end."""
    return await _Run(call).run()


@attrs.define(kw_only=True)
class _State(identity.Place):
    """One attempt while it runs; as the current `Place`, it is also what `current()` reads its ids from."""

    plan: Attempt[Any]
    options: Options
    started_s: float
    reservation: Reservation | None
    spent: Usage = NOTHING_SPENT
    generation: Generation | None = None


class _Run(Generic[T]):
    """One call while it runs."""

    def __init__(self, call: Call[T]) -> None:
        self._call = call
        self._emitter = call.emitter
        self._loop_budget = call.loop_budget
        self._concurrency_budget = call.concurrency_budget
        self._sampling_id = identity.new_sampling_id()
        self._parent_id = identity.parent_id()
        self._started_at = anyio.current_time()
        self._queue = self._new_queue()
        self._errors: list[tuple[str, Exception]] = []
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._enough = False
        self._subsamples_ended = 0
        self._exhausted = False
        self._budget_detail: str | None = None
        # What ends the call with an exception whatever else there is: a veto by a critical hook, or a crash.
        self._veto: BaseException | None = None
        # What makes going on pointless, but does not undo an answer that is there already.
        self._fatal: Exception | None = None
        # In a deterministic call: no attempt that ranks after this one can change the outcome.
        self._bound: tuple[float, float] = (math.inf, math.inf)

    def _new_queue(self) -> ResultQueue[T]:
        return ResultQueue(subsamples=self._concurrency_budget, deterministic=self._call.deterministic)

    def _now(self) -> float:
        return anyio.current_time() - self._started_at

    # The call: LoopStarted, the subsamples, the choice, LoopFinished.

    async def run(self) -> SamplingResult[T]:
        token = identity.enter(identity.Place(sampling_id=self._sampling_id, parent_id=self._parent_id))
        log_tokens = bind_contextvars(sampling_id=self._sampling_id)
        try:
            return await self._run_to_the_end()
        finally:
            reset_contextvars(**log_tokens)
            identity.leave(token)

    async def _run_to_the_end(self) -> SamplingResult[T]:
        try:
            if self._emitter.hooks_for(LoopStarted):
                await self._announce()
            await self._run_subsamples()
            result = self._choose()
        except BaseException as error:
            if self._emitter.hooks_for(LoopFinished):
                await self._announce_end(None, error)
            raise
        if self._emitter.hooks_for(LoopFinished):
            await self._announce_end(result, None)
        if self._emitter.failures:
            result = attrs.evolve(result, hook_failures=tuple(self._emitter.failures))
        return result

    async def _announce(self) -> None:
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
            event = await self._emitter.emit_loop_started(event)
        except CriticalHookError as veto:
            raise veto.error from None
        self._loop_budget, self._concurrency_budget = event.loop_budget, event.concurrency_budget
        self._queue = self._new_queue()

    async def _announce_end(self, result: SamplingResult[T] | None, error: BaseException | None) -> None:
        records = self._queue.records
        event = LoopFinished(
            sampling_id=self._sampling_id,
            parent_id=self._parent_id,
            success=result is not None and result.success,
            iterations=len(self._queue.slices),
            attempts=len(records),
            usage=self._usage(),
            elapsed_s=self._now(),
            stop_reason=None if result is None else result.stop_reason,
            result=result,
            error=error,
        )
        try:
            await self._emitter.emit(event, shield=True)
        except CriticalHookError as veto:
            if error is None:
                raise veto.error from None
            error.add_note(f"a critical hook on LoopFinished failed too: {veto.error!r}")

    async def _run_subsamples(self) -> None:
        deadline = math.inf
        if self._call.budget is not None:
            deadline = self._call.budget.deadline(current_token(), anyio.current_time())
        if self._concurrency_budget > 1:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                self._scope.deadline = deadline
                for subsample in range(self._concurrency_budget):
                    group.start_soon(self._subsample, subsample)
        elif deadline < math.inf:
            with anyio.CancelScope(deadline=deadline) as self._scope:
                await self._subsample(0)
        else:
            # A task group, or even a scope, costs more than the attempt itself, and one subsample needs neither.
            await checkpoint()
            await self._subsample(0)
        if self._veto is not None:
            raise self._veto

    def _stop(self) -> None:
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    # One subsample: attempt after attempt, with repairs between.

    async def _subsample(self, subsample: int) -> None:
        try:
            self._exhausted |= await self._attempt_repeatedly(subsample)
            self._subsamples_ended += 1
            self._queue.close(subsample)
            self._decide()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, bare, when the siblings have stopped
            self._end_with(error)

    async def _attempt_repeatedly(self, subsample: int) -> bool:
        """Go through the loop budget of one subsample; True if all of it was used."""
        history: list[Slice[T]] = []
        plan = self._call.first
        for number in range(self._loop_budget):
            state = self._start(subsample, number, plan)
            if state is None:
                return False
            record = await self._attempt(state)
            if record.outcome == "invalid":
                history.append(record)
                if number + 1 < self._loop_budget:
                    repaired = await self._repair(history)
                    if repaired is None:
                        return False
                    plan = repaired
            elif not _may_try_again(record):
                return False
        return True

    def _start(self, subsample: int, number: int, plan: Attempt[T]) -> _State | None:
        """Set up an attempt; None if the call is over, or the budget has no room for it."""
        if self._stopped or (number, subsample) > self._bound:
            return None
        options = self._call.options.overlaid(plan.options)
        reservation = None
        if self._call.budget is not None:
            chars = plan.context.chars + len(plan.action.text)
            try:
                reservation = self._call.budget.reserve(attempts=1, prompt_chars=chars, max_tokens=options.max_tokens)
            except BudgetExceeded as error:
                self._budget_detail = str(error)
                return None
        iteration = subsample * self._loop_budget + number + 1
        return _State(
            sampling_id=self._sampling_id,
            parent_id=self._parent_id,
            iteration=iteration,
            iteration_id=identity.iteration_id(self._sampling_id, iteration),
            subsample=subsample,
            attempt=number,
            plan=plan,
            options=options,
            started_s=self._now(),
            reservation=reservation,
        )

    async def _repair(self, history: list[Slice[T]]) -> Attempt[T] | None:
        if self._stopped:
            return None
        failed = history[-1]
        try:
            plan = self._call.strategy.repair(Prefix(history))
            self._check_plan(plan)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - repair() is the user's code; it ends its own subsample only
            error.add_note(f"raised by {type(self._call.strategy).__name__}.repair()")
            self._errors.append((failed.iteration_id, error))
            return None
        if self._emitter.hooks_for(Repaired):
            try:
                await self._emitter.emit(Repaired(**self._ids(failed), failed=failed, next=plan))
            except CriticalHookError as veto:
                self._end_with(veto.error)
                return None
        return plan

    def _check_plan(self, plan: object) -> None:
        if not isinstance(plan, Attempt):
            raise wrong_type(f"what {type(self._call.strategy).__name__}.repair() returns", plan, "an Attempt")
        if plan.context.chars > self._call.max_context_chars:
            raise ContextTooLarge(plan.context.chars, self._call.max_context_chars)

    # One attempt: ask, check, record.

    async def _attempt(self, state: _State) -> Slice[T]:
        token = identity.enter(state)
        log_tokens = bind_contextvars(iteration_id=state.iteration_id)
        try:
            record = await self._generate_and_validate(state)
            self._put(record)
            if self._emitter.hooks_for(IterationFinished):
                await self._announce_record(record)
            return record
        finally:
            if state.reservation is not None and self._call.budget is not None:
                self._call.budget.release(state.reservation)
            reset_contextvars(**log_tokens)
            identity.leave(token)

    async def _generate_and_validate(self, state: _State) -> Slice[T]:
        try:
            if self._emitter.hooks_for(IterationStarted):
                await self._announce_attempt(state)
            question = Message("user", state.plan.action.text)
            generation = await self._ask(
                state, (*state.plan.context.messages, question), state.options, state.reservation
            )
            state.generation = generation
            context = state.plan.context.add(question, Message("assistant", generation.text))
            return await self._validate(state, generation, context)
        except anyio.get_cancelled_exc_class():
            record = self._record(state, "cancelled")
            self._put(record)
            if self._emitter.hooks_for(IterationFinished):
                await self._announce_record(record)
            raise
        except BaseException as error:  # noqa: BLE001 - what a backend raises must not end its siblings
            return self._record_error(state, error)

    async def _announce_attempt(self, state: _State) -> None:
        await self._emitter.emit(
            IterationStarted(
                **self._ids(state), action=state.plan.action, context=state.plan.context, options=state.options
            )
        )

    async def _announce_record(self, record: Slice[T]) -> None:
        try:
            await self._emitter.emit(IterationFinished(**self._ids(record), slice=record), shield=True)
        except CriticalHookError as veto:
            self._end_with(veto.error)

    def _ids(self, one: "_State | Slice[T]") -> dict[str, Any]:
        return {
            "sampling_id": self._sampling_id,
            "parent_id": self._parent_id,
            "iteration": one.iteration,
            "iteration_id": one.iteration_id,
            "subsample": one.subsample,
            "attempt": one.attempt,
        }

    async def _ask(
        self, state: _State, messages: tuple[Message, ...], options: Options, reservation: Reservation | None
    ) -> Generation:
        """Send one request; whatever comes of it, what it used is settled and counted."""
        request = Request(
            messages, options, self._sampling_id, state.iteration, state.iteration_id, state.subsample, state.attempt
        )
        used: Usage | None = None
        try:
            generation = _as_generation(await self._call.generate(request))
            used = generation.usage
            return generation
        finally:
            self._settle(state, reservation, used)

    def _settle(self, state: _State, reservation: Reservation | None, used: Usage | None) -> None:
        if used is None or used == NOTHING_SPENT:
            used = state.reported
        state.reported = None
        state.reservation = None
        if used is not None:
            state.spent = used if state.spent is NOTHING_SPENT else state.spent + used
        if reservation is not None and self._call.budget is not None:
            self._call.budget.settle(reservation, used)

    async def _ask_for_check(self, state: _State, messages: Sequence[Message]) -> Generation:
        """Ask on behalf of a check: with the ids of its attempt, but reserved and reported apart from it."""
        options = Options(model=state.options.model)
        reservation = None
        if self._call.budget is not None:
            try:
                reservation = self._call.budget.reserve(prompt_chars=sum(len(m.content) for m in messages))
            except BudgetExceeded as error:
                self._budget_detail = str(error)
                raise
        apart = attrs.evolve(state, spent=NOTHING_SPENT, reported=None, reservation=None)
        token = identity.enter(apart)
        try:
            return await self._ask(apart, tuple(messages), options, reservation)
        finally:
            identity.leave(token)
            state.spent += apart.spent

    async def _validate(self, state: _State, generation: Generation, context: Context) -> Slice[T]:
        value, unparsable = parse(state.plan.action, generation.text)
        if unparsable is not None:
            return self._record(state, "invalid", context, validations=(unparsable,))
        validations: tuple[Validation, ...] = ()
        if self._call.requirements:
            view = View(value, self._call.validation_ctx or context, generation, partial(self._ask_for_check, state))
            validations = await validate(self._call.requirements, generation.text, view, self._call.check_timeout_s)
        for validation in validations:
            if not validation.passed:
                error = next((v.error for v in validations if v.error is not None), None)
                return self._record(state, "invalid", context, value, validations, error)
        return self._record(state, "valid", context, value, validations)

    def _record(
        self,
        state: _State,
        outcome: Outcome,
        context: Context | None = None,
        value: T | None = None,
        validations: tuple[Validation, ...] = (),
        error: BaseException | None = None,
    ) -> Slice[T]:
        plan = state.plan
        return Slice(
            state.iteration,
            state.iteration_id,
            state.subsample,
            state.attempt,
            outcome,
            plan.action,
            context or plan.context.add(Message("user", plan.action.text)),
            state.generation,
            validations,
            value,
            error,
            state.spent,
            state.started_s,
            self._now(),
            plan.context,
            plan.options,
        )

    def _record_error(self, state: _State, error: BaseException) -> Slice[T]:
        """Make a record of what an attempt raised, and stop the call if that makes going on pointless."""
        if isinstance(error, CriticalHookError):
            error = error.error
            self._end_with(error)
        elif isinstance(error, MemoryError | RecursionError) or not isinstance(error, Exception):
            self._end_with(error)
        elif isinstance(error, FatalError | BadVerdict):
            self._fatal = self._fatal or error
            self._stop()
        return self._record(state, "errored", error=error)

    def _end_with(self, error: BaseException) -> None:
        self._veto = self._veto or error
        self._stop()

    # The decision: is that enough, and which one is it?

    def _put(self, record: Slice[T]) -> None:
        self._queue.put(record)
        if isinstance(record.error, Exception):
            self._errors.append((record.iteration_id, record.error))
        self._decide()
        if self._call.deterministic and not self._stopped and self._is_enough(self._queue.known_up_to(record)):
            self._bound = min(self._bound, order_key(record))

    def _decide(self) -> None:
        """Ask the strategy, in the very step in which something was added, whether the call may stop."""
        for slices in self._queue.newly_ready():
            if not self._stopped and self._is_enough(slices):
                self._enough = True
                self._stop()

    def _is_enough(self, slices: Sequence[Slice[T]]) -> bool:
        if not slices:
            return False
        strategy = self._call.strategy
        try:
            answer = strategy.done(slices)
        except Exception as error:
            raise SelectionFailed(f"{type(strategy).__name__}.done() raised {error!r}", slices) from error
        if type(answer) is not bool:
            raise SelectionFailed(f"{type(strategy).__name__}.done() returned {shown(answer)}, not a bool", slices)
        return answer

    def _choose(self) -> SamplingResult[T]:
        slices = sorted(self._queue.slices, key=_by_iteration)
        valid = [candidate for candidate in self._candidates() if candidate.valid]
        if valid:
            best = self._selected("select", valid)
        elif isinstance(self._fatal, BadVerdict):
            raise self._fatal
        elif slices:
            best = self._selected("select_from_failure", slices)
        elif self._errors:
            raise self._failure()
        else:
            best = None
        self._log_errors()
        return SamplingResult(
            success=bool(valid),
            best=best,
            slices=tuple(slices),
            attempts=tuple(sorted(self._queue.records, key=_by_iteration)),
            errors=tuple(error for _, error in sorted(self._errors, key=lambda pair: pair[0])),
            usage=self._usage(),
            stop_reason="validated" if valid else self._reason_to_stop(),
            sampling_id=self._sampling_id,
            elapsed_s=self._now(),
            max_attempts=self._loop_budget * self._concurrency_budget,
            parent_id=self._parent_id,
            stop_detail=None if valid else self._budget_detail,
        )

    def _candidates(self) -> Sequence[Slice[T]]:
        """Return what to choose from, in the order in which the strategy saw it."""
        if self._enough or not self._call.deterministic:
            return self._queue.ready
        # Cut short: what was still held back for the sake of order counts too.
        return sorted(self._queue.slices, key=order_key)

    def _selected(self, method: str, slices: Sequence[Slice[T]]) -> Slice[T]:
        name = f"{type(self._call.strategy).__name__}.{method}()"
        try:
            chosen: Slice[T] = getattr(self._call.strategy, method)(slices)
        except Exception as error:
            raise SelectionFailed(f"{name} raised {error!r}", self._queue.slices) from error
        if not any(chosen is candidate for candidate in slices):
            raise SelectionFailed(f"{name} returned {shown(chosen)}, not one of its slices", self._queue.slices)
        return chosen

    def _reason_to_stop(self) -> StopReason:
        if self._fatal is not None:
            return "failed"
        if not self._stopped and self._subsamples_ended < self._concurrency_budget:
            return "deadline"
        if self._budget_detail is not None:
            return "budget"
        return "exhausted" if self._exhausted or self._enough else "failed"

    def _failure(self) -> Exception:
        """Return what to raise when no attempt came to an answer: the first failure, from all of them."""
        failures = [error for _, error in self._errors]
        for iteration_id, error in self._errors:
            error.add_note(f"iteration {iteration_id}")
        failure = self._fatal or failures[0]
        if len(failures) > 1:
            group = ExceptionGroup(f"all {len(failures)} failed attempts", failures)
            # The failure's own cause stays in the chain, one link further up.
            group.__cause__ = failure.__cause__
            failure.__cause__ = group
        return failure

    def _log_errors(self) -> None:
        # Only the type: a message may quote the prompt, or a key.
        for iteration_id, error in self._errors:
            log.warning("attempt_failed", iteration_id=iteration_id, error_type=type(error).__name__)

    def _usage(self) -> Usage:
        return sum((record.usage for record in self._queue.records), NOTHING_SPENT)


def _by_iteration(record: Slice[Any]) -> int:
    return record.iteration


def _may_try_again(record: Slice[Any]) -> bool:
    return isinstance(record.error, SamplingError) and record.error.retryable


def _as_generation(answer: object) -> Generation:
    if isinstance(answer, Generation):
        return answer
    if isinstance(answer, str):
        return Generation(answer)
    raise wrong_type("what the backend returns", answer, "a Generation or a str")
