"""`OpenAIBackend`, for servers with the OpenAI API: OpenAI, vLLM, llama.cpp, Ollama, TGI, OpenRouter, …"""

import hashlib
import os
import ssl
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, cast, final, get_args

import anyio
import structlog
from anyio.lowlevel import checkpoint, current_token

from sampling._arguments import check_bool, check_instance, check_int, check_number, check_str, wrong_type
from sampling._engine.scope import report_usage
from sampling._json.bounded import loads
from sampling._openai_generation import OpenAIGeneration, ToolCall
from sampling._redaction import Redactor, Secret
from sampling._text import estimate_tokens
from sampling.backends.http._address import resolve_address
from sampling.backends.http._default_transport import default_transport
from sampling.backends.http._sse import EventParser
from sampling.backends.http._transport import CLOSE_GRACE_S, Transport, WireRequest, WireResponse
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._errors import ErrorResponse
from sampling.backends.openai._request import Endpoint, encode_body
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    ConnectionLost,
    MalformedResponse,
    ResponseTooLarge,
    Timeout,
)
from sampling.messages import Request
from sampling.usage import Usage

__all__ = ["OpenAIBackend", "OpenAIGeneration", "ToolCall"]

log = structlog.get_logger("sampling.backends.openai")

MIB = 1024 * 1024


_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_MAX_EVENT_BYTES = 4 * MIB
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 0.1
# JSON is an error object or a server that does not stream. HTML is usually the page of a proxy.
_NOT_A_STREAM = ("application/json", "text/html")


