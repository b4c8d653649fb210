"""
A thread between an event loop and a threaded library.

It runs blocking calls, and wakes waiting tasks when a future of the library is done, without polling.
It must be a single thread, because the processes that Ray starts end with the *thread* that started them.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

__all__ = ["BridgeThread"]

T = TypeVar("T")


class BridgeThread:
    """
    A thread that serves the event loop of a block.

    It starts and ends with the `async with` block.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], anyio.Event | None]] = SimpleQueue()
        self._over = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def __aenter__(self) -> Self:
        self._token = current_token()
        self._thread.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.run(self._end)
        self._thread.join()

    async def run(self, blocking: Callable[..., T], *args: Any) -> T:
        """
        Run a function in the thread.

        A cancellation waits for it, so that nothing is left half done.
        """
        future: Future[T] = Future()
        done = anyio.Event()
        self._tasks.put(partial(_run, future, done, partial(blocking, *args)))
        with anyio.CancelScope(shield=True):
            await done.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return future.result()

    def run_soon(self, blocking: Callable[..., object], *args: Any) -> None:
        """Run a function in the thread without waiting. Its result is ignored."""
        self._tasks.put(partial(_run_ignoring_errors, partial(blocking, *args)))

    async def wait(self, future: Future[T]) -> T:
        """
        Wait for a future of the library.

        A cancellation ends the wait at once, and leaves the future running.
        """
        done = anyio.Event()
        # Runs in a thread of the library, so it must not block.
        future.add_done_callback(lambda _: self._tasks.put(lambda: done))
        await done.wait()
        return future.result()

    def _end(self) -> None:
        self._over = True

    def _work(self) -> None:
        while not self._over:
            tasks = [self._tasks.get(), *self._other_tasks()]
            done = [event for task in tasks if (event := task()) is not None]
            anyio.from_thread.run_sync(_set_all, done, token=self._token)

    def _other_tasks(self) -> Sequence[Callable[[], anyio.Event | None]]:
        """Return the other queued tasks. So one turn of the event loop ends many waits."""
        more: list[Callable[[], anyio.Event | None]] = []
        try:
            while True:
                more.append(self._tasks.get_nowait())
        except Empty:
            return more


def _run(future: Future[T], done: anyio.Event, blocking: Callable[[], T]) -> anyio.Event:
    try:
        future.set_result(blocking())
    except BaseException as error:  # noqa: BLE001, ASYNC103 - raised where it is waited for
        future.set_exception(error)
    return done


def _run_ignoring_errors(blocking: Callable[[], object]) -> None:
    with suppress(Exception):
        blocking()


def _set_all(events: Sequence[anyio.Event]) -> None:
    for event in events:
        event.set()
