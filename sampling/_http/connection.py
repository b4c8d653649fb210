"""
One connection to a server, which carries one request at a time.

On asyncio, the event loop calls it when bytes arrive, and a task wakes only for something that it can use. On trio and
on other loops, the task waits for the socket by itself. Nothing above this file knows the difference.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, cast

import anyio
from anyio.lowlevel import current_token

from sampling._http.dialling import send_all
from sampling._http.framing import FramingError, ResponseParser
from sampling._http.tls import Tls, refused_client
from sampling.errors import BackendError, ConnectionLost, MalformedResponse

__all__ = ["Connection", "Payload", "new_connection", "system_error"]

READ_BYTES = 16_384
MAX_BUFFERED_BYTES = 65_536
"""The maximum number of buffered bytes. The rest stays in the socket until the response is read."""


Skim: TypeAlias = Callable[[bytes], bytes]
"""A function that reads the beginning of the received bytes, and returns the rest."""


class Payload:
    """The bytes of a request, which are kept out of reprs and tracebacks, because they hold the key."""

    __slots__ = ("data", "is_last")

    def __init__(self, data: bytes, *, is_last: bool = False) -> None:
        self.data = data
        self.is_last = is_last
        """True if it asks the server to close the connection afterwards."""


class Connection(ABC):
    """
    An open connection.

    While it carries a request it has a `parser`. Its `failure` is what the request ends with, after all that arrived
    before.
    """

    __slots__ = (
        "_is_last",
        "_on_lost",
        "_sending",
        "_skim",
        "_socket",
        "_stopped",
        "_tls",
        "_unread",
        "failure",
        "key",
        "parser",
        "received",
        "used",
    )

    def __init__(
        self, key: Hashable, raw: socket.socket, tls: Tls | None, on_lost: Callable[["Connection"], None]
    ) -> None:
        self.key = key
        self._socket: socket.socket | None = raw
        self._tls = tls
        self._on_lost = on_lost
        self.parser: ResponseParser | None = None
        self.failure: BackendError | None = None
        self.received = False
        """True once the server sent a byte of the current response."""

        self.used = False
        """True if it has carried a request before the current one."""

        self._is_last = False
        self._sending = False
        """True while a task waits for room to send the rest of a large request."""

        self._skim: Skim | None = None
        self._unread = 0
        """The bytes that arrived since the body was read last."""

        self._stopped = False
        """True if nothing is read from the socket: after its end, or while too much is unread."""

    # One request.

    async def send(self, payload: Payload, on_sent: Callable[[], None]) -> None:
        """Send a request. If the connection breaks meanwhile, reading the response raises."""
        self.received = False
        self.parser = ResponseParser()
        self._is_last = payload.is_last
        raw = self._socket
        if raw is None:
            self._fail(ConnectionLost("the connection to the server broke"))
            return
        try:
            if self._tls is not None:
                payload = Payload(self._tls.encrypt(payload.data))
            try:
                sent = raw.send(payload.data)
            except BlockingIOError:
                await anyio.wait_writable(raw)
                sent = raw.send(payload.data)
            on_sent()
            if sent < len(payload.data):
                await self._send_rest(raw, memoryview(payload.data)[sent:])
        except OSError:
            # The server may have answered before it closed the connection, such as that the request is too large.
            self._is_last = True
        except anyio.ClosedResourceError:
            self._fail(ConnectionLost("the connection to the server broke"))

    async def _send_rest(self, raw: socket.socket, rest: memoryview) -> None:
        """Send the rest of a large request, or stop if the server refuses it: it need not read on then."""
        self._sending = True
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_if_refused, tasks.cancel_scope)
                with suppress(OSError, anyio.ClosedResourceError):
                    await send_all(raw, rest)
                    self._sending = False
                tasks.cancel_scope.cancel()
        finally:
            # Of a request that was cut short, the server would read the next one as the rest.
            self._is_last = self._is_last or self._sending
            self._sending = False

    async def _stop_if_refused(self, sending: anyio.CancelScope) -> None:
        with suppress(BackendError):
            parser = await self.wait_for_head()
            if parser.status < 400:
                return
        sending.cancel()

    async def wait_for_head(self) -> ResponseParser:
        """Return the response once it has its head, or raise a `BackendError`."""
        parser = cast("ResponseParser", self.parser)
        while not parser.status:
            if self.failure is not None:
                raise self.failure
            await self._wait()
        return parser

    async def read(self, skim: Skim | None = None) -> bytes:
        """
        Return the next bytes of the body, b"" at the end, or raise a `BackendError`.

        Bytes that `skim` reads while this waits are not returned. It is called outside of the task.
        """
        parser = cast("ResponseParser", self.parser)
        self._skim = skim
        while True:
            data = parser.take()
            if data:
                self._unread = 0
                return data
            if parser.ended:
                return b""
            if self.failure is not None:
                raise self.failure
            await self._wait()

    @property
    def has_whole_body(self) -> bool:
        """True if all of the body has arrived."""
        return self.parser is not None and self.parser.ended

    def finish(self) -> bool:
        """End a request, and return whether the connection can carry another one."""
        parser, self.parser = self.parser, None
        self._skim = None
        self.used = True
        complete = parser is not None and parser.ended and parser.reusable
        return complete and not self._is_last and not self._stopped and self._socket is not None

    @abstractmethod
    async def _wait(self) -> None:
        """Wait for something to happen."""

    # Idle and closing.

    def is_usable(self) -> bool:
        """Return whether an idle connection can be reused: the server neither closed it nor sent anything."""
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(data) and self._is_silent(data)

    def _is_silent(self, data: bytes) -> bool:
        """Return whether received bytes are only for TLS itself, such as the ticket of a session."""
        if self._tls is None:
            return False
        try:
            return not self._tls.decrypt(data) and not self._tls.ended
        except OSError:
            return False

    def close(self) -> None:
        """Close it at once. Closing twice does nothing."""
        raw, self._socket = self._socket, None
        if raw is None:
            return
        self._stop_waiting(raw)
        if self._sending:
            anyio.notify_closing(raw)
        raw.close()
        if self.parser is not None:
            self._fail(ConnectionLost("the connection was closed"))

    @abstractmethod
    def _stop_waiting(self, raw: socket.socket) -> None:
        """Wake the task that waits for a socket, which is about to be closed."""

    # What arrives.

    def _receive(self) -> None:
        """Read the available bytes from the socket, and parse them."""
        try:
            data = self._read_socket()
        except OSError as error:
            lost = ConnectionLost(f"the connection to the server broke ({system_error(error)})")
            self._fail(refused_client(error) or lost)
            return
        if data is None:
            return
        parser = self.parser
        if parser is None:
            # Nobody asked: the server closes it, or says something that must not be read as an answer.
            self._on_lost(self)
            return
        if data:
            self.received = True
            self._unread += len(data)
            try:
                parser.feed(data)
            except FramingError as error:
                self._fail(MalformedResponse(f"the server does not speak HTTP ({error})"))
        if not data or (self._tls is not None and self._tls.ended):
            self._end(parser)

    def _read_socket(self) -> bytes | None:
        """Return the next bytes, b"" at the end, or None if there is nothing to parse yet."""
        raw, tls = self._socket, self._tls
        if raw is None:
            return None
        try:
            data = raw.recv(READ_BYTES)
        except BlockingIOError:
            return None
        if not data or tls is None:
            return data
        data = tls.decrypt(data)
        if answer := tls.to_send():
            # Only new keys are agreed on like this, rarely and in a few bytes. Without room for them it is stuck.
            raw.send(answer)
        return data if data or tls.ended else None

    def _end(self, parser: ResponseParser) -> None:
        self._stop_receiving()
        if not parser.end_of_stream():
            self._fail(ConnectionLost("the connection to the server broke (it was closed in mid-response)"))

    def _fail(self, failure: BackendError) -> None:
        self.failure = self.failure or failure
        self._stop_receiving()

    def _stop_receiving(self) -> None:
        self._stopped = True


class _WaitingConnection(Connection):
    """A connection whose task waits for the socket."""

    __slots__ = ("_wait_readable", "_waiting")

    def __init__(
        self,
        key: Hashable,
        raw: socket.socket,
        tls: Tls | None,
        on_lost: Callable[[Connection], None],
    ) -> None:
        super().__init__(key, raw, tls, on_lost)
        # The function of the running loop: anyio would look it up for each wait.
        self._wait_readable = current_token().backend_class.wait_readable
        self._waiting = False

    async def _wait(self) -> None:
        if self._socket is None:
            self._fail(ConnectionLost("the connection was closed"))
            return
        self._waiting = True
        try:
            await self._wait_readable(self._socket)
        except anyio.ClosedResourceError:
            return
        finally:
            self._waiting = False
        self._receive()

    def _stop_waiting(self, raw: socket.socket) -> None:
        if self._waiting:
            anyio.notify_closing(raw)


class _Future(Protocol):
    """The methods of an asyncio future that are used here."""

    def done(self) -> bool: ...
    def set_exception(self, exception: BaseException) -> None: ...
    def set_result(self, result: None) -> None: ...
    def __await__(self) -> Any: ...


class _SelectorLoop(Protocol):
    """The methods of an asyncio event loop that are used here."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object: ...
    def remove_reader(self, fd: int, /) -> bool: ...
    def create_future(self) -> _Future: ...


