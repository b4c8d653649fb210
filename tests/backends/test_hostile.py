"""`OpenAIBackend` against a server that sends whatever bytes it likes: rows 1 to 26 of the fault matrix, row by row."""

import gzip
import json
import ssl
import tracemalloc
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
import trustme
from anyio.streams.tls import TLSListener

from sampling import (
    Budget,
    FatalError,
    Message,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Timeout,
    TransientError,
    Usage,
)
from sampling.backends.http._errors import retry_after_s
from sampling.backends.openai import OpenAIBackend, ToolCall
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    CertificateInvalid,
    ConnectFailed,
    ConnectionLost,
    Incomplete,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    Redirected,
    RequestTooLarge,
    ResponseTooLarge,
    ServerError,
)
from sampling.testing import run_virtual
from sampling.testing.servers import Drip, HostileServer, OpenAIServer, Pause, Reply, Step


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def bomb():
    return gzip.compress(bytes(50_000_000))


HI = Request((Message("user", "hi"),))


def head(status=200, length=None, **headers):
    """The head of a response whose body ends with the connection, unless its length is given."""
    headers = {"content_type": "text/event-stream", **headers}
    if length is not None:
        headers["content_length"] = length
    lines = [f"HTTP/1.1 {status} .", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body, status=200, **headers):
    """A response that leaves its connection open."""
    return head(status, len(body), **headers) + body


def chunk(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def said(text=None, finish=None, index=0, **delta):
    content = {} if text is None else {"content": text}
    return chunk(choices=[{"index": index, "delta": {**content, **delta}, "finish_reason": finish}])


DONE = b"data: [DONE]\n\n"
ANSWER = said("Hello") + said(" world", "stop") + DONE


async def ask(*scripts, options=None, **settings):
    """Send a request to a server with these scripts, and check that its connections are closed afterwards."""
    settings = {"timeout_s": 20, **settings}
    async with HostileServer(*scripts) as server:
        try:
            async with OpenAIBackend(server.url, model="m", **settings) as backend:
                try:
                    return await backend.generate(Request(HI.messages, options or Options()))
                finally:
                    assert "0 active, 0 queued" in repr(backend._transport)
        finally:
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)


async def failing(kind, *scripts, **settings):
    """Ask, and return the error, which must be of exactly this kind."""
    with pytest.raises(BackendError) as caught:
        await ask(*scripts, **settings)
    error = caught.value
    assert type(error) is kind, repr(error)
    assert error.retryable is issubclass(kind, TransientError)
    assert error.hint
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


def error_body(message="no", **fields):
    return json.dumps({"error": {"message": message, **fields}}).encode()


