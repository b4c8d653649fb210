"""What others may see and do while a call runs."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import attrs
import structlog

from sampling._arguments import check_bool, check_budgets, check_number, wrong_type
from sampling._watchdog import warn_if_blocked
from sampling.errors import HookTimeout
from sampling.messages import Action, Attempt, Context, Options
from sampling.requirements import Requirement
from sampling.results import HookFailure, SamplingResult, Slice, StopReason
from sampling.usage import Usage

__all__ = [
    "Event",
    "Hooks",
    "IterationFinished",
    "IterationStarted",
    "LoopFinished",
    "LoopStarted",
    "Repaired",
]

log = structlog.get_logger("sampling")


@attrs.frozen(kw_only=True)
class Event:
    """What every event tells. A hook registered on `Event` gets them all."""

    sampling_id: str
    """One call of `sample()`."""

    parent_id: str | None
    """The iteration_id of the attempt that this call was made from, if it is nested."""


@attrs.frozen(kw_only=True)
class LoopStarted(Event):
    """A call is about to start. A hook may return a changed copy: `loop_budget` and `concurrency_budget` are read."""

    strategy: str
    """The name of the strategy's class."""

    action: Action[Any]
    context: Context
    requirements: tuple[Requirement, ...]
    loop_budget: int
    concurrency_budget: int


@attrs.frozen(kw_only=True)
class IterationEvent(Event):
    """What every event of one attempt tells."""

    iteration: int
    iteration_id: str
    subsample: int
    attempt: int


@attrs.frozen(kw_only=True)
class IterationStarted(IterationEvent):
    """An attempt is about to ask the backend."""

    action: Action[Any]
    context: Context
    options: Options


@attrs.frozen(kw_only=True)
class IterationFinished(IterationEvent):
    """An attempt ended, in whatever way: exactly one follows every `IterationStarted`."""

    slice: Slice[Any]


@attrs.frozen(kw_only=True)
class Repaired(IterationEvent):
    """The strategy has said what to try after an invalid attempt. The ids are those of the attempt that failed."""

    failed: Slice[Any]
    next: Attempt[Any]


@attrs.frozen(kw_only=True)
class LoopFinished(Event):
    """A call is over: comes exactly once, also after an error or a cancellation."""

    success: bool
    iterations: int
    """Slices that were completed, on every path."""

    attempts: int
    """Attempts that were started."""

    usage: Usage
    elapsed_s: float
    stop_reason: StopReason | None
    """None if the call was cancelled or raised."""

    result: SamplingResult[Any] | None
    error: BaseException | None
    """What the call raises, if it raises; a cancellation is one too."""


E = TypeVar("E", bound=Event)

HookFunction: TypeAlias = Callable[[E], Any | Awaitable[Any]]


@attrs.frozen
class Hook:
    """One registered function."""

    event: type[Event]
    function: Callable[[Any], Any]
    critical: bool
    timeout_s: float

    @property
    def name(self) -> str:
        """What to call it in messages: where it was defined, as far as it says."""
        function: Any = self.function
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        return f"{module}.{name}" if module else str(name)


class Hooks:
    """
    Functions to call on events, sync or async, in the order in which they were registered.

    A hook that raises or takes longer than its timeout is recorded on the result and logged, and changes nothing,
    unless it is critical: then its exception ends the call.
    Hooks are shielded from cancellation for as long as their timeout, so that what was started is always seen to end:
    a cancelled call waits that long for them, and no longer. A sync hook can't be cut off: it must not block.
    """

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._hooks: tuple[Hook, ...] = ()

    def on(
        self, *events: type[E], critical: bool = False, timeout_s: float | None = None
    ) -> Callable[[HookFunction[E]], HookFunction[E]]:
        """Register the decorated function for these kinds of events."""
        _check_events(events)
        check_bool("critical", critical)
        limit_s = self.timeout_s if timeout_s is None else check_number("timeout_s", timeout_s, above=0)

        def register(function: HookFunction[E]) -> HookFunction[E]:
            if not callable(function):
                raise wrong_type("hook", function, "a callable of one event")
            self._hooks += tuple(Hook(event, function, critical, limit_s) for event in events)
            return function

        return register

    def include(self, other: "Hooks") -> None:
        """Register all that `other` has by now, after what is here."""
        if not isinstance(other, Hooks):
            raise wrong_type("other", other, "Hooks")
        self._hooks += other._hooks

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    def __bool__(self) -> bool:
        # Empty hooks are still hooks: `hooks or Hooks()` must not swap them.
        return True

    def __repr__(self) -> str:
        return f"Hooks({', '.join(f'{hook.event.__name__}: {hook.name}' for hook in self._hooks)})"


