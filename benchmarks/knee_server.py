"""
A server with a known knee: the queue of the searches, behind HTTP on loopback.

Run it as `python -m benchmarks.knee_server`, with the vice of the queue.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a bare protocol, so that the server is far from being the limit
import json
import sys
from collections import Counter, deque

from benchmarks.http_line import answer_lines
from benchmarks.http_server import AT_ONCE, MODEL, HttpClient
from benchmarks.searches import BUSY_SHARE, Queue, Server

_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
_KNOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS)
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


def server_with(vice: str) -> Server:
    """Return a server of eight slots for about 40 requests per second, with a limit of 0.8 s on its p95."""
    return Server(vice, slots=8, service_s=0.2, spread=0.2, limit_s=0.8, seed=7)


class Slots:
    """
    The slots of a server and the requests that wait for one, in the order of arrival.

    A request whose client has gone is left out, as in servers for models.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._draw = Queue(server, 7)
        self._free = server.slots
        self._waiting: deque[Queued] = deque()

    def wait_s(self) -> float:
        """Return about how long a new request would wait."""
        waiting = sum(not request.transport.is_closing() for request in self._waiting)
        return 0.0 if self._free else (waiting + 1) * self._server.service_s / self._server.slots

    def add(self, request: Queued) -> None:
        """Serve a request now, or as soon as a slot is free."""
        self._waiting.append(request)
        self._fill()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and self._waiting:
            request = self._waiting.popleft()
            if not request.transport.is_closing():
                self._free -= 1
                loop.call_later(self._draw.service_s(loop.time()), self._finish, request)

    def _finish(self, request: Queued) -> None:
        self._free += 1
        request.finish()
        self._fill()


class Queued(HttpClient):
    """A connection whose answers come when a slot has served them."""

    def __init__(self, counts: Counter[str], server: Server, slots: Slots) -> None:
        super().__init__(counts)
        self._server = server
        self._slots = slots
        self._asked = ("", b"")

    def answer(self, path: str, body: bytes) -> None:
        """Answer after the wait and the service, at once with 503, or never."""
        if not body:
            self.transport.write(_KNOWN)
        elif self._slots.wait_s() > BUSY_SHARE * self._server.limit_s and self._server.vice in ("sheds", "hangs"):
            self._counts[self._server.vice] += 1
            if self._server.vice == "sheds":
                self.transport.write(_BUSY)
        else:
            self._asked = path, body
            self._slots.add(self)

    def finish(self) -> None:
        """Send the answer."""
        if not self.transport.is_closing():
            path, body = self._asked
            super().answer(f"{AT_ONCE}{path}", body)


async def main(vice: str) -> None:
    """Serve until stdin is closed."""
    counts: Counter[str] = Counter()
    simulated = server_with(vice)
    slots = Slots(simulated)
    server = await asyncio.get_running_loop().create_server(lambda: Queued(counts, simulated, slots), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await asyncio.to_thread(answer_lines, lambda _: {"port": port, "counts": dict(counts)})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
