"""
Every HTTP provider against a server that sends whatever bytes it likes: the rows of the fault matrix that all share.

`test_hostile.py` has the rows that depend on OpenAI's format.
"""

import gzip
import json
import tracemalloc
from collections.abc import Callable

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from sampling import (
    FatalError,
    GeminiBackend,
    Message,
    OpenAIBackend,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Timeout,
    TransientError,
    Usage,
)
from sampling.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    ConnectionLost,
    Incomplete,
    MalformedResponse,
    QuotaExhausted,
    Redirected,
    RequestTooLarge,
    ResponseTooLarge,
    ServerError,
)
from sampling.testing import run_virtual
from sampling.testing.servers import Drip, HostileServer, Pause, Step

HI = Request((Message("user", "hi"),))


def event(body):
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def openai_chunk(text=None, finish=None):
    return event(
        {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}]}
    )


def gemini_chunk(text=None, finish=None):
    ended = {} if finish is None else {"finishReason": {"stop": "STOP", "length": "MAX_TOKENS"}[finish]}
    content = {} if text is None else {"content": {"parts": [{"text": text}], "role": "model"}}
    return event({"candidates": [{**content, **ended, "index": 0}]})


@attrs.frozen
class Provider:
    """A provider: its backend, and the responses of its API."""

    make: Callable
    """Returns a backend for an address without a path."""

    said: Callable
    """Returns the bytes of a chunk, with a text and a finish reason in OpenAI's words."""

    malformed: tuple[bytes, ...]
    """Chunks with fields of the wrong type."""

    empty: bytes
    """A chunk with a usage and without an answer."""

    error: Callable = lambda **fields: json.dumps({"error": fields}).encode()
    """Returns the body of an error."""


PROVIDERS = {
    "openai": Provider(
        lambda root, **settings: OpenAIBackend(f"{root}/v1", model="m", **settings),
        openai_chunk,
        (event({"choices": "x"}), event({"choices": [{"delta": {"content": 3}}]}), event({"usage": "many"})),
        event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}),
    ),
    "gemini": Provider(
        lambda root, **settings: GeminiBackend("m", base_url=root, **settings),
        gemini_chunk,
        (event({"candidates": "x"}), event({"candidates": [{"content": 3}]}), event({"usageMetadata": "many"})),
        event({"candidates": [], "usageMetadata": {"promptTokenCount": 3}}),
    ),
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return PROVIDERS[request.param]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def bomb():
    return gzip.compress(bytes(50_000_000))


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


def root(server):
    return f"http://127.0.0.1:{server.port}"


async def ask(provider, *scripts, **settings):
    """Send a request to a server with these scripts, and check that its connections are closed afterwards."""
    async with HostileServer(*scripts) as server:
        try:
            async with provider.make(root(server), **{"timeout_s": 20, **settings}) as backend:
                try:
                    return await backend.generate(HI)
                finally:
                    assert "0 active, 0 queued" in repr(backend._transport)
        finally:
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)


async def failing(provider, kind, *scripts, **settings):
    """Ask, and return the error, which must be of exactly this kind."""
    with pytest.raises(BackendError) as caught:
        await ask(provider, *scripts, **settings)
    error = caught.value
    assert type(error) is kind, repr(error)
    assert error.retryable is issubclass(kind, TransientError)
    assert error.hint
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


