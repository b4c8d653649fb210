"""
Loopback servers for tests: `HostileServer`, `OpenAIServer`, `AnthropicServer` and `GeminiServer`.

`HostileServer` sends the bytes of a script. The others answer like the API in their name. All run on asyncio and trio,
are async context managers, and count connections, requests and clients that disconnect during an answer.
"""

import json
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import anyio
import attrs
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from sampling._arguments import check_bool, check_instance, check_items, wrong_type
from sampling.parts import ToolCall

__all__ = [
    "AnthropicServer",
    "Drip",
    "GeminiServer",
    "HostileServer",
    "OpenAIServer",
    "Pause",
    "ReceivedRequest",
    "Reply",
    "Script",
    "Step",
]

_HEAD_END = b"\r\n\r\n"
# Linger for zero seconds: `close` then sends RST instead of FIN.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Disconnected(Exception):
    """The client disconnected."""


@attrs.frozen
class ReceivedRequest:
    """An HTTP request of a client."""

    head: bytes
    """The request line and the headers, unparsed."""

    body: bytes

    @property
    def path(self) -> str:
        """The path of the URL, without the host."""
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """The headers, with lower-case names."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return {name.strip().lower(): value.strip() for name, value in pairs}

    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


class _Connection:
    """A connection to one client."""

    # A bare socket, so that a script controls every byte and the way the connection ends.

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._unread = b""

    async def send(self, data: bytes) -> None:
        await checkpoint()
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError:
                raise _Disconnected from None

    async def receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._socket)
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                raise _Disconnected from None
            if not data:
                raise _Disconnected
            return data

    async def read_request(self) -> ReceivedRequest:
        await checkpoint()
        data = self._unread
        while _HEAD_END not in data:
            data += await self.receive()
        head, _, data = data.partition(_HEAD_END)
        request = ReceivedRequest(head, b"")
        length = int(request.headers.get("content-length", "0"))
        parts, have = [data], len(data)
        while have < length:
            parts.append(await self.receive())
            have += len(parts[-1])
        data = b"".join(parts)
        self._unread = data[length:]
        return attrs.evolve(request, body=data[:length])

    async def wait_disconnected(self) -> None:
        """Wait until the client disconnects."""
        await checkpoint()
        with suppress(_Disconnected):
            while True:
                self._unread += await self.receive()

    def reset(self) -> None:
        """Reset the connection, so that the next read of the client fails."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        self._socket.close()


class _LoopbackServer(ABC):
    """A server on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        """All requests, in order."""

        self.connections: int = 0
        """The number of connections so far."""

        self.disconnects: int = 0
        """The number of clients that disconnected during an answer."""

        self.open: int = 0
        """The number of open connections."""

        self._listener: socket.socket | None = None
        self._tasks: TaskGroup | None = None
        self._changed = anyio.Event()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        if self._listener is None:
            raise RuntimeError(f"the server is not running: use `async with {type(self).__name__}(…) as server`")
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The `base_url` for a backend."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the counters is true."""
        await checkpoint()
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listener.setblocking(False)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._accept, self._listener, self._tasks)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._tasks is None or self._listener is None:
            raise RuntimeError("the server is not running")
        self._tasks.cancel_scope.cancel()
        try:
            # Without the exception of the caller, which the task group would wrap in an ExceptionGroup.
            await self._tasks.__aexit__(None, None, None)  # noqa: ASYNC102 - all its tasks are cancelled
        finally:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket, tasks: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                continue
            self.connections += 1
            tasks.start_soon(self._serve_client, _Connection(client), self.connections - 1)

    async def _serve_client(self, connection: _Connection, number: int) -> None:
        self.open += 1
        await checkpoint()
        try:
            with suppress(_Disconnected):
                await self._serve(connection, number)
        finally:
            connection.close()
            self.open -= 1
            self._notify()

    def _count_disconnect(self) -> None:
        self.disconnects += 1

    async def _read_request(self, connection: _Connection) -> ReceivedRequest:
        request = await connection.read_request()
        self.requests.append(request)
        self._notify()
        return request

    @abstractmethod
    async def _serve(self, connection: _Connection, number: int) -> None: ...


# A server that misbehaves.


class Step(Enum):
    """A step of a script without arguments."""

    READ = auto()
    """Read the next request. The first one is read before the script begins."""

    RESET = auto()
    """Reset the connection."""

    HANG = auto()
    """Do nothing until the client disconnects."""


