"""
A loopback server that always sends the same answer.

It sends eight tokens, with as little work as possible.
It runs in its own process, so that its CPU time is not measured with that of a client. It counts the requests, to check
the numbers of the clients. Standard library only.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a bare protocol, so that the server is far from being the limit
import json
import re
import time
from collections import Counter
from typing import Any

from benchmarks.http_line import answer_lines

MODEL = "canned"
QUESTION = "Write something."
TOKENS = ("Once", " upon", " a", " time", " there", " was", " a", " fox")
ANSWER = "".join(TOKENS)
STEP_S = 0.008
"""Time between two tokens that come one by one. It is long enough for a client to sleep in between."""

AT_ONCE = "/at-once/v1"
ONE_BY_ONE = "/one-by-one/v1"

_CHAT = "/chat/completions"
_COMMON = {"id": "chatcmpl-1", "created": 1750000000, "model": MODEL, "system_fingerprint": "fp_1"}
_USAGE = {"prompt_tokens": 10, "completion_tokens": len(TOKENS), "total_tokens": 10 + len(TOKENS)}
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WANTS_STREAM = re.compile(rb'"stream": *true')


def _chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
    return _event(json.dumps({**_COMMON, "object": "chat.completion.chunk", "choices": choices, **more}))


def _event(data: str) -> bytes:
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _pieces() -> list[bytes]:
    """
    Return the pieces of a streamed answer.

    The first has the head, each of the next has a token, and the last has the rest.
    """
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    tokens = [_chunk([_choice({"content": token})]) for token in TOKENS]
    end = _chunk([_choice({}, "stop")]) + _chunk([], usage=_USAGE) + _event("[DONE]") + b"0\r\n\r\n"
    return [head + _chunk([_choice({"role": "assistant", "content": ""})]), *tokens, end]


def _whole() -> bytes:
    message = {"role": "assistant", "content": ANSWER, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = json.dumps({**_COMMON, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


_PIECES = _pieces()
_STREAM = b"".join(_PIECES)
_WHOLE = _whole()
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class HttpClient(asyncio.Protocol):
    """One connection, with one request after the other."""

    transport: asyncio.Transport

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, end, body = self._unread.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if end and len(body) >= (int(length[1]) if length else 0):
            self._unread = b""
            self.answer(head.split(b" ", 2)[1].decode("latin-1"), body)

    def answer(self, path: str, body: bytes) -> None:
        """Send the fixed answer."""
        if not path.endswith(_CHAT):
            self._counts["other"] += 1
            self.transport.write(_NOT_FOUND)
        elif not _WANTS_STREAM.search(body):
            self._counts["whole"] += 1
            self.transport.write(_WHOLE)
        else:
            self._counts["streamed"] += 1
            if path.startswith(ONE_BY_ONE):
                self._send_from(0)
            else:
                self.transport.write(_STREAM)

    def _send_from(self, number: int) -> None:
        self.transport.write(_PIECES[number])
        if number + 1 < len(_PIECES):
            asyncio.get_running_loop().call_later(STEP_S, self._send_from, number + 1)


async def main() -> None:
    """Serve until stdin is closed."""
    counts: Counter[str] = Counter(streamed=0, whole=0, other=0)
    server = await asyncio.get_running_loop().create_server(lambda: HttpClient(counts), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await asyncio.to_thread(
            answer_lines, lambda _: {"port": port, "counts": dict(counts), "cpu_s": time.process_time()}
        )


if __name__ == "__main__":
    asyncio.run(main())