class TestStatuses:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [("2", 2.0), ("1000000000", 120.0), ("-1", None), ("NaN", None), ("inf", None), ("soon", None)],
    )
    async def test_retry_after_is_heard_and_bounded(self, provider, value, expected):
        """Rows 1 and 2: in the header."""
        error = await failing(provider, RateLimited, [whole(provider.error(message="slow"), 429, retry_after=value)])
        assert (expected, 429) == (error.retry_after_s, error.status)

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408, 409])
    async def test_the_servers_own_trouble_may_pass(self, provider, status):
        """Rows 4 and 6: retryable, and Retry-After is heard here too."""
        error = await failing(provider, ServerError, [whole(b"<html>oops</html>", status, retry_after="3")])
        assert (status, 3.0) == (error.status, error.retry_after_s)

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, BadRequest),
            (401, AuthenticationFailed),
            (402, QuotaExhausted),
            (403, AuthenticationFailed),
            (404, BadRequest),
            (413, RequestTooLarge),
            (422, BadRequest),
        ],
    )
    @pytest.mark.parametrize("body", [b"", b"[]", b"<html>no</html>", b'{"error": "no"}', b'{"error": {"message": 3}}'])
    async def test_a_refusal_is_fatal_whatever_its_body(self, provider, status, kind, body):
        """Row 5: it is not retried."""
        error = await failing(provider, kind, [whole(body, status)])
        assert status == error.status
        assert isinstance(error, FatalError)

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_a_redirect_is_not_followed(self, provider, status):
        """Row 7: the key goes nowhere else, and the error names the host and no more of the address."""
        async with HostileServer([b""]) as elsewhere:
            location = f"http://user:hunter2@localhost:{elsewhere.port}/v1?k=hunter2"
            error = await failing(
                provider, Redirected, [whole(b"", status, location=location)], api_key="canary-canary"
            )
            assert elsewhere.connections == 0
        assert "localhost" in str(error)
        assert "hunter2" not in str(error)

    @pytest.mark.parametrize("status", [201, 204, 206])
    async def test_an_odd_success_is_no_answer(self, provider, status):
        """Row 16: only 200 is."""
        body = b"" if status == 204 else provider.said("x", "stop")
        await failing(provider, MalformedResponse, [whole(body, status)])

    async def test_an_error_page_that_never_ends_is_not_waited_for(self, provider):
        """Rows 11 and 16: the status decides the error, and the rest of a long page is not read."""
        await failing(provider, ServerError, [head(500), Drip(b"x" * 10_000)])