@attrs.frozen
class Pause:
    """Wait before the next step."""

    seconds: float


@attrs.frozen
class Drip:
    """Send the same bytes repeatedly until the client disconnects."""

    data: bytes
    every_s: float = 0.0


Script: TypeAlias = Sequence[bytes | Step | Pause | Drip]
"""The steps for one connection. Bytes are sent unchanged. After the last step, the connection is closed."""


class HostileServer(_LoopbackServer):
    """
    A server that reads a request and then runs a script.

    The first connection gets the first script, the second the second, and all further ones the last.

        async with HostileServer([b"HTTP/1.1 200 OK\\r\\n\\r\\ndata: {", Step.RESET]) as server:
            ...  # a client that asks server.url must survive this
    """

    def __init__(self, *scripts: Script, speaks_first: bool = False) -> None:
        """Take the scripts. With `speaks_first`, they begin before the first request."""
        super().__init__()
        self._speaks_first = check_bool("speaks_first", speaks_first)
        if not scripts:
            raise ValueError("scripts must not be empty: give the steps for at least one connection")
        self._scripts = [
            check_items("scripts", script, "sequences of bytes, Step, Pause and Drip") for script in scripts
        ]

    async def _serve(self, connection: _Connection, number: int) -> None:
        script = self._scripts[min(number, len(self._scripts) - 1)]
        await checkpoint()
        if not self._speaks_first:
            await self._read_request(connection)
        try:
            for step in script:
                await self._do(connection, step)
        except _Disconnected:
            self._count_disconnect()

    async def _do(self, connection: _Connection, step: object) -> None:
        await checkpoint()
        match step:
            case bytes():
                await connection.send(step)
            case Pause(seconds):
                await anyio.sleep(seconds)
            case Drip(data, every_s):
                await self._drip(connection, data, every_s)
            case Step.READ:
                await self._read_request(connection)
            case Step.RESET:
                connection.reset()
            case Step.HANG:
                await connection.wait_disconnected()
                raise _Disconnected
            case _:
                raise wrong_type("a step of a script", step, "bytes, Step, Pause or Drip")

    async def _drip(self, connection: _Connection, data: bytes, every_s: float) -> None:
        while True:
            await connection.send(data)
            await anyio.sleep(every_s)


# A server that behaves as documented by OpenAI.


@attrs.frozen
class Reply:
    """The response to one request."""

    pieces: Sequence[str] = ("Hello", " world")
    """The text, one piece for each streamed chunk."""

    finish_reason: str | None = "stop"
    """The finish_reason. "stop" is sent as "tool_calls" if there are any."""

    interval_s: float = 0.0
    """The delay before each chunk."""

    endless: bool = False
    """Repeat the last piece until the client disconnects."""

    usage: Mapping[str, Any] | None = None
    """The usage to report. By default one token for each piece, and ten for the question."""

    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str])
    error: Any = None
    """The JSON body, if the status is not 200."""

    tool_calls: Sequence[ToolCall] = ()
    """The tool calls, after the text. A completions request gets none."""


ReplyTo: TypeAlias = Reply | Callable[[ReceivedRequest], Reply]


