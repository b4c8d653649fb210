"""
Properties of the running event loop.

Look them up once per call: each lookup detects the event loop again.
"""

import math
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from weakref import ref

import anyio
from anyio.lowlevel import EventLoopToken, RunVar, checkpoint_if_cancelled, current_token

__all__ = [
    "EventLoop",
    "Wakeup",
    "as_exception",
    "call_in_loop",
    "cancellation_requested",
    "cancellations",
    "heed_past_cancellations",
    "ignore_past_cancellations",
    "in_own_task",
    "limiter_of_this_loop",
    "raise_if_cancelled",
    "running_loop",
    "running_loop_name",
    "without_cancellations",
]


T = TypeVar("T")


class EventLoop(NamedTuple):
    """The running event loop, asyncio's or trio's."""

    time: Callable[[], float]
    """Its monotonic clock, in seconds from an arbitrary zero."""

    cancelled: type[BaseException]
    """The exception that it raises in a cancelled task."""


def running_loop() -> EventLoop:
    """Return the running event loop."""
    token = current_token()
    backend = token.backend_class
    # The clock of an asyncio loop is a method of the loop; trio's is a function.
    return EventLoop(getattr(token.native_token, "time", backend.current_time), backend.cancelled_exception_class())


def running_loop_name() -> str:
    """Return "asyncio" or "trio", for `anyio.run`."""
    # Taken from the module name, such as `anyio._backends._asyncio`: anyio has no public function for it.
    return current_token().backend_class.__module__.rpartition("._")[2]


_Past: TypeAlias = tuple["ref[Any]", int] | None

_past: ContextVar[_Past] = ContextVar("sampling_past_cancellations", default=None)
"""The task that a call runs in, and how often it had been cancelled before the call."""


def cancellations() -> tuple[type[BaseException], ...]:
    """Return the exceptions of cancelled tasks, also of asyncio on trio: code in a thread may run another loop."""
    # Not imported here: the library never imports asyncio, and its exceptions can't be raised if it was not imported.
    asyncio: Any = sys.modules.get("asyncio")
    foreign = () if asyncio is None else (asyncio.CancelledError,)
    return (anyio.get_cancelled_exc_class(), *foreign)


def cancellation_requested() -> bool:
    """Return whether the running task was asked to stop, by a cancel scope or by `Task.cancel`."""
    return anyio.current_effective_deadline() == -math.inf or _cancelled_natively()


async def raise_if_cancelled() -> None:
    """Raise the cancellation of the running task, even if code inside turned it into another exception."""
    await checkpoint_if_cancelled()
    if _cancelled_natively():
        # `Task.cancel` raises only once, and that exception is gone.
        raise anyio.get_cancelled_exc_class()


def without_cancellations(error: BaseException) -> BaseException | None:
    """Return an exception without the cancellations in it, or None if nothing is left."""
    cancelled = cancellations()
    if isinstance(error, BaseExceptionGroup):
        return error.split(cancelled)[1]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return None if isinstance(error, cancelled) else error


def as_exception(error: BaseException, unexpected: Callable[[], Exception]) -> Exception:
    """
    Return an exception to collect, or raise what must end the task at once.

    A cancellation that nobody requested is replaced by `unexpected`, and left out of a group that has errors, too.
    """
    rest = without_cancellations(error)
    if rest is not error and cancellation_requested():
        raise error
    if rest is None:
        replacement = unexpected()
        replacement.__cause__ = error
        return replacement
    if not isinstance(rest, Exception):
        raise error
    return rest


def ignore_past_cancellations(cancelled: type[BaseException]) -> "Token[_Past] | None":
    """
    Ignore that the running task was cancelled before, so that only later cancellations end what it starts now.

    A task of asyncio counts its cancellations, and still does so while it cleans up after one.
    """
    # Not imported here: the library never imports asyncio, but it is loaded if its loop runs.
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None or cancelled is not asyncio.CancelledError:
        return None
    task = asyncio.current_task()
    count = 0 if task is None else task.cancelling()
    if not count:
        return None
    # A cancellation that the task has not been told of yet still ends the call.
    return _past.set((ref(task), count - bool(getattr(task, "_must_cancel", False))))


def heed_past_cancellations(ignored: "Token[_Past] | None") -> None:
    """End what `ignore_past_cancellations` began."""
    if ignored is not None:
        _past.reset(ignored)


def _cancelled_natively() -> bool:
    """Return whether `Task.cancel` was called on the running task of asyncio, not counting what is ignored."""
    if running_loop_name() != "asyncio":
        return False
    task: Any = cast("Any", sys.modules["asyncio"]).current_task()
    if task is None:
        return False
    past = _past.get()
    ignored = past[1] if past is not None and past[0]() is task else 0
    return bool(task.cancelling() > ignored)


async def in_own_task(function: Callable[[], Awaitable[T]]) -> T:
    """
    Await a function in a task of its own, so that `Task.cancel` reaches it only as a cancel scope does.

    Called on the task itself, `Task.cancel` would interrupt a shielded block, and would not wait for a thread.
    Trio has no such cancellation, so the function is simply awaited there.
    """
    if running_loop_name() != "asyncio":
        return await function()
    values: list[T] = []
    errors: list[BaseException] = []

    async def run() -> None:
        try:
            values.append(await function())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, and not in a group
            errors.append(error)

    async with anyio.create_task_group() as tasks:  # noqa: ASYNC112 - the task is what this is for
        tasks.start_soon(run)
    if errors:
        raise errors[0]
    return values[0]


class Wakeup:
    """An event of one event loop that any thread can set."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = get_ident()
        self._token: EventLoopToken = current_token()

    async def wait(self) -> None:
        """Wait until `set` is called."""
        await self._event.wait()

    def set(self) -> None:
        """Wake the waiting task."""
        if get_ident() == self._thread:
            self._event.set()
            return
        call_in_loop(self._token, self._event.set)


def call_in_loop(token: EventLoopToken, function: Callable[[], object]) -> None:
    """
    Call a function in an event loop of any thread, without waiting for it.

    If that loop has ended, nothing happens.
    """
    native = cast("Any", token.native_token)
    # asyncio's loop has the one method, trio's token the other. anyio's own function would block this loop meanwhile.
    call_soon = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
    try:
        call_soon(function)
    except RuntimeError:
        # trio's RunFinishedError is a RuntimeError, too.
        return


def limiter_of_this_loop(variable: "RunVar[anyio.CapacityLimiter]", tokens: int) -> "anyio.CapacityLimiter":
    """Return the limiter of the running event loop, made when it is first needed."""
    limiter = variable.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(tokens)
        variable.set(limiter)
    return limiter
