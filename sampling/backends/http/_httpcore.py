"""The transport for proxies and for `public_only`: connections pooled by httpcore2."""

import math
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import anyio
import attrs
import httpcore2

from sampling._http.tls import refused_client
from sampling._redaction import Secret
from sampling.backends.http._address import embedded_address
from sampling.backends.http._transport import WireRequest, WireResponse
from sampling.errors import (
    BackendError,
    BadRequest,
    CertificateInvalid,
    ConnectFailed,
    ConnectionLost,
    FatalError,
    MalformedResponse,
)

__all__ = ["HttpcoreTransport"]


class HttpcoreTransport:
    """
    A transport with a connection pool of httpcore2.

    httpcore2 is the lower half of httpx2. The upper half would add redirects, cookies and decompression,
    which a backend must not have.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        max_connections: int,
        connect_timeout_s: float,
        proxy: Secret | None = None,
        public_only: bool = False,
    ) -> None:
        # No read timeout: the backend has one deadline around the whole request.
        self._timeouts = {"connect": connect_timeout_s, "pool": None, "read": None, "write": None}
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context,
            proxy=None if proxy is None else _proxy(proxy),
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=30.0,
            network_backend=_Network(public_only=public_only),
        )

    async def open(self, request: WireRequest) -> WireResponse:
        """
        Send a request over an idle connection or a new one.

        A server may close an idle connection just when it is used. Then the request goes over another one, once: it
        may be the request that makes the server close its connections.
        """
        again = False
        while True:  # noqa: ASYNC913 - httpcore2 awaits a connection
            wire = self._request(request)
            exchange = _Exchange()
            entered = _exchange.set(exchange)
            try:
                return _HttpcoreResponse(await self._pool.handle_async_request(wire))
            except Exception as error:
                if not isinstance(error, _TRANSPORT_ERRORS) and not _is_from_socks(error):
                    raise
                failure = _translate(error)
            finally:
                _exchange.reset(entered)
            if again or not isinstance(failure, ConnectionLost) or not exchange.was_closed_while_idle:
                # Raised outside the handler: the traceback of httpcore2's error holds the headers, and with them
                # the key.
                raise failure
            again = True

    def _request(self, request: WireRequest) -> httpcore2.Request:
        return httpcore2.Request(
            request.method,
            request.url,
            headers=[
                ("Host", urlsplit(request.url).netloc),
                *request.headers.items(),
                ("Content-Length", str(len(request.body))),
            ],
            content=_Body(request),
            extensions={"timeout": self._timeouts},
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    def __repr__(self) -> str:
        return f"HttpcoreTransport({self._pool!r})"


@attrs.define
class _Exchange:
    """The state of the connection of one request."""

    connected: bool = False
    """True if a connection was opened for the request."""

    received: bool = False
    """True once the server sent a byte."""

    @property
    def was_closed_while_idle(self) -> bool:
        """True if a broken connection was an old one, which the server closed before it saw the request."""
        return not self.connected and not self.received


_exchange: ContextVar[_Exchange | None] = ContextVar("sampling_http_exchange", default=None)
"""The request that this task sends. httpcore2 opens and reads its connections in the same task."""


class _Network(httpcore2.AsyncNetworkBackend):
    """
    A network backend that tells a new connection from an old one.

    With `public_only` it connects only to public addresses, and to the one that it has checked:
    a second lookup could return a different one (DNS rebinding).
    """

    def __init__(self, *, public_only: bool) -> None:
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
        self._public_only = public_only

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host, or to the first of its public addresses that answers."""
        exchange = _exchange.get()
        if exchange is not None:
            exchange.connected = True
        addresses = await _public_addresses(host, port, timeout) if self._public_only else [host]
        deadline = anyio.current_time() + (math.inf if timeout is None else timeout)
        for place, address in enumerate(addresses):
            # Each address gets a share of the time that is left, so that one that does not answer leaves some.
            share_s = None if timeout is None else (deadline - anyio.current_time()) / (len(addresses) - place)
            try:
                return _Stream(await self._inner.connect_tcp(address, port, share_s, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if place == len(addresses) - 1:
                    raise
        raise httpcore2.ConnectError("the host has no address")

    async def sleep(self, seconds: float) -> None:
        """Sleep between connection attempts of the pool."""
        await anyio.sleep(seconds)


async def _public_addresses(host: str, port: int, timeout: float | None) -> list[str]:  # noqa: ASYNC109 - as above
    """Resolve a host and return its addresses, unless one of them is not public."""
    try:
        with anyio.fail_after(timeout):
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        if not _is_public(address):
            raise FatalError(
                "the host resolves to an address that is not public, and public_only is set",
                hint="Check base_url. For a server in your own network, leave public_only out.",
            )
    return addresses


def _is_public(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    return ip.is_global and embedded_address(ip).is_global


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that records that a byte of the response has arrived."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        data = await self._inner.read(max_bytes, timeout)
        exchange = _exchange.get()
        if data and exchange is not None:
            exchange.received = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Body:
    """
    The body of a request.

    It calls `on_sent` when the pool starts to send it.
    """

    def __init__(self, request: WireRequest) -> None:
        self._request = request
        self._sent = False

    def __aiter__(self) -> "_Body":
        return self

    async def __anext__(self) -> bytes:
        if self._sent:
            raise StopAsyncIteration
        self._sent = True
        # httpcore2 asks for the body only once it has a connection.
        self._request.on_sent()
        return self._request.body


class _HttpcoreResponse:
    def __init__(self, response: httpcore2.Response) -> None:
        self.status = response.status
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        self._stream = cast("Any", response.stream)
        self._chunks: AsyncIterator[bytes] = aiter(self._stream)
        self._ended = False

    async def read(self) -> bytes:
        try:
            data = await anext(self._chunks, b"")
        except _TRANSPORT_ERRORS as error:
            failure = _translate(error)
        else:
            self._ended = not data
            return data
        raise failure  # outside the handler, as in `open`

    async def aclose(self) -> None:
        if not self._ended:
            # Also closes the generators of httpcore2 that read from the connection.
            await cast("Any", self._chunks).aclose()
        self._discard_connection_with_trailing_data()
        await self._stream.aclose()

    def _discard_connection_with_trailing_data(self) -> None:
        # Bytes after the end of a response would be read as the response to the next request, which may be another
        # caller's. httpcore2 2.16 reuses such a connection, and only its private state reveals the bytes.
        connection = getattr(getattr(self._stream, "_stream", None), "_connection", None)
        state = getattr(connection, "_h11_state", None)
        if state is not None and state.trailing_data[0]:
            state.send_failed()


_TRANSPORT_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
    OSError,
    anyio.ClosedResourceError,
)


def _translate(error: Exception) -> BackendError:
    """Translate an error of httpcore2, without its message, which may quote raw bytes of the server."""
    root = _root(error)
    if isinstance(root, ssl.SSLCertVerificationError):
        return CertificateInvalid(f"the server's certificate is not valid: {root.verify_message or root.reason}")
    if isinstance(error, httpcore2.ProxyError | httpcore2.UnsupportedProtocol) or _is_from_socks(error):
        return _translate_proxy_error(error)
    if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
        return refused_client(root) or ConnectFailed(f"no connection to the server ({_system_error(root)})")
    if isinstance(error, httpcore2.LocalProtocolError):
        return BadRequest("the request can't be sent: a header is not valid")
    if isinstance(error, httpcore2.ProtocolError) and not _disconnected(error):
        return MalformedResponse(f"the server does not speak HTTP ({str(root).partition(':')[0]})")
    return refused_client(root) or ConnectionLost(f"the connection to the server broke ({_system_error(root)})")


# The statuses of an HTTP proxy, and httpcore2's words for the replies of a SOCKS proxy, that are not about the client.
_TRIED_IN_VAIN = re.compile(r"5\d\d |Proxy Server could not connect: .*(failure|unreachable|refused|expired)\.")


def _translate_proxy_error(error: Exception) -> BackendError:
    if _TRIED_IN_VAIN.match(str(error)):
        return ConnectFailed("no connection to the server (the proxy could not connect to it)")
    return FatalError("the proxy refused the connection", hint="Check the proxy settings of the environment.")


def _is_from_socks(error: Exception) -> bool:
    # httpcore2 does not translate these, and few have the package.
    return type(error).__module__.partition(".")[0] == "socksio"


def _system_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


def _root(error: Exception) -> Exception:
    """Return the first cause of an error, which libraries wrap in messages such as "all attempts failed"."""
    while True:
        cause = error.__cause__ or error.__context__
        # anyio raises a group if it could connect to none of several addresses.
        if isinstance(cause, ExceptionGroup):
            cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
        if not isinstance(cause, Exception):
            return error
        error = cause


def _disconnected(error: httpcore2.ProtocolError) -> bool:
    # The last one is about a connection that TLS has ended, and TCP not yet, which looks as if it were idle.
    beginnings = ("server disconnected", "peer closed connection", "can't handle event type connectionclosed")
    return str(error).lower().startswith(beginnings)


def _proxy(url: Secret) -> httpcore2.Proxy:
    parts = urlsplit(url.reveal())
    auth = None
    if parts.username is not None:
        auth = (unquote(parts.username), unquote(parts.password or ""))
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    return httpcore2.Proxy(f"{parts.scheme}://{host}{port}", auth=auth)
