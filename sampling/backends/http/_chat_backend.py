"""`ChatBackend`, the base of backends that send one POST for each request and read a stream of events."""

import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeVar, cast

import anyio
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from sampling._arguments import (
    WrittenOutSignature,
    check_bool,
    check_instance,
    check_int,
    check_number,
    check_str,
    unknown_keyword,
    wrong_type,
)
from sampling._engine.scope import count_request, report_usage
from sampling._http.client import Response
from sampling._json.bounded import loads
from sampling._log import Logger
from sampling._observers.requests import observers, report_first_chunk, send
from sampling._picklable import Picklable
from sampling._redaction import Redactor, Secret, clears_locals
from sampling._text import estimate_tokens
from sampling.backends._deferral import Deferral, DeferredReply, Ticket, current_deferral
from sampling.backends._structured import Structured, answer_from_tool, answer_schema, check_structured, feasible
from sampling.backends._support import Support
from sampling.backends.http._address import Provider, resolve_address
from sampling.backends.http._body import resolve_model
from sampling.backends.http._default_transport import TransportLike, default_transport
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.http._events import EventReader
from sampling.backends.http._settings import SYNONYMS
from sampling.backends.http._streamed import StreamedResponse
from sampling.backends.http._transport import CLOSE_GRACE_S, SharedHeaders, Transport, WireRequest, WireResponse
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    ConnectFailed,
    ConnectionLost,
    MalformedResponse,
    Timeout,
    Unsupported,
)
from sampling.messages import Generation, Request
from sampling.usage import Usage

if TYPE_CHECKING:
    from sampling.backends.http._batches import BatchClient
    from sampling.backends.http._rest import RestClient

__all__ = ["MIB", "ChatBackend", "Receiver"]

log = Logger("sampling.backends.http")

MIB = 1024 * 1024

Receiver = Callable[[str], None] | None
"""The function that gets the pieces of the text, if there is one."""

_MAX_EVENT_BYTES = 4 * MIB
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 0.1


_Sent = TypeVar("_Sent")

_SIMPLER: Mapping[Structured, Structured] = {"native": "tool", "tool": "prompt"}
"""How to ask for a schema that the server can't enforce."""

_MAX_REFUSED_SCHEMAS = 256
"""The number of refused schemas that a backend remembers. An application may make a new one for every request."""


