"""
A TCP stream directly on a socket.

It is cheaper to open and to use than an anyio stream.
"""

import errno
import os
import socket
from ipaddress import ip_address
from typing import NamedTuple, Self

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

__all__ = ["RawSocketStream", "SocketAddress"]

_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class SocketAddress(NamedTuple):
    """A numeric address, which needs no DNS lookup."""

    family: socket.AddressFamily
    host: str
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> "SocketAddress | None":
        """Return the address of a numeric host, or None for a host name, which must be resolved first."""
        try:
            version = ip_address(host).version
        except ValueError:
            return None
        # An address with a zone, such as fe80::1%eth0, must be resolved like a name.
        return None if "%" in host else cls(socket.AF_INET if version == 4 else socket.AF_INET6, host, port)


class RawSocketStream(ByteSendStream, ByteReceiveStream):
    """
    A stream that only yields to the event loop on receive.

    It sends without a checkpoint if the socket buffer has room.
    """

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw

    @classmethod
    async def connect(cls, address: SocketAddress) -> Self:
        """Open a connection, or raise `OSError`."""
        raw = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            raw.setblocking(False)
            # Nagle's algorithm would hold back small requests.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _reach(raw, address)
        except BaseException:
            raw.close()
            raise
        return cls(raw)

    async def send(self, item: bytes) -> None:
        """Send all bytes."""
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[self._raw.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._raw)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Wait for the next bytes."""
        while True:
            await anyio.wait_readable(self._raw)
            try:
                data = self._raw.recv(max_bytes)
            except BlockingIOError:
                continue  # spurious wakeup
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            return data

    async def aclose(self) -> None:
        """Close the socket at once."""
        self._raw.close()


async def _reach(raw: socket.socket, address: SocketAddress) -> None:
    failure = raw.connect_ex((address.host, address.port))
    if failure in _UNDER_WAY:
        await anyio.wait_writable(raw)
        failure = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failure:
        raise OSError(failure, os.strerror(failure))