class TestStatuses:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("2", 2.0),
            ("0", 0.0),
            ("1.5", 1.5),
            ("1000000000", 120.0),
            ("1e9", 120.0),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("-inf", None),
            ("1e999", None),
            ("soon", None),
            ("", None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
            ("Wed, 99 Oct 2015 07:28:00 GMT", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 120.0),
        ],
    )
    async def test_retry_after_is_parsed_and_clamped_or_ignored(self, value, expected):
        """Rows 1 and 2: never negative, never endless, never an error of its own."""
        error = await failing(RateLimited, [whole(error_body(), 429, retry_after=value)])
        assert expected == error.retry_after_s
        assert error.status == 429

    def test_retry_after_as_a_date_counts_from_now(self):
        """Row 2: the clock is the caller's."""
        now = datetime(2026, 1, 1, tzinfo=UTC)
        later = format_datetime(now + timedelta(seconds=7), usegmt=True)
        assert retry_after_s({"retry-after": later}, now) == 7.0
        assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}, now) == 0.25
        assert retry_after_s({}, now) is None

    async def test_a_storm_of_429_on_all_breadth_ends_in_one_typed_error(self):
        """Row 3: all attempts are made, none more, and what is raised is RateLimited from all of them."""
        reply = Reply(status=429, error={"error": {"message": "slow down"}}, headers={"retry-after": "1"})
        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(RateLimited) as caught:
                await RejectionSamplingStrategy(loop_budget=2, concurrency_budget=4).sample("hi", None, backend)
        assert len(server.requests) == 8
        assert isinstance(caught.value.__cause__, ExceptionGroup)

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408, 409])
    async def test_the_servers_own_trouble_may_pass(self, status):
        """Rows 4 and 6: retryable, and Retry-After is heard here too."""
        error = await failing(ServerError, [whole(b"<html>oops</html>", status, retry_after="3")])
        assert (status, 3.0) == (error.status, error.retry_after_s)

    async def test_trouble_that_passes_costs_one_attempt(self):
        """Row 4: the attempt that failed is on the result, and a refusal is not charged for."""

        def reply(request):
            return Reply(status=503, error={}) if len(server.requests) == 1 else Reply()

        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            result = await RejectionSamplingStrategy(loop_budget=2).sample("hi", None, backend)
        assert [attempt.outcome for attempt in result.attempts] == ["errored", "valid"]
        assert Usage() == result.attempts[0].usage
        assert Usage(10, 2) == result.usage

    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (400, error_body("bad temperature"), BadRequest),
            (401, error_body(), AuthenticationFailed),
            (403, b"", AuthenticationFailed),
            (404, b"<html>Not found</html>", BadRequest),
            (404, error_body("The model `x` does not exist"), ModelNotFound),
            (400, error_body("nope", code="model_not_found"), ModelNotFound),
            (413, b"", RequestTooLarge),
            (422, b'{"detail": "bad field"}', BadRequest),
            (429, error_body("pay first", code="insufficient_quota"), QuotaExhausted),
            (402, b"", QuotaExhausted),
            (418, b"[]", BadRequest),
        ],
    )
    async def test_a_refusal_is_fatal_and_says_why(self, status, body, kind):
        """Row 5: it is not retried, and its message has the server's words."""
        error = await failing(kind, [whole(body, status)])
        assert status == error.status
        assert isinstance(error, FatalError)
        assert str(status) in str(error)

    async def test_a_refused_key_stops_the_siblings(self):
        """Row 5: the call ends at once, and the others are disconnected."""

        def reply(request):
            refused = Reply(status=401, error={"error": {"message": "bad key"}})
            return refused if len(server.requests) == 4 else Reply(["x"], endless=True, interval_s=0.001)

        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(AuthenticationFailed, match="bad key"):
                await RejectionSamplingStrategy(loop_budget=5, concurrency_budget=4).sample("hi", None, backend)
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 3)
            assert len(server.requests) == 4

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_a_redirect_is_not_followed(self, status):
        """Row 7: the key goes nowhere else, and the error names the host and no more of the address."""
        async with OpenAIServer() as elsewhere:
            location = f"http://user:hunter2@localhost:{elsewhere.port}/v1?k=hunter2"
            error = await failing(Redirected, [whole(b"", status, location=location)], api_key="sk-canary-canary")
            assert elsewhere.requests == []
            assert elsewhere.connections == 0
        assert "localhost" in str(error)
        assert "hunter2" not in str(error)

    @pytest.mark.parametrize("status", [201, 204, 206])
    async def test_an_odd_success_is_no_answer(self, status):
        """Row 16: only 200 is."""
        await failing(MalformedResponse, [whole(b"" if status == 204 else ANSWER, status)])

    @pytest.mark.usefixtures("both_transports")
    async def test_an_error_page_that_never_ends_is_not_waited_for(self):
        """Rows 11 and 16: the status decides the error, and the rest of a long page is not read."""
        await failing(ServerError, [head(500), Drip(b"x" * 10_000)])


class TogetherServer(HostileServer):
    """A hostile server that serves the first connections only once all of them are open."""

    def __init__(self, *scripts, together):
        super().__init__(*scripts)
        self._together = together

    async def _serve(self, connection, number):
        await self.until(lambda: self.connections >= self._together)
        await super()._serve(connection, number)


