"""
The transport interface: send one request and read the bytes of its response.

A transport does not follow redirects, keep cookies, decompress or retry. The backend decides about all of these.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

import attrs

__all__ = ["CLOSE_GRACE_S", "SharedHeaders", "Transport", "WireRequest", "WireResponse"]

CLOSE_GRACE_S = 1.0
"""The time limit for closing a connection, which is shielded from cancellation."""


class SharedHeaders(dict[str, str]):
    """
    Headers that are made once for many requests.

    They hold the key, so they are never printed or pickled.
    """

    __slots__ = ("lines",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.lines: bytes | None = None
        """Their bytes, once a transport has checked them."""

    def plus(self, name: str, value: str) -> "SharedHeaders":
        """Return these headers and one more, which must be valid."""
        more = SharedHeaders({**self, name: value})
        if self.lines is not None:
            more.lines = self.lines + f"{name}: {value}\r\n".encode()
        return more

    def __repr__(self) -> str:
        return f"SharedHeaders({', '.join(self)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("headers can't be pickled or copied: they hold a key")


# Not frozen: there is one for every request, and a frozen one takes three times as long to make.
@attrs.define(eq=False)
class WireRequest:
    """One request."""

    url: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Not in the repr, because they hold the key."""

    body: bytes = attrs.field(repr=False)
    on_sent: Callable[[], None] = attrs.field(repr=False)
    """Called when the first bytes are sent. From then on the server may work on the request and charge for it."""

    method: str = attrs.field(default="POST", repr=False)


class WireResponse(Protocol):
    """A response whose body is read in pieces. The caller closes it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with names in lower case."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of the body as they were received, or b"" at the end."""
        ...

    async def aclose(self) -> None:
        """
        Return the connection to the pool after a complete body, else close it at once.

        The caller shields this from cancellation and limits its time.
        """
        ...


class Transport(Protocol):
    """Sends requests over connections that it owns."""

    async def open(self, request: WireRequest) -> WireResponse:
        """
        Send a request and wait for the status and headers of the response.

        Raise `ConnectFailed` if nothing was sent, and `ConnectionLost` if the server may have started to work.
        When cancelled, close the connection before the cancellation propagates.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
