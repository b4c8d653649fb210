"""What a call asks of the event loop that it runs in, looked up once: each look-up finds out anew which loop it is."""

from collections.abc import Callable

import attrs
from anyio.lowlevel import current_token

__all__ = ["EventLoop", "running_loop", "running_loop_name"]


@attrs.frozen
class EventLoop:
    """The running event loop, asyncio's or trio's."""

    time: Callable[[], float]
    """Its clock: monotonic, in seconds, from a zero of its own."""

    cancelled: type[BaseException]
    """What it raises in a task that is cancelled."""


def running_loop() -> EventLoop:
    """Return the event loop that this code runs in."""
    token = current_token()
    backend = token.backend_class
    # The clock of an asyncio loop is a method of the loop; trio's is a function.
    return EventLoop(getattr(token.native_token, "time", backend.current_time), backend.cancelled_exception_class())


def running_loop_name() -> str:
    """Return the name that `anyio.run` takes for the running event loop: "asyncio" or "trio"."""
    # The name of anyio's own module for it, `anyio._backends._asyncio`: there is no other public way to ask.
    return current_token().backend_class.__module__.rpartition("._")[2]
