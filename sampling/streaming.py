"""The events of a running call, for its caller."""

import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Protocol, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from sampling.errors import UnexpectedCancellation
from sampling.hooks import Event, Hook, Hooks, TextGrown
from sampling.results import SamplingResult

__all__ = ["Events"]

T = TypeVar("T")


class Runnable(Protocol[T]):
    """A call that is ready to run."""

    async def run(self) -> SamplingResult[T]: ...


class Events(Generic[T]):
    """
    The events of one call, from `strategy.stream()`. Iterate over them with `async for`.

    The call never waits for its reader. Unread `TextGrown` events of one attempt are merged into one, which has all of
    their pieces. All other events are kept, and the budgets of the call bound their number.

    If the call raises, the iteration raises the same exception after the last event. Without an iteration, the end of
    the block raises it. Leaving the block before the call has ended cancels it, and what it raises then is dropped.
    The events of that cancellation can be read after the block.
    """

    def __init__(self) -> None:
        self._unread: OrderedDict[object, Event] = OrderedDict()
        """By the id of the attempt for `TextGrown`, and by a number for others."""

        self._received = 0
        self._news = anyio.Event()
        self._ended = False
        self._result: SamplingResult[T] | None = None
        self._failure: BaseException | None = None
        self._raised = False
        """Whether the caller has got the failure."""

        self._left = False
        """Whether the caller left the block before the call had ended."""

    @property
    def result(self) -> SamplingResult[T]:
        """The result of the call. Raise `RuntimeError` before its end, or the exception of the call if it failed."""
        if self._result is not None:
            return self._result
        if self._failure is not None and not self._left:
            raise self._failure
        if self._ended:
            raise RuntimeError("there is no result: the block was left before the call had ended, which cancelled it")
        raise RuntimeError("there is no result yet: iterate over all events first, then read `events.result`")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it."""
        while not self._unread:
            if self._ended:
                # The same cancellation may have reached the reader, who must not mistake it for the end.
                await checkpoint_if_cancelled()
                self._raise_failure()
                raise StopAsyncIteration
            if self._news.is_set():
                self._news = anyio.Event()
            await self._news.wait()
        return self._unread.popitem(last=False)[1]

    def _receive(self, event: Event) -> None:
        self._received += 1
        key: object = self._received
        if isinstance(event, TextGrown):
            key = event.iteration_id
            unread = self._unread.get(key)
            if isinstance(unread, TextGrown):
                event = event.joined_to(unread)
        self._unread[key] = event
        self._news.set()

    @asynccontextmanager
    async def _open(self, hooks: Hooks | None, start: Callable[[Hooks], Runnable[T]]) -> AsyncGenerator[Self]:
        """Run a call in a task while the caller's block runs."""
        with_events = Hooks()
        if hooks is not None:
            with_events.include(hooks)
        # After all other hooks, so that `LoopStarted` has the budgets that they set.
        with_events.add(Hook(Event, self._receive, critical=False, timeout_s=math.inf, order=math.inf))
        call = start(with_events)
        interruption: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._run, call, name="stream of a call")
            try:
                yield self
            except BaseException as error:  # noqa: BLE001, ASYNC103 - raised below, for the group would wrap it
                interruption = error
            self._left = not self._ended
            group.cancel_scope.cancel()
        if interruption is not None:
            raise interruption
        self._raise_failure()

    async def _run(self, call: Runnable[T]) -> None:
        """Run the call, and keep how it ended."""
        try:
            self._result = await call.run()
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised by the iteration or at the end of the block
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                self._failure = error
            elif anyio.current_effective_deadline() > -math.inf:
                # Only this task was cancelled, and not by the end of the block, nor by what cancels its caller.
                self._failure = UnexpectedCancellation()
                self._failure.__cause__ = error
        self._ended = True
        self._news.set()

    def _raise_failure(self) -> None:
        """Raise the exception of the call, once. After the caller left, drop all but crashes."""
        if self._failure is None or self._raised or (self._left and isinstance(self._failure, Exception)):
            return
        self._raised = True
        raise self._failure


def open_events(hooks: Hooks | None, start: Callable[[Hooks], Runnable[T]]) -> AbstractAsyncContextManager[Events[T]]:
    """Return a context manager that runs a call. `start` builds it, given the hooks that pass on its events."""
    events: Events[T] = Events()
    return events._open(hooks, start)  # pyright: ignore[reportPrivateUsage] - in one module