class _CalledConnection(Connection):
    """
    A connection that an asyncio loop calls when bytes arrive.

    It does not import asyncio: the loop that runs has all that is needed.
    """

    __slots__ = ("_fd", "_loop", "_waiter")

    def __init__(
        self,
        key: Hashable,
        raw: socket.socket,
        tls: Tls | None,
        on_lost: Callable[[Connection], None],
        loop: _SelectorLoop,
    ) -> None:
        super().__init__(key, raw, tls, on_lost)
        self._loop = loop
        self._fd = raw.fileno()
        self._waiter: _Future | None = None
        loop.add_reader(self._fd, self._called)

    def _called(self) -> None:
        self._receive()
        parser, waiter = self.parser, self._waiter
        if parser is None or self._socket is None:
            return
        if waiter is None:
            if self._unread > MAX_BUFFERED_BYTES:
                self._stop_receiving()
        elif (parser.status or self.failure is not None) and not waiter.done():
            try:
                if not self._is_skimmed(parser):
                    waiter.set_result(None)
            except Exception as error:  # noqa: BLE001 - the task raises it
                waiter.set_exception(error)

    def _is_skimmed(self, parser: ResponseParser) -> bool:
        """Return whether everything received was read here, so that the task need not wake."""
        if self._skim is None or parser.ended or self.failure is not None or not parser.skim(self._skim):
            return False
        self._unread = 0
        return True

    def _stop_receiving(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._loop.remove_reader(self._fd)

    async def _wait(self) -> None:
        if self._stopped:
            self._stopped = False
            self._loop.add_reader(self._fd, self._called)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _stop_waiting(self, raw: socket.socket) -> None:
        # After the end of the loop, it has forgotten its readers.
        with suppress(RuntimeError):
            self._stop_receiving()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def new_connection(
    key: Hashable, raw: socket.socket, tls: Tls | None, on_lost: Callable[[Connection], None]
) -> Connection:
    """Return a connection over a socket, of the class for the running event loop."""
    native = current_token().native_token
    if hasattr(native, "add_reader"):
        # Some loops have the method and can't do it, such as the one for Windows.
        with suppress(NotImplementedError):
            return _CalledConnection(key, raw, tls, on_lost, cast("_SelectorLoop", native))
    return _WaitingConnection(key, raw, tls, on_lost)


def system_error(error: Exception) -> str:
    """Return the system's message for an error, or only its type, because other messages may quote the server."""
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__