@pytest.mark.usefixtures("both_transports")
class TestConnections:
    async def test_a_name_that_is_unknown_may_be_known_later(self):
        """Row 8: retryable, and nothing was billed."""
        async with OpenAIBackend("https://nonexistent.invalid/v1", model="m") as backend:
            with pytest.raises(ConnectFailed, match="gaierror") as caught:
                await backend.generate(HI)
        assert not caught.value.maybe_billed

    async def test_a_refused_connection_may_be_accepted_later(self):
        """Row 8: retryable, and it says what the system said."""
        async with HostileServer([b""]) as server:
            url = server.url
        async with OpenAIBackend(url, model="m") as backend:
            with pytest.raises(ConnectFailed, match="Errno 111") as caught:
                await backend.generate(HI)
        assert caught.value.retryable

    async def test_a_server_that_does_not_speak_tls_is_not_reached(self):
        """Row 8: a TLS failure that is no certificate's fault counts as a failed connection."""
        async with (
            HostileServer([b"HTTP/1.1 400 .\r\n\r\n"], speaks_first=True) as server,
            OpenAIBackend(server.url.replace("http:", "https:"), model="m") as backend,
        ):
            with pytest.raises(ConnectFailed, match="SSL"):
                await backend.generate(HI)

    async def test_connecting_has_a_time_limit_of_its_own(self):
        """Row 8: a server that accepts and says nothing, where TLS waits for its hello."""
        async with (
            HostileServer([Step.HANG]) as server,
            OpenAIBackend(server.url.replace("http:", "https:"), model="m", connect_timeout_s=0.1) as backend,
        ):
            with pytest.raises(ConnectFailed):
                await backend.generate(HI)

    @pytest.mark.parametrize("trusted", [False, True])
    @pytest.mark.parametrize("name", ["127.0.0.1", "wrong.example"])
    async def test_a_certificate_must_be_valid_and_of_the_right_host(self, trusted, name):
        """Row 8: anything else is fatal, and nothing is sent."""
        authority = trustme.CA()
        server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(server_context)
        client_context = ssl.create_default_context()
        if trusted:
            authority.configure_trust(client_context)
        received = []

        async def serve(stream):
            async with stream:
                received.append(await stream.receive())
                await stream.send(whole(ANSWER))

        plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = plain.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - this is not Django
        url = f"https://127.0.0.1:{port}/v1"
        async with (
            TLSListener(plain, server_context, standard_compatible=False) as listener,
            anyio.create_task_group() as tasks,
            OpenAIBackend(url, model="m", ssl_context=client_context) as backend,
        ):
            tasks.start_soon(listener.serve, serve)
            if trusted and name == "127.0.0.1":
                assert (await backend.generate(HI)).text == "Hello world"
            else:
                with pytest.raises(CertificateInvalid, match="certificate") as caught:
                    await backend.generate(HI)
                assert not caught.value.retryable
                assert received == []
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("script", [[Step.RESET], [], [b"HTTP/1.1 200 OK\r\ncont", Step.RESET], [b"HTTP/1.1 200"]])
    async def test_a_connection_that_breaks_before_the_headers_may_have_been_billed(self, script):
        """Row 9: retryable, and marked."""
        error = await failing(ConnectionLost, script)
        assert error.maybe_billed
        assert error.partial_text is None

    @pytest.mark.parametrize("end", [[Step.RESET], []])
    async def test_a_connection_that_breaks_in_mid_answer_keeps_the_text_for_diagnosis_only(self, end):
        """Row 10: it is on the error, and not in its message."""
        error = await failing(ConnectionLost, [head(length=10_000) + said("Hel") + said("lo"), Pause(0.05), *end])
        assert error.partial_text == "Hello"
        assert "Hello" not in str(error)
        assert error.maybe_billed

    async def test_a_broken_answer_is_asked_for_again_from_scratch(self):
        """Row 10: the texts of two tries are never joined, and the usage of the broken one is on the result."""
        broken = [head(length=10_000) + said("Hel"), Pause(0.02), Step.RESET]
        async with HostileServer(broken, [whole(ANSWER)]) as server, OpenAIBackend(server.url, model="m") as backend:
            result = await RejectionSamplingStrategy(loop_budget=2).sample("hi", None, backend)
        assert result.text == "Hello world"
        assert [attempt.outcome for attempt in result.attempts] == ["errored", "valid"]
        assert Usage(1, 1) == result.attempts[0].usage

    async def test_what_breaks_after_the_last_word_takes_nothing_away(self):
        """Row 10: the answer was complete, and paid for."""
        generation = await ask([head(length=10_000) + said("all", "stop"), Pause(0.02), Step.RESET])
        assert generation.text == "all"

    async def test_a_connection_that_the_server_closed_between_requests_is_replaced(self):
        """Row 24: the request is sent over a new connection."""
        async with HostileServer([whole(ANSWER)]) as server, OpenAIBackend(server.url, model="m") as backend:
            for number in range(3):
                assert (await backend.generate(HI)).text == "Hello world"
                with anyio.fail_after(5):
                    await server.until(lambda: server.open == 0)
                assert number + 1 == server.connections

    async def test_a_request_that_makes_the_server_close_is_sent_again_only_once(self):
        """Row 24: not over each of the connections that are idle, which could bill it a hundred times."""
        kept = [[whole(ANSWER), Step.READ]] * 5
        async with TogetherServer(*kept, [], together=5) as server, OpenAIBackend(server.url, model="m") as backend:
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(backend.generate, HI)
            with pytest.raises(ConnectionLost) as caught:
                await backend.generate(HI)
        assert len(server.requests) == 5 + 2
        assert caught.value.maybe_billed

    @pytest.mark.parametrize(
        "nonsense",
        [
            b"\x00\x01\x02\x03\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        ],
    )
    async def test_what_is_not_http_is_malformed(self, nonsense):
        """Row 16: from the first byte on."""
        await failing(MalformedResponse, [nonsense, Step.HANG])


class SlowTransport:
    """A server in virtual time: it sends the same bytes at even intervals, for ever."""

    def __init__(self, every_s, data, headers_after_s=0.0):
        self.every_s = every_s
        self.data = data
        self.headers_after_s = headers_after_s
        self.closed_at = None
        self.status = 200
        self.headers = {"content-type": "text/event-stream"}

    async def open(self, request):
        request.on_sent()
        await anyio.sleep(self.headers_after_s)
        return self

    async def read(self):
        await anyio.sleep(self.every_s)
        return self.data

    async def aclose(self):
        self.closed_at = self.closed_at or anyio.current_time()


class TestDeadline:
    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    @pytest.mark.parametrize("data", [b"\n", b": still here\n\n", said("x")])
    def test_a_server_that_drips_trips_the_total_deadline(self, loop, data):
        """Row 11: the total deadline ends a dripping answer to the second, though no read times out."""
        slow = SlowTransport(0.7, data)

        async def main():
            backend = OpenAIBackend("http://127.0.0.1:1", model="m", timeout_s=60, transport=lambda: slow)
            async with backend:
                with pytest.raises(Timeout, match="within 60 s") as caught:
                    await backend.generate(HI)
                assert pytest.approx(anyio.current_time()) == 60.0
                return caught.value

        error = run_virtual(main, loop=loop)
        assert error.maybe_billed
        assert pytest.approx(slow.closed_at) == 60.0
        assert (85 * "x" if data == said("x") else None) == error.partial_text

    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    def test_headers_that_never_come_trip_it_too(self, loop):
        """Row 12: nothing came, but the question was sent."""
        slow = SlowTransport(0.0, b"", headers_after_s=1e5)

        async def main():
            async with OpenAIBackend("http://127.0.0.1:1", model="m", timeout_s=5, transport=lambda: slow) as backend:
                with pytest.raises(Timeout, match="it had not started") as caught:
                    await backend.generate(HI)
                assert pytest.approx(anyio.current_time()) == 5.0
                return caught.value

        assert run_virtual(main, loop=loop).maybe_billed

    @pytest.mark.usefixtures("both_transports")
    @pytest.mark.parametrize(
        "script",
        [
            [Step.HANG],
            [head(), Step.HANG],
            [head(), Drip(b":\n", 0.005)],
            [head(), Drip(said("x"), 0.005)],
            [Drip(b"H", 0.005)],
            [head(), Drip(b"\n")],
        ],
    )
    async def test_on_a_real_connection_the_deadline_closes_it(self, script):
        """Rows 11 and 12: it does not go back to the pool."""
        async with HostileServer(script) as server, OpenAIBackend(server.url, model="m", timeout_s=0.2) as backend:
            with pytest.raises((Timeout, MalformedResponse)) as caught:
                await backend.generate(HI)
            assert isinstance(caught.value, Timeout) or script[0] == Drip(b"H", 0.005)
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)
            assert "Connections: 0 active, 0 idle" in repr(backend._transport)


