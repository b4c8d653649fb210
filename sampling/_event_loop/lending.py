"""
What a task holds while others may need it to go on, such as the slot of a limiter.

A task that waits for others lends it to them meanwhile. Otherwise they might wait for each other forever.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Lendable", "lendable", "lent", "take_back"]


class Lendable(Protocol):
    """Something that its holder can give away for a while."""

    def lend(self) -> None:
        """Give it to others."""
        ...

    def stop_lending(self) -> None:
        """Want it back, without waiting for it."""
        ...

    async def take_back(self) -> None:
        """Wait until it is held again, unless it is, or another task inside still lends it."""
        ...


_held: ContextVar[tuple[Lendable, ...]] = ContextVar("sampling_lendable", default=())


@contextmanager
def lendable(one: Lendable) -> Generator[None]:
    """Let the code inside lend this while it waits for others."""
    entered = _held.set((*_held.get(), one))
    try:
        yield
    finally:
        _held.reset(entered)


@asynccontextmanager
async def lent() -> AsyncGenerator[None]:
    """Lend all that is held around this code."""
    held = _held.get()
    for one in held:
        one.lend()
    try:
        yield
    finally:
        for one in held:
            one.stop_lending()
    # Not if it was cancelled, because it must not wait any more.
    await take_back()


async def take_back() -> None:
    """Wait for all that was lent around this code and not taken back, because the task that lent it was cancelled."""
    # In the order in which it was acquired first.
    for one in _held.get():
        await one.take_back()
