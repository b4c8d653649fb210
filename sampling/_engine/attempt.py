"""One attempt: send the request, check the answer, return the record."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

import attrs

from sampling._arguments import wrong_type
from sampling._completeness import incomplete
from sampling._engine.call import Call, whole_nanoseconds
from sampling._engine.scope import Scope, enter_part, iteration_id, leave_part, with_limits_of
from sampling._engine.validation import Checking, CutShort, PartialText, check, first_error, parse
from sampling._frozen import unchecked
from sampling._observers.growing_text import GrowingText
from sampling._observers.requests import is_observed_inside, observers, send
from sampling.budgets import Budget, Reservation
from sampling.hooks import TextGrown
from sampling.messages import Attempt, Context, Generation, Message, Options, Request
from sampling.protocols import BackendLike, StreamingBackend, as_generation, can_stream, generate_of
from sampling.requirements import Validation, View
from sampling.results import Outcome, Slice
from sampling.usage import Usage

__all__ = ["RunningAttempt", "prepare"]

T = TypeVar("T")

_new_request = unchecked(Request)
_new_slice = unchecked(Slice)


def prepare(call: Call[T], plan: Attempt[T], subsample: int, attempt: int) -> "RunningAttempt[T]":
    """Build the request of an attempt. If the call has a budget, `reserve` must follow."""
    options = call.options if plan.options is None else call.options.overlaid(plan.options)
    if plan.action.schema is not None and options.schema is None:
        options = attrs.evolve(options, schema=plan.action.schema)
    iteration = subsample * call.loop_budget + attempt + 1
    if call.options.seed is not None and (plan.options is None or plan.options.seed is None):
        # The caller's seed is that of the call. One that the strategy sets is that of the attempt.
        options = attrs.evolve(options, seed=call.options.seed + iteration - 1)
    sampling_id = call.sampling_id
    # All of it was checked when the call was made, or by `Attempt`.
    request = _new_request(
        messages=plan.messages,
        options=options,
        sampling_id=sampling_id,
        iteration=iteration,
        iteration_id=iteration_id(sampling_id, iteration),
        subsample=subsample,
        attempt=attempt,
        idempotency_key=None if call.item is None else f"{call.item_call_name}:{iteration}",
        action=plan.action,
    )
    return RunningAttempt(call, plan, request, Scope(sampling_id, call.parent_id, request), call.clock())


@attrs.define
class RunningAttempt(Generic[T]):
    """The state of one running attempt. It knows nothing about siblings, repairs or events but `TextGrown`."""

    call: Call[T]
    plan: Attempt[T]
    request: Request
    scope: Scope
    """The ids that code inside of the attempt reads, and the attempt's account."""

    started_at: float
    """The start time on the clock of the call."""

    reservation: Reservation | None = None
    """The budget that is reserved until the request is sent."""

    generation: Generation | None = None

    async def reserve(self, budget: Budget) -> None:
        """Reserve the budget, waiting for other reservations if necessary, or raise `BudgetExceeded`."""
        call, scope = self.call, self.scope
        options = self.request.options
        self.reservation = await budget.acquire(
            attempts=1,
            prompt_chars=self.plan.chars,
            max_tokens=options.max_tokens,
            model=options.model,
            holding=call.holding,
        )
        scope.budget = budget
        scope.holding = (*call.holding, self.reservation)
        # The attempt starts now: waiting for the budget is not part of it.
        self.started_at = call.clock()

    async def run(self) -> Slice[T]:
        """Send the request, check the answer, and return the slice. Errors of the backend are raised."""
        call, plan = self.call, self.plan
        scope, reservation = self.scope, self.reservation
        used: Usage | None = None
        try:
            self.reservation = None
            generate = self._stream if call.streamed else call.generate
            answer = await self._send(scope, self.request, call.backend, generate)
            generation = answer if type(answer) is Generation else as_generation(answer)
            used = generation.usage
        finally:
            used = scope.settle(used)
            if reservation is not None or call.item is not None:
                self._account(scope, reservation, used)
        if call.budget is not None:
            call.budget.check_cost(call.backend, used)
        self.generation = generation
        text = generation.text
        context = Context.sent(plan.messages, plan.chars, generation.as_answer())
        if (
            generation.finish_reason != "stop" or not text or generation.tool_calls or generation.refusal is not None
        ) and (cut_off := self._incomplete(generation)) is not None:
            return self.record("invalid", context, self._unparsed(text), (cut_off,))
        value: Any = text
        if plan.action.parser is not None:
            value, unparsable = parse(plan.action, text)
            if unparsable is not None:
                return self.record("invalid", context, validations=(unparsable,))
        view = (
            View(value, call.validation_ctx or context, generation, partial(self._ask_for_check), in_turn=call.in_turn)
            if call.needs_view
            else None
        )
        validations = check(call.requirements, text, view)
        if isinstance(validations, Checking):
            validations = await validations.finish(call.strategy.check_timeout_s)
        failed = [validation for validation in validations if not validation.passed]
        if not failed:
            return self.record("valid", context, value, validations)
        return self.record("invalid", context, value, validations, first_error(failed))

    def _incomplete(self, generation: Generation) -> Validation | None:
        """Return the reason why an answer counts as incomplete, or None."""
        return incomplete(generation, self.request.options, accepted=self.call.strategy.accept_incomplete)

    def _unparsed(self, text: str) -> Any:
        """Return the value of an answer that is not parsed: its text, if that is what the action asks for."""
        return text if self.plan.action.parser is None else None

    def _send(
        self,
        scope: Scope,
        request: Request,
        backend: object,
        generate: Callable[[Request], Awaitable[Generation | str]],
    ) -> Awaitable[Generation | str]:
        """Send one request, and return its awaitable. `Scope.settle` must follow, however it ends."""
        # Not async: one coroutine less for each attempt.
        scope.requests += 1
        scope.backend = backend
        answer: Awaitable[Generation | str]
        if observers() and not is_observed_inside(backend):
            answer = send(backend, request, generate)
        else:
            answer = generate(request)
        if not hasattr(answer, "__await__"):
            raise wrong_type("backend", generate, "async: it answered without being awaited")
        return answer

    def _account(self, scope: Scope, reservation: Reservation | None, used: Usage | None) -> None:
        """Account for a request that has ended, on the item and on the budget, with its usage if known."""
        call = self.call
        if call.item is not None:
            call.item.add_requests(scope.requests, used)
            # The requests of judges have a scope of their own.
            call.item.attempts += scope is self.scope
        if reservation is not None and call.budget is not None:
            if not scope.requests:
                call.budget.release(reservation)
            else:
                call.budget.settle(reservation, used)
                if used is None and call.item is not None:
                    call.item.estimated_tokens += reservation.tokens
            if scope.further:
                scope.settle_further()
            self.scope.holding = call.holding

    async def _stream(self, request: Request) -> Generation | str:
        """Generate with hooks and partial checks on the growing text."""
        call = self.call
        checks = PartialText(call.partial) if call.partial else None
        if checks is not None and not call.emitter.hooks_for(TextGrown):
            return await self._receive(request, checks)
        text = GrowingText(call.emitter, self._grown, checks)
        return await text.while_telling(partial(self._receive_watched, request, text))

    async def _receive_watched(self, request: Request, text: GrowingText) -> Generation:
        call = self.call
        answer = await (self._receive(request, text) if can_stream(call.backend) else call.generate(request))
        generation = as_generation(answer)
        # It is spent even if a hook ends the call.
        self.scope.reported = generation.usage
        text.complete(generation.text)
        return generation

    async def _receive(self, request: Request, text: GrowingText | PartialText) -> Generation | str:
        try:
            return await cast("StreamingBackend", self.call.backend).stream(request, text)
        except Exception:
            # A backend may turn the interruption into an error of its own.
            if text.raised is not None:
                raise text.raised from None
            raise

    def _grown(self, piece: str, text: str) -> TextGrown:
        ids = self.call.ids_of(self.request)
        return TextGrown(**ids, piece=piece, text=text, action=self.plan.action)

    async def _ask_for_check(
        self, messages: Sequence[Message], *, backend: BackendLike | None = None, options: Options | None = None
    ) -> Generation:
        """Send a request for a check, with the ids of this attempt but its own reservation."""
        call, scope = self.call, self.scope
        generate = call.ask if backend is None else generate_of(with_limits_of(call.item, backend))
        if options is None:
            # A backend of the check's own has a model of its own.
            options = Options(model=self.request.options.model if backend is None else None)
        request = attrs.evolve(self.request, messages=messages, options=options, idempotency_key=None, action=None)
        reservation = None
        if call.budget is not None:
            prompt_chars = sum(message.chars for message in request.messages)
            reservation = await call.budget.acquire(prompt_chars=prompt_chars, holding=call.holding)
        part = Scope(scope.sampling_id, scope.parent_id, request)
        part.budget = scope.budget
        part.holding = call.holding if reservation is None else (*call.holding, reservation)
        entered = enter_part(part)
        used: Usage | None = None
        try:
            asked: object = getattr(generate, "__self__", generate)
            generation = as_generation(await self._send(part, request, asked, generate))
            used = generation.usage
            return generation
        finally:
            self._account(part, reservation, part.settle(used))
            leave_part(entered)
            scope.spent += part.spent
            scope.requests += part.requests

    def record(
        self,
        outcome: Outcome,
        context: Context | None = None,
        value: T | None = None,
        validations: tuple[Validation, ...] = (),
        error: BaseException | None = None,
    ) -> Slice[T]:
        """Make the record of this attempt, which ends now."""
        call, plan, request, scope = self.call, self.plan, self.request, self.scope
        if self.reservation is not None and call.budget is not None:
            # The attempt ended before its request was sent.
            call.budget.release(self.reservation)
        return _new_slice(
            request.iteration,
            request.iteration_id,
            request.subsample,
            request.attempt,
            outcome,
            plan.action,
            Context.sent(plan.messages, plan.chars) if context is None else context,
            self.generation,
            validations,
            value,
            error,
            scope.spent,
            whole_nanoseconds(self.started_at - call.started_at),
            call.elapsed_s(),
            scope.requests,
            0,
            plan,
            scope.from_cache,
        )

    def record_cut(self, cut: CutShort, longest_answer: int) -> Slice[T]:
        """Make the record of an answer that was cut short: invalid, with the text so far."""
        spent = self.scope.spent
        could_have_been = self.request.options.max_tokens or longest_answer
        self.generation = Generation(cut.text, spent, finish_reason="cut")
        context = Context.sent(self.plan.messages, self.plan.chars, cut.text)
        record = self.record("invalid", context, None, (cut.validation,), cut.validation.error)
        return attrs.evolve(record, tokens_saved=max(0, could_have_been - spent.output_tokens))
