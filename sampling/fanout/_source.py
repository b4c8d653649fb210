"""Where items come from: read one at a time, when there is room for it, and no sooner."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Final, cast

import anyio

__all__ = ["END", "Source"]

_CLOSE_GRACE_S: Final = 5.0
END: Final = object()
"""What is read when there is nothing more."""


class Source:
    """Reads what the caller gave, be it an iterable or an async one, and numbers the items."""

    def __init__(self, items: object) -> None:
        self._async: AsyncIterator[Any] | None = None
        self._plain: Iterator[Any] = iter(())
        if isinstance(items, AsyncIterable):
            self._async = aiter(cast("Any", items))
        else:
            self._plain = iter(cast("Iterable[Any]", items))
        self._reading: anyio.CancelScope | None = None
        self.count = 0
        """How many were read, and were items."""

        self.exhausted = False
        """Whether there are no more."""

    async def next(self) -> Any:
        """Return what was given as the next item; `END` if there are no more, or if reading was stopped."""
        if self._async is None:
            return next(self._plain, END)
        with anyio.CancelScope() as self._reading:
            return await anext(self._async, END)
        return END

    def stop(self) -> None:
        """Stop waiting for an item that may never come."""
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        """Close an async generator, which else would be left hanging in the middle of something."""
        close = getattr(self._async, "aclose", None)
        if close is not None:
            with anyio.move_on_after(_CLOSE_GRACE_S, shield=True):
                await close()