class OpenAIServer(_LoopbackServer):
    """
    A server that speaks OpenAI's protocol, including streaming and keep-alive.

    A client that does not ask for a stream gets the whole answer at once.

        async with OpenAIServer(Reply(["Hel", "lo"])) as server, OpenAIBackend(server.url, model="any") as backend:
            ...
    """

    def __init__(self, reply: ReplyTo | None = None) -> None:
        super().__init__()
        if reply is not None and not callable(reply):
            check_instance("reply", reply, Reply, "a Reply, or a function of a request that returns one")
        self.reply: ReplyTo = Reply() if reply is None else reply
        """The response, or a function of the request. It may be changed between requests."""

        self.completed: int = 0
        """The number of answers that were sent completely."""

    async def _serve(self, connection: _Connection, number: int) -> None:
        while True:
            request = await self._read_request(connection)
            reply = self.reply(request) if callable(self.reply) else self.reply
            is_last = request.headers.get("connection", "").lower() == "close"
            if is_last:
                # Said in the response, too, as servers do: some clients look for it only there.
                reply = attrs.evolve(reply, headers={**reply.headers, "connection": "close"})
            if await self._send_unless_disconnected(connection, reply, request):
                self.completed += 1
                self._notify()
                if is_last:
                    return
            else:
                self._count_disconnect()
                return

    async def _send_unless_disconnected(self, connection: _Connection, reply: Reply, request: ReceivedRequest) -> bool:
        """Send a response. Return False if the client disconnects first."""
        sent = False

        async def send() -> None:
            nonlocal sent
            await checkpoint()
            with suppress(_Disconnected):
                await self._send(connection, reply, request)
                sent = True
            tasks.cancel_scope.cancel()

        # Reading is the only way to notice a disconnect while `send` sleeps between two chunks.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await connection.wait_disconnected()
            tasks.cancel_scope.cancel()
        return sent

    async def _send(self, connection: _Connection, reply: Reply, request: ReceivedRequest) -> None:
        if reply.status != 200:
            await connection.send(_plain_response(reply.status, reply.error, reply.headers))
            return
        whole = None if reply.endless else self._whole(reply, request)
        if whole is not None:
            await anyio.sleep(reply.interval_s * len(reply.pieces))
            await connection.send(_plain_response(200, whole, reply.headers))
            return
        await connection.send(_response_head(200, {**reply.headers, "content-type": "text/event-stream"}, None))
        await connection.send(b"".join([_http_chunk(part) for part in self._first_events(reply)]))
        sent = 0
        while reply.endless or sent < len(reply.pieces):
            await anyio.sleep(reply.interval_s)
            piece = reply.pieces[min(sent, len(reply.pieces) - 1)]
            await connection.send(_http_chunk(self._event(piece, request)))
            sent += 1
        last = [_http_chunk(part) for part in self._last_events(reply, request)]
        await connection.send(b"".join(last) + b"0\r\n\r\n")

    def _whole(self, reply: Reply, request: ReceivedRequest) -> dict[str, Any] | None:
        """Return the whole answer for a client that does not want it streamed, or None for one that does."""
        return None if _wants_stream(request) else _whole_answer(reply, chat=_is_chat(request))

    def _first_events(self, reply: Reply) -> list[bytes]:
        """Return the events before the text."""
        return []

    def _event(self, piece: str, request: ReceivedRequest) -> bytes:
        """Return the event for a piece of the text."""
        return _event(_choice(piece, None, chat=_is_chat(request)))

    def _last_events(self, reply: Reply, request: ReceivedRequest) -> list[bytes]:
        """Return the events that end an answer."""
        return [*_tool_call_events(reply), *_last_events(reply, chat=_is_chat(request))]


class AnthropicServer(OpenAIServer):
    """
    A server that speaks the protocol of Anthropic's Messages API, including streaming and keep-alive.

        async with AnthropicServer(Reply(["Hel", "lo"])) as server:
            async with AnthropicBackend("any", base_url=server.url) as backend:
                ...

    The finish_reason of a `Reply` is sent as Anthropic's stop_reason: "stop" as "end_turn", "length" as "max_tokens".
    """

    def _whole(self, reply: Reply, request: ReceivedRequest) -> None:
        """Stream to every client."""

    def _first_events(self, reply: Reply) -> list[bytes]:
        usage = {"input_tokens": 10, **(reply.usage or {}), "output_tokens": 1}
        message: dict[str, Any] = {"id": "msg_loopback", "type": "message", "role": "assistant", "model": "loopback"}
        return [
            _named_event("message_start", message={**message, "content": [], "stop_reason": None, "usage": usage}),
            _named_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _named_event("ping"),
        ]

    def _event(self, piece: str, request: ReceivedRequest) -> bytes:
        return _named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def _last_events(self, reply: Reply, request: ReceivedRequest) -> list[bytes]:
        usage = {"output_tokens": len(reply.pieces), **(reply.usage or {})}
        ended = _finish_reason(reply)
        reason = _STOP_REASONS.get(ended or "", ended)
        return [
            _named_event("content_block_stop", index=0),
            *_tool_use_events(reply),
            _named_event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage),
            _named_event("message_stop"),
        ]


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _named_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _tool_use_events(reply: Reply) -> list[bytes]:
    events: list[bytes] = []
    for index, call in enumerate(reply.tool_calls, 1):
        begun: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        arguments = {"type": "input_json_delta", "partial_json": call.arguments}
        events += [
            _named_event("content_block_start", index=index, content_block=begun),
            _named_event("content_block_delta", index=index, delta=arguments),
            _named_event("content_block_stop", index=index),
        ]
    return events


