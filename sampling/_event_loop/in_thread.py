"""An event loop in a thread, for code that has none."""

import os
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["event_loop_in_thread"]


@contextmanager
def event_loop_in_thread() -> Generator[tuple[BlockingPortal, Callable[[], bool]]]:
    """
    Run an event loop in a thread until the end of the block, and yield how to call it and whether it can be called.

    It can't in a child process, which has no such thread, nor at the end of the process, when the thread stands still.
    There the end of the block leaves it alone. anyio's function would wait for it for ever.
    """
    pid = os.getpid()
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(serve)
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    def is_there() -> bool:
        return os.getpid() == pid and not sys.is_finalizing()

    thread = Thread(target=run, name="sampling-event-loop", daemon=True)
    thread.start()
    portal = started.result()
    cancel_remaining = True
    try:
        yield portal, is_there
        cancel_remaining = False
    finally:
        if is_there():
            # It raises if the portal has stopped already.
            with suppress(RuntimeError):
                portal.call(portal.stop, cancel_remaining)
            thread.join()
