"""
A pool of tasks that are reused for many requests.

Starting a task for each request would cost more than the rest of the generator.
"""

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

import anyio
from anyio.abc import TaskGroup

from sampling.load.model._workload import Arrival, Send

__all__ = ["TaskPool"]


class TaskPool:
    """
    Runs requests in tasks, and reuses idle tasks.

    Requests stay isolated: a task whose context variables were changed is not reused.
    """

    def __init__(self, group: TaskGroup, serve: Callable[[Arrival, Send], Awaitable[object]]) -> None:
        self._group = group
        self._serve = serve
        self._idle: list[_IdleTask] = []
        self._closed = False

    def start_soon(self, arrival: Arrival, send: Send) -> None:
        """Serve a request in an idle or a new task."""
        if self._idle:
            self._idle.pop().assign(arrival, send)
        else:
            self._group.start_soon(self._run, arrival, send)

    def close(self) -> None:
        """End idle tasks now. The others end after their current request."""
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
    """An idle task that waits for its next request."""

    def __init__(self) -> None:
        self._assigned = anyio.Event()
        self._request: tuple[Arrival, Send] | None = None

    def assign(self, arrival: Arrival, send: Send) -> None:
        self._request = arrival, send
        self._assigned.set()

    def dismiss(self) -> None:
        self._assigned.set()

    async def wait(self) -> tuple[Arrival, Send] | None:
        """Wait for the next request. Return None when the pool is closed."""
        # An assigned request is already counted as sent, so no cancellation may come in between. It is served, and
        # cancelled there, as in a task of its own. Tasks without a request are dismissed when the pool is closed.
        with anyio.CancelScope(shield=True):
            await self._assigned.wait()
        return self._request


def _is_same(context: Context, other: Context) -> bool:
    # Compare by identity: the `__eq__` of a value may be slow, or raise.
    return len(context) == len(other) and all(
        variable in context and context[variable] is value for variable, value in other.items()
    )
