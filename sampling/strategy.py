"""The base class of all strategies: budgets, decisions to override, and `sample()`."""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, TypeVar, Unpack, cast, final, overload

import anyio
import attrs

from sampling._arguments import (
    WrittenOutSignature,
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
from sampling._engine.scope import current_item, new_sampling_id, parent_id, reservations_around, with_limits_of
from sampling._engine.stages import stages_of
from sampling._event_loop import running_loop
from sampling._plugins import installed_hooks
from sampling.budgets import Budget
from sampling.errors import InsideEventLoop
from sampling.hooks import SILENT, Emitter, Hooks, TextGrown
from sampling.messages import Action, Attempt, Context, Options, as_action
from sampling.parts import Part
from sampling.protocols import BackendLike, Progress, Stage, Variation, can_stream, generate_of
from sampling.requirements import Requirement, RequirementLike, as_requirements
from sampling.results import SamplingResult, Slice, by_merit, first_tried
from sampling.streaming import Events, open_events

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ["BaseSamplingStrategy", "CallSettings", "StrategySettings", "keep_open"]

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
"""Names that other libraries use for these settings."""


class CallSettings(TypedDict, total=False):
    """Keyword arguments of `sample()`, `sample_sync()` and `stream()`."""

    options: Options | None
    """Options of the generation, such as the temperature."""

    budget: Budget | None
    """A limit on attempts, requests, tokens, cost or time. Calls can share one."""

    validation_ctx: Context | None
    """The conversation that requirements see, instead of that of each attempt."""

    hooks: Hooks | None
    """Hooks of this call, called after those of plugins and of the strategy."""


class StrategySettings(TypedDict, total=False):
    """Keyword arguments that every strategy takes. None keeps the default of the class."""

    loop_budget: int | None
    """Depth: the most attempts that each subsample makes."""

    concurrency_budget: int | None
    """Breadth: the number of subsamples that run at once."""

    requirements: Iterable[RequirementLike] | None
    """Requirements of every call, checked before the call's own."""

    hooks: Hooks | None
    """Hooks of every call."""

    deterministic: bool | None
    """Make the winner independent of timing: the valid slice with the smallest (attempt, subsample) wins."""

    check_timeout_s: float | None
    """The timeout of async checks whose requirement has none."""

    max_context_chars: int | None
    """The length at which a conversation that grows by repairs ends its subsample."""

    variation: Variation | None
    """Makes subsamples differ. With None, all of them start with the same request."""

    state_requirements: bool | None
    """Put the requirements into the first prompt."""

    accept_incomplete: bool | None
    """Check answers that were cut off, filtered or refused like others, instead of calling them invalid."""


class BaseSamplingStrategy:
    """
    Sample `loop_budget` times deep and `concurrency_budget` wide, and stop at the first valid answer.

    A call runs `concurrency_budget` subsamples at once. Each makes up to `loop_budget` attempts, one after the other.
    After an invalid attempt, `repair` returns what to try next. The first valid slice ends the call.
    The other subsamples are cancelled, and their usage is on the result.

    Breadth has a cost: the number of requests multiplies, up to `loop_budget * concurrency_budget`, and so do the
    prompt tokens, rate limits come sooner, and which of several valid answers wins depends on timing,
    unless `deterministic=True`.

    To write a strategy, override any of the four decisions `repair`, `done`, `select` and `select_from_failure`.
    They are pure and synchronous. The engine does the waiting, and hooks, ids, budgets and cancellation come with it.
    Set budgets as class attributes to change the defaults.
    """

    loop_budget: int = 1
    """Depth: the most attempts that each subsample makes."""

    concurrency_budget: int = 1
    """Breadth: the number of subsamples that run at once."""

    requirements: Sequence[Requirement] = ()
    """Requirements of every call, checked before the call's own."""

    hooks: Hooks
    deterministic: bool = False
    """Make the winner independent of timing: the valid slice with the smallest (attempt, subsample) wins."""

    check_timeout_s: float | None = 60.0
    """The timeout of async checks whose requirement has none."""

    max_context_chars: int = 10_000_000
    """The length at which a conversation that grows by repairs ends its subsample."""

    variation: Variation | None = None
    """Makes subsamples differ. With None, all of them start with the same request."""

    state_requirements: bool = False
    """Put the requirements into the first prompt, so that the model need not learn them from failures."""

    accept_incomplete: bool = False
    """Check answers that were cut off, filtered or refused like others, instead of calling them invalid."""

    __signature__: ClassVar[Any] = WrittenOutSignature()

    _overridden: ClassVar[frozenset[str]] = frozenset()
    """The optional decisions that this class overrides. The engine skips the others."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        # Here, so that a subclass with its own __init__ has hooks even before it calls ours.
        self = super().__new__(cls)
        self.hooks = Hooks()
        return self

    def __init__(self, **settings: Unpack[StrategySettings]) -> None:
        """Override defaults of the class. None keeps the default."""
        unknown = settings.keys() - StrategySettings.__annotations__.keys()
        if unknown:
            raise unknown_keyword(type(self), min(unknown), _SYNONYMS)
        requirements = settings.get("requirements")
        if requirements is not None:
            settings["requirements"] = as_requirements("requirements", requirements)
        self._take(**settings)
        self._check_settings()

    def _take(self, **given: Any) -> None:
        """Set attributes. None keeps the default of the class."""
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)

    def _check_settings(self) -> None:
        """Check all settings, those of the class too."""
        check_budgets(self.loop_budget, self.concurrency_budget)
        as_requirements("requirements", self.requirements)
        check_instance("hooks", self.hooks, Hooks, "Hooks")
        check_bool("deterministic", self.deterministic)
        check_bool("accept_incomplete", self.accept_incomplete)
        if self.check_timeout_s is not None:
            check_number("check_timeout_s", self.check_timeout_s, above=0)
        check_int("max_context_chars", self.max_context_chars, least=1)
        check_bool("state_requirements", self.state_requirements)
        if self.variation is not None and not callable(self.variation):
            raise wrong_type("variation", self.variation, "a callable of (plan, subsample, attempt), or None")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("sample", "sample_sync", "stream"):
            if name in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} overrides {name}(), which is final: it carries the hooks, ids, budgets and "
                    "cancellation. Override repair, done, select or select_from_failure instead"
                )
        for name in ("repair", "done", "select", "select_from_failure"):
            if iscoroutinefunction(cls.__dict__.get(name)):
                raise TypeError(
                    f"{cls.__name__}.{name}() is async, but decisions are plain functions. Await in a check or a hook, "
                    "or in the backend"
                )
        cls._overridden = frozenset(
            name for name in _OPTIONAL if getattr(cls, name) is not getattr(BaseSamplingStrategy, name)
        )

    # Decisions.

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """
        Return what to try next in a subsample whose last attempt was invalid.

        `history` holds the slices of this subsample only, oldest first, without attempts that errored.
        The engine calls it neither after the last attempt, nor after a transient error, which repeats the attempt.
        By default, return the first attempt unchanged.
        """
        return first_tried(history)

    def done(self, slices: Sequence[Slice[T]]) -> bool:
        """
        Return whether the whole call may stop now.

        The engine calls it after every slice, the newest being the last. By default, stop at the first valid one.
        """
        return slices[-1].valid

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose the answer among the valid slices, in the order in which `done` saw them."""
        return slices[0]

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Choose the answer among the slices, sorted by iteration, when none is valid.

        By default, choose by merit: most requirements passed, then the higher score, then the earliest.
        """
        return by_merit(slices)

    # Optional methods that few strategies override; the engine skips the rest.

    def should_continue(self, history: Sequence[Slice[T]]) -> bool:
        """Return whether a subsample goes on after an invalid attempt, before `repair`. By default, it does."""
        return True

    def vary(self, plan: Attempt[T], subsample: int, attempt: int) -> Attempt[T]:
        """
        Return the variant of an attempt for one subsample.

        The engine calls it before every attempt, with the plan of the caller or of `repair`.
        By default, apply `variation`, if there is one.
        """
        return plan if self.variation is None else self.variation(plan, subsample, attempt)

    def settled(self, progress: Progress[T]) -> bool:
        """
        Return whether the whole call may stop now, given what may still come.

        The engine calls it after every slice, after every attempt that errored, and when a subsample has ended,
        if there is a slice by then. By default, return `done` of the slices.
        """
        return self.done(progress.slices)

    def next_subsample_in_s(self, progress: Progress[T]) -> float:
        """
        Return the seconds until the next subsample starts. `math.inf` means: not until something changes.

        The first subsample starts at once. The engine calls this after every start, when an attempt or a subsample has
        ended, and when the seconds have passed. Each answer replaces the one before. `concurrency_budget` limits all
        of them. If it is `math.inf` when nothing is running, the call is over. By default, all start at once.
        """
        return 0.0

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None:
        """
        Return the next call to make inside this one, given the results so far, or None after the last one.

        A strategy that overrides this makes no attempts itself. It makes one call after the other, all with the
        requirements, budget, hooks and deadline of this one, and `select` chooses among their winners.
        `first` is the attempt that the caller asked for.
        """
        return None

    def count_votes(self, slices: Sequence[Slice[T]]) -> tuple[float | None, float | None]:
        """
        Return the `agreement` and the `margin` of the result, given the slices to select from.

        By default there is no vote, and both are None.
        """
        return None, None

    def learn(self, attempts: Sequence[Slice[T]]) -> None:
        """Learn from all attempts of a call when it is over, however it ended, for later calls."""

    def wrap_backend(self, backend: BackendLike) -> BackendLike:
        """Return the backend to use instead of the caller's. By default, the same."""
        return backend

    # The call.

    @overload
    async def sample(
        self,
        action: str | Sequence[Part],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> SamplingResult[str]: ...
    @overload
    async def sample(
        self,
        action: Action[T],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> SamplingResult[T]: ...
    @final
    async def sample(
        self,
        action: Action[Any] | str | Sequence[Part],
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
        Sample until an answer is valid or the budgets are used up.

        Args:
            action: An `Action`, or its text, or its parts.

            ctx: The conversation so far. None starts a new one.

            backend: A `Backend`, or any `async def f(request) -> Generation | str`.

            reqs: Requirements of this call, checked after the strategy's own:
                `Requirement` objects, plain checks, or sentences that a model judges.

            options: Options of the generation, such as the temperature.

            budget: A limit on attempts, requests, tokens, cost or time. Calls can share one.

            validation_ctx: The conversation that requirements see, instead of that of each attempt.

            hooks: Hooks of this call, called after those of plugins and of the strategy.

        Returns:
            A result with `success`, the answer, and a record of every attempt.

        Raises:
            BackendError: The backend's own error, whatever its type, if no attempt came to an answer.
                If several failed, its `__cause__` is an `ExceptionGroup` of all of them.
        """
        return await self._run(
            self._call(action, ctx, backend, reqs, options, budget, validation_ctx, hooks), hooks
        ).run()

    @overload
    def sample_sync(
        self,
        action: str | Sequence[Part],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> SamplingResult[str]: ...
    @overload
    def sample_sync(
        self,
        action: Action[T],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> SamplingResult[T]: ...
    @final
    def sample_sync(
        self,
        action: Action[Any] | str | Sequence[Part],
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
        Run `sample()` from code without an event loop. Inside of one, raise `InsideEventLoop`.

        Each call opens its own connections, unless the backend is in a `with keep_open(backend)`.
        """
        if _loop_is_running():
            raise InsideEventLoop
        call = partial(self.sample, options=options, budget=budget, validation_ctx=validation_ctx, hooks=hooks)
        portal = _portal_of(backend)
        if portal is None:
            return anyio.run(call, cast("Action[Any]", action), ctx, backend, reqs)
        running = portal.start_task_soon(call, cast("Action[Any]", action), ctx, backend, reqs)
        try:
            return running.result()
        finally:
            # After an interrupt of this thread, such as Ctrl-C, the call must not go on in the other one.
            running.cancel()

    @overload
    def stream(
        self,
        action: str | Sequence[Part],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> AbstractAsyncContextManager[Events[str]]: ...
    @overload
    def stream(
        self,
        action: Action[T],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        **settings: Unpack[CallSettings],
    ) -> AbstractAsyncContextManager[Events[T]]: ...
    @final
    def stream(
        self,
        action: Action[Any] | str | Sequence[Part],
        ctx: Context | None,
        backend: BackendLike,
        reqs: Iterable[RequirementLike] | None = None,
        *,
        options: Options | None = None,
        budget: Budget | None = None,
        validation_ctx: Context | None = None,
        hooks: Hooks | None = None,
    ) -> AbstractAsyncContextManager[Events[Any]]:
        """
        Run `sample()`, and iterate over its events while it runs.

            async with strategy.stream("…", None, backend) as events:
                async for event in events:
                    ...
            events.result

        The events are those that hooks get, `TextGrown` included, in the same order. Leaving the block before they
        end cancels the call and all of its requests. See `Events` for slow readers and errors.
        """

        def start(with_events: Hooks) -> Run[Any]:
            call = self._call(action, ctx, backend, reqs, options, budget, validation_ctx, with_events)
            return self._run(call, with_events)

        _check_arguments(ctx, options, budget, validation_ctx, hooks)
        return open_events(hooks, start)

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
        asked = as_action(action)
        _check_arguments(ctx, options, budget, validation_ctx, hooks)
        # Checked again, since they may be set between calls.
        check_budgets(self.loop_budget, self.concurrency_budget)
        strategy: Any = self
        overridden = self._overridden
        ask = generate = generate_of(backend)
        if "wrap_backend" in overridden:
            backend = self.wrap_backend(backend)
            generate = generate_of(backend)
        if budget is not None:
            budget.check_prices(backend)
        requirements = _deduplicated(self.requirements, as_requirements("reqs", reqs))
        growing, needs_view = _needs_of(requirements)
        if growing and not can_stream(backend):
            growing = ()
        emitter = self._emitter(hooks)
        first = Attempt(asked, NO_CONTEXT if ctx is None else ctx)
        if self.state_requirements:
            first = _with_requirements(first, requirements)
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
            strategy=strategy,
            first=first,
            backend=backend,
            generate=generate,
            ask=ask,
            requirements=requirements,
            partial=growing,
            streamed=bool(growing or (emitter is not SILENT and emitter.hooks_for(TextGrown))),
            needs_view=needs_view,
            options=options or NO_OPTIONS,
            loop_budget=self.loop_budget,
            concurrency_budget=self.concurrency_budget,
            deterministic=self.deterministic,
            budget=budget,
            holding=() if budget is None else reservations_around(),
            validation_ctx=validation_ctx,
            emitter=emitter,
            overridden=overridden,
            # Looked up for every call, and not once for the class: these two are what people replace in a test.
            done=None if getattr(self.done, "__func__", None) is _DONE and "settled" not in overridden else self.done,
            repair=None if getattr(self.repair, "__func__", None) is _REPAIR else self.repair,
            vary=self.vary if self.variation is not None or "vary" in overridden else None,
            should_continue=self.should_continue if "should_continue" in overridden else None,
        )

    def run_inside(self, outer: Call[Any], stage: Stage[Any], hooks: Hooks) -> Run[Any]:
        """Prepare a call inside another one, with the requirements, budget and hooks of the outer call."""
        call = self._call(
            stage.first.action,
            stage.first.context,
            outer.backend if stage.backend is None else with_limits_of(outer.item, stage.backend),
            outer.requirements,
            outer.options.overlaid(stage.options),
            outer.budget,
            outer.validation_ctx,
            hooks,
        )
        item = outer.item
        own = attrs.evolve(
            call,
            first=_with_requirements(stage.first, call.requirements) if self.state_requirements else stage.first,
            item=item,
            item_call_name=None if item is None else item.next_call_name(),
            should_continue=_both(call.should_continue, stage.should_continue),
        )
        return self._run(own, hooks)

    def settings_of_stages(self) -> StrategySettings:
        """Return the settings of this strategy for the calls inside its own."""
        # Requirements and hooks are left out: a nested call takes those of the outer call.
        names = StrategySettings.__annotations__.keys() - {"requirements", "hooks"}
        return cast("StrategySettings", {name: getattr(self, name) for name in names})

    def _run(self, call: Call[Any], hooks: Hooks | None) -> Run[Any]:
        stages = stages_of(self, hooks) if "next_stage" in call.overridden else None
        return Run(call, stages)

    def _emitter(self, hooks: Hooks | None) -> Emitter:
        if not isinstance(self.hooks, Hooks):
            raise wrong_type("the strategy's hooks", self.hooks, "Hooks")
        everywhere = installed_hooks().registered + self.hooks.registered
        if hooks is not None:
            everywhere += hooks.registered
        return Emitter(everywhere) if everywhere else SILENT

    def __repr__(self) -> str:
        budgets = f"loop_budget={self.loop_budget}, concurrency_budget={self.concurrency_budget}"
        return f"{type(self).__name__}({budgets}{', deterministic=True' if self.deterministic else ''})"


_OPTIONAL = (
    "count_votes",
    "settled",
    "next_subsample_in_s",
    "vary",
    "should_continue",
    "next_stage",
    "learn",
    "wrap_backend",
)
_DONE = BaseSamplingStrategy.done
_REPAIR = BaseSamplingStrategy.repair


# One plain check for each argument: isinstance() with a union or a loop over them takes three times as long.
def _check_arguments(ctx: object, options: object, budget: object, validation_ctx: object, hooks: object) -> None:
    if ctx is not None and not isinstance(ctx, Context):
        raise wrong_type("ctx", ctx, "a Context or None (write a chat as Context([Message('user', '…'), …]))")
    if options is not None and not isinstance(options, Options):
        raise wrong_type("options", options, "Options or None (write Options(temperature=…))")
    if budget is not None and not isinstance(budget, Budget):
        raise wrong_type("budget", budget, "a Budget or None")
    if validation_ctx is not None and not isinstance(validation_ctx, Context):
        raise wrong_type("validation_ctx", validation_ctx, "a Context or None")
    if hooks is not None and not isinstance(hooks, Hooks):
        raise wrong_type("hooks", hooks, "Hooks or None")


def _needs_of(requirements: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], bool]:
    """Return the requirements with a partial check, and whether any one looks at more than the text."""
    growing: list[Requirement] = []
    needs_view = False
    for requirement in requirements:
        if requirement.partial is not None:
            growing.append(requirement)
        if requirement.takes_view:
            needs_view = True
    return tuple(growing) if growing else (), needs_view


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


def _with_requirements(plan: Attempt[T], requirements: Sequence[Requirement]) -> Attempt[T]:
    """Return the attempt with the requirements in its prompt, unless they are in the conversation already."""
    listed = "\n".join([f"- {requirement.description}" for requirement in requirements])
    if not listed or any(listed in message.text for message in plan.messages):
        return plan
    text = f"{plan.action.text}\n\nThe answer must meet these requirements:\n{listed}"
    return Attempt(plan.action.with_text(text), plan.context, plan.options)


def _deduplicated(own: Iterable[RequirementLike], given: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
    """Return the requirements of the strategy, then those of the call, each once."""
    both = (*as_requirements("requirements", own), *given) if own else given
    if len(both) < 2:
        return both
    once: dict[object, Requirement] = {}
    for requirement in both:
        once.setdefault(requirement.key, requirement)
    return tuple(once.values())


_portals: "dict[int, tuple[int, BlockingPortal]]" = {}
"""For each backend that is kept open: the process in which it is, and its event loop. By the id of the backend."""


@contextmanager
def keep_open(backend: BackendLike) -> Generator[BackendLike]:
    """
    Keep the connections of a backend open over many `sample_sync` calls.

        with keep_open(OpenAIBackend(…)) as backend:
            for question in questions:
                strategy.sample_sync(question, None, backend)

    All calls with this backend run in one event loop, in a thread of its own, from whatever thread they are made.
    The end of the block closes the connections and the thread. In async code, use `async with backend`.
    A child process that was forked inside of the block opens connections of its own.
    """
    generate_of(backend)
    if _loop_is_running():
        raise RuntimeError("keep_open() is for code without an event loop: write `async with backend` instead")
    if _portal_of(backend) is not None:
        raise RuntimeError(f"{backend!r} is kept open already: use it inside of that block")
    # Slow to import, and of use only here.
    from sampling._event_loop.in_thread import event_loop_in_thread  # noqa: PLC0415

    with event_loop_in_thread() as (portal, is_there), ExitStack() as stack:
        untyped: Any = backend
        if isinstance(untyped, AbstractAsyncContextManager):
            opened = cast("AbstractAsyncContextManager[Any]", untyped)
            stack.enter_context(portal.wrap_async_context_manager(opened))
        _portals[id(backend)] = (os.getpid(), portal)
        try:
            yield backend
        finally:
            del _portals[id(backend)]
            if not is_there():
                stack.pop_all()


def _portal_of(backend: object) -> "BlockingPortal | None":
    pid, portal = _portals.get(id(backend), (0, None))
    # Threads do not survive a fork.
    return portal if pid == os.getpid() else None