class _SchemaRefused(Picklable, Exception):
    """The server can't enforce the schema of the answer."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class ChatBackend(ABC):
    """
    The base of HTTP providers: connections, keys, redaction, deadlines, size limits, errors and usage.

    A provider sets `_support` in its constructor and overrides `_url`, `_key_header`, `_body` and `_new_answer`.
    """

    _support: Support
    """The parts and options that the provider takes. Its constructor sets it."""

    _error_type: type[ErrorResponse] = ErrorResponse
    """The parser of error responses."""

    _allow_missing_finish = False
    """True to accept an answer whose end the server did not announce."""

    __signature__: ClassVar[Any] = WrittenOutSignature()

    @clears_locals
    def __init__(  # noqa: PLR0913 - each of them is one thing that servers, networks or users differ in
        self,
        provider: Provider,
        base_url: str | None,
        api_key: str | None,
        model: str | None,
        /,
        *,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        max_connections: int = 100,
        max_request_bytes: int = 32 * MIB,
        max_response_bytes: int = 32 * MIB,
        headers: Mapping[str, str] | None = None,
        send_env_key: bool = False,
        allow_http: bool = False,
        allowed_hosts: Collection[str] | None = None,
        public_only: bool = False,
        trust_env: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        drop_unsupported: bool = False,
        structured: Structured = "native",
        transport: TransportLike = None,
        **unknown: object,
    ) -> None:
        """Validate the arguments, which the providers and `HttpSettings` describe."""
        if unknown:
            raise unknown_keyword(type(self), min(unknown), SYNONYMS)
        flags = {
            "send_env_key": send_env_key,
            "allow_http": allow_http,
            "public_only": public_only,
            "trust_env": trust_env,
            "drop_unsupported": drop_unsupported,
        }
        for name, flag in flags.items():
            check_bool(name, flag)
        self._provider = provider
        self.provider_name: str = provider.telemetry_name
        """The provider, by its name in OpenTelemetry's conventions."""

        self._address = resolve_address(
            base_url,
            api_key,
            send_env_key=send_env_key,
            allow_http=allow_http,
            allowed_hosts=allowed_hosts,
            provider=provider,
        )
        self._headers = _secret_headers(headers)
        self._redactor = Redactor([*([self._address.key] if self._address.key else []), *self._headers.values()])
        self.model: str | None = _model(model, provider.model_variable)
        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)
        self.max_request_bytes: int = check_int("max_request_bytes", max_request_bytes, least=1)
        self.max_response_bytes: int = check_int("max_response_bytes", max_response_bytes, least=1)
        self.trust_env = trust_env
        self._drop_unsupported = drop_unsupported
        self.structured: Structured = check_structured(structured)
        if ssl_context is not None:
            check_instance("ssl_context", ssl_context, ssl.SSLContext, "an ssl.SSLContext or None")
        self._new_transport = default_transport(
            self.base_url,
            transport,
            max_connections=check_int("max_connections", max_connections, least=1),
            connect_timeout_s=check_number("connect_timeout_s", connect_timeout_s, above=0),
            ssl_context=ssl_context,
            trust_env=trust_env,
            public_only=public_only,
        )
        self._shared_headers: SharedHeaders | None = None
        self._transport: Transport | None = None
        self._loop: object = None
        self._warned = False
        self._refused_schemas: dict[str, Structured] = {}
        """How schemas are asked for that the server can't enforce."""

    observed_inside: Literal[True] = True
    """Telemetry sees each request where it is sent, also if a backend or a check of your own asks for it."""

    @property
    def base_url(self) -> str:
        """The base URL of the API."""
        return self._address.base_url

    # Methods that a provider overrides.

    @abstractmethod
    def _url(self, model: str) -> str:
        """Return the URL to send a request for this model to."""

    @abstractmethod
    def _key_header(self, key: str) -> tuple[str, str]:
        """Return the name, in lower case, and the value of the header that carries the key."""

    def _provider_headers(self) -> Mapping[str, str]:
        """Return further headers, with names in lower case. Those that the caller passed take precedence."""
        return {}

    @abstractmethod
    def _body(self, request: Request, model: str) -> bytes:
        """Return the body of a request, in at most `max_request_bytes`."""

    @abstractmethod
    def _new_answer(self, request: Request, input_tokens_estimate: int) -> StreamedResponse:
        """Return the reader of the events of one response."""

    def batch_client(self) -> "BatchClient":
        """Return a client of the provider's batch API, for `BatchEngine`."""
        raise Unsupported(f"{type(self).__name__} has no batch API")

    def _batch_body(self, request: Request, model: str) -> bytes:
        """Return the body of a request in a batch, which is not streamed."""
        raise Unsupported(f"{type(self).__name__} has no batch API")

    def _supported(self, request: Request) -> Request:
        """Return the request as the provider can send it, or raise `Unsupported`."""
        return self._support.check(request)

    def _structured_for(self, request: Request) -> Structured:
        """Return how a request asks for an answer that matches its schema."""
        return feasible(self._allowed_structured(request), request.options)

    def _allowed_structured(self, request: Request) -> Structured:
        """Return the mode of the backend, or another one for a schema that the server has refused."""
        if not self._refused_schemas or request.options.schema is None:
            return self.structured
        return self._refused_schemas.get(_schema_key(request), self.structured)

    def _read_error(self, response: WireResponse, body: bytes) -> ErrorResponse:
        """Parse a response whose status is an error."""
        return self._error_type.from_response(response.status, response.headers, body, self._redactor)

    def _refused(self, refusal: ErrorResponse, wire: WireRequest) -> Exception:
        """Return the exception to raise for an error response."""
        error = refusal.as_error()
        if refusal.refuses_schema:
            return _SchemaRefused(error)
        if isinstance(error, AuthenticationFailed) and self._address.key is None:
            _, _, withheld = self._address.key_source.partition("withheld: ")
            error.hint = f"No key was sent{withheld and f' ({withheld})'}: pass api_key=… or send_env_key=True."
            error.add_note(f"hint: {error.hint}")
        return error

    def _described(self) -> list[str]:
        """Return the settings that the repr shows."""
        return [f"{self.base_url!r}", f"model={self.model!r}"]

    # Opening and closing.

    async def __aenter__(self) -> Self:
        await checkpoint()
        if self._transport is not None:
            raise RuntimeError(f"this {type(self).__name__} is already open: share it, or create another one")
        self._transport = self._new_transport()
        self._loop = current_token()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Reset first, so that a request that starts during closing opens a connection of its own.
        transport, self._transport, self._loop = self._transport, None, None
        if transport is None:
            raise RuntimeError(f"this {type(self).__name__} is not open")
        with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
            await transport.aclose()

    def __repr__(self) -> str:
        parts = [*self._described(), *(["trust_env=True"] if self.trust_env else [])]
        state = "open" if self._transport is not None else "not open"
        return f"<{type(self).__name__} {', '.join(parts)}, key {self._address.key_source}, {state}>"

    def __reduce__(self) -> NoReturn:
        article = "an" if type(self).__name__[0] in "AEIO" else "a"
        raise TypeError(
            f"{article} {type(self).__name__} can't be pickled or copied: it holds a key and connections. "
            "Create a new one."
        )

    # Requests.

    async def generate(self, request: Request) -> Generation:
        """
        Return the whole answer.

        It is streamed on the wire, so that cancelling stops the server.
        """
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        """
        Return the answer, and pass each new piece of text to `receive`.

        Reasoning is not passed on.
        """
        if not callable(receive):
            raise wrong_type("receive", receive, "a callable that takes a str")
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Receiver) -> Generation:
        check_instance("request", request, Request, "a Request")
        request = self._supported(request)
        if observers():
            return await send(self, request, partial(self._answer_supported, receive=receive), real=True)
        return await self._answer_supported(request, receive)

    async def _answer_supported(self, request: Request, receive: Receiver) -> Generation:
        deferral = current_deferral(self)
        if deferral is not None:
            return await self._defer(deferral, request, receive)
        transport, loop = self._transport, current_token()
        if transport is not None and self._loop == loop:
            return await self._send(transport, request, receive, loop)
        self._warn_once()
        transport = self._new_transport()
        try:
            return await self._send(transport, request, receive, loop)
        finally:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await transport.aclose()

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("connections_not_reused", hint="use it inside `async with`, in the same event loop")

    def _model_of(self, request: Request) -> str:
        return resolve_model(request.options.model or self.model, self._provider.model_variable)

    def _own_headers(self) -> dict[str, str]:
        """Return the headers of the provider, of the caller, and of the key."""
        headers = {**self._provider_headers(), **{name: value.reveal() for name, value in self._headers.items()}}
        if self._address.key is not None:
            # A header that the caller passed takes precedence.
            name, value = self._key_header(self._address.key.reveal())
            headers.setdefault(name, value)
        return headers

    def _wire_request(self, request: Request, answer: StreamedResponse) -> WireRequest:
        model = self._model_of(request)
        body = self._body(request, model)
        headers = self._shared_headers
        if headers is None:
            headers = self._shared_headers = self._all_headers()
        if request.idempotency_key is not None and "idempotency-key" not in headers:
            headers = headers.plus("idempotency-key", _idempotency_header(request.idempotency_key, body))
        return WireRequest(self._url(model), headers, body, answer.mark_sent)

    def _all_headers(self) -> SharedHeaders:
        return SharedHeaders(
            {
                "accept": "text/event-stream",
                # No compression, because a few bytes could expand without bound.
                "accept-encoding": "identity",
                "content-type": "application/json",
                "user-agent": "sampling",
                **self._own_headers(),
            }
        )

    async def _send(
        self, transport: Transport, request: Request, receive: Receiver, loop: EventLoopToken
    ) -> Generation:
        """Send a request and read the whole response before the deadline."""
        answer = self._new_answer(request, _estimated_tokens(request))
        mode = self._structured_for(request)
        wire = self._wire_request(request, answer)
        try:
            # One deadline around everything: a server that sends a byte now and then never trips a read timeout.
            with _move_on_after(self.timeout_s, loop) as deadline:
                try:
                    await self._deliver(transport, wire, request, answer, receive)
                except _SchemaRefused as refused:
                    send = partial(self._send_again, transport, request, answer, receive)
                    await self._ask_otherwise(request, mode, refused.error, send)
            if deadline.cancelled_caught:
                raise self._timeout_error(answer)
            return self._finish(answer, request, receive)
        except ConnectFailed:
            # An idle connection that broke may have counted the request as sent.
            report_usage(Usage())
            raise
        except BackendError as error:
            error.partial_text = answer.text or error.partial_text
            raise

    async def _send_again(
        self, transport: Transport, request: Request, answer: StreamedResponse, receive: Receiver
    ) -> None:
        """Send a request whose schema is now asked for in a simpler way."""
        await self._deliver(transport, self._wire_request(request, answer), request, answer, receive)

    async def _ask_otherwise(
        self, request: Request, mode: Structured, first: Exception, send: Callable[[], Awaitable[_Sent]]
    ) -> _Sent:
        """Ask for a refused schema in a simpler way, or raise the first error if there is none."""
        while request.options.schema is not None and mode in _SIMPLER:
            self._remember_refusal(request, _SIMPLER[mode])
            mode = self._structured_for(request)
            log.warning("schema_refused", hint=f"it is asked for with structured={mode!r} from now on: simplify it")
            count_request()
            # A server may also refuse that a tool must be called, as DeepSeek does while its model thinks.
            with suppress(_SchemaRefused, BadRequest):
                return await send()
        raise first from None

    def _remember_refusal(self, request: Request, simpler: Structured) -> None:
        refused = self._refused_schemas
        refused[_schema_key(request)] = simpler
        if len(refused) > _MAX_REFUSED_SCHEMAS:
            del refused[next(iter(refused))]

    async def _defer(self, deferral: Deferral, request: Request, receive: Receiver) -> Generation:
        """Defer a request, asking for its schema in a way that the server accepts."""
        mode = self._structured_for(request)
        try:
            return await self._defer_once(deferral, request, receive)
        except _SchemaRefused as refused:
            send = partial(self._defer_once, deferral, request, receive)
            return await self._ask_otherwise(request, mode, refused.error, send)

    async def _defer_once(self, deferral: Deferral, request: Request, receive: Receiver) -> Generation:
        """Defer a request, and read its whole response."""
        model = self._model_of(request)
        body = self._batch_body(request, model)
        answer = self._new_answer(request, _estimated_tokens(request))
        ticket = deferral.park(self, model, body)
        try:
            reply = await ticket.wait()
            try:
                _pass_on(self._read_reply(reply, answer, body), receive)
                return self._finish(answer, request, receive)
            except BackendError:
                if reply.status == 200:
                    ticket.reject()
                raise
        finally:
            self._report_deferred(ticket, answer)

    def _read_reply(self, reply: DeferredReply, answer: StreamedResponse, body: bytes) -> str:
        if reply.status != 200:
            refusal = self._error_type.from_response(reply.status, {}, reply.body, self._redactor)
            if not reply.status:
                # Only the error tells the status.
                error = loads(reply.body.decode("utf-8", "replace"))
                refusal = self._error_type.from_error_object(_inner_error(error), self._redactor)
            raise self._refused(refusal, WireRequest("", {}, body, lambda: None))
        return self._read_whole(reply.body, answer) + answer.finish()

    def _report_deferred(self, ticket: Ticket, answer: StreamedResponse) -> None:
        """Report the usage of a deferred request, even if nothing waits for it any more."""
        reply = ticket.reply
        if reply is not None and reply.status == 200:
            if not answer.started:
                # Cancelled between the arrival of the response and its reading.
                with suppress(BackendError):
                    self._read_whole(reply.body, answer)
            report_usage(answer.spent)
        else:
            report_usage(answer.spent if ticket.is_sent and reply is None else Usage())

    def _rest_client(self) -> "RestClient":
        # Only batches need it.
        from sampling.backends.http._rest import RestClient  # noqa: PLC0415

        return RestClient(
            new_transport=self._new_transport,
            headers=self._own_headers,
            as_error=lambda response, body: self._read_error(response, body).as_error(),
            redactor=self._redactor,
            timeout_s=self.timeout_s,
        )

    async def _deliver(
        self, transport: Transport, wire: WireRequest, request: Request, answer: StreamedResponse, receive: Receiver
    ) -> None:
        """Send a request and read its response. A provider may override it to send the request differently."""
        await self._exchange(transport, wire, answer, receive)

    def _finish(self, answer: StreamedResponse, request: Request, receive: Receiver) -> Generation:
        generation = answer.generation(allow_missing_finish=self._allow_missing_finish)
        if request.options.schema is None or self._structured_for(request) != "tool":
            return generation
        answered = answer_from_tool(generation, request.options)
        if answered is not generation:
            _pass_on(answered.text, receive)
        return answered

    def _timeout_error(self, answer: StreamedResponse) -> Timeout:
        received = "it had started" if answer.started else "it had not started"
        error = Timeout(f"no whole answer within {self.timeout_s:g} s ({received})")
        error.maybe_billed = answer.sent
        return error

    async def _exchange(
        self, transport: Transport, wire: WireRequest, answer: StreamedResponse, receive: Receiver
    ) -> None:
        response = await transport.open(wire)
        try:
            if response.status != 200:
                raise self._refused(self._read_error(response, await _read_error_body(response)), wire)
            self._check_encoding(response)
            if _content_type(response) == "text/html":
                raise await self._page_error(response)
            await self._read(response, answer, receive)
        except ConnectionLost:
            # A connection that breaks after the last chunk does not invalidate the answer.
            if not answer.finished:
                raise
        finally:
            # Report also on errors and cancellation: the tokens so far are spent. A refused request costs nothing.
            report_usage(answer.spent if response.status == 200 else Usage())
            if isinstance(response, Response):
                # It never waits, so it needs no scope, which costs as much as reading several tokens.
                response.close()
            else:
                with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                    await response.aclose()

    async def _read(self, response: WireResponse, answer: StreamedResponse, receive: Receiver) -> None:
        """Read the events of a response, or the JSON of a server that does not stream."""
        limit = self.max_response_bytes
        reader = EventReader(answer, min(_MAX_EVENT_BYTES, limit), receive, max_bytes=limit)
        # Whoever receives the pieces does so in the task, so that it wakes for each of them.
        skim = (reader.skim,) if isinstance(response, Response) and receive is None else ()
        without_event = bytearray()
        while not answer.done:
            data = await response.read(*skim)
            if not answer.started:
                report_first_chunk()
                without_event += data
            reader.feed(data)
            if not data:
                break
            if answer.started:
                # Free the memory: a stream may wait for long, and there may be thousands of them.
                data = b""
                without_event.clear()
        else:
            await _drain(response)
        if not answer.started and not answer.done and _may_be_whole(without_event, answer):
            _pass_on(self._read_whole(bytes(without_event), answer), receive)
        _pass_on(answer.finish(), receive)

    def _read_whole(self, body: bytes, answer: StreamedResponse) -> str:
        """Read a response that is one JSON value, and return its text."""
        if (error := self._embedded_error(body)) is not None:
            raise error
        problem = MalformedResponse(f"the response is not a stream of events: {self._redactor.sample(body)}")
        text = body.decode("utf-8", "replace").strip()
        if not text.startswith(("{", "[")):
            raise problem
        piece = None
        with suppress(MalformedResponse):
            piece = answer.add_whole(text)
        if piece is None or not answer.started:
            raise problem
        return piece

    def _check_encoding(self, response: WireResponse) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise MalformedResponse(
                f"the response is compressed ({self._redactor.sample(encoding)}), which was not requested"
            )

    async def _page_error(self, response: WireResponse) -> BackendError:
        # A page is usually that of a proxy.
        body = await _read_error_body(response)
        return MalformedResponse(f"the server did not stream but sent text/html: {self._redactor.sample(body)}")

    def _embedded_error(self, body: bytes) -> BackendError | None:
        """Return the error in a body, or None."""
        # Some servers send errors with status 200.
        try:
            parsed = loads(body.decode("utf-8", "replace"))
        except ValueError:
            return None
        error = cast("dict[str, Any]", parsed).get("error") if isinstance(parsed, dict) else None
        return None if error is None else self._error_type.from_error_object(error, self._redactor).as_error()


