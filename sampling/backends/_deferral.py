"""Requests that are not sent at once but answered later, such as those of a batch."""

from contextvars import ContextVar, Token
from typing import Protocol

import attrs

__all__ = ["Deferral", "DeferredReply", "Ticket", "current_deferral", "defer_to", "price_factor", "stop_deferring"]


@attrs.frozen
class DeferredReply:
    """The response to a deferred request."""

    status: int
    """The HTTP status. 0 if it has to be derived from the error in the body."""

    body: bytes


class Ticket(Protocol):
    """A deferred request."""

    @property
    def is_sent(self) -> bool:
        """True once the provider has the request, and may charge for it."""
        ...

    @property
    def reply(self) -> DeferredReply | None:
        """The response, once it has arrived."""
        ...

    async def wait(self) -> DeferredReply:
        """Wait for the response, or raise the error that prevents it."""
        ...

    def reject(self) -> None:
        """Declare that the response can't be read, so that no later call gets it again."""
        ...


class Deferral(Protocol):
    """Takes the requests of some backends."""

    @property
    def price_factor(self) -> float:
        """The price of a deferred request, as a fraction of the usual price."""
        ...

    def takes(self, backend: object) -> bool:
        """Return whether the requests of a backend are deferred."""
        ...

    def park(self, backend: object, model: str, body: bytes) -> Ticket:
        """Take a request."""
        ...


_deferral: ContextVar[Deferral | None] = ContextVar("sampling_deferral", default=None)


def current_deferral(backend: object) -> Deferral | None:
    """Return the deferral of the requests of a backend, or None if they are sent at once."""
    deferral = _deferral.get()
    return deferral if deferral is not None and deferral.takes(backend) else None


def price_factor(backend: object) -> float:
    """Return the price of a request of a backend, as a fraction of the usual price."""
    deferral = current_deferral(backend)
    return 1.0 if deferral is None else deferral.price_factor


def defer_to(deferral: Deferral) -> "Token[Deferral | None]":
    """Defer requests in this context. `stop_deferring` ends it."""
    return _deferral.set(deferral)


def stop_deferring(token: "Token[Deferral | None]") -> None:
    """Send requests at once again."""
    _deferral.reset(token)
