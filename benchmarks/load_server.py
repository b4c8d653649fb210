"""
The server of the HTTP suite, with a log of arrivals.

Standard library only.
The delivered load and its regularity are read from this log, never from the client.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a bare protocol, so that the server is far from being the limit
import json
import time
from array import array
from collections import Counter

from benchmarks.http_line import Json, answer_lines
from benchmarks.http_server import AT_ONCE, MODEL, HttpClient

_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
_KNOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS)


class Logged(HttpClient):
    """
    Logs the time of each chat request.

    It also answers the request for the list of models, which some clients send first.
    """

    def __init__(self, counts: Counter[str], log: array[float]) -> None:
        super().__init__(counts)
        self._log = log

    def answer(self, path: str, body: bytes) -> None:
        """Log the request, and answer."""
        if body:
            self._log.append(time.monotonic())
            super().answer(f"{AT_ONCE}{path}", body)
        else:
            self.transport.write(_KNOWN)


async def main() -> None:
    """Serve until stdin is closed. Each request for the log returns it and clears it."""
    counts: Counter[str] = Counter(streamed=0, whole=0, other=0)
    log = array("d")
    server = await asyncio.get_running_loop().create_server(lambda: Logged(counts, log), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def read_log(_: Json) -> Json:
        seen = log[:]
        del log[: len(seen)]
        return {"port": port, "counts": dict(counts), "arrived": seen.tolist(), "cpu_s": time.process_time()}

    async with server:
        await asyncio.to_thread(answer_lines, read_log)


if __name__ == "__main__":
    asyncio.run(main())