def _move_on_after(seconds: float, loop: EventLoopToken) -> "anyio.CancelScope":
    """Do the same as anyio's function, which would look up the running event loop twice more."""
    backend = loop.backend_class
    return backend.create_cancel_scope(deadline=backend.current_time() + seconds)


def _schema_key(request: Request) -> str:
    return repr(answer_schema(request.options.schema).schema)


def _estimated_tokens(request: Request) -> int:
    return 1 + estimate_tokens(sum(message.chars for message in request.messages))


def _inner_error(error: object) -> object:
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    return fields.get("error", fields)


def _pass_on(piece: str, receive: Receiver) -> None:
    if piece and receive is not None:
        receive(piece)


def _idempotency_header(key: str, body: bytes) -> str:
    """Return the idempotency header, a digest of the key and the body."""
    # Slow to import, and not every request has a key.
    from hashlib import sha256  # noqa: PLC0415

    # The body is part of it: the same key with another request must not return the first answer.
    return sha256(b"%b\n%b" % (key.encode("utf-8", "backslashreplace"), body)).hexdigest()


def _secret_headers(headers: Mapping[str, str] | None) -> dict[str, Secret]:
    if headers is None:
        return {}
    check_instance("headers", headers, Mapping, "a mapping of names to values")
    checked: dict[str, Secret] = {}
    for name, value in headers.items():
        check_str("the name of a header", name, empty=False)
        # Like a key, the value is not shown in a message.
        if not isinstance(value, str):
            raise TypeError(f"header {name!r} must be a str, got a {type(value).__name__}")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"header {name!r} must contain only printable ASCII")
        checked[name.lower()] = Secret(value)
    return checked


def _model(model: object, variable: str) -> str | None:
    if model is None:
        return os.environ.get(variable) or None
    return check_str("model", model, empty=False)


def _may_be_whole(body: bytearray, answer: StreamedResponse) -> bool:
    """Return whether a body without an answer is a JSON value or a page, and not a stream that ended early."""
    if answer.chunk:
        return False
    return any(not line.startswith(b":") for line in body.splitlines() if line)


def _content_type(response: WireResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_error_body(response: WireResponse) -> bytes:
    """Return the beginning of an error body, without waiting for a long or slow one."""
    body = b""
    with anyio.move_on_after(_ERROR_BODY_TIMEOUT_S):
        while True:
            data = await response.read()
            body += data
            if not data or len(body) >= _MAX_ERROR_BYTES:
                break
    return body


async def _drain(response: WireResponse) -> None:
    """Wait briefly for the end of a finished body, so that its connection can be reused."""
    if isinstance(response, Response) and response.complete:
        return
    # Whatever follows, the answer is whole.
    with anyio.move_on_after(_DRAIN_TIMEOUT_S), suppress(BackendError):
        await response.read()
