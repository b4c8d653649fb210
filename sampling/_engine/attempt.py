"""One attempt: ask the backend, put the answer to its requirements, make a record."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

import attrs

from sampling._arguments import wrong_type
from sampling._engine import scope as identity
from sampling._engine.validation import Checking, CutShort, Growing, check, first_error, parse
from sampling.budgets import Budget, Reservation
from sampling.errors import BudgetExceeded
from sampling.hooks import Emitter
from sampling.messages import Attempt, Context, Generation, Message, Options, Request
from sampling.protocols import BackendLike, Decisions, StreamingBackend, Variation, as_generation, generate_of
from sampling.requirements import Requirement, Validation, View
from sampling.results import Outcome, Slice
from sampling.usage import NO_USAGE, Usage

__all__ = ["AttemptState", "Attempter", "Call", "Seams"]

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Seams:
    """Which of its decisions a strategy makes by itself: what it leaves alone is not asked for, and costs nothing."""

    settles: bool
    starts_late: bool
    varies: bool
    gives_up: bool
    stages: bool
    learns: bool
    wraps: bool

    follows: bool = attrs.field(init=False, default=attrs.Factory(lambda own: own.settles or own.starts_late, True))
    """Whether any of them needs to know what each subsample is at."""

    shapes: bool = attrs.field(
        init=False, default=attrs.Factory(lambda own: own.varies or own.gives_up or own.wraps, True)
    )
    """Whether any of them changes what a call is made of."""


@attrs.define(kw_only=True)
class Call(Generic[T]):
    """Everything that one call of `sample()` was given; nothing changes it while the call runs."""

    strategy: Decisions[T]
    first: Attempt[T]
    backend: BackendLike
    generate: Callable[[Request], Awaitable[Generation | str]]
    """What answers: the backend's method, or the backend itself if it is a function."""

    requirements: tuple[Requirement, ...]
    options: Options
    loop_budget: int
    concurrency_budget: int
    deterministic: bool
    seams: Seams
    first_valid_ends: bool
    """Whether the strategy leaves `done` as it is, as most do: it need not be asked after every attempt then."""

    repairs: bool
    """Whether the strategy has a `repair` of its own: else the first question is asked again, without asking for it."""

    budget: Budget | None
    validation_ctx: Context | None
    emitter: Emitter
    check_timeout_s: float | None
    max_context_chars: int
    vary: Variation | None = None
    """What makes subsamples differ, if anything does."""

    should_continue: Callable[[Sequence[Slice[T]]], bool] | None = None
    """What may end a subsample before its depth is used, if anything may."""


@attrs.define
class AttemptState(identity.Place, Generic[T]):
    """One attempt while it runs; as the current `Place`, it is also what `current()` reads its ids from."""

    request: Request  # pyright: ignore[reportIncompatibleVariableOverride] - nobody sets it, and an attempt has one
    plan: Attempt[T]
    started_at: float
    """By the clock of the event loop."""

    reservation: Reservation | None
    """What is held of the budget until the request of this attempt is settled."""

    budget: Budget | None
    spent: Usage = NO_USAGE
    requests: int = 0
    """How many requests were sent, with those of judges and of layers that try again."""

    generation: Generation | None = None

    def count_request(self) -> None:
        """Count one more request, if the budget has room for it."""
        if self.budget is not None:
            self.budget.count_request()
        self.requests += 1


