"""Bytes that a function reads where they arrive: the task that waits for the body wakes for the others only."""

import json
import ssl

import anyio
import pytest
from anyio.lowlevel import current_token

from sampling import Message, Request
from sampling._http.client import NativeTransport
from sampling._http.wire import WireRequest
from sampling.backends.http import _chat_backend
from sampling.backends.openai import OpenAIBackend
from sampling.errors import ConnectionLost, ResponseTooLarge, ServerError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ASKED = Request((Message("user", "hi"),))


def framed(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text=None, **fields):
    delta = {} if text is None else {"content": text}
    chunk = {"id": "chat-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **fields}
    return framed(b"data: " + json.dumps(chunk).encode() + b"\n\n")


class Server:
    """Answers one request with bytes that the test sends."""

    async def __aenter__(self):
        self._listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = self._listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610
        self.url = f"http://127.0.0.1:{port}/v1"
        self.connected, self.closing = anyio.Event(), anyio.Event()
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._listener.serve, self._serve)
        return self

    async def __aexit__(self, *error):
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(*error)
        finally:
            await self._listener.aclose()

    async def _serve(self, stream):
        async with stream:
            await stream.receive()
            self._stream = stream
            self.connected.set()
            await self.closing.wait()

    async def send(self, *pieces):
        """Send each piece separately."""
        await self.connected.wait()
        for piece in pieces:
            await self._stream.send(piece)
            for _ in range(5):
                await anyio.wait_all_tasks_blocked()


def is_asyncio():
    return hasattr(current_token().native_token, "add_reader")


async def reading(server, skim, pieces):
    """Send pieces to a client that reads with `skim`, and return what its task got."""
    got = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = NativeTransport(ssl_context=context, max_connections=1, connect_timeout_s=20.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.send, *pieces)
        response = await client.open(WireRequest(server.url, {}, b"{}", lambda: None))
        try:
            while data := await response.read(skim):
                got.append(data)
        finally:
            await response.aclose()
            await client.aclose()
            server.closing.set()
    return got


async def test_the_task_wakes_only_for_what_is_left_over(anyio_backend):
    """The rest of a read comes before what follows it, and the end wakes the task."""
    skimmed = bytearray()

    def skim(data):
        skimmed.extend(data.replace(b"x", b""))
        return b"x" * data.count(b"x")

    async with Server() as server:
        # The task is there before the bytes are: it has had the first ones.
        pieces = [HEAD + framed(b"0"), framed(b"1"), framed(b"2x"), framed(b"34"), b"2\r\n5", b"6\r\n", b"0\r\n\r\n"]
        got = await reading(server, skim, pieces)
    expected = (b"123456", b"0x") if is_asyncio() else (b"", b"012x3456")
    assert (bytes(skimmed), b"".join(got)) == expected


async def test_what_the_function_raises_is_raised_in_the_task(anyio_backend):
    """And not lost in the event loop while the task waits. On trio, the task reads everything by itself."""

    def skim(data):
        raise KeyError(data)

    pieces = [HEAD + framed(b"0"), framed(b"1"), b"0\r\n\r\n"]
    async with Server() as server:
        if is_asyncio():
            with pytest.raises(BaseExceptionGroup) as raised:
                await reading(server, skim, pieces)
            assert raised.group_contains(KeyError, match="1")
        else:
            assert await reading(server, skim, pieces) == [b"0", b"1"]


async def test_bytes_before_a_broken_connection_are_not_lost(anyio_backend):
    """They were skimmed, or they are returned before the error."""
    skimmed = bytearray()

    def skim(data):
        skimmed.extend(data)
        return b""

    async with Server() as server, anyio.create_task_group() as tasks:

        async def break_off():
            await server.send(HEAD + framed(b"0"), framed(b"1"), b"9\r\n2")
            server.closing.set()

        tasks.start_soon(break_off)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client = NativeTransport(ssl_context=context, max_connections=1, connect_timeout_s=20.0)
        response = await client.open(WireRequest(server.url, {}, b"{}", lambda: None))
        got = bytearray()

        async def read():
            while True:
                got.extend(await response.read(skim))

        with pytest.raises(ConnectionLost):
            await read()
        assert got + skimmed == b"012"
        await response.aclose()
        await client.aclose()


