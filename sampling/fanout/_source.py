"""Read the items one at a time, on demand."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any, Final, cast

import anyio

from sampling._event_loop import cancellation_requested, cancellations
from sampling._log import Logger
from sampling.errors import UnexpectedCancellation

__all__ = ["END", "Source"]

log = Logger()

_CLOSE_GRACE_S: Final = 5.0
END: Final = object()
"""The sentinel that `Source.next` returns after the last item."""

_CANCELLED: Final = "reading the items raised a cancellation that nobody requested"
_CANCELLED_HINT: Final = "Look in the source of the items for a task that was cancelled and awaited."


class Source:
    """Reads and counts items."""

    def __init__(self, items: object) -> None:
        self._async: AsyncIterator[Any] | None = None
        self._plain: Iterator[Any] = iter(())
        if isinstance(items, AsyncIterable):
            self._async = aiter(cast("Any", items))
        elif isinstance(items, Mapping):
            # pyright knows neither the keys nor the values, and mypy needs no cast.
            self._plain = iter(items.items())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
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
        try:
            if self._async is None:
                return next(self._plain, END)
            with anyio.CancelScope() as self._reading:
                return await anext(self._async, END)
        except cancellations() as error:
            if cancellation_requested():
                raise
            raise UnexpectedCancellation(_CANCELLED, hint=_CANCELLED_HINT) from error  # noqa: ASYNC104 - not requested
        return END

    def stop(self) -> None:
        """Stop waiting for the next item, which may never come."""
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        """
        Close a generator. Otherwise its cleanup would run at garbage collection.

        A cleanup that fails can't undo outcomes, so its error is logged.
        """
        try:
            plain: Any = self._plain
            if type(plain) is GeneratorType:
                plain.close()
            close = getattr(self._async, "aclose", None)
            if close is not None:
                with anyio.move_on_after(_CLOSE_GRACE_S, shield=True):
                    await close()
        except Exception as error:  # noqa: BLE001 - it is the user's code
            log.warning("items_not_closed", error_type=type(error).__name__)
