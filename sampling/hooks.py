"""Events of a call, and the hooks that receive them."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from inspect import isawaitable, iscoroutinefunction
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import attrs

from sampling._arguments import check_bool, check_budgets, check_number, short_repr, wrong_type
from sampling._event_loop import as_exception, cancellations, raise_if_cancelled, without_cancellations
from sampling._event_loop.watchdog import warn_if_blocked
from sampling._log import Logger
from sampling._picklable import Picklable
from sampling.errors import HookTimeout, UnexpectedCancellation
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
    "TextGrown",
]

_log = Logger()

MAX_FAILURES = 100
"""The number of failures of hooks that are kept. All of them are logged."""


@attrs.frozen(kw_only=True)
class Event:
    """
    The base of all events.

    A hook on `Event` receives every event.
    """

    sampling_id: str
    """The id of the call of `sample()`."""

    parent_id: str | None
    """The iteration_id of the attempt that made this call, if it is nested."""

    strategy: str
    """The name of the strategy's class."""


@attrs.frozen(kw_only=True)
class LoopStarted(Event):
    """
    A call is about to start.

    A hook may return a copy with another `loop_budget` or `concurrency_budget`.
    """

    action: Action[Any]
    context: Context
    requirements: tuple[Requirement, ...]
    loop_budget: int
    concurrency_budget: int


@attrs.frozen(kw_only=True)
class IterationEvent(Event):
    """The base of all events of one attempt."""

    iteration: int
    iteration_id: str
    subsample: int
    attempt: int


@attrs.frozen(kw_only=True)
class IterationStarted(IterationEvent):
    """An attempt is about to call the backend."""

    action: Action[Any]
    context: Context
    options: Options


@attrs.frozen(kw_only=True)
class TextGrown(IterationEvent):
    """
    The text of an attempt has grown.

    If the text starts over, as it does when a layer retries, `piece` is the whole text. So `piece == text` means:
    discard what came before. The last `text` of an attempt with an answer is the text of that answer.
    """

    piece: str
    """The text that was added, or all of it if the text starts over."""

    text: str
    """All of the text so far."""

    action: Action[Any]

    @cached_property
    def partial(self) -> Any:
        """
        The JSON so far, if the action has a type to read from JSON. None if there is none yet.

        It is plain data, such as a dict with the fields that have arrived. The last string and the last number in it
        may still grow, and nothing is validated. It is parsed when you read it.
        """
        read = getattr(self.action.parser, "read_partial", None)
        return None if read is None else read(self.text)

    def joined_to(self, earlier: "TextGrown") -> "TextGrown":
        """Merge an earlier event of the same attempt and this one into one."""
        if self.piece == self.text:
            return self
        return attrs.evolve(self, piece=earlier.piece + self.piece)


@attrs.frozen(kw_only=True)
class IterationFinished(IterationEvent):
    """
    An attempt has ended.

    Exactly one follows every `IterationStarted`, whatever the outcome.
    """

    slice: Slice[Any]


@attrs.frozen(kw_only=True)
class Repaired(IterationEvent):
    """
    The strategy has planned the attempt after an invalid one.

    The ids are those of the invalid one.
    """

    failed: Slice[Any]
    next: Attempt[Any]


@attrs.frozen(kw_only=True)
class LoopFinished(Event):
    """
    A call has ended.

    Sent exactly once, also after an error or a cancellation.
    """

    success: bool
    iterations: int
    """The number of completed slices."""

    attempts: int
    """The number of attempts that were started."""

    usage: Usage
    elapsed_s: float
    stop_reason: StopReason | None
    """None if the call was cancelled or raised."""

    result: SamplingResult[Any] | None
    error: BaseException | None
    """The exception that the call raises, if any, including a cancellation."""


E = TypeVar("E", bound=Event)

HookFunction: TypeAlias = Callable[[E], Any | Awaitable[Any]]