class TestBackend:
    """A backend skims the chunks that differ in their text only."""

    @pytest.fixture
    def wakes(self, monkeypatch):
        """Count how often the task of the backend wakes."""
        fed = []
        feed = _chat_backend.EventReader.feed
        monkeypatch.setattr(_chat_backend.EventReader, "feed", lambda self, data: (fed.append(data), feed(self, data)))
        return fed

    async def test_an_answer_is_the_same_whether_somebody_watches_or_not(self, anyio_backend, wakes):
        """A receiver gets each piece, and the answer is the same without one."""
        texts = [f"{number} " for number in range(20)]
        end = framed(b'data: {"id":"chat-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
        pieces = [HEAD + event(""), *map(event, texts), end + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
        pieced = []
        for receive in (None, pieced.append):
            wakes.clear()
            async with (
                Server() as server,
                OpenAIBackend(server.url, "key", "m") as backend,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(server.send, *pieces)
                asked = backend.generate(ASKED) if receive is None else backend.stream(ASKED, receive)
                generation = await asked
                server.closing.set()
            assert generation.text == "".join(texts)
            assert generation.usage.output_tokens == len(texts)
            assert len(wakes) == (3 if receive is None and is_asyncio() else len(pieces))
        assert pieced == texts

    async def test_an_error_in_the_stream_is_raised_at_once(self, anyio_backend):
        """Row 15: the server need not end its stream."""
        async with (
            Server() as server,
            OpenAIBackend(server.url, "key", "m") as backend,
            anyio.create_task_group() as tasks,
        ):
            failed = framed(b'data: {"error":{"message":"no memory"}}\n\n')
            tasks.start_soon(server.send, HEAD, *[event("a")] * 5, failed)
            with pytest.raises(ServerError, match="no memory") as raised:
                await backend.generate(ASKED)
            assert raised.value.partial_text == "aaaaa"
            server.closing.set()

    async def test_the_limit_of_a_response_counts_what_was_skimmed(self, anyio_backend):
        """Row 18: a server that never ends is cut off."""
        async with (
            Server() as server,
            OpenAIBackend(server.url, "key", "m", max_response_bytes=2_000) as backend,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(server.send, HEAD, *[event("a")] * 100)
            with pytest.raises(ResponseTooLarge, match="2,000"):
                await backend.generate(ASKED)
            server.closing.set()
            tasks.cancel_scope.cancel()

    async def test_the_usage_of_a_cancelled_request_counts_what_was_skimmed(self, anyio_backend, monkeypatch):
        """I10: those tokens were made and are paid for."""
        reported = []
        monkeypatch.setattr(_chat_backend, "report_usage", reported.append)
        async with (
            Server() as server,
            OpenAIBackend(server.url, "key", "m") as backend,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(backend.generate, ASKED)
            await server.send(HEAD, *[event("a")] * 9)
            tasks.cancel_scope.cancel()
        assert reported[-1].output_tokens == 9

    async def test_what_follows_a_finished_answer_does_not_invalidate_it(self, anyio_backend):
        """Row 10: the answer is whole and paid for, though the connection can carry no other."""
        async with (
            Server() as server,
            OpenAIBackend(server.url, "key", "m") as backend,
            anyio.create_task_group() as tasks,
        ):
            end = framed(b'data: {"id":"chat-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
            done = framed(b"data: [DONE]\n\n")
            tasks.start_soon(server.send, HEAD, event("hi"), end + done + b"0\r\nthis is no trailer\r\n\r\n")
            assert (await backend.generate(ASKED)).text == "hi"
            assert "0 idle" in repr(backend._transport)
            server.closing.set()
