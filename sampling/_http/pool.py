"""A pool of connections whose cost does not depend on how many there are."""

from collections import OrderedDict
from collections.abc import Hashable
from time import monotonic
from typing import Generic, Protocol, TypeVar

import anyio

from sampling.errors import ConnectFailed

__all__ = ["Pool", "Pooled"]


class Pooled(Protocol):
    """A connection that a pool can keep."""

    def is_usable(self) -> bool:
        """Return whether an idle connection can be reused: the server neither closed it nor sent anything."""
        ...

    def close(self) -> None:
        """Close it at once. Closing twice does nothing."""
        ...


C = TypeVar("C", bound=Pooled)


class _Waiter(Generic[C]):
    """A request that waits for a connection, or for the right to open one."""

    __slots__ = ("closed", "connection", "event", "granted", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.event = anyio.Event()
        self.granted = False
        self.closed = False
        self.connection: C | None = None


class Pool(Generic[C]):
    """
    Keeps connections for reuse, and limits how many there are.

    Every operation looks at a constant number of connections. The one that was used last is used first, so that
    the others can expire. Requests that find the pool full wait in the order in which they came.
    """

    def __init__(self, max_connections: int, expiry_s: float) -> None:
        self._max = max_connections
        self._expiry_s = expiry_s
        self._idle: dict[Hashable, OrderedDict[C, float]] = {}
        """By the server, with the time since which they are idle, oldest first."""

        self._active: set[C] = set()
        self._open = 0
        """The connections that are active, idle or being opened."""

        self._waiters: OrderedDict[_Waiter[C], None] = OrderedDict()
        self.closings = 0
        """The number of times that it was closed, for those who are opening a connection meanwhile."""

    async def acquire(self, key: Hashable, *, fresh: bool = False) -> C | None:
        """
        Return an idle connection, or None for the right to open one.

        After None, the caller calls `opened` or `discard`. A connection is given back with `release` or `discard`.
        With `fresh`, the idle ones are not trusted. In a full pool, the one that is given back next is, because its
        server has just answered.
        """
        if not self._waiters:
            connection = None if fresh else self._take_idle(key)
            if connection is not None:
                return connection
            if self._open < self._max or self._close_one_of_others(None if fresh else key):
                self._open += 1
                return None
        return await self._wait(key)

    async def _wait(self, key: Hashable) -> C | None:
        waiter: _Waiter[C] = _Waiter(key)
        self._waiters[waiter] = None
        try:
            await waiter.event.wait()
        except BaseException:
            # The cancellation may have come after the grant, which then goes to the next one.
            if not waiter.granted:
                self._waiters.pop(waiter, None)
            elif waiter.connection is None:
                self.discard(None)
            else:
                self.release(key, waiter.connection)
            raise
        if waiter.closed:
            raise ConnectFailed("the connections were closed while the request waited for one")
        return waiter.connection

    def opened(self, connection: C) -> None:
        """Record the connection that a caller has opened."""
        self._active.add(connection)

    def release(self, key: Hashable, connection: C) -> None:
        """Take back a connection that can be used again."""
        if connection not in self._active:
            # The pool was closed meanwhile.
            connection.close()
            return
        if not self._waiters:
            self._active.discard(connection)
            now = monotonic()
            self._idle.setdefault(key, OrderedDict())[connection] = now
            self._close_expired(key, now)
            return
        if next(iter(self._waiters)).key != key:
            self.discard(connection)
            return
        self._grant(connection)

    def discard(self, connection: C | None) -> None:
        """Close a connection, or give back the right to open one."""
        if connection is not None:
            connection.close()
            if connection not in self._active:
                return
            self._active.discard(connection)
        self._open -= 1
        if self._waiters and self._open < self._max:
            self._open += 1
            self._grant(None)

    def forget(self, key: Hashable, connection: C) -> None:
        """Drop a connection that ended while it was idle."""
        connection.close()
        if self._idle.get(key, OrderedDict()).pop(connection, None) is not None:
            self._open -= 1

    def close(self) -> None:
        """Close all connections. A request that waits for one fails."""
        connections = [*self._active, *(one for idle in self._idle.values() for one in idle)]
        self._active.clear()
        self._idle.clear()
        # The rest are being opened.
        self._open -= len(connections)
        self.closings += 1
        for connection in connections:
            connection.close()
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            waiter.closed = True
            waiter.event.set()

    @property
    def connections(self) -> list[C]:
        """All connections, for tests."""
        return [*self._active, *(one for idle in self._idle.values() for one in idle)]

    def _take_idle(self, key: Hashable) -> C | None:
        idle = self._idle.get(key)
        while idle:
            connection, since = idle.popitem()
            if monotonic() - since < self._expiry_s and connection.is_usable():
                self._active.add(connection)
                return connection
            connection.close()
            self._open -= 1
        return None

    def _close_expired(self, key: Hashable, now: float) -> None:
        idle = self._idle[key]
        while now - next(iter(idle.values())) >= self._expiry_s:
            connection, _ = idle.popitem(last=False)
            connection.close()
            self._open -= 1

    def _close_one_of_others(self, key: Hashable) -> bool:
        """Make room by closing an idle connection to another server, or to any if there is no key."""
        for other, idle in self._idle.items():
            if other != key and idle:
                connection, _ = idle.popitem(last=False)
                connection.close()
                self._open -= 1
                return True
        return False

    def _grant(self, connection: C | None) -> None:
        waiter, _ = self._waiters.popitem(last=False)
        waiter.connection = connection
        waiter.granted = True
        waiter.event.set()

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        active = self._open - idle
        return (
            f"<Pool [Requests: {active} active, {len(self._waiters)} queued | "
            f"Connections: {active} active, {idle} idle]>"
        )