class TestStreams:
    @pytest.mark.parametrize(
        ("body", "partial"),
        [
            (b"", None),
            (said("Hel"), "Hel"),
            (said("Hel") + DONE, "Hel"),
            (said("Hel") + said("lo"), "Hello"),
            (said("Hel") + b'data: {"choices": [{"index": 0, "delta": {"con', "Hel"),
        ],
    )
    async def test_an_answer_without_an_end_is_incomplete(self, body, partial):
        """Row 13: a clean end of the stream is no finish_reason."""
        error = await failing(Incomplete, [whole(body)])
        assert partial == error.partial_text
        assert "allow_missing_finish" in error.hint

    @pytest.mark.parametrize("end", [b"", DONE])
    async def test_a_missing_end_can_be_allowed(self, end):
        """Row 13: for servers that never send one."""
        generation = await ask([whole(said("Hel") + said("lo") + end)], allow_missing_finish=True)
        assert (generation.text, generation.finish_reason) == ("Hello", "unknown")

    @pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
    async def test_why_it_ended_reaches_the_check(self, reason):
        """Row 14: a cut-off answer is not silently a good one."""
        seen = []

        def check(text, view):
            seen.append(view.generation.finish_reason)
            return False

        async with (
            HostileServer([whole(said("x", reason) + DONE)] * 2) as server,
            OpenAIBackend(server.url, model="m") as backend,
        ):
            await RejectionSamplingStrategy(accept_incomplete=True).sample("hi", None, backend, [check])
            result = await RejectionSamplingStrategy().sample("hi", None, backend)
        assert [reason] == seen
        assert (reason not in {"length", "content_filter"}) == result.success

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"message": "boom"}, ServerError),
            ({"message": "boom", "type": "server_error"}, ServerError),
            ({"message": "slow", "code": 429}, RateLimited),
            ({"message": "slow", "code": "429"}, RateLimited),
            ({"message": "slow", "type": "rate_limit_error"}, RateLimited),
            ({"message": "pay", "code": "insufficient_quota"}, QuotaExhausted),
            ({"message": "bad", "type": "invalid_request_error"}, BadRequest),
            ({"message": "too long", "code": 400}, BadRequest),
            ({"message": "who?", "code": "invalid_api_key"}, AuthenticationFailed),
            ({"message": "gone", "code": "model_not_found"}, ModelNotFound),
            ("just words", ServerError),
            ([1, 2], ServerError),
            ({"code": 10**200}, ServerError),
        ],
    )
    @pytest.mark.parametrize("before", [b"", said("Hel")])
    async def test_an_error_inside_the_stream_is_typed(self, error, kind, before):
        """Row 15: status 200 or not."""
        raised = await failing(kind, [whole(before + chunk(error=error) + DONE)])
        assert bool(before) == raised.maybe_billed

    @pytest.mark.parametrize(
        ("response", "kind"),
        [
            (whole(b"<html><b>502 Bad Gateway</b></html>", content_type="text/html"), MalformedResponse),
            (whole(b"<html><b>502 Bad Gateway</b></html>"), MalformedResponse),
            (whole(b'{"choices": []}', content_type="application/json; charset=utf-8"), MalformedResponse),
            (whole(b"not json", content_type="application/json"), MalformedResponse),
            (whole(error_body("slow", code=429), content_type="application/json"), RateLimited),
            (whole(b"data: {not json}\n\n"), MalformedResponse),
            (whole(said("x") + b"data: {not json}\n\n"), MalformedResponse),
            (whole(b"data: [1, 2]\n\n"), MalformedResponse),
            (whole(b"data: NaN\n\n"), MalformedResponse),
            (whole(b"data: " + b"[" * 100_000 + b"\n\n"), MalformedResponse),
            (whole(b'data: {"a": 1' + b"0" * 10_000 + b"}\n\n"), MalformedResponse),
            (whole(b'data: {"id": "a", "id": "b"}\n\n'), MalformedResponse),
            (whole(b"\xff\xfe\x00garbage"), MalformedResponse),
        ],
    )
    async def test_what_is_not_an_answer_is_malformed(self, response, kind):
        """Rows 16 and 78: with a short sample of it."""
        error = await failing(kind, [response])
        assert len(str(error).encode()) < 400

    async def test_what_strangers_send_cannot_steer_a_terminal_or_forge_a_log(self):
        """Row 73: escapes, line breaks, NUL and marks that turn the text around are shown as what they are."""
        evil = "\x1b[2J\r\nlevel=info msg=forged\x00\u202eeman"
        for script in ([whole(evil.encode())], [whole(error_body(evil), 500)], [whole(chunk(error=evil))]):
            with pytest.raises(BackendError) as caught:
                await ask(script)
            assert str(caught.value).isprintable()
            assert "\\x1b[2J" in str(caught.value)

    @pytest.mark.usefixtures("both_transports")
    async def test_text_survives_any_cut_of_the_bytes(self):
        """Row 17: byte by byte, with CRLF, a BOM, comments and empty data."""
        body = "\ufeff: hi\r\n\r\ndata:\r\n\r\n".encode() + (said("é€") + said("😀", "stop") + DONE).replace(
            b"\n", b"\r\n"
        )
        steps = [bytes([byte]) for byte in body]
        assert (await ask([head(length=len(body)), *steps])).text == "é€😀"

    async def test_invalid_utf8_is_replaced(self):
        """Row 17: the answer is not lost for one bad byte."""
        body = said("a#b", "stop").replace(b"#", b"\xff") + DONE
        assert (await ask([whole(body)])).text == "a\ufffdb"

    @pytest.mark.usefixtures("both_transports")
    async def test_a_giant_line_is_cut_off(self):
        """Rows 17 and 18: long before it is parsed, and the connection closes."""
        await failing(ResponseTooLarge, [head() + b"data: ", Drip(b"x" * 50_000)], max_response_bytes=200_000)

    @pytest.mark.usefixtures("both_transports")
    @pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate"])
    async def test_a_compressed_answer_is_refused_unread(self, encoding, bomb):
        """Row 19: it was not asked for, and no bomb is ever unpacked."""
        tracemalloc.start()
        try:
            script = [whole(bomb, content_encoding=encoding)]
            error = await failing(MalformedResponse, script, max_response_bytes=1_000_000)
            assert f"compressed ({encoding})" in str(error)
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(
        "body",
        [
            DONE,
            chunk(choices=[]) + DONE,
            chunk(choices=None, id="x") + DONE,
            chunk(choices="x"),
            chunk(choices=["x"]),
            chunk(choices={"0": {}}),
            chunk(choices=[{"index": "0"}]),
            chunk(choices=[{"index": True}]),
            chunk(choices=[{"index": 1}]),
            chunk(choices=[{"index": -1}]),
            chunk(choices=[{"delta": "x"}]),
            chunk(choices=[{"delta": {"content": 3}}]),
            chunk(choices=[{"delta": {"content": ["x"]}}]),
            chunk(choices=[{"delta": {"tool_calls": [3]}}]),
            chunk(choices=[{"delta": {"tool_calls": [{"function": {"arguments": 3}}]}}]),
            chunk(choices=[{"finish_reason": 3}]),
            chunk(choices=[{"logprobs": {"content": 3}}]),
            chunk(id=3),
            chunk(model=["m"]),
            chunk(usage="many"),
        ],
    )
    async def test_wrong_shapes_are_malformed(self, body):
        """Row 20: no KeyError, no TypeError."""
        await failing(MalformedResponse, [whole(body)])

    async def test_an_answer_without_text_is_an_empty_one(self):
        """Row 20: null content with an end is explicit."""
        generation = await ask([whole(said(None, role="assistant", content=None) + said(None, "stop") + DONE)])
        assert (generation.text, generation.finish_reason) == ("", "stop")
        assert generation.reasoning is None

    async def test_reasoning_is_kept_apart_from_text(self):
        """Reasoning is read under both of its names, and a stream delivers only the text."""
        body = said(reasoning_content="I ") + said(reasoning="think") + said("so", "stop") + DONE
        pieces = []
        async with HostileServer([whole(body)]) as server, OpenAIBackend(server.url, model="m") as backend:
            generation = await backend.stream(HI, pieces.append)
        assert (generation.text, generation.reasoning) == ("so", "I think")
        assert pieces == ["so"]

    async def test_tool_calls_refusals_and_logprobs_are_passed_on(self):
        """Row 20: put together from their pieces, and not interpreted."""
        first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
        more = {"index": 0, "function": {"arguments": ": 1}"}}
        logprobs = {"content": [{"token": "x", "logprob": -0.5}]}
        body = (
            said(tool_calls=[first])
            + said(tool_calls=[more, {"index": 1, "id": "c2", "function": {"name": "g"}}])
            + said(refusal="I'd rather not")
            + chunk(choices=[{"index": 0, "delta": {}, "logprobs": logprobs, "finish_reason": "tool_calls"}])
            + DONE
        )
        generation = await ask([whole(body)])
        assert (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "")) == generation.tool_calls
        assert generation.refusal == "I'd rather not"
        assert generation.logprobs == ({"token": "x", "logprob": -0.5},)

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            (None, Usage(1, 2)),
            ({}, Usage(1, 2)),
            ({"prompt_tokens": -5, "completion_tokens": 3}, Usage(1, 2)),
            ({"prompt_tokens": 5, "completion_tokens": 10**30}, Usage(1, 2)),
            ({"prompt_tokens": "5", "completion_tokens": 3}, Usage(1, 2)),
            ({"prompt_tokens": True, "completion_tokens": 3}, Usage(1, 2)),
            ({"prompt_tokens": 5.0, "completion_tokens": 3}, Usage(1, 2)),
            ({"prompt_tokens": 5, "completion_tokens": 3}, Usage(5, 3)),
            ({"prompt_tokens": 5, "completion_tokens": 3, "cost": 0.25}, Usage(5, 3, 0.25)),
            ({"prompt_tokens": 5, "completion_tokens": 3, "cost": -1}, Usage(5, 3)),
            ({"prompt_tokens": 5, "completion_tokens": 3, "cost": 1e300}, Usage(5, 3)),
        ],
    )
    async def test_usage_that_makes_no_sense_is_replaced_by_a_guess(self, usage, expected):
        """Row 21: a budget neither overflows nor gets a refund."""
        body = said("Hello") + said(" world", "stop") + chunk(choices=[], usage=usage) + DONE
        budget = Budget(tokens=1_000)
        async with HostileServer([whole(body)]) as server, OpenAIBackend(server.url, model="m") as backend:
            result = await RejectionSamplingStrategy().sample("hi", None, backend, budget=budget)
        assert expected == result.usage
        assert expected.total_tokens == budget.tokens_charged

    @pytest.mark.usefixtures("both_transports")
    @pytest.mark.parametrize("apart_s", [None, 0.05])
    async def test_a_second_response_is_never_the_answer_to_the_next_request(self, apart_s):
        """Rows 22 and 23: whether it comes with the first or late, its connection is not used again."""
        stale = whole(said("STALE", "stop") + DONE)
        twice = [whole(ANSWER) + stale] if apart_s is None else [whole(ANSWER), Pause(apart_s / 5), stale]
        async with (
            HostileServer([*twice, Step.READ, whole(ANSWER), Step.HANG]) as server,
            OpenAIBackend(server.url, model="m") as backend,
        ):
            for _ in range(2):
                assert (await backend.generate(HI)).text == "Hello world"
                # More than once: on a busy machine the server may wake at the same time, and send a step later.
                for _ in range(5):
                    await anyio.sleep(apart_s or 0)
            assert server.connections == 2

    async def test_an_answer_that_comes_twice_counts_once(self):
        """Row 22: data after [DONE] is dropped, and a second answer without it is an error."""
        assert (await ask([head() + ANSWER + ANSWER, Step.HANG])).text == "Hello world"
        await failing(MalformedResponse, [whole((said("Hello") + said(" world", "stop")) * 2)])

    @pytest.mark.usefixtures("both_transports")
    async def test_a_body_that_goes_on_after_done_holds_nobody_up(self):
        """Row 11: the answer is there, and its connection is closed."""
        assert (await ask([head() + ANSWER, Drip(b": more\n\n", 0.01)])).text == "Hello world"

    async def test_a_chunk_of_another_answer_is_an_error(self):
        """Row 23: it is never delivered, unless the server is known for it."""

        def of(name, text, finish=None):
            return chunk(id=name, choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])

        for ids in (["a", "a", "b"], ["a", "b", "a"]):
            body = of(ids[0], "mi") + of(ids[1], "ne") + of(ids[2], "yours", "stop")
            error = await failing(MalformedResponse, [whole(body)])
            assert error.partial_text == "mine"
            assert "check_ids=False" in error.hint
            assert (await ask([whole(body)], check_ids=False)).text == "mineyours"


