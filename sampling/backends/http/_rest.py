"""Calls of a provider's API other than streams: JSON, uploads, and files that are read line by line."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self, cast

import anyio

from sampling._json.bounded import loads
from sampling._redaction import Redactor
from sampling.backends.http._fields import Json
from sampling.backends.http._transport import CLOSE_GRACE_S, Transport, WireRequest, WireResponse
from sampling.errors import BackendError, MalformedResponse, ResponseTooLarge, Timeout

__all__ = ["RestClient"]

_MAX_JSON_BYTES = 4 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024


class RestClient:
    """
    Sends requests of any method with the headers and the keys of a backend.

    It is an async context manager with connections of its own.
    """

    def __init__(
        self,
        *,
        new_transport: Callable[[], Transport],
        headers: Callable[[], Mapping[str, str]],
        as_error: Callable[[WireResponse, bytes], BackendError],
        redactor: Redactor,
        timeout_s: float,
    ) -> None:
        """
        Set how to connect.

        `headers` is a function, so that no key is kept here. `timeout_s` limits the time to the first byte of a
        response, and the time between two pieces of it.
        """
        self._new_transport = new_transport
        self._headers = headers
        self._as_error = as_error
        self._redactor = redactor
        self._timeout_s = timeout_s
        self._transport: Transport | None = None
        self.clock_lead_s: float = 0.0
        """How far the clock of this machine is ahead of the server's, as its last response shows."""

    async def __aenter__(self) -> Self:
        self._transport = self._new_transport()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await transport.aclose()

    async def post_once(self, url: str, body: bytes, headers: Mapping[str, str]) -> Json:
        """
        Send a POST that must not take effect twice.

        Over an idle connection that breaks, a transport may send a request again, because most likely the server did
        not see it. So this one goes over a new connection.
        """
        async with RestClient(
            new_transport=self._new_transport,
            headers=self._headers,
            as_error=self._as_error,
            redactor=self._redactor,
            timeout_s=self._timeout_s,
        ) as client:
            return await client.json("POST", url, body, headers)

    async def json(self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Json:
        """Send a request, and return the JSON object of its response."""
        data = bytearray()
        async with self._response(method, url, body, headers or {}) as response:
            while piece := await self._read(response):
                data += piece
                if len(data) > _MAX_JSON_BYTES:
                    raise ResponseTooLarge(f"the response has more than {_MAX_JSON_BYTES:,} bytes")
        try:
            parsed = loads(data.decode("utf-8", "replace"))
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise MalformedResponse(f"the response is not a JSON object: {self._redactor.sample(bytes(data))}")
        return cast("Json", parsed)

    async def read_lines(self, url: str, take: Callable[[bytes], Awaitable[bool]], *, max_bytes: int) -> None:
        """
        Read a file, and pass each of its lines to `take`, until that returns False.

        Of a line with more than `max_bytes`, only that many are passed on.
        """
        rest = bytearray()
        async with self._response("GET", url, b"", {}) as response:
            self._check_is_text(response)
            while piece := await self._read(response):
                *lines, last = piece.split(b"\n")
                for line in lines:
                    rest += line[: max_bytes - len(rest)]
                    if not await _pass_on(rest, take):
                        return
                rest += last[: max_bytes - len(rest)]
        await _pass_on(rest, take)

    @asynccontextmanager
    async def _response(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[WireResponse]:
        """Send a request and open its response. An error status raises."""
        if self._transport is None:
            raise RuntimeError("this client is not open")
        response: WireResponse | None = None
        with anyio.move_on_after(self._timeout_s):
            response = await self._transport.open(self._wire(method, url, body, headers))
        if response is None:
            raise self._timeout()
        self.clock_lead_s = _clock_lead_s(response.headers.get("date", ""))
        try:
            if response.status >= 300:
                raise self._as_error(response, await self._beginning(response))
            yield response
        finally:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await response.aclose()

    def _wire(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> WireRequest:
        # A function of its own: the frame of one that waits would show the key in a traceback with local variables.
        shared = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "sampling"}
        return WireRequest(url, {**shared, **self._headers(), **headers}, body, lambda: None, method)

    async def _read(self, response: WireResponse) -> bytes:
        with anyio.move_on_after(self._timeout_s):
            return await response.read()
        raise self._timeout()

    def _check_is_text(self, response: WireResponse) -> None:
        """Raise if the lines of a file can't be read: it is compressed, or it is the page of a proxy."""
        encoding = response.headers.get("content-encoding", "").strip().lower() or "identity"
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if encoding != "identity" or kind == "text/html":
            found = f"is compressed ({encoding})" if encoding != "identity" else "is a page"
            raise MalformedResponse(self._redactor.sample(f"the file {found}, which was not requested"))

    async def _beginning(self, response: WireResponse) -> bytes:
        data = b""
        while len(data) < _MAX_ERROR_BYTES and (piece := await self._read(response)):
            data += piece
        return data

    def _timeout(self) -> Timeout:
        return Timeout(f"the server sent nothing for {self._timeout_s:g} s")


def _clock_lead_s(date: str) -> float:
    """Return how far the clock of this machine is ahead of a Date header, or 0 if there is none."""
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0


async def _pass_on(line: bytearray, take: Callable[[bytes], Awaitable[bool]]) -> bool:
    text = bytes(line).strip()
    line.clear()
    return await take(text) if text else True
