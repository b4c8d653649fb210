"""A request to stop a run, which may come before the run has an event loop."""

import anyio

__all__ = ["StopRequest"]


class StopRequest:
    """A cancel scope that can be cancelled before it exists."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._requested = False

    def set(self) -> None:
        """Cancel the scope, now or as soon as it is opened."""
        self._requested = True
        if self._scope is not None:
            self._scope.cancel()

    def open_scope(self) -> anyio.CancelScope:
        """Return the cancel scope to run in."""
        self._scope = anyio.CancelScope()
        if self._requested:
            self._scope.cancel()
        return self._scope
