"""
The floor: a socket, httptools and msgspec, and nothing else.

No errors, no limits, no cancellation, no usage. It runs in the environment of the peers.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the floor is written in plain asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httptools
import msgspec

from benchmarks.wire_round import QUESTION, Ask, answers_job, serve
from benchmarks.wire_server import MODEL


class Delta(msgspec.Struct):
    """The part of a chunk with the text."""

    content: str | None = None


class Choice(msgspec.Struct):
    """A choice of a chunk."""

    delta: Delta


class Chunk(msgspec.Struct):
    """What is read of a chunk."""

    choices: list[Choice]


decode = msgspec.json.Decoder(Chunk).decode


class Connection(asyncio.Protocol):
    """One connection, with one request after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes) -> asyncio.Future[str]:
        """Send a request, and return the future of its text."""
        self._parser = httptools.HttpResponseParser(self)
        self._unread = b""
        self._texts: list[str] = []
        self._done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Take the bytes of the body."""
        *events, self._unread = (self._unread + data).split(b"\n\n")
        for event in events:
            if event != b"data: [DONE]":
                for choice in decode(event[6:]).choices:
                    if choice.delta.content:
                        self._texts.append(choice.delta.content)

    def on_message_complete(self) -> None:
        """Resolve the future."""
        self._done.set_result("".join(self._texts))


@asynccontextmanager
async def bare(base_url: str, _: int) -> AsyncIterator[Ask]:
    """Keep idle connections in a list."""
    parts = urlsplit(base_url)
    body = msgspec.json.encode(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    request = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer key\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    idle: list[Connection] = []
    loop = asyncio.get_running_loop()

    async def ask() -> str:
        connection = idle.pop() if idle else (await loop.create_connection(Connection, parts.hostname, parts.port))[1]
        text = await connection.send(request)
        idle.append(connection)
        return text

    yield ask
    for connection in idle:
        connection.transport.close()


if __name__ == "__main__":
    serve({"answers": answers_job(bare)})