class SlowToClose(SlowTransport):
    """A connection that takes its time to close."""

    def __init__(self, close_s):
        super().__init__(1.0, b": still here\n\n")
        self.close_s = close_s

    async def aclose(self):
        await anyio.sleep(self.close_s)
        await super().aclose()


@pytest.mark.usefixtures("both_transports")
class TestCancellation:
    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    @pytest.mark.parametrize(("close_s", "closed_at", "ended_at"), [(0.2, 10.2, 10.4), (1e6, None, 12.0)])
    def test_closing_is_shielded_but_not_for_ever(self, loop, close_s, closed_at, ended_at):
        """I12: a cancelled request closes its connection and its transport without delaying the caller."""
        slow = SlowToClose(close_s)

        async def main():
            backend = OpenAIBackend("http://127.0.0.1:1", model="m", transport=lambda: slow)
            with anyio.move_on_after(10):
                await backend.generate(HI)
            return anyio.current_time()

        assert run_virtual(main, loop=loop) == pytest.approx(ended_at)
        assert slow.closed_at == pytest.approx(closed_at)

    @pytest.mark.parametrize(
        "script", [[Step.HANG], [head(), Step.HANG], [head(), Drip(said("x"), 0.001)], [head(500), Step.HANG]]
    )
    async def test_it_closes_the_connection_at_once(self, script):
        """I6: whatever the server was doing, it sees us leave."""
        async with HostileServer(script) as server, OpenAIBackend(server.url, model="m") as backend:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(backend.generate, HI)
                with anyio.fail_after(5):
                    await server.until(lambda: len(server.requests) == 1)
                await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)
            assert "Requests: 0 active, 0 queued | Connections: 0 active, 0 idle" in repr(backend._transport)