class GeminiServer(OpenAIServer):
    """
    A server that speaks Google's Gemini API, including streaming and keep-alive.

        async with GeminiServer(Reply(["Hel", "lo"])) as server, GeminiBackend("any", base_url=server.url) as backend:
            ...

    A `finish_reason` of "stop", "length" or "content_filter" is sent in Gemini's words.
    """

    @property
    def url(self) -> str:
        """The `base_url` for a backend."""
        return f"http://127.0.0.1:{self.port}"

    def _whole(self, reply: Reply, request: ReceivedRequest) -> None:
        """Stream to every client."""

    def _event(self, piece: str, request: ReceivedRequest) -> bytes:
        return _gemini_event({"content": {"parts": [{"text": piece}], "role": "model"}})

    def _last_events(self, reply: Reply, request: ReceivedRequest) -> list[bytes]:
        usage = reply.usage
        if usage is None:
            usage = {"promptTokenCount": 10, "candidatesTokenCount": len(reply.pieces)}
        reason = _GEMINI_REASONS.get(reply.finish_reason or "", reply.finish_reason)
        ended = {} if reason is None else {"finishReason": reason}
        calls = [
            _gemini_event({"content": {"parts": [_gemini_call(call)], "role": "model"}}) for call in reply.tool_calls
        ]
        return [*calls, _gemini_event(ended, usageMetadata=usage)]


_GEMINI_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "tool_calls": "STOP"}


def _gemini_call(call: ToolCall) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}


def _gemini_event(candidate: Mapping[str, Any], **fields: Any) -> bytes:
    chunk = {"candidates": [{**candidate, "index": 0}], **fields, "modelVersion": "loopback", "responseId": "loopback"}
    return b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"


def _is_chat(request: ReceivedRequest) -> bool:
    return request.path.endswith("/chat/completions")


def _tool_call_events(reply: Reply) -> list[bytes]:
    """Return each call in two chunks, as OpenAI sends them: its name, and its arguments."""
    events: list[bytes] = []
    for index, call in enumerate(reply.tool_calls):
        begun = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        rest = {"index": index, "function": {"arguments": call.arguments}}
        events += [_event({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}) for piece in (begun, rest)]
    return events


def _last_events(reply: Reply, *, chat: bool) -> list[bytes]:
    return [
        _event(_choice("", _finish_reason(reply), chat=chat)),
        _event({"choices": [], "usage": _usage(reply)}),
        b"data: [DONE]\n\n",
    ]


def _usage(reply: Reply) -> Mapping[str, Any]:
    if reply.usage is not None:
        return reply.usage
    written = len(reply.pieces)
    return {"prompt_tokens": 10, "completion_tokens": written, "total_tokens": 10 + written}


def _finish_reason(reply: Reply) -> str | None:
    return "tool_calls" if reply.tool_calls and reply.finish_reason == "stop" else reply.finish_reason


def _wants_stream(request: ReceivedRequest) -> bool:
    """Return whether the client asked for a stream. A body that is not JSON counts as yes."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return True
    return not isinstance(body, dict) or bool(cast("dict[str, Any]", body).get("stream"))


def _whole_answer(reply: Reply, *, chat: bool) -> dict[str, Any]:
    text = "".join(reply.pieces)
    answer: dict[str, Any] = {"text": text}
    if chat:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        answer = {"message": {**message, "tool_calls": calls} if calls else message}
    return {
        "id": "loopback",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": "loopback",
        "choices": [{"index": 0, **answer, "finish_reason": _finish_reason(reply)}],
        "usage": _usage(reply),
    }


def _choice(piece: str, finish_reason: str | None, *, chat: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {"content": piece}} if chat else {"text": piece}
    return {"choices": [{"index": 0, **content, "finish_reason": finish_reason}]}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "loopback", "model": "loopback", **body}).encode() + b"\n\n"


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _plain_response(status: int, content: Any, headers: Mapping[str, str]) -> bytes:
    body = json.dumps(content).encode()
    return _response_head(status, {"content-type": "application/json", **headers}, len(body)) + body


def _response_head(status: int, headers: Mapping[str, str], length: int | None) -> bytes:
    framing = {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
    lines = [f"HTTP/1.1 {status} .", *(f"{name}: {value}" for name, value in {**headers, **framing}.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