@attrs.frozen
class Hook:
    """A function registered for one type of event."""

    event: type[Event]
    function: Callable[[Any], Any]
    critical: bool
    timeout_s: float
    order: float = 0
    """Hooks with a lower order are called first."""

    without: tuple[type[Event], ...] = ()
    """Events that the hook is not called on, although they are of its type."""

    @property
    def name(self) -> str:
        """The qualified name of the function, for messages."""
        # Callable objects and partials have no name of their own.
        function: Any = self.function
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        return f"{module}.{name}" if module else str(name)

    @property
    def is_async(self) -> bool:
        """True if the function is declared with `async def`."""
        function: Any = self.function
        return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Hooks:
    """
    A registry of sync and async functions to call on events, by their `order`, then in the order of registration.

    If a hook raises or takes longer than its timeout, the failure is logged and recorded on the result,
    and the call continues. If the hook is critical, its exception ends the call.
    Hooks are shielded from cancellation up to their timeout, so that every started attempt is also seen to finish.
    A cancelled call waits at most that long for them. A sync hook can't be interrupted, so it must not block.

    A hook on `TextGrown` makes the call stream. Sync ones are called for every piece, before the async ones. Those
    declared with `async def` are awaited while the text keeps growing, and get everything that was added since their
    last call as one piece.
    """

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)
        self.registered: tuple[Hook, ...] = ()
        """All hooks, in the order of registration."""

    def on(
        self, *events: type[E], critical: bool = False, timeout_s: float | None = None, order: float = 0
    ) -> Callable[[HookFunction[E]], HookFunction[E]]:
        """
        Register the decorated function for these types of events.

        Args:
            events: The types of events. `Event` means all of them.

            critical: If True, an exception of the hook ends the call.

            timeout_s: The time limit of an async hook. By default, that of this registry.

            order: Hooks with a lower order are called first, those of plugins, strategy and call alike.
        """
        _check_events(events)
        check_bool("critical", critical)
        check_number("order", order)
        limit_s = self.timeout_s if timeout_s is None else check_number("timeout_s", timeout_s, above=0)

        def register(function: HookFunction[E]) -> HookFunction[E]:
            if not callable(function):
                raise wrong_type("hook", function, "a callable of one event")
            self.registered += tuple(Hook(event, function, critical, limit_s, order) for event in events)
            return function

        return register

    def off(self, function: Callable[..., Any]) -> None:
        """
        Unregister a function from all events.

        Calls that have started still call it. Raise `ValueError` if it is not registered.
        """
        # By equality: a bound method is another object each time.
        kept = tuple(hook for hook in self.registered if hook.function != function)
        if len(kept) == len(self.registered):
            raise ValueError(f"off() needs a registered function, got {short_repr(function)}")
        self.registered = kept

    def add(self, hook: Hook) -> None:
        """Register a hook of another registry, with all of its settings."""
        self.registered += (hook,)

    def include(self, other: "Hooks") -> None:
        """Append the hooks that `other` has at this moment."""
        if not isinstance(other, Hooks):
            raise wrong_type("other", other, "Hooks")
        self.registered += other.registered

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.registered)

    def __len__(self) -> int:
        return len(self.registered)

    def __bool__(self) -> bool:
        # An empty registry is truthy, so that `hooks or Hooks()` keeps it.
        return True

    def __repr__(self) -> str:
        return f"Hooks({', '.join(f'{hook.event.__name__}: {hook.name}' for hook in self.registered)})"


def _check_events(events: Sequence[Any]) -> None:
    if not events:
        raise TypeError("on() needs at least one event type, such as hooks.on(IterationFinished)")
    for event in events:
        if not (isinstance(event, type) and issubclass(event, Event)):
            raise wrong_type(
                "event", cast("object", event), "an event type: LoopStarted, IterationStarted, …, or Event for all"
            )


