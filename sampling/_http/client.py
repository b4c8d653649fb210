"""`Client`, which sends requests over pooled connections, and `NativeTransport`, which does so for backends."""

import re
import ssl
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio

from sampling._http.connection import Connection, Payload, Skim, new_connection, system_error
from sampling._http.dialling import Dialler, shake_hands
from sampling._http.pool import Pool
from sampling._http.tls import TlsSettings, refused_client
from sampling._http.wire import SharedHeaders, WireRequest
from sampling.errors import BackendError, BadRequest, CertificateInvalid, ConnectFailed

__all__ = ["Client", "NativeTransport", "Origin", "Response"]

IDLE_EXPIRY_S = 30.0

_HEADERS = re.compile(r"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\x20-\x7e\t\x80-\xff]*\r\n)*")
_TARGET = re.compile(r"[\x21-\x7e]+")
_OURS = frozenset({"content-length", "host", "transfer-encoding"})


class Origin(NamedTuple):
    """A server."""

    tls: bool
    host: str
    port: int


class _Target(NamedTuple):
    """The target of a request."""

    origin: Origin
    start: bytes
    """The request line and the Host header."""


class Response:
    """A response whose body is read in pieces. The caller closes it."""

    __slots__ = ("_client", "_connection", "headers", "status")

    def __init__(self, client: "Client", connection: Connection, status: int, headers: Mapping[str, str]) -> None:
        self._client = client
        self._connection: Connection | None = connection
        self.status = status
        self.headers = headers

    async def read(self, skim: Skim | None = None) -> bytes:
        """
        Return the next bytes of the body as they were received, or b"" at the end.

        What `skim` can read by itself is passed to it where it arrives, if the event loop allows for it.
        """
        return b"" if self._connection is None else await self._connection.read(skim)

    @property
    def complete(self) -> bool:
        """True if all of the body has arrived."""
        return self._connection is None or self._connection.has_whole_body

    async def aclose(self) -> None:
        """Return the connection to the pool after a complete body, else close it at once."""
        self.close()

    def close(self) -> None:
        """Close synchronously: `aclose` has nothing to wait for."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._client.give_back(connection)


class Client:
    """Sends requests, given as bytes, over connections that it reuses."""

    def __init__(self, *, ssl_context: ssl.SSLContext, max_connections: int, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = TlsSettings(ssl_context)
        self._dialler = Dialler()
        self._pool: Pool[Connection] = Pool(max_connections, IDLE_EXPIRY_S)
        # Connections know the pool and not the client, so that this is called when nobody has the client any more.
        self._lost = partial(_forget, self._pool)
        weakref.finalize(self, _close_left_open, self._pool).atexit = False

    async def fix_address(self, origin: Origin) -> None:
        """Look up a server once and for all. If that fails, every connection looks it up and reports the failure."""
        with suppress(OSError):
            await self._dialler.fix(origin.host, origin.port, self._connect_timeout_s)

    async def post(self, origin: Origin, payload: Payload, on_sent: Callable[[], None]) -> Response:
        """
        Send a request over an idle connection or a new one, and wait for the head of the response.

        A server may close an idle connection just when it is used. Then the request goes over a new one, once: it may
        be the request that makes the server close its connections.
        """
        again = False
        while True:
            connection = await self._pool.acquire(origin, fresh=again)
            if connection is None:
                connection = await self._connect(origin)
            try:
                await connection.send(payload, on_sent)
                parser = await connection.wait_for_head()
            except BackendError as error:
                failure = error
            except BaseException:
                self._pool.discard(connection)
                raise
            else:
                return Response(self, connection, parser.status, parser.headers)
            self._pool.discard(connection)
            if again or not connection.used or connection.received:
                raise failure
            again = True

    def give_back(self, connection: Connection) -> None:
        """Keep the connection of a complete response, and close any other."""
        if connection.finish():
            self._pool.release(connection.key, connection)
        else:
            self._pool.discard(connection)

    async def _connect(self, origin: Origin) -> Connection:
        """Open a connection for which the pool has room."""
        closings = self._pool.closings
        try:
            connection = await self._dial(origin)
        except OSError as error:
            failure = _translated(error)
        except BaseException:
            self._pool.discard(None)
            raise
        else:
            if closings == self._pool.closings:
                self._pool.opened(connection)
                return connection
            connection.close()
            failure = ConnectFailed("the connections were closed while the request waited for one")
        self._pool.discard(None)
        raise failure

    async def _dial(self, origin: Origin) -> Connection:
        raw = await self._dialler.dial(origin.host, origin.port, self._connect_timeout_s)
        try:
            tls = self._tls.wrap(origin, origin.host) if origin.tls else None
            if tls is not None:
                with anyio.fail_after(self._connect_timeout_s):
                    await shake_hands(raw, tls)
            return new_connection(origin, raw, tls, self._lost)
        except BaseException:
            raw.close()
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        self._pool.close()


def _forget(pool: Pool[Connection], connection: Connection) -> None:
    pool.forget(connection.key, connection)


def _close_left_open(pool: Pool[Connection]) -> None:
    """Close the connections of a client that was not closed, with one warning instead of one for each socket."""
    left = len(pool.connections)
    if left:
        pool.close()
        warnings.warn(
            f"connections to servers were left open ({left}): close the backend, or use it inside `async with`",
            ResourceWarning,
            stacklevel=1,
        )


class NativeTransport(Client):
    """The transport of backends: it sends a `WireRequest`."""

    async def open(self, request: WireRequest) -> Response:
        """Send a request and wait for the status and headers of the response."""
        target = _target(request.method, request.url)
        payload = None if target is None else _payload(target.start, request)
        # Raised here, where no local variable holds the key.
        if target is None or payload is None:
            raise BadRequest("the request can't be sent: a header is not valid")
        return await self.post(target.origin, payload, request.on_sent)

    def __repr__(self) -> str:
        return f"NativeTransport({self._pool!r})"


@lru_cache(maxsize=256)
def _target(method: str, url: str) -> _Target | None:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(path) or not _TARGET.fullmatch(parts.netloc) or parts.hostname is None:
        return None
    tls = parts.scheme == "https"
    origin = Origin(tls, parts.hostname, parts.port or (443 if tls else 80))
    return _Target(origin, f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n".encode())


def _payload(start: bytes, request: WireRequest) -> Payload | None:
    """Return the bytes of a request, or None if a header is not valid."""
    headers, body = request.headers, request.body
    lines = headers.lines if isinstance(headers, SharedHeaders) else None
    if lines is None:
        lines = _header_lines(headers)
        if lines is None:
            return None
        if isinstance(headers, SharedHeaders):
            headers.lines = lines
    data = b"%b%bContent-Length: %d\r\n\r\n%b" % (start, lines, len(body), body)
    return Payload(data, is_last="close" in headers.get("connection", "").lower())


def _header_lines(headers: Mapping[str, str]) -> bytes | None:
    """Return the bytes of headers, or None if one is not valid."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # With as many lines as headers, no value can hold the end of its line.
    if (
        text.count("\n") != len(headers)
        or not _HEADERS.fullmatch(text)
        or not _OURS.isdisjoint(map(str.lower, headers))
    ):
        return None
    return text.encode("latin-1")


def _translated(error: OSError) -> BackendError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateInvalid(f"the server's certificate is not valid: {error.verify_message or error.reason}")
    return refused_client(error) or ConnectFailed(f"no connection to the server ({system_error(error)})")
