"""
A minimal HTTP/1.1 client for load tests.

It does as little work per request as possible, so that the client is not the bottleneck: it sends the same POST over
kept-open connections and reads the responses. It has no redirects, proxies, cookies or decompression.
"""

import socket
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream

from sampling._arguments import check_bool, check_instance, check_number, check_str, short_repr
from sampling.errors import ConnectFailed, ConnectionLost, MalformedResponse, ServerError, Timeout
from sampling.load.model._about import digest
from sampling.load.model._workload import Answered, Arrival
from sampling.load.traffic._raw_socket import RawSocketStream, SocketAddress

__all__ = ["HttpWorkload"]

_HEAD_END = b"\r\n\r\n"
_LONGEST_HEAD = 65_536
_READ = 65_536
_WITHOUT_BODY = (204, 304)
_TOKENS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class HttpWorkload:
    """
    A workload that posts one body to one URL.

    Use it as `async with HttpWorkload(url, body) as workload`.
    Any response with a status from 200 to 299 is valid, and the first byte of its body counts as the first token.
    The name of the host is resolved when the workload is opened, so that a slow resolver is no latency of the server.
    There are as many connections as requests in flight. A connection that the server has closed is replaced once,
    if no byte of a response had arrived.
    """

    def __init__(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
        verify_status: bool = True,
    ) -> None:
        """
        Prepare the request.

        Args:
            url: `http://` or `https://`.

            body: The body of the POST.

            headers: Extra headers. The default content type is `application/json`.

            timeout_s: Timeout of a whole response.

            connect_timeout_s: Timeout of a new connection.

            ssl_context: Used to verify an https server, instead of the system's certificate authorities.

            verify_status: Count every status other than 200 to 299 as failed.
        """
        parts = urlsplit(check_str("url", url, empty=False))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https:// and name a host, got {short_repr(url)}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("url must not hold a user or a password: send them in a header")
        check_instance("body", body, bytes, "bytes")
        self._host = parts.hostname
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._ssl_context = ssl_context
        self._timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._connect_timeout_s = check_number("connect_timeout_s", connect_timeout_s, above=0)
        self._verify_status = check_bool("verify_status", verify_status)
        self._path = parts.path or "/"
        self._body = body
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._request = _head(target, parts.netloc, headers or {}, len(body)) + body
        self._address = SocketAddress.of(self._host, self._port)
        self._idle: list[ByteStream | RawSocketStream] = []

    async def __aenter__(self) -> Self:
        if self._address is None:
            self._address = await self._resolve()
        return self

    async def _resolve(self) -> SocketAddress | None:
        """Return the address of the host, or None to let every connection resolve it, which reports the failure."""
        with anyio.move_on_after(self._connect_timeout_s):  # noqa: ASYNC912 - getaddrinfo awaits a thread
            try:
                found = await anyio.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            except OSError:
                return None
            for family, _, _, _, address in found:
                if await _is_reachable(resolved := SocketAddress(family, address[0], self._port)):
                    return resolved
        return None

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._idle:
            with anyio.CancelScope(shield=True):
                await self._idle.pop().aclose()

    def describe(self) -> dict[str, object]:
        """Return the address and a digest of the request, for reports. A query may hold a key."""
        scheme = "https" if self._tls else "http"
        return {
            "workload": "http",
            "backend": f"{scheme}://{self._host}:{self._port}{self._path}",
            "questions": digest([self._body.decode("utf-8", "replace")]),
        }

    async def __call__(self, arrival: Arrival) -> Answered:
        """Send one request and read the whole response."""
        with anyio.move_on_after(self._timeout_s):
            status = await self._post(arrival)
            if self._verify_status and not 200 <= status < 300:
                raise ServerError(f"the server answered with status {status}")
            return Answered()
        raise Timeout(f"no whole answer within {self._timeout_s:g} s")

    async def _post(self, arrival: Arrival) -> int:
        if self._idle:
            try:
                return await self._exchange(self._idle.pop(), arrival)
            except _StaleConnection:
                pass  # Servers may close idle connections. No byte of a response had arrived, so sending again is safe.
        try:
            return await self._exchange(await self._connect(), arrival)
        except _StaleConnection:
            raise ConnectionLost("the server closed the connection without an answer") from None

    async def _exchange(self, stream: ByteStream | RawSocketStream, arrival: Arrival) -> int:
        """Send the request, and read the response. The connection is kept if both were complete."""
        response = _ResponseReader()
        try:
            await stream.send(self._request)
            while not response.whole:
                response.feed(await stream.receive(_READ))
                if response.body_began:
                    arrival.token()
        except anyio.EndOfStream:
            if not response.ends_with_connection:
                raise (ConnectionLost("the answer broke off") if response.began else _StaleConnection) from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise (ConnectionLost("the connection broke") if response.began else _StaleConnection) from None
        finally:
            if response.whole and response.keeps_open:
                self._idle.append(stream)
            else:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
        return response.status

    async def _connect(self) -> ByteStream | RawSocketStream:
        try:
            with anyio.fail_after(self._connect_timeout_s):
                if self._tls:
                    return await self._connect_tls()
                if self._address is not None:
                    return await RawSocketStream.connect(self._address)
                return await anyio.connect_tcp(self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"no connection: {type(error).__name__}") from None

    async def _connect_tls(self) -> ByteStream:
        return await anyio.connect_tcp(
            self._host if self._address is None else self._address.host,
            self._port,
            tls=True,
            ssl_context=self._ssl_context,
            # The certificate is for the name, also if the address is known.
            tls_hostname=self._host,
            tls_standard_compatible=False,  # most servers close without a TLS close_notify
        )