class CriticalHookError(Picklable, Exception):
    """
    The exception of a critical hook, on its way through the engine.

    The caller gets `.error`.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Emitter:
    """Calls hooks, and records their failures."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        # Sorting is stable: of equal order, the first registered comes first.
        self._hooks = tuple(sorted(hooks, key=attrgetter("order")))
        self._by_event: dict[type[Event], tuple[Hook, ...]] = {}
        self.silent: bool = not self._hooks
        """True without any hooks. The engine then skips all events."""
        self.failures: list[HookFailure] = []
        """The first failures. A run with a million items may have as many, and each keeps its event in memory."""

    def hooks_for(self, event: type[Event]) -> tuple[Hook, ...]:
        """
        Return the hooks for a type of event.

        The engine builds no event without hooks.
        """
        found = self._by_event.get(event)
        if found is None:
            found = tuple(
                hook for hook in self._hooks if issubclass(event, hook.event) and not issubclass(event, hook.without)
            )
            self._by_event[event] = found
        return found

    async def emit(self, event: E, hooks: Sequence[Hook] | None = None) -> E:
        """
        Call every hook for this event, or only those given, and return the event with their changes.

        Only a `LoopStarted` can be changed. All hooks are called even if one raises,
        so that a hook which sees an attempt finish has also seen it start.
        Afterwards, the exception of a critical hook is raised as `CriticalHookError`.
        """
        interruption: BaseException | None = None
        for hook in self.hooks_for(type(event)) if hooks is None else hooks:
            try:
                event = self._apply_changes(await self._call(hook, event), event, hook)
            except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again after the other hooks
                interruption = interruption or error
        if interruption is not None:
            raise interruption
        return event

    def emit_now(self, event: Event, hooks: Sequence[Hook], begun: list[tuple[Hook, Awaitable[Any]]]) -> None:
        """
        Call these hooks where nothing can be awaited, and add the awaitables that they return to `begun`.

        Pass those to `finish`. Exceptions are as those of `emit`.
        """
        veto: CriticalHookError | None = None
        for hook in hooks:
            started_s = time.perf_counter()
            try:
                answer = hook.function(event)
                warn_if_blocked(started_s, hook.name)
                if isawaitable(answer):
                    begun.append((hook, answer))
            except (MemoryError, RecursionError):
                raise
            except BaseException as error:  # noqa: BLE001, ASYNC103 - user code, which must not end the call
                try:
                    self._record_failure(hook, event, as_exception(error, UnexpectedCancellation))
                except CriticalHookError as critical:
                    veto = veto or critical
        if veto is not None:
            raise veto

    async def finish(self, hook: Hook, event: Event, begun: Awaitable[Any]) -> None:
        """Await what a hook returned. Exceptions are as those of `emit`."""
        await self._call(hook, event, begun)

    def _apply_changes(self, answer: object, event: E, hook: Hook) -> E:
        if not isinstance(event, LoopStarted) or answer is None:
            return event
        if isinstance(answer, LoopStarted):
            return cast("E", _with_budgets_of(answer, event, hook))
        self._record_failure(
            hook, event, wrong_type(f"the return value of hook {hook.name!r}", answer, "a LoopStarted or None")
        )
        return event

    async def _call(self, hook: Hook, event: Event, begun: Awaitable[Any] | None = None) -> Any:
        started_s = time.perf_counter()
        try:
            answer = hook.function(event) if begun is None else begun
            warn_if_blocked(started_s, hook.name)
            if isawaitable(answer):
                answer = await _await_with_timeout(hook, event, answer)
        except (MemoryError, RecursionError):
            # The interpreter is out of memory or stack, so these end the call.
            raise
        except Exception as error:  # noqa: BLE001 - user code, which must not end the call
            self._record_failure(hook, event, error)
            return None
        except BaseExceptionGroup as group:
            return await self._fail_with_group(hook, event, group)
        except cancellations() as error:  # noqa: ASYNC103 - only a requested one ends the call
            self._record_failure(hook, event, as_exception(error, UnexpectedCancellation))
            return None  # noqa: ASYNC104
        return answer

    async def _fail_with_group(self, hook: Hook, event: Event, group: BaseExceptionGroup[BaseException]) -> None:
        """Record the errors in a group, and raise a requested cancellation by itself, so that it is taken for one."""
        errors = without_cancellations(group)
        if isinstance(errors, Exception):
            self._record_failure(hook, event, errors)
            await raise_if_cancelled()
            return
        if errors is None:
            await raise_if_cancelled()
        self._record_failure(hook, event, as_exception(group, UnexpectedCancellation))

    def _record_failure(self, hook: Hook, event: Event, error: Exception) -> None:
        kind = type(event).__name__
        if hook.critical:
            error.add_note(f"raised by critical hook {hook.name!r} on {kind}, which ended the call")
            raise CriticalHookError(error)
        iteration_id = getattr(event, "iteration_id", None)
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(HookFailure(hook.name, kind, error, iteration_id))
        _log.warning("hook_failed", hook=hook.name, hook_event=kind, error_type=type(error).__name__)


SILENT = Emitter(())
"""The shared emitter of all calls without hooks."""


async def _await_with_timeout(hook: Hook, event: Event, answer: Awaitable[Any]) -> Any:
    result: Any = None
    # Shielded, so that a cancelled call still reports the end of its attempts.
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
    # Take only the budgets: the ids, the action and the context are fixed when the call starts.
    return attrs.evolve(event, loop_budget=depth, concurrency_budget=breadth)
