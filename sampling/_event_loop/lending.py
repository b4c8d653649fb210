"""
Lend a resource, such as the slot of a limiter, while its holder waits for other tasks.

Those tasks may need it before they can continue. Without lending, they would wait for each other forever.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Lendable", "lendable", "lent", "take_back"]


class Lendable(Protocol):
    """A resource that its holder can give up temporarily."""

    def lend(self) -> None:
        """Give it up for others to use."""
        ...

    def stop_lending(self) -> None:
        """Request it back, without waiting for it."""
        ...

    async def take_back(self) -> None:
        """Wait until it is held again. Return at once if it is held, or if another task still lends it."""
        ...


_held: ContextVar[tuple[Lendable, ...]] = ContextVar("sampling_lendable", default=())


@contextmanager
def lendable(one: Lendable) -> Generator[None]:
    """Let the code inside the block lend a resource while it waits for other tasks."""
    entered = _held.set((*_held.get(), one))
    try:
        yield
    finally:
        _held.reset(entered)


@asynccontextmanager
async def lent() -> AsyncGenerator[None]:
    """Lend all resources that are held around this code."""
    held = _held.get()
    for one in held:
        one.lend()
    try:
        yield
    finally:
        for one in held:
            one.stop_lending()
    # A cancelled task must not wait any more, so it skips this.
    await take_back()


async def take_back() -> None:
    """Wait for resources around this code that a cancelled task lent and never took back."""
    # In the order of acquisition, so that two tasks can't wait for each other.
    for one in _held.get():
        await one.take_back()
