"""Open connections: look up the host, try its addresses, and shake hands."""

import errno
import os
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic
from typing import NamedTuple, TypeAlias

import anyio

from sampling._http.tls import Tls

__all__ = ["Dialler", "send_all", "shake_hands"]

SocketAddress: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]"

MAX_AT_ONCE = 128
"""The TCP handshakes at once. Many servers queue no more than that, and drop the rest for a second."""

HOLD_S = 0.25
"""The longest time that a slow handshake delays others."""

NEXT_ADDRESS_S = 0.25
"""The head start of an address over the next one, as in RFC 8305."""

LOOKUP_VALID_S = 5.0
"""The time for which the addresses of a host are remembered."""

_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK)
_READ_BYTES = 16_384


class Address(NamedTuple):
    """A numeric address, which needs no lookup."""

    family: int
    address: SocketAddress


def _numeric_address(host: str, port: int) -> Address | None:
    """Return the address of a numeric host, or None for a name, which must be looked up."""
    try:
        version = ip_address(host).version
    except ValueError:
        return None
    # An address with a zone, such as fe80::1%eth0, must be resolved like a name.
    return None if "%" in host else Address(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))


class Turns:
    """
    Limits how many connections are opened at once.

    A waiter continues when another one is done, or when all before it have had `HOLD_S`. So a server that does not
    answer delays nobody for long.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: OrderedDict[anyio.Event, None] = OrderedDict()

    async def take(self) -> None:
        """Wait for a turn. Call `give_back` afterwards."""
        if self._taken >= MAX_AT_ONCE:
            turn = anyio.Event()
            rounds = 1 + len(self._waiting) // MAX_AT_ONCE
            self._waiting[turn] = None
            try:
                with anyio.move_on_after(rounds * HOLD_S):
                    await turn.wait()
            finally:
                self._waiting.pop(turn, None)
        self._taken += 1

    def give_back(self) -> None:
        """Let the next waiter continue."""
        self._taken -= 1
        if self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            turn.set()


class Dialler:
    """Opens connections to the addresses of hosts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, list[Address]]] = {}
        self._fixed: dict[tuple[str, int], list[Address]] = {}
        self._turns = Turns()

    async def dial(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """Return a socket that is connected to a host, or raise `OSError`. The time counts from its turn on."""
        await self._turns.take()
        try:
            with anyio.fail_after(timeout_s):
                return await self._reach_one(host, port)
        except OSError:
            self._known.pop((host, port), None)
            raise
        finally:
            self._turns.give_back()

    async def fix(self, host: str, port: int, timeout_s: float) -> None:
        """Look up a host and use the address that answers first for all connections from now on, or raise `OSError`."""
        if _numeric_address(host, port) is None:
            raw = await self.dial(host, port, timeout_s)
            with raw:
                self._fixed[host, port] = [Address(raw.family, raw.getpeername())]

    async def _reach_one(self, host: str, port: int) -> socket.socket:
        addresses = await self._look_up(host, port)
        return await _reach(addresses[0]) if len(addresses) == 1 else await _first_of(addresses)

    async def _look_up(self, host: str, port: int) -> list[Address]:
        numeric = _numeric_address(host, port)
        if numeric is not None:
            return [numeric]
        if (host, port) in self._fixed:
            return self._fixed[host, port]
        since, addresses = self._known.get((host, port), (0.0, []))
        if not addresses or monotonic() - since > LOOKUP_VALID_S:
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = _alternating([Address(family, address) for family, _, _, _, address in found])
            self._known[host, port] = monotonic(), addresses
        return addresses


async def _reach(address: Address) -> socket.socket:
    """Return a socket that is connected to an address, or raise `OSError`."""
    raw = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        # Nagle's algorithm would hold back small requests.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failure = raw.connect_ex(address.address)
        if failure in _UNDER_WAY:
            await anyio.wait_writable(raw)
            failure = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        raw.close()
        raise
    if failure:
        raw.close()
        raise OSError(failure, os.strerror(failure))
    return raw


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """Order addresses so that those of IPv6 and IPv4 take turns, beginning with the first."""
    if not addresses:
        raise OSError("the host has no address")
    first = [one for one in addresses if one.family == addresses[0].family]
    other = [one for one in addresses if one.family != addresses[0].family]
    turns = [one for pair in zip(first, other, strict=False) for one in pair]
    rest = first[len(other) :] or other[len(first) :]
    return [*turns, *rest]


async def _first_of(addresses: Sequence[Address]) -> socket.socket:
    """Try addresses one after the other, each with a head start, and return the first that connects."""
    winner: list[socket.socket] = []
    failures: list[OSError] = []
    try:
        async with anyio.create_task_group() as tasks:

            async def attempt(address: Address, failed: anyio.Event) -> None:
                try:
                    raw = await _reach(address)
                except OSError as error:
                    failures.append(error)
                    failed.set()
                    return
                if winner:
                    raw.close()
                    return
                winner.append(raw)
                tasks.cancel_scope.cancel()

            for address in addresses:
                failed = anyio.Event()
                tasks.start_soon(attempt, address, failed)
                with anyio.move_on_after(NEXT_ADDRESS_S):
                    await failed.wait()
    except BaseException:
        for raw in winner:
            raw.close()
        raise
    if winner:
        return winner[0]
    raise failures[0]


async def shake_hands(raw: socket.socket, tls: Tls) -> None:
    """Do the TLS handshake, or raise `OSError`, of which `ssl.SSLError` is one."""
    received: bytes | None = None
    while True:
        try:
            done = tls.handshake(received)
        except OSError:
            # Tell the server why, if there is room for it.
            with suppress(OSError):
                raw.send(tls.to_send())
            raise
        await send_all(raw, memoryview(tls.to_send()))
        if done:
            return
        received = await _receive(raw)


async def _receive(raw: socket.socket) -> bytes:
    while True:
        await anyio.wait_readable(raw)
        with suppress(BlockingIOError):
            return raw.recv(_READ_BYTES)


async def send_all(raw: socket.socket, rest: memoryview) -> None:
    """Send bytes, or raise `OSError`. They are a view, because local variables are in tracebacks."""
    while rest:
        try:
            rest = rest[raw.send(rest) :]
        except BlockingIOError:
            await anyio.wait_writable(raw)
