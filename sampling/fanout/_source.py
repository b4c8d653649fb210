"""Read the items one at a time, on demand."""

import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from types import AsyncGeneratorType, GeneratorType
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
        self._scope: anyio.CancelScope
        self._is_reading = False
        self.count = 0
        """The number of valid items read so far."""

        self.exhausted = False
        """Whether all items were read."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """
        Read the items in this block, and close their generator at its end.

        A generator may hold scopes of its own between two items, such as that of another `open_fan_out`. So there is
        one scope around all reads, in one task. If a scope of the generator cancels this block, its error is raised.
        """
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield
            except cancellations() as error:
                failure = await self._close(scope)  # noqa: ASYNC102, ASYNC120 - it has a limit
                if cancellation_requested():
                    raise
                raise failure or UnexpectedCancellation(_CANCELLED, hint=_CANCELLED_HINT) from error  # noqa: ASYNC104
            except BaseException:
                await self._close(scope)  # noqa: ASYNC102
                raise
            else:
                await self._close(scope)

    async def next(self, latest: float = math.inf) -> Any:
        """
        Return the next item as the caller gave it, or `END` if there are no more.

        The block of `open` ends if reading is stopped, or at this time.
        """
        try:
            if self._async is None:
                return next(self._plain, END)
            return await self._read(self._async, self._scope, latest)
        except cancellations() as error:
            if cancellation_requested():
                raise
            raise UnexpectedCancellation(_CANCELLED, hint=_CANCELLED_HINT) from error  # noqa: ASYNC104 - not requested

    async def _read(self, items: AsyncIterator[Any], scope: anyio.CancelScope, latest: float) -> Any:
        scope.deadline, self._is_reading = latest, True
        try:
            return await anext(items, END)
        finally:
            scope.deadline, self._is_reading = math.inf, False

    def stop(self) -> None:
        """Stop waiting for the next item, which may never come."""
        if self._is_reading:
            self._scope.cancel()

    async def _close(self, scope: anyio.CancelScope) -> Exception | None:
        """
        Close a generator. Otherwise its cleanup would run at garbage collection.

        A cleanup that fails can't undo outcomes, so its error is logged and returned.
        """
        try:
            plain: Any = self._plain
            if type(plain) is GeneratorType:
                plain.close()
            close = getattr(self._async, "aclose", None)
            if close is not None:
                await self._close_async(close, scope)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            log.warning("items_not_closed", error_type=type(error).__name__)
            return error
        return None

    async def _close_async(self, close: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
        if scope.cancel_called and not isinstance(self._async, AsyncGeneratorType):
            with anyio.move_on_after(_CLOSE_GRACE_S, shield=True):
                await close()
            return
        # Not in another scope, because the generator may be suspended inside of one of its own.
        scope.shield, scope.deadline = True, anyio.current_time() + _CLOSE_GRACE_S
        try:
            await close()
        except cancellations():
            if not scope.cancel_called:
                raise
        except BaseExceptionGroup as group:
            # A task group in the generator wraps the exception with which Python closes it.
            rest = group.split(GeneratorExit)[1]
            if rest is not None:
                raise rest from None
        finally:
            scope.shield, scope.deadline = False, math.inf
