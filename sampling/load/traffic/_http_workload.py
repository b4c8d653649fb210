"""`HttpWorkload`, which sends the same request repeatedly with little overhead."""

import ssl
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio

from sampling._arguments import check_bool, check_instance, check_number, check_str, short_repr
from sampling._http.client import Client, Origin
from sampling._http.connection import Payload
from sampling.errors import ServerError, Timeout
from sampling.load.model._about import digest
from sampling.load.model._workload import Answered, Arrival

__all__ = ["HttpWorkload"]

_TOKENS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class HttpWorkload:
    """
    A workload that posts one body to one URL.

    Use it as `async with HttpWorkload(url, body) as workload`.
    Any response with a status from 200 to 299 is valid, and the first byte of its body counts as the first token.
    The name of the host is resolved when the workload is opened, so that a slow resolver does not count as latency.
    There are as many connections as requests in flight. A connection that the server has closed is replaced, if no
    byte of a response had arrived.
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
        tls = parts.scheme == "https"
        self._origin = Origin(tls, parts.hostname, parts.port or (443 if tls else 80))
        self._ssl_context = ssl_context
        self._timeout_s = check_number("timeout_s", timeout_s, above=0)
        self._connect_timeout_s = check_number("connect_timeout_s", connect_timeout_s, above=0)
        self._verify_status = check_bool("verify_status", verify_status)
        self._path = parts.path or "/"
        self._body = body
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = _fields(parts.netloc, headers or {})
        # Encoded once: all requests are the same.
        data = _head(target, fields, len(body)) + body
        self._payload = Payload(data, is_last="close" in fields.get("connection", "").lower())
        self._client: Client | None = None

    async def __aenter__(self) -> Self:
        await self._open().fix_address(self._origin)
        return self

    def _open(self) -> Client:
        self._client = Client(
            ssl_context=self._ssl_context or _ssl_context(verifies=self._origin.tls),
            max_connections=sys.maxsize,
            connect_timeout_s=self._connect_timeout_s,
        )
        return self._client

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def describe(self) -> dict[str, object]:
        """Return the address and a digest of the request, for reports. A query may hold a key."""
        tls, host, port = self._origin
        return {
            "workload": "http",
            "backend": f"{'https' if tls else 'http'}://{host}:{port}{self._path}",
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
        # It also works outside of `async with`, but then nothing closes its connections.
        client = self._client or self._open()
        response = await client.post(self._origin, self._payload, _note_nothing)
        try:
            while await response.read():
                arrival.token()
        finally:
            response.close()
        return response.status


def _note_nothing() -> None:
    pass


def _ssl_context(*, verifies: bool) -> ssl.SSLContext:
    """Return a context with the authorities of the system. It is empty for http, because loading them is slow."""
    return ssl.create_default_context() if verifies else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _fields(host: str, headers: Mapping[str, str]) -> dict[str, str]:
    fields = {"host": host, "content-type": "application/json", "accept-encoding": "identity"}
    for name, value in headers.items():
        # The value may be a key, so the message does not show it.
        if not name or not set(name) <= _TOKENS or not value.isascii() or not value.isprintable():
            raise ValueError(f"header {short_repr(name)} must have a plain name and a value of printable ASCII")
        fields[name.lower()] = value
    return fields


def _head(target: str, fields: Mapping[str, str], length: int) -> bytes:
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode("ascii")