@final
class OpenAIBackend:
    """
    A backend for servers that speak the OpenAI API.

    Use OPENAI_API_KEY, or a server that needs no key, such as vLLM:

        async with OpenAIBackend(model="gpt-5-mini") as backend:
            result = await strategy.sample("A haiku about rain", None, backend)

        async with OpenAIBackend("http://127.0.0.1:8000/v1", model="qwen3") as backend:
            ...

    Inside `async with`, connections are kept open and shared by all calls of that event loop. Elsewhere,
    as under `sample_sync`, every request opens and closes a connection of its own. That is slower, but leaves
    nothing open.

    Every request is streamed, even if only the whole text is needed: a server notices at once
    that a streaming client has disconnected, and stops generating. The backend never retries.
    """

    def __init__(  # noqa: PLR0913 - each of them is one thing that servers, networks or users differ in
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        *,
        endpoint: Endpoint = "chat",
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
        include_usage: bool = True,
        allow_missing_finish: bool = False,
        check_ids: bool = True,
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        """
        Validate the arguments. Nothing is sent before the first request.

        Args:
            base_url: The address of the API, up to and including its /v1. By default OPENAI_BASE_URL, else OpenAI.
                It must be https, except on this machine.

            api_key: The key. By default OPENAI_API_KEY, which is sent to a base_url given here only
                with `send_env_key=True`. A server of your own may need none.

            model: The model, unless `Options` name one. By default OPENAI_MODEL.

            endpoint: "chat" for conversations, or "completions" for models that continue a text.
                "completions" joins the messages with empty lines.

            timeout_s: The time limit for a whole request, from waiting for a connection to the last byte of the answer.

            connect_timeout_s: The time limit for connecting.

            max_connections: The maximum number of connections. Further requests wait.

            max_request_bytes: The maximum size of a request. A longer one raises `RequestTooLarge` and is not sent.

            max_response_bytes: The maximum size of a response. A longer one raises `ResponseTooLarge`.

            headers: Headers of every request. Their values are kept secret, like the key.

            send_env_key: Send OPENAI_API_KEY to the given base_url.

            allow_http: Accept http:// on other machines than this one.

            allowed_hosts: The only hosts that base_url may name. Set it for a base_url that comes from others.

            public_only: Connect only to public addresses. The connection goes to the address that was checked,
                so a name that resolves to your own network a moment later (DNS rebinding) does not get through.

            trust_env: Use the proxies and the certificate authorities that the environment names.

            ssl_context: The context to verify an https server with, instead of the authorities of the system.

            include_usage: Request the token counts. Turn it off for servers that reject `stream_options`.

            allow_missing_finish: Accept an answer without a finish_reason as complete.

            check_ids: Reject a stream whose chunks have different ids.

            transport: A function that creates the transport, instead of httpcore2.
        """
        flags = {
            "send_env_key": send_env_key,
            "allow_http": allow_http,
            "public_only": public_only,
            "trust_env": trust_env,
            "include_usage": include_usage,
            "allow_missing_finish": allow_missing_finish,
            "check_ids": check_ids,
        }
        for name, flag in flags.items():
            check_bool(name, flag)
        if endpoint not in get_args(Endpoint):
            raise ValueError(f"endpoint must be 'chat' or 'completions', got {endpoint!r}")
        self._address = resolve_address(
            base_url, api_key, send_env_key=send_env_key, allow_http=allow_http, allowed_hosts=allowed_hosts
        )
        self._headers = _secret_headers(headers)
        self._redactor = Redactor([*([self._address.key] if self._address.key else []), *self._headers.values()])
        self.model: str | None = _model(model)
        self.endpoint: Endpoint = endpoint
        self.timeout_s: float = check_number("timeout_s", timeout_s, above=0)
        self.max_request_bytes: int = check_int("max_request_bytes", max_request_bytes, least=1)
        self.max_response_bytes: int = check_int("max_response_bytes", max_response_bytes, least=1)
        self.trust_env = trust_env
        self._include_usage = include_usage
        self._allow_missing_finish = allow_missing_finish
        self._check_ids = check_ids
        # OpenAI's reasoning models reject `max_tokens`, and compatible servers may not know the new name.
        self._max_tokens_name = (
            "max_completion_tokens" if self._address.is_openai and endpoint == "chat" else "max_tokens"
        )
        if ssl_context is not None:
            check_instance("ssl_context", ssl_context, ssl.SSLContext, "an ssl.SSLContext or None")
        self._new_transport = transport or default_transport(
            self.base_url,
            max_connections=check_int("max_connections", max_connections, least=1),
            connect_timeout_s=check_number("connect_timeout_s", connect_timeout_s, above=0),
            ssl_context=ssl_context,
            trust_env=trust_env,
            public_only=public_only,
        )
        self._transport: Transport | None = None
        self._loop: object = None
        self._warned = False

    @property
    def base_url(self) -> str:
        """The base URL of the API."""
        return self._address.base_url

    # Opening and closing.

    async def __aenter__(self) -> Self:
        await checkpoint()
        if self._transport is not None:
            raise RuntimeError("this OpenAIBackend is already open: share it, or create another one")
        self._transport = self._new_transport()
        self._loop = current_token()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Reset first, so that a request that starts during closing opens a connection of its own.
        transport, self._transport, self._loop = self._transport, None, None
        if transport is None:
            raise RuntimeError("this OpenAIBackend is not open")
        with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
            await transport.aclose()

    def __repr__(self) -> str:
        parts = [f"{self.base_url!r}", f"model={self.model!r}", f"endpoint={self.endpoint!r}"]
        if self.trust_env:
            parts.append("trust_env=True")
        state = "open" if self._transport is not None else "not open"
        return f"<OpenAIBackend {', '.join(parts)}, key {self._address.key_source}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an OpenAIBackend can't be pickled or copied: it holds a key and connections. Create a new one."
        )

    # Requests.

    async def generate(self, request: Request) -> OpenAIGeneration:
        """
        Return the whole answer.

        It is streamed on the wire, so that cancelling stops the server.
        """
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Callable[[str], None]) -> OpenAIGeneration:
        """
        Return the answer, and pass each new piece of text to `receive`.

        Reasoning is not passed on.
        """
        if not callable(receive):
            raise wrong_type("receive", receive, "a callable that takes a str")
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Callable[[str], None] | None) -> OpenAIGeneration:
        check_instance("request", request, Request, "a Request")
        answer = self._new_answer(request)
        wire = self._wire_request(request, answer)
        transport = self._transport
        if transport is not None and self._loop == current_token():
            return await self._send(transport, wire, answer, receive)
        self._warn_once()
        transport = self._new_transport()
        try:
            return await self._send(transport, wire, answer, receive)
        finally:
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await transport.aclose()

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("connections_not_reused", hint="use it inside `async with`, in the same event loop")

    def _wire_request(self, request: Request, answer: StreamedAnswer) -> WireRequest:
        body = encode_body(
            request,
            model=self.model,
            endpoint=self.endpoint,
            max_tokens_name=self._max_tokens_name,
            include_usage=self._include_usage,
            max_bytes=self.max_request_bytes,
        )
        headers = {
            "accept": "text/event-stream",
            # No compression, because a few bytes could expand without bound.
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "sampling",
            **{name: value.reveal() for name, value in self._headers.items()},
        }
        if self._address.key is not None:
            # A header that the caller passed takes precedence.
            headers.setdefault("authorization", f"Bearer {self._address.key.reveal()}")
        if request.idempotency_key is not None:
            headers.setdefault("idempotency-key", _idempotency_header(request.idempotency_key, body))
        return WireRequest(f"{self.base_url}{_PATHS[self.endpoint]}", headers, body, answer.mark_sent)

    def _new_answer(self, request: Request) -> StreamedAnswer:
        n = request.options.extra.get("n")  # the user's value, so it may be of any type
        return StreamedAnswer(
            self._redactor,
            expected_choices=n if type(n) is int and n > 0 else 1,
            input_tokens_estimate=1 + estimate_tokens(sum(len(message.content) for message in request.messages)),
            check_ids=self._check_ids,
        )

    async def _send(
        self, transport: Transport, wire: WireRequest, answer: StreamedAnswer, receive: Callable[[str], None] | None
    ) -> OpenAIGeneration:
        """Send a request and read the whole response before the deadline."""
        try:
            # One deadline around everything: a server that sends a byte now and then never trips a read timeout.
            with anyio.move_on_after(self.timeout_s) as deadline:
                await self._exchange(transport, wire, answer, receive)
            if deadline.cancelled_caught:
                raise self._timeout_error(answer)
            return answer.generation(allow_missing_finish=self._allow_missing_finish)
        except BackendError as error:
            error.partial_text = answer.text or None
            raise

    def _timeout_error(self, answer: StreamedAnswer) -> Timeout:
        received = "it had started" if answer.started else "it had not started"
        error = Timeout(f"no whole answer within {self.timeout_s:g} s ({received})")
        error.maybe_billed = answer.sent
        return error

    async def _exchange(
        self, transport: Transport, wire: WireRequest, answer: StreamedAnswer, receive: Callable[[str], None] | None
    ) -> None:
        response = await transport.open(wire)
        try:
            if response.status != 200:
                raise await self._error_from_response(response)
            self._check_encoding(response)
            if _content_type(response) in _NOT_A_STREAM:
                raise await self._non_stream_error(response)
            await self._read(response, answer, receive)
        except ConnectionLost:
            # A connection that breaks after the last chunk does not invalidate the answer.
            if not answer.finished:
                raise
        finally:
            # Report also on errors and cancellation: the tokens so far are spent. A refused request costs nothing.
            report_usage(answer.spent if response.status == 200 else Usage())
            with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
                await response.aclose()

    async def _read(
        self, response: WireResponse, answer: StreamedAnswer, receive: Callable[[str], None] | None
    ) -> None:
        parser = EventParser(min(_MAX_EVENT_BYTES, self.max_response_bytes))
        head = b""
        size = 0
        while not answer.done:
            data = await response.read()
            size += len(data)
            if size > self.max_response_bytes:
                raise ResponseTooLarge(f"the response has more than {self.max_response_bytes:,} bytes")
            head = head or data  # kept for the error message if this is no event stream
            for event in parser.feed(data) if data else parser.close():
                piece = answer.add(event)
                if piece and receive is not None:
                    receive(piece)
                if answer.done:
                    break
            if not data:
                break
        else:
            await _drain(response)
        if not answer.started and not answer.done and head:
            raise self._embedded_error(head) or MalformedResponse(
                f"the response is not a stream of events: {self._redactor.sample(head)}"
            )

    def _check_encoding(self, response: WireResponse) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise MalformedResponse(
                f"the response is compressed ({self._redactor.sample(encoding)}), which was not requested"
            )

    async def _non_stream_error(self, response: WireResponse) -> BackendError:
        body = await _read_error_body(response)
        kind = _content_type(response)
        return self._embedded_error(body) or MalformedResponse(
            f"the server did not stream but sent {kind}: {self._redactor.sample(body)}"
        )

    def _embedded_error(self, body: bytes) -> BackendError | None:
        """Return the error in a body, or None."""
        # Some servers send errors with status 200.
        try:
            parsed = loads(body.decode("utf-8", "replace"))
        except ValueError:
            return None
        if not isinstance(parsed, dict) or "error" not in parsed:
            return None
        return ErrorResponse.from_error_object(cast("dict[str, Any]", parsed)["error"], self._redactor).as_error()

    async def _error_from_response(self, response: WireResponse) -> BackendError:
        body = await _read_error_body(response)
        error = ErrorResponse.from_response(response.status, response.headers, body, self._redactor).as_error()
        if isinstance(error, AuthenticationFailed) and self._address.key is None:
            error.hint = f"No key was sent ({self._address.key_source}): pass api_key=… or send_env_key=True."
            error.add_note(f"hint: {error.hint}")
        return error


def _idempotency_header(key: str, body: bytes) -> str:
    """Return the idempotency header, a digest of the key and the body."""
    # The body is part of it: the same key with another request must not return the first answer.
    return hashlib.sha256(b"%b\n%b" % (key.encode("utf-8", "backslashreplace"), body)).hexdigest()


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


def _model(model: object) -> str | None:
    if model is None:
        return os.environ.get("OPENAI_MODEL") or None
    return check_str("model", model, empty=False)


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
    with anyio.move_on_after(_DRAIN_TIMEOUT_S):
        await response.read()
