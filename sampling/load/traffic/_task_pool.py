"""Tasks that serve one request after another: starting one for each costs more than the rest of the generator."""

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

import anyio
from anyio.abc import TaskGroup

from sampling.load.model._workload import Arrival, Send

__all__ = ["TaskPool"]


class TaskPool:
    """
    Runs requests in tasks of a group, and keeps a task that is done for the next request.

    No request can tell: a task whose context variables were changed, and left so, is not used again.
    """

    def __init__(self, group: TaskGroup, serve: Callable[[Arrival, Send], Awaitable[object]]) -> None:
        self._group = group
        self._serve = serve
        self._idle: list[_IdleTask] = []
        self._closed = False

    def start_soon(self, arrival: Arrival, send: Send) -> None:
        """Serve a request, in a task that is free or in a new one."""
        if self._idle:
            self._idle.pop().assign(arrival, send)
        else:
            self._group.start_soon(self._run, arrival, send)

    def close(self) -> None:
        """Let every task end when it has served its request, and those that are free at once."""
        self._closed = True
        while self._idle:
            self._idle.pop().dismiss()

    async def _run(self, arrival: Arrival, send: Send) -> None:
        untouched = copy_context()
        while True:
            await self._serve(arrival, send)
            if self._closed or not _is_same(copy_context(), untouched):
                return
            idle = _IdleTask()
            self._idle.append(idle)
            request = await idle.wait()
            if request is None:
                return
            arrival, send = request


class _IdleTask:
    """Where a task that is free waits to be called."""

    def __init__(self) -> None:
        self._assigned = anyio.Event()
        self._request: tuple[Arrival, Send] | None = None

    def assign(self, arrival: Arrival, send: Send) -> None:
        self._request = arrival, send
        self._assigned.set()

    def dismiss(self) -> None:
        self._assigned.set()

    async def wait(self) -> tuple[Arrival, Send] | None:
        """Wait for the next request; None if there will be none."""
        # A request that was handed over is counted as sent, so no cancellation may get in between: it is served,
        # and finds itself cancelled, as in a task of its own. Who is not called is dismissed when the pool is closed.
        with anyio.CancelScope(shield=True):
            await self._assigned.wait()
        return self._request


def _is_same(context: Context, other: Context) -> bool:
    # By identity: a value may have a comparison of its own, that is slow, or raises.
    return len(context) == len(other) and all(
        variable in context and context[variable] is value for variable, value in other.items()
    )