def _check_events(events: Sequence[Any]) -> None:
    if not events:
        raise TypeError("on() needs at least one event type, such as hooks.on(IterationFinished)")
    for event in events:
        if not (isinstance(event, type) and issubclass(event, Event)):
            raise wrong_type(
                "event", cast("object", event), "an event type: LoopStarted, IterationStarted, …, or Event for all"
            )


class CriticalHookError(Exception):
    """Carries what a critical hook raised through the engine; the caller sees `.error` itself."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Emitter:
    """The hooks of one call, sorted by event, and what went wrong in them."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = tuple(hooks)
        self._by_event: dict[type[Event], tuple[Hook, ...]] = {}
        self.silent = not self._hooks
        """Whether nobody wants anything: then the engine has nothing to announce."""
        self.failures: list[HookFailure] = []

    def hooks_for(self, event: type[Event]) -> tuple[Hook, ...]:
        """Return who wants this kind of event; the engine builds no event that nobody wants."""
        found = self._by_event.get(event)
        if found is None:
            found = tuple(hook for hook in self._hooks if issubclass(event, hook.event))
            self._by_event[event] = found
        return found

    async def emit(self, event: E) -> E:
        """
        Call every hook on this event, and return the event as they want it: only a `LoopStarted` may be changed.

        Whatever happens in one hook, the others are called too: who sees an attempt end, has also seen it start.
        After that, what a critical hook raised is raised as `CriticalHookError`.
        """
        interruption: BaseException | None = None
        for hook in self.hooks_for(type(event)):
            try:
                event = self._accept(await self._call(hook, event), event, hook)
            except BaseException as error:  # noqa: BLE001, ASYNC103 - raised when the other hooks were called
                interruption = interruption or error
        if interruption is not None:
            raise interruption
        return event

    def _accept(self, answer: object, event: E, hook: Hook) -> E:
        if not isinstance(event, LoopStarted) or answer is None:
            return event
        if isinstance(answer, LoopStarted):
            return cast("E", _with_budgets_of(answer, event, hook))
        self._fail(hook, event, wrong_type(f"what hook {hook.name!r} returns", answer, "a LoopStarted or None"))
        return event

    async def _call(self, hook: Hook, event: Event) -> Any:
        started_s = time.perf_counter()
        try:
            answer = hook.function(event)
            warn_if_blocked(started_s, hook.name)
            if isawaitable(answer):
                answer = await _within(hook, event, answer)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - a hook is someone else's code, and it must not end the call
            self._fail(hook, event, error)
            return None
        return answer

    def _fail(self, hook: Hook, event: Event, error: Exception) -> None:
        kind = type(event).__name__
        if hook.critical:
            error.add_note(f"raised by critical hook {hook.name!r} on {kind}, which ended the call")
            raise CriticalHookError(error)
        iteration_id = getattr(event, "iteration_id", None)
        self.failures.append(HookFailure(hook.name, kind, error, iteration_id))
        log.warning("hook_failed", hook=hook.name, hook_event=kind, error_type=type(error).__name__)


SILENT = Emitter(())
"""For calls without hooks, and so without failures of hooks: one serves them all."""


async def _within(hook: Hook, event: Event, answer: Awaitable[Any]) -> Any:
    result: Any = None
    with anyio.move_on_after(hook.timeout_s, shield=True) as scope:
        result = await answer
    if scope.cancelled_caught:
        raise HookTimeout(hook.name, type(event).__name__, hook.timeout_s)
    return result


def _with_budgets_of(answer: LoopStarted, event: LoopStarted, hook: Hook) -> LoopStarted:
    try:
        depth, breadth = check_budgets(answer.loop_budget, answer.concurrency_budget)
    except (TypeError, ValueError) as error:
        raise ValueError(f"hook {hook.name!r} returned a bad LoopStarted: {error}") from None
    return attrs.evolve(event, loop_budget=depth, concurrency_budget=breadth)
