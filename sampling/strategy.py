"""`BaseSamplingStrategy`: budgets, the decisions to override, and `sample()`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, cast, final, overload

import anyio
import attrs

from sampling._arguments import (
    check_bool,
    check_budgets,
    check_instance,
    check_int,
    check_number,
    unknown_keyword,
    wrong_type,
)
from sampling._engine.call import Call
from sampling._engine.run import Run
from sampling._engine.scope import current_item, new_sampling_id, parent_id
from sampling._engine.stages import stages_of
from sampling._event_loop import running_loop
from sampling._plugins import installed_hooks
from sampling.budgets import Budget
from sampling.errors import InsideEventLoop
from sampling.hooks import SILENT, Emitter, Hooks
from sampling.messages import Action, Attempt, Context, Options
from sampling.protocols import BackendLike, Progress, Stage, Variation, generate_of
from sampling.requirements import Requirement, RequirementLike, as_requirements
from sampling.results import SamplingResult, Slice, by_merit, first_tried

__all__ = ["BaseSamplingStrategy", "StrategySettings"]

T = TypeVar("T")

NO_CONTEXT = Context()
NO_OPTIONS = Options()

_SYNONYMS = {
    "attempts": "loop_budget",
    "breadth": "concurrency_budget",
    "concurrency": "concurrency_budget",
    "depth": "loop_budget",
    "max_retries": "loop_budget",
    "n": "concurrency_budget",
    "reqs": "requirements",
    "retries": "loop_budget",
    "timeout_s": "check_timeout_s",
    "tries": "loop_budget",
    "width": "concurrency_budget",
}
"""What other libraries call these settings."""


class StrategySettings(TypedDict, total=False):
    """The keyword arguments that every strategy takes; `BaseSamplingStrategy` says what each one means."""

    loop_budget: int | None
    concurrency_budget: int | None
    requirements: Iterable[RequirementLike] | None
    hooks: Hooks | None
    deterministic: bool | None
    check_timeout_s: float | None
    max_context_chars: int | None
    variation: Variation | None


class BaseSamplingStrategy:
    """
    Ask `loop_budget` times deep and `concurrency_budget` wide, and stop at the first valid answer.

    There are `concurrency_budget` subsamples, all running at once. Each makes up to `loop_budget` attempts,
    one after the other, and after an invalid one `repair` says what to try next.
    The first valid slice ends the call: the others are cancelled, and what they spent is on the result.

    What breadth costs: the number of requests multiplies, up to `loop_budget * concurrency_budget`,
    and with it the prompt tokens; rate limits come sooner;
    and which of several valid answers wins depends on timing, unless `deterministic=True`.

    To write a strategy of your own, override any of the four decisions, `repair`, `done`, `select` and
    `select_from_failure`. They are pure and synchronous: the engine does the waiting,
    and hooks, ids, budgets and cancellation come with it. Set budgets as class attributes to change the defaults.
    """

    loop_budget: int = 1
    """Depth: how many attempts each subsample may make."""

    concurrency_budget: int = 1
    """Breadth: how many subsamples run at once."""

    requirements: Sequence[Requirement] = ()
    """Checked on every sample, before those of the call."""

    hooks: Hooks
    deterministic: bool = False
    """Whether the winner must not depend on timing: the valid slice with the smallest (attempt, subsample) wins."""

    check_timeout_s: float | None = 60.0
    """How long an async check may take, if its requirement does not say."""

    max_context_chars: int = 10_000_000
    """How long a conversation may get by repairs before its subsample ends."""

    variation: Variation | None = None
    """Makes subsamples differ; None asks them all the same."""

    _overridden: ClassVar[frozenset[str]] = frozenset()
    """The optional decisions that this class overrides. The engine skips the others."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        # Here, so that a subclass with an __init__ of its own has hooks even before it calls ours.
        self = super().__new__(cls)
        self.hooks = Hooks()
        return self

    def __init__(self, **settings: Unpack[StrategySettings]) -> None:
        """Set what differs from the defaults of the class; None keeps them."""
        unknown = settings.keys() - StrategySettings.__annotations__.keys()
        if unknown:
            raise unknown_keyword(type(self), min(unknown), _SYNONYMS)
        requirements = settings.get("requirements")
        if requirements is not None:
            settings["requirements"] = as_requirements("requirements", requirements)
        self._take(**settings)
        self._check_settings()

    def _take(self, **given: Any) -> None:
        """Set what was given; what is None stays as the class has it."""
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)

    def _check_settings(self) -> None:
        """Check what this strategy was given, and what its class says, in the same words."""
        check_budgets(self.loop_budget, self.concurrency_budget)
        as_requirements("requirements", self.requirements)
        check_instance("hooks", self.hooks, Hooks, "Hooks")
        check_bool("deterministic", self.deterministic)
        if self.check_timeout_s is not None:
            check_number("check_timeout_s", self.check_timeout_s, above=0)
        check_int("max_context_chars", self.max_context_chars, least=1)
        if self.variation is not None and not callable(self.variation):
            raise wrong_type("variation", self.variation, "a callable of (plan, subsample, attempt), or None")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("sample", "sample_sync"):
            if name in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} overrides {name}(), which is final: it carries the hooks, ids, budgets and "
                    "cancellation. Override repair, done, select or select_from_failure instead"
                )
        cls._overridden = frozenset(
            name for name in _OPTIONAL if getattr(cls, name) is not getattr(BaseSamplingStrategy, name)
        )

    # Decisions.

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """
        Say what to try next in a subsample whose last attempt was invalid.

        `history` holds the slices of this subsample only, oldest first; attempts that errored are not in it.
        It is asked neither after the last attempt, nor after a transient error: then the same is tried again.
        By default, the first question is asked again, unchanged.
        """
        return first_tried(history)

    def done(self, slices: Sequence[Slice[T]]) -> bool:
        """
        Say whether the whole call may stop now. It is asked after every slice; the newest one is the last.

        By default, at the first valid one.
        """
        return slices[-1].valid

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose the answer among the valid slices, which come in the order in which `done` saw them."""
        return slices[0]

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Choose the answer when no slice is valid; they come by iteration.

        By default by merit: most requirements passed, then the higher score, then the earliest.
        """
        return by_merit(slices)

    # Decisions that few strategies make. Those that are not overridden are not asked for, and cost nothing.

    def should_continue(self, history: Sequence[Slice[T]]) -> bool:
        """Say whether a subsample whose last attempt was invalid goes on, before `repair` is asked. By default, yes."""
        return True

    def vary(self, plan: Attempt[T], subsample: int, attempt: int) -> Attempt[T]:
        """
        Say what is really tried where `plan` is due: how the subsamples differ.

        It is asked before every attempt, with the plan as `repair` or the caller made it.
        By default, what `variation` says, if there is one.
        """
        return plan if self.variation is None else self.variation(plan, subsample, attempt)

    def settled(self, progress: Progress[T]) -> bool:
        """
        Say whether the whole call may stop now, knowing also what may still come.

        It is asked after every slice, after every attempt that errored, and when a subsample has ended,
        if there is a slice by then. By default, what `done` says of the slices.
        """
        return self.done(progress.slices)

    def next_subsample_in_s(self, progress: Progress[T]) -> float:
        """
        Say in how many seconds one more subsample shall start: 0 for now, `math.inf` for not as things are.

        The first one starts at once. It is asked then, after every start, when an attempt or a subsample has ended,
        and when the seconds have passed: each answer replaces the one before. `concurrency_budget` limits all of them.
        If it says `math.inf` when nothing is running, the call is over. By default, all start at once.
        """
        return 0.0

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None:
        """
        Say which call to make inside this one, after those that gave these results; None if that was all.

        A strategy that overrides this asks nothing by itself: its attempts are those of the calls that it makes,
        one after the other, and `select` chooses among their winners. What they all have of the call is its
        requirements, its budget, its hooks and its deadline; `first` is what the caller asked.
        """
        return None

    def learn(self, attempts: Sequence[Slice[T]]) -> None:
        """See every attempt of a call when it is over, however it ended. What is learned is for calls to come."""

    def wrap_backend(self, backend: BackendLike) -> BackendLike:
        """Return the backend that is asked, given that of the caller. By default, the same."""
        return backend

    # The call.

    @overload
    async def sample(
        self,
        action: str,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[str]: ...
    @overload
    async def sample(
        self,
        action: Action[T],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[T]: ...
    @final
    async def sample(
        self,
        action: Action[Any] | str,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[Any]:
        """
        Ask until an answer is valid or the budgets are used up.

        Args:
            action: What to ask: an `Action`, or its text.

            ctx: The conversation to ask in; None for a new one.

            backend: Who answers: a `Backend`, or any `async def f(request) -> Generation | str`.

            reqs: What must be true of the answer, after the strategy's own requirements:
                `Requirement` objects, plain checks, or sentences that a model judges.

            options: How to generate.

            budget: What may be spent; share one between calls to limit them together.

            validation_ctx: The conversation that requirements see, instead of that of each attempt.

            hooks: Called in this call, after those of plugins and of the strategy.

        Returns:
            A result for every ending that has something to show, `success` or not.

        Raises:
            What the backend raised, with its own type, if no attempt came to an answer;
            when several failed, from an `ExceptionGroup` of all of them.
        """
        call = self._call(action, ctx, backend, reqs, options, budget, validation_ctx, hooks)
        return await self._run(call).run()

    @overload
    def sample_sync(
        self,
        action: str,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[str]: ...
    @overload
    def sample_sync(
        self,
        action: Action[T],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[T]: ...
    @final
    def sample_sync(
        self,
        action: Action[Any] | str,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> SamplingResult[Any]:
        """Do as `sample()` does, for code that has no event loop; inside of one it raises `InsideEventLoop`."""
        if _loop_is_running():
            raise InsideEventLoop
        call = partial(self.sample, options=options, budget=budget, validation_ctx=validation_ctx, hooks=hooks)
        return anyio.run(call, cast("Action[Any]", action), ctx, backend, reqs)

    def _call(
        self,
        action: object,
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None,
        options: Options | None,
        budget: Budget | None,
        validation_ctx: Context | None,
        hooks: Hooks | None,
    ) -> Call[Any]:
        """Check the arguments of `sample()`, and freeze them together with the decisions of this strategy."""
        if isinstance(action, str):
            action = Action(action)
        elif not isinstance(action, Action):
            raise wrong_type("action", action, "an Action or a str")
        _check_optional("ctx", ctx, Context)
        _check_optional("options", options, Options)
        _check_optional("budget", budget, Budget)
        _check_optional("validation_ctx", validation_ctx, Context)
        _check_optional("hooks", hooks, Hooks)
        check_budgets(self.loop_budget, self.concurrency_budget)
        overridden = self._overridden
        generate = generate_of(backend)
        if "wrap_backend" in overridden:
            backend = self.wrap_backend(backend)
            generate = generate_of(backend)
        requirements = _deduplicated(self.requirements, as_requirements("reqs", reqs))
        streamed, needs_view = _needs_of(requirements)
        loop = running_loop()
        item = current_item()
        return Call(
            sampling_id=new_sampling_id(),
            parent_id=parent_id(),
            item=item,
            item_call_name=None if item is None else item.next_call_name(),
            clock=loop.time,
            cancelled=loop.cancelled,
            started_at=loop.time(),
            strategy=cast("Any", self),
            first=Attempt(cast("Action[Any]", action), ctx or NO_CONTEXT),
            backend=backend,
            generate=generate,
            requirements=requirements,
            partial=streamed if callable(getattr(backend, "stream", None)) else (),
            needs_view=needs_view,
            options=options or NO_OPTIONS,
            loop_budget=self.loop_budget,
            concurrency_budget=self.concurrency_budget,
            deterministic=self.deterministic,
            budget=budget,
            validation_ctx=validation_ctx,
            emitter=self._emitter(hooks),
            hooks=hooks,
            check_timeout_s=self.check_timeout_s,
            max_context_chars=self.max_context_chars,
            overridden=overridden,
            # Looked up for every call, and not once for the class: these two are what people replace in a test.
            done=None if _is_default(self.done, _DONE) and "settled" not in overridden else self.done,
            repair=None if _is_default(self.repair, _REPAIR) else self.repair,
            vary=self.vary if self.variation is not None or "vary" in overridden else None,
            should_continue=self.should_continue if "should_continue" in overridden else None,
        )

    def run_inside(self, outer: Call[Any], stage: Stage[Any], hooks: Hooks) -> Run[Any]:
        """Prepare a call inside another one, with the requirements, budget and hooks of the outer call."""
        call = self._call(
            stage.first.action,
            stage.first.context,
            outer.backend if stage.backend is None else stage.backend,
            outer.requirements,
            outer.options.overlaid(stage.options),
            outer.budget,
            outer.validation_ctx,
            hooks,
        )
        item = outer.item
        own = attrs.evolve(
            call,
            first=stage.first,
            item=item,
            item_call_name=None if item is None else item.next_call_name(),
            should_continue=_both(call.should_continue, stage.should_continue),
        )
        return self._run(own)

    def _run(self, call: Call[Any]) -> Run[Any]:
        stages = stages_of(self, call.hooks) if "next_stage" in call.overridden else None
        return Run(call, stages)

    def _emitter(self, hooks: Hooks | None) -> Emitter:
        check_instance("the strategy's hooks", self.hooks, Hooks, "Hooks")
        everywhere = (*installed_hooks(), *self.hooks, *(hooks or ()))
        return Emitter(everywhere) if everywhere else SILENT

    def __repr__(self) -> str:
        budgets = f"loop_budget={self.loop_budget}, concurrency_budget={self.concurrency_budget}"
        return f"{type(self).__name__}({budgets}{', deterministic=True' if self.deterministic else ''})"


_OPTIONAL = ("settled", "next_subsample_in_s", "vary", "should_continue", "next_stage", "learn", "wrap_backend")
_DONE = BaseSamplingStrategy.done
_REPAIR = BaseSamplingStrategy.repair


def _check_optional(name: str, value: object, kind: type[Any]) -> None:
    if value is not None and not isinstance(value, kind):
        article = "" if kind.__name__.endswith("s") else "a "
        raise wrong_type(name, value, f"{article}{kind.__name__} or None")


def _is_default(method: Callable[..., Any], default: Callable[..., Any]) -> bool:
    return getattr(method, "__func__", None) is default


def _needs_of(requirements: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], bool]:
    """Return the requirements with a partial check, and whether any one looks at more than the text."""
    streamed: list[Requirement] = []
    needs_view = False
    for requirement in requirements:
        if requirement.partial is not None:
            streamed.append(requirement)
        if requirement.takes_view or requirement.judged:
            needs_view = True
    return tuple(streamed), needs_view


def _both(
    own: Callable[[Sequence[Slice[Any]]], bool] | None, given: Callable[[Sequence[Slice[Any]]], bool] | None
) -> Callable[[Sequence[Slice[Any]]], bool] | None:
    """Return a decision that is true where both are."""
    if own is None or given is None:
        return own or given
    return lambda history: own(history) and given(history)


def _loop_is_running() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except anyio.NoEventLoopError:
        return False
    return True


def _deduplicated(own: Iterable[RequirementLike], given: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
    """Put the strategy's requirements before the call's, each once."""
    if not own:
        return given
    both = (*as_requirements("requirements", own), *given)
    once: dict[tuple[str, int], Requirement] = {}
    for requirement in both:
        once.setdefault((requirement.description, id(requirement.check)), requirement)
    return tuple(once.values())
