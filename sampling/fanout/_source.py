"""Read the items one at a time, on demand."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Final, cast

import anyio

__all__ = ["END", "Source"]

_CLOSE_GRACE_S: Final = 5.0
END: Final = object()
"""The sentinel that `Source.next` returns after the last item."""


class Source:
    """Reads and counts items."""

    def __init__(self, items: object) -> None:
        self._async: AsyncIterator[Any] | None = None
        self._plain: Iterator[Any] = iter(())
        if isinstance(items, AsyncIterable):
            self._async = aiter(cast("Any", items))
        else:
            self._plain = iter(cast("Iterable[Any]", items))
        self._reading: anyio.CancelScope | None = None
        self.count = 0
        """The number of valid items read so far."""

        self.exhausted = False
        """Whether all items were read."""

    async def next(self) -> Any:
        """
        Return the next item as the caller gave it.

        Return `END` if there are no more or reading was stopped.
        """
        if self._async is None:
            return next(self._plain, END)
        with anyio.CancelScope() as self._reading:
            return await anext(self._async, END)
        return END

    def stop(self) -> None:
        """Stop waiting for the next item, which may never come."""
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        """Close an async generator. Otherwise its cleanup would run at garbage collection."""
        close = getattr(self._async, "aclose", None)
        if close is not None:
            with anyio.move_on_after(_CLOSE_GRACE_S, shield=True):
                await close()