async def _is_reachable(address: SocketAddress) -> bool:
    """Return True if a connection can be opened: localhost may have an address that nobody listens to."""
    try:
        stream = await RawSocketStream.connect(address)
    except OSError:
        return False
    await stream.aclose()
    return True


class _StaleConnection(Exception):
    """A connection that ended before the response began."""


class _ResponseReader:
    """An incremental reader that finds the end of a response."""

    def __init__(self) -> None:
        self.status = 0
        self.began = False
        self.body_began = False
        self.whole = False
        self.keeps_open = True
        self.ends_with_connection = False
        self._unread = b""
        self._left: int | None = None
        """Remaining bytes of the body, or of a chunk and its line end. None before the head is complete."""

        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Process the next bytes."""
        self.began = True
        self._unread += data
        if self._left is None and (not self._read_head() or self.whole):
            return
        self.body_began = self.body_began or bool(self._unread)
        if self._chunked:
            self._read_chunks()
        else:
            self._left = (self._left or 0) - len(self._unread)
            self._unread = b""
            self.whole = self._left <= 0 and not self.ends_with_connection

    def _read_head(self) -> bool:
        head, end, rest = self._unread.partition(_HEAD_END)
        if not end:
            if len(self._unread) > _LONGEST_HEAD:
                raise MalformedResponse(f"the head of the answer is longer than {_LONGEST_HEAD:,} bytes")
            return False
        line, _, fields = head.lower().partition(b"\r\n")
        version, _, status = line.partition(b" ")
        if not version.startswith(b"http/1.") or not status[:3].isdigit():
            raise MalformedResponse("the answer does not begin like one of HTTP/1.1")
        self.status = int(status[:3])
        self._unread = rest
        if self.status == 101:
            raise MalformedResponse("the server switched to another protocol, which nobody had asked for")
        if self.status < 200:
            # An interim response, such as 103 Early Hints, has no body. The final one follows.
            return self._read_head()
        self._frame(dict(field.split(b":", 1) for field in fields.split(b"\r\n") if b":" in field))
        return True

    def _frame(self, fields: Mapping[bytes, bytes]) -> None:
        """
        Determine the framing of the body.

        It is sent in chunks, has a length, or ends with the connection.
        """
        self.keeps_open = fields.get(b"connection", b"").strip() != b"close"
        length = fields.get(b"content-length", b"").strip()
        self._chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        if self.status in _WITHOUT_BODY:
            self._chunked, self._left, self.whole = False, 0, True
        elif self._chunked:
            self._left = 0
        elif length.isdigit():
            self._left = int(length)
        else:
            self._left = 0
            self.ends_with_connection = True

    def _read_chunks(self) -> None:
        """
        Skip from chunk to chunk.

        This is hot: a streamed response has one chunk per token.
        """
        data = self._unread
        position = self._left or 0
        # `find` is three times as fast for one byte as for the two that end a line.
        while (end := data.find(b"\n", position)) >= 0:
            size = _size(data[position:end])
            if not size:
                # An empty line follows the last chunk, unless there are trailers.
                self.whole = data.find(_HEAD_END, end - 1) >= 0
                break
            position = end + 1 + size + 2
        self._left = max(0, position - len(data))
        self._unread = data[position:]


def _size(line: bytes) -> int:
    try:
        size = int(line, 16)
    except ValueError:
        size = _size(line.partition(b";")[0]) if b";" in line else -1
    if size < 0:
        raise MalformedResponse("a chunk of the answer does not begin with its size")
    return size


def _head(target: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    fields = {"host": host, "content-type": "application/json", "accept-encoding": "identity"}
    for name, value in headers.items():
        # The value may be a key, so the message does not show it.
        if not name or not set(name) <= _TOKENS or not value.isascii() or not value.isprintable():
            raise ValueError(f"header {short_repr(name)} must have a plain name and a value of printable ASCII")
        fields[name.lower()] = value
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode("ascii")
