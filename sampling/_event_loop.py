"""
Properties of the running event loop.

Look them up once per call: each lookup detects the event loop again.
"""

from collections.abc import Callable

import attrs
from anyio.lowlevel import current_token

__all__ = ["EventLoop", "running_loop", "running_loop_name"]


@attrs.frozen
class EventLoop:
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
