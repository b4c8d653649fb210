"""
A server with a known knee: the queue of the searches, behind HTTP on loopback.

Run it as `python -m benchmarks.knee_server`, with the vice of the queue. It sleeps for each request and computes
nothing, and a slot is free from the planned end of its request on. So a busy machine delays answers, but the server
holds as many requests per second as on a quiet one.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a bare protocol, so that the server is far from being the limit
import heapq
import json
import sys
from collections import Counter, deque

from benchmarks.http_line import answer_lines
from benchmarks.http_server import AT_ONCE, MODEL, HttpClient
from benchmarks.searches import Queue, Server

_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
_KNOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS)
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


def server_with(vice: str) -> Server:
    """
    Return a server of forty slots for about 20 requests per second, with a limit of 3 s on its p95.

    An answer takes 2 s, so that delays of some hundredths of a second by a busy machine do not matter. A server that
    sheds or hangs does so after a wait of half a second, so that the answers it gives are always within the limit.
    """
    return Server(vice, slots=40, service_s=2.0, spread=0.1, limit_s=3.0, seed=7, busy_share=1 / 6)


class Slots:
    """
    The slots of a server and the requests that wait for one, in the order of arrival.

    A request whose client has gone is left out, as in servers for models.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._draw = Queue(server, 7)
        self._free_since_s = [0.0] * server.slots
        self._waiting: deque[Queued] = deque()

    def is_busy(self) -> bool:
        """Return True if a new request would wait too long."""
        if self._free_since_s:
            return False
        server = self._server
        waiting = sum(not request.transport.is_closing() for request in self._waiting)
        return (waiting + 1) * server.service_s / server.slots > server.busy_share * server.limit_s

    def add(self, request: Queued) -> None:
        """Serve a request now, or as soon as a slot is free."""
        request.came_s = asyncio.get_running_loop().time()
        self._waiting.append(request)
        self._fill()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free_since_s and self._waiting:
            request = self._waiting.popleft()
            if not request.transport.is_closing():
                starts_s = max(heapq.heappop(self._free_since_s), request.came_s)
                ends_s = starts_s + self._draw.service_s(starts_s)
                loop.call_at(ends_s, self._finish, request, ends_s)

    def _finish(self, request: Queued, ends_s: float) -> None:
        heapq.heappush(self._free_since_s, ends_s)
        request.finish()
        self._fill()


class Queued(HttpClient):
    """A connection whose answers come when a slot has served them."""

    def __init__(self, counts: Counter[str], server: Server, slots: Slots) -> None:
        super().__init__(counts)
        self._server = server
        self._slots = slots
        self._asked = ("", b"")
        self.came_s = 0.0

    def answer(self, path: str, body: bytes) -> None:
        """Answer after the wait and the service, at once with 503, or never."""
        if not body:
            self.transport.write(_KNOWN)
            return
        self._counts["arrived"] += 1
        if self._server.vice in ("sheds", "hangs") and self._slots.is_busy():
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
    counts: Counter[str] = Counter(arrived=0)
    simulated = server_with(vice)
    slots = Slots(simulated)
    server = await asyncio.get_running_loop().create_server(lambda: Queued(counts, simulated, slots), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await asyncio.to_thread(answer_lines, lambda _: {"port": port, "counts": dict(counts)})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