class TestConnections:
    @pytest.mark.parametrize("script", [[Step.RESET], [], [b"HTTP/1.1 200 OK\r\ncont", Step.RESET]])
    async def test_a_connection_that_breaks_before_the_headers_may_have_been_billed(self, provider, script):
        """Row 9: retryable, and marked."""
        assert (await failing(provider, ConnectionLost, script)).maybe_billed

    @pytest.mark.parametrize("end", [[Step.RESET], []])
    async def test_a_connection_that_breaks_in_mid_answer_keeps_the_text_for_diagnosis_only(self, provider, end):
        """Row 10: it is on the error, and not in its message."""
        sent = head(length=10_000) + provider.said("Hel") + provider.said("lo")
        error = await failing(provider, ConnectionLost, [sent, Pause(0.05), *end])
        assert error.partial_text == "Hello"
        assert "Hello" not in str(error)
        assert error.maybe_billed

    async def test_what_breaks_after_the_last_word_takes_nothing_away(self, provider):
        """Row 10: the answer was complete, and paid for."""
        sent = head(length=10_000) + provider.said("al") + provider.said("l", "stop")
        assert (await ask(provider, [sent, Pause(0.02), Step.RESET])).text == "all"

    async def test_a_broken_answer_is_asked_for_again_from_scratch(self, provider):
        """Row 10: the texts of two tries are never joined, and the usage of the broken one is on the result."""
        broken = [head(length=10_000) + provider.said("Hel"), Pause(0.02), Step.RESET]
        answer = whole(provider.said("Hello") + provider.said(" world", "stop"))
        async with HostileServer(broken, [answer]) as server, provider.make(root(server)) as backend:
            result = await RejectionSamplingStrategy(loop_budget=2).sample("hi", None, backend)
        assert result.text == "Hello world"
        assert [attempt.outcome for attempt in result.attempts] == ["errored", "valid"]
        assert Usage(1, 1) == result.attempts[0].usage

    async def test_a_connection_that_the_server_closed_between_requests_is_replaced(self, provider):
        """Row 24: the request is sent over a new connection."""
        answer = whole(provider.said("Hello") + provider.said(" world", "stop"))
        async with HostileServer([answer]) as server, provider.make(root(server)) as backend:
            for number in range(3):
                assert (await backend.generate(HI)).text == "Hello world"
                with anyio.fail_after(5):
                    await server.until(lambda: server.open == 0)
                assert number + 1 == server.connections

    @pytest.mark.parametrize(
        "nonsense",
        [
            b"\x00\x01\x02\x03\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        ],
    )
    async def test_what_is_not_http_is_malformed(self, provider, nonsense):
        """Row 16: from the first byte on."""
        await failing(provider, MalformedResponse, [nonsense, Step.HANG])


class Dripping:
    """A transport in virtual time: it sends the same bytes at even intervals, for ever."""

    def __init__(self, every_s, data):
        self.every_s = every_s
        self.data = data
        self.closed_at = None
        self.status = 200
        self.headers = {"content-type": "text/event-stream"}

    async def open(self, request):
        request.on_sent()
        await checkpoint()
        return self

    async def read(self):
        await anyio.sleep(self.every_s)
        return self.data

    async def aclose(self):
        self.closed_at = self.closed_at or anyio.current_time()


class TestDeadline:
    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    @pytest.mark.parametrize("text", [None, "x"])
    def test_a_server_that_drips_trips_the_total_deadline(self, provider, loop, text):
        """Row 11: the total deadline ends a dripping answer to the second, though no read times out."""
        slow = Dripping(0.7, b": still here\n\n" if text is None else provider.said(text))

        async def main():
            async with provider.make("http://127.0.0.1:1", timeout_s=60, transport=lambda: slow) as backend:
                with pytest.raises(Timeout, match="within 60 s") as caught:
                    await backend.generate(HI)
                return caught.value

        error = run_virtual(main, loop=loop)
        assert error.maybe_billed
        assert pytest.approx(slow.closed_at) == 60.0
        assert (None if text is None else 85 * text) == error.partial_text


class TestStreams:
    async def test_an_answer_without_an_end_is_incomplete(self, provider):
        """Row 13: a clean end of the stream is no finish reason."""
        for body, partial in (
            (b"", None),
            (provider.said("Hel"), "Hel"),
            (provider.said("Hel") + provider.said("lo"), "Hello"),
            (provider.said("Hel") + b'data: {"ca', "Hel"),
        ):
            error = await failing(provider, Incomplete, [whole(body)])
            assert partial == error.partial_text
            assert "allow_missing_finish" in error.hint

    async def test_a_stream_that_ends_before_its_answer_is_incomplete(self, provider):
        """Row 20: it is a stream of events, of which none is the answer."""
        for body in (provider.empty, b": processing\n\n", b": processing\n\n" + provider.empty):
            error = await failing(provider, Incomplete, [whole(body)])
            assert "before the answer started" in str(error)

    async def test_a_missing_end_can_be_allowed(self, provider):
        """Row 13: for servers that never send one."""
        body = provider.said("Hel") + provider.said("lo")
        generation = await ask(provider, [whole(body)], allow_missing_finish=True)
        assert (generation.text, generation.finish_reason) == ("Hello", "unknown")

    async def test_an_answer_that_is_cut_off_is_invalid(self, provider):
        """Row 14: not silently a good one."""
        async with (
            HostileServer([whole(provider.said("x", "length"))]) as server,
            provider.make(root(server)) as backend,
        ):
            result = await RejectionSamplingStrategy().sample("hi", None, backend)
        assert not result.success
        assert "length" == result.attempts[0].generation.finish_reason

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"message": "boom"}, ServerError),
            ({"message": "slow", "code": 429}, RateLimited),
            ({"message": "bad", "code": 400}, BadRequest),
            ({"message": "who?", "code": 401}, AuthenticationFailed),
            ("just words", ServerError),
            ([1, 2], ServerError),
            ({"code": 10**200}, ServerError),
        ],
    )
    @pytest.mark.parametrize("started", [False, True])
    async def test_an_error_inside_the_stream_is_typed(self, provider, error, kind, started):
        """Row 15: status 200 or not."""
        before = provider.said("Hel") if started else b""
        raised = await failing(provider, kind, [whole(before + event({"error": error}))])
        assert started == raised.maybe_billed

    @pytest.mark.parametrize(
        "response",
        [
            whole(b"<html><b>502 Bad Gateway</b></html>", content_type="text/html"),
            whole(b"<html><b>502 Bad Gateway</b></html>"),
            whole(b"{}", content_type="application/json"),
            whole(b"[]", content_type="application/json"),
            whole(b"[3]", content_type="application/json"),
            whole(b"not json", content_type="application/json"),
            whole(b"data: {not json}\n\n"),
            whole(b"data: [1, 2]\n\n"),
            whole(b"data: NaN\n\n"),
            whole(b"data: " + b"[" * 100_000 + b"\n\n"),
            whole(b'data: {"a": 1' + b"0" * 10_000 + b"}\n\n"),
            whole(b'data: {"id": "a", "id": "b"}\n\n'),
            whole(b"\xff\xfe\x00garbage"),
        ],
    )
    async def test_what_is_not_an_answer_is_malformed(self, provider, response):
        """Rows 16 and 78: with a short sample of it."""
        error = await failing(provider, MalformedResponse, [response])
        assert len(str(error).encode()) < 400

    async def test_fields_of_the_wrong_type_are_malformed(self, provider):
        """Row 20: no KeyError, no TypeError."""
        for body in provider.malformed:
            await failing(provider, MalformedResponse, [whole(body)])

    async def test_what_strangers_send_cannot_steer_a_terminal_or_forge_a_log(self, provider):
        """Row 73: escapes, line breaks, NUL and marks that turn the text around are shown as what they are."""
        evil = "\x1b[2J\r\nlevel=info msg=forged\x00\u202eeman"
        for script in (
            [whole(evil.encode())],
            [whole(provider.error(message=evil), 500)],
            [whole(event({"error": evil}))],
        ):
            with pytest.raises(BackendError) as caught:
                await ask(provider, script)
            assert str(caught.value).isprintable()
            assert "\\x1b[2J" in str(caught.value)

    async def test_text_survives_any_cut_of_the_bytes(self, provider):
        """Row 17: byte by byte, with CRLF, a BOM, comments and empty data."""
        said = provider.said("é€") + provider.said("😀", "stop")
        body = "\ufeff: hi\r\n\r\ndata:\r\n\r\n".encode() + said.replace(b"\n", b"\r\n")
        steps = [bytes([byte]) for byte in body]
        assert (await ask(provider, [head(length=len(body)), *steps])).text == "é€😀"

    async def test_invalid_utf8_is_replaced(self, provider):
        """Row 17: the answer is not lost for one bad byte."""
        body = provider.said("a#b", "stop").replace(b"#", b"\xff")
        assert (await ask(provider, [whole(body)])).text == "a\ufffdb"

    async def test_a_giant_line_is_cut_off(self, provider):
        """Rows 17 and 18: long before it is parsed, and the connection closes."""
        script = [head() + b"data: ", Drip(b"x" * 50_000)]
        await failing(provider, ResponseTooLarge, script, max_response_bytes=200_000)

    @pytest.mark.parametrize("encoding", ["gzip", "br"])
    async def test_a_compressed_answer_is_refused_unread(self, provider, encoding, bomb):
        """Row 19: it was not asked for, and no bomb is ever unpacked."""
        tracemalloc.start()
        try:
            script = [whole(bomb, content_encoding=encoding)]
            error = await failing(provider, MalformedResponse, script, max_response_bytes=1_000_000)
            assert f"compressed ({encoding})" in str(error)
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()

    async def test_two_answers_in_one_stream_are_an_error(self, provider):
        """Row 23: neither is delivered."""
        body = (provider.said("Hello") + provider.said(" world", "stop")) * 2
        await failing(provider, MalformedResponse, [whole(body)])


@pytest.mark.usefixtures("both_transports")
@pytest.mark.parametrize("step", [[Step.HANG], [head(), Step.HANG], [head(500), Step.HANG]])
async def test_cancelling_closes_the_connection_at_once(provider, step):
    """I6: whatever the server was doing, it sees us leave."""
    async with HostileServer(step) as server, provider.make(root(server)) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.generate, HI)
            with anyio.fail_after(5):
                await server.until(lambda: len(server.requests) == 1)
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await server.until(lambda: server.open == 0)
        assert "Requests: 0 active, 0 queued | Connections: 0 active, 0 idle" in repr(backend._transport)