class Attempter(Generic[T]):
    """Makes the attempts of one call. It knows nothing of siblings, repairs or hooks."""

    def __init__(self, call: Call[T], sampling_id: str, parent_id: str | None, clock: Callable[[], float]) -> None:
        self._call = call
        self._sampling_id = sampling_id
        self._parent_id = parent_id
        self._item = identity.current_item()
        self._call_name = None if self._item is None else self._item.next_call()
        self._longest_answer = 0
        self._requirements = call.requirements
        self._partial: list[Requirement] = []
        self._needs_view = False
        for requirement in call.requirements:
            if requirement.partial is not None:
                self._partial.append(requirement)
            if requirement.takes_view or requirement.judged:
                self._needs_view = True
        self._generate = call.generate
        if self._partial and callable(getattr(call.backend, "stream", None)):
            self._generate = self._stream
        self._clock = clock
        self._started_at = clock()
        self.budget_detail: str | None = None
        """What the budget said when it had no room, if it ever had none."""

    def now(self) -> float:
        """Return the seconds since the start of the call, by the clock of the event loop."""
        return self._clock() - self._started_at

    def prepare(self, plan: Attempt[T], iteration: int, subsample: int, number: int) -> AttemptState[T] | None:
        """Set up an attempt and reserve what it needs; None if the budget has no room for it."""
        options = self._call.options if plan.options is None else self._call.options.overlaid(plan.options)
        if plan.action.schema is not None and options.schema is None:
            options = attrs.evolve(options, schema=plan.action.schema)
        request = Request(
            plan.messages,
            options,
            self._sampling_id,
            iteration,
            identity.iteration_id(self._sampling_id, iteration),
            subsample,
            number,
            None if self._call_name is None else f"{self._call_name}:{iteration}",
        )
        reservation = None
        if self._call.budget is not None:
            try:
                reservation = self._call.budget.reserve(
                    attempts=1, prompt_chars=plan.chars, max_tokens=options.max_tokens
                )
            except BudgetExceeded as error:
                self.budget_detail = str(error)
                return None
        started_at = self._clock()
        return AttemptState(
            self._sampling_id, self._parent_id, None, None, request, plan, started_at, reservation, self._call.budget
        )

    async def attempt(self, state: AttemptState[T]) -> Slice[T]:
        """Ask, check and return the slice; what the backend raises comes through."""
        plan, request, reservation = state.plan, state.request, state.reservation
        used: Usage | None = None
        try:
            generation = as_generation(await self._send(state, request, self._generate))
            used = generation.usage
        finally:
            self._settle(state, reservation, used)
        state.generation = generation
        text = generation.text
        if self._partial:
            self._longest_answer = max(self._longest_answer, generation.usage.output_tokens)
        context = Context.sent(plan.messages, plan.chars, text)
        value: Any = text
        if plan.action.parser is not None:
            value, unparsable = parse(plan.action, text)
            if unparsable is not None:
                return self.record(state, "invalid", context, validations=(unparsable,))
        view = self._view(state, generation, context, value) if self._needs_view else None
        validations = check(self._requirements, text, view)
        if isinstance(validations, Checking):
            validations = await validations.finish(self._call.check_timeout_s)
        failed = [validation for validation in validations if not validation.passed]
        if not failed:
            return self.record(state, "valid", context, value, validations)
        return self.record(state, "invalid", context, value, validations, first_error(failed))

    def record(
        self,
        state: AttemptState[T],
        outcome: Outcome,
        context: Context | None = None,
        value: T | None = None,
        validations: tuple[Validation, ...] = (),
        error: BaseException | None = None,
    ) -> Slice[T]:
        """Make the record of an attempt that ends now."""
        if state.reservation is not None and self._call.budget is not None:
            # Cut off before its request was sent.
            self._call.budget.release(state.reservation)
        plan, request = state.plan, state.request
        return Slice(
            request.iteration,
            request.iteration_id,
            request.subsample,
            request.attempt,
            outcome,
            plan.action,
            context or Context.sent(plan.messages, plan.chars),
            state.generation,
            validations,
            value,
            error,
            state.spent,
            state.started_at - self._started_at,
            self._clock() - self._started_at,
            state.requests,
            0,
            plan,
        )

    async def _stream(self, request: Request) -> Generation | str:
        """Generate with partial checks on the text as it grows."""
        growing = Growing(self._partial)
        try:
            return await cast("StreamingBackend", self._call.backend).stream(request, growing.take)
        except Exception:
            if growing.cut is not None:
                raise growing.cut from None
            raise

    def record_cut(self, state: AttemptState[T], cut: CutShort) -> Slice[T]:
        """Make the record of an answer that was cut short: invalid, with as much of it as there was."""
        used = state.spent.output_tokens
        could_have_been = state.request.options.max_tokens or self._longest_answer
        state.generation = Generation(cut.text, state.spent, finish_reason="cut")
        context = Context.sent(state.plan.messages, state.plan.chars, cut.text)
        record = self.record(state, "invalid", context, None, (cut.validation,), cut.validation.error)
        return attrs.evolve(record, tokens_saved=max(0, could_have_been - used))

    def _send(
        self,
        state: AttemptState[T],
        request: Request,
        generate: Callable[[Request], Awaitable[Generation | str]],
    ) -> Awaitable[Generation | str]:
        """Send one request, and return what its answer is awaited with; `_settle` must follow, whatever comes of it."""
        state.reservation = None
        state.requests += 1
        answer = generate(request)
        if not hasattr(answer, "__await__"):
            raise wrong_type("backend", generate, "async: it answered without being awaited")
        return answer

    def _settle(self, state: AttemptState[T], reservation: Reservation | None, used: Usage | None) -> None:
        """Count what a request used, as its answer says, or as its backend reported if there is none or it is mum."""
        if used is None or used is NO_USAGE or used == NO_USAGE:
            used = state.reported
        state.reported = None
        if used is not None:
            state.spent = used if state.spent is NO_USAGE else state.spent + used
        if self._item is not None:
            self._item.settle(used)
        if reservation is not None and self._call.budget is not None:
            self._call.budget.settle(reservation, used)

    def _view(self, state: AttemptState[T], generation: Generation, context: Context, value: T | None) -> View:
        return View(value, self._call.validation_ctx or context, generation, partial(self._ask_for_check, state))

    async def _ask_for_check(
        self,
        state: AttemptState[T],
        messages: Sequence[Message],
        *,
        backend: object = None,
        options: Options | None = None,
    ) -> Generation:
        """Ask on behalf of a check: with the ids of its attempt, but reserved and reported apart from it."""
        generate = self._call.generate if backend is None else generate_of(backend)
        if options is None:
            # A backend of the check's own has a model of its own.
            options = Options(model=state.request.options.model if backend is None else None)
        request = attrs.evolve(state.request, messages=messages, options=options, idempotency_key=None)
        reservation = None
        if self._call.budget is not None:
            try:
                reservation = self._call.budget.reserve(prompt_chars=sum(len(one.content) for one in request.messages))
            except BudgetExceeded as error:
                self.budget_detail = str(error)
                raise
        apart = attrs.evolve(state, request=request, spent=NO_USAGE, reported=None, requests=0)
        entered = identity.enter_part(apart)
        used: Usage | None = None
        try:
            generation = as_generation(await self._send(apart, request, generate))
            used = generation.usage
            return generation
        finally:
            self._settle(apart, reservation, used)
            identity.leave_part(entered)
            state.spent += apart.spent
            state.requests += apart.requests
