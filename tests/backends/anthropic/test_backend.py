"""`AnthropicBackend` on servers that behave, and on servers that send whatever bytes they like."""

import json

import anyio
import pytest

from sampling import (
    AnthropicBackend,
    Budget,
    Message,
    Options,
    Price,
    Priced,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Requirement,
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
    ModelNotFound,
    QuotaExhausted,
    Redirected,
    RequestTooLarge,
    ResponseTooLarge,
    ServerError,
)
from sampling.testing.conformance import check_backend
from sampling.testing.servers import AnthropicServer, Drip, HostileServer, Pause, Reply, Step

HI = Request((Message("user", "hi"),))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def begun(**fields):
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return event("message_start", message={**message, "usage": {"input_tokens": 7, "output_tokens": 1}, **fields})


def block(index=0, kind="text", **fields):
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def said(text, index=0):
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})


def ended(reason="end_turn", **usage):
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 2, **usage})


STOP = event("message_stop")
ANSWER = begun() + block() + said("Hello") + said(" world") + event("content_block_stop", index=0) + ended() + STOP


def head(status=200, length=None, **headers):
    """The head of a response whose body ends with the connection, unless its length is given."""
    headers = {"content_type": "text/event-stream", **headers}
    if length is not None:
        headers["content_length"] = length
    lines = [f"HTTP/1.1 {status} .", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body, status=200, **headers):
    return head(status, len(body), **headers) + body


def error_body(kind, message="no"):
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}).encode()


async def ask(*scripts, options=None, **settings):
    """Send a request to a server with these scripts, and check that its connections are closed afterwards."""
    settings = {"timeout_s": 20, **settings}
    async with HostileServer(*scripts) as server:
        try:
            async with AnthropicBackend("m", base_url=server.url, **settings) as backend:
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
    return error


WORDS = ["Rain", " falls", " softly", " on", " the", " old", " roof", " tonight"]


def obedient(request):
    """Answer as the options of a request say: with at most max_tokens pieces, and none from a stop sequence on."""
    body = request.json()
    asked = "".join([message["content"] for message in body["messages"] if isinstance(message["content"], str)])
    usage = {"input_tokens": 1 + len(json.dumps(body["messages"])) // 4}
    if "all about" in asked:
        return Reply(["x"], endless=True, interval_s=0.001, usage=usage)
    pieces = WORDS[: body["max_tokens"]]
    text = "".join(pieces)
    for stop in body.get("stop_sequences", ()):
        text = text.partition(stop)[0]
    is_cut = len(pieces) < len(WORDS)
    return Reply([text], "length" if is_cut else "stop", usage={**usage, "output_tokens": len(pieces)})


class TestConformance:
    async def test_it_keeps_the_rules_of_a_backend(self):
        """The conformance suite passes: usage, limits, streams, cancellation, and nothing left behind."""
        async with AnthropicServer(obedient) as server:
            rules = await check_backend(
                lambda: AnthropicBackend("m", base_url=server.url), bad_request=Request(()), grace_s=3
            )
        assert {"obeys max_tokens", "obeys stop words"} <= set(rules)

    async def test_losers_stop(self):
        """Contract 2: seven losers are generating when the winner comes, and all are disconnected after it."""

        def reply(request):
            return Reply() if len(server.requests) == 8 else Reply(["x"], endless=True, interval_s=0.001)

        async def all_are_asked(_):
            await server.until(lambda: len(server.requests) == 8)
            return True

        async with AnthropicServer(reply) as server, AnthropicBackend("m", base_url=server.url) as backend:
            result = await RejectionSamplingStrategy(concurrency_budget=8).sample(
                "hi", None, backend, [Requirement("all are asked", all_are_asked)]
            )
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 7)
        assert result.text == "Hello world"
        losers = [attempt.usage for attempt in result.attempts if attempt.outcome == "cancelled"]
        assert len(losers) == 7
        assert all(usage.input_tokens for usage in losers)
        assert result.usage.output_tokens == 2 + sum(usage.output_tokens for usage in losers)

    async def test_what_a_cancelled_answer_used_is_known(self):
        """The input is what the server said at the beginning, and the output is one token per piece."""

        async def reader(request):
            def receive(piece):
                pieces.append(piece)
                if len(pieces) == 5:
                    scope.cancel()

            pieces = []
            return await backend.stream(request, receive)

        reply = Reply(["x"], endless=True, interval_s=0.001, usage={"input_tokens": 33, "cache_read_input_tokens": 9})
        async with AnthropicServer(reply) as server, AnthropicBackend("m", base_url=server.url) as backend:
            budget = Budget(tokens=100_000)
            with anyio.CancelScope() as scope:
                await RejectionSamplingStrategy().sample("hi", None, reader, budget=budget)
        assert budget.tokens_charged >= 33 + 9 + 5

    async def test_cached_tokens_have_their_own_price(self):
        """The input is the sum of what was read, cached and written to the cache."""
        usage = {"input_tokens": 100, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 100}
        price = Price(10, 0, cached_input_per_million=1)
        async with (
            AnthropicServer(Reply(usage=usage)) as server,
            AnthropicBackend("m", base_url=server.url) as backend,
        ):
            generation = await Priced(backend, price).generate(HI)
        assert (generation.usage.input_tokens, generation.usage.cached_input_tokens) == (1_000, 800)
        assert generation.usage.cost == pytest.approx((200 * 10 + 800 * 1) / 1e6)

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("tool_use", "tool_calls"),
            ("refusal", "refusal"),
            ("pause_turn", "incomplete"),
            ("new_reason", "new_reason"),
        ],
    )
    async def test_stop_reasons_are_in_our_words(self, given, expected):
        """A truncated or refused answer is not mistaken for a complete one."""
        assert (await ask([whole(begun() + block() + said("x") + ended(given) + STOP)])).finish_reason == expected

    async def test_an_answer_that_is_cut_off_is_invalid(self):
        """Semantics 12: whether by its length, a refusal, or a pause of the server."""
        for reason in ("max_tokens", "refusal", "pause_turn"):
            body = begun() + block() + said("x") + ended(reason) + STOP
            async with HostileServer([whole(body)]) as server, AnthropicBackend("m", base_url=server.url) as backend:
                result = await RejectionSamplingStrategy().sample("hi", None, backend)
            assert not result.success, reason

    def test_it_is_not_pickled(self):
        """A backend holds a key, so pickling it raises."""
        backend = AnthropicBackend("m", "k")
        with pytest.raises(TypeError, match="an AnthropicBackend can't be pickled or copied"):
            backend.__reduce__()


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "kind", "message", "expected"),
        [
            (400, "invalid_request_error", "temperature: Extra inputs are not permitted", BadRequest),
            (401, "authentication_error", "invalid x-api-key", AuthenticationFailed),
            (402, "billing_error", "pay first", QuotaExhausted),
            (403, "permission_error", "no", AuthenticationFailed),
            (404, "not_found_error", "model: claude-9", ModelNotFound),
            (404, "not_found_error", "Not Found", BadRequest),
            (413, "request_too_large", "Request exceeds the maximum size", RequestTooLarge),
            (429, "rate_limit_error", "slow down", RateLimited),
            (500, "api_error", "Internal server error", ServerError),
            (504, "timeout_error", "too slow", ServerError),
            (529, "overloaded_error", "Overloaded", ServerError),
        ],
    )
    @pytest.mark.parametrize("in_stream", [False, True])
    async def test_an_error_is_typed(self, status, kind, message, expected, in_stream):
        """By its status, or inside of a stream by its type alone."""
        body = error_body(kind, message)
        if in_stream and message != "Not Found" and expected is not ModelNotFound:
            error = await failing(expected, [whole(begun() + b"event: error\ndata: " + body + b"\n\n")])
            assert error.maybe_billed
        else:
            error = await failing(expected, [whole(body, status, content_type="application/json")])
        assert error.status == status
        assert message in str(error)

    async def test_retry_after_is_read(self):
        """For limits of rates, and of an overloaded server."""
        for status, kind in ((429, RateLimited), (529, ServerError)):
            error = await failing(kind, [whole(error_body("x"), status, retry_after="7")])
            assert error.retry_after_s == 7

    async def test_a_refused_key_says_that_none_was_sent(self, monkeypatch):
        """If one is in the environment, it was withheld."""
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-canary-canary")
        error = await failing(AuthenticationFailed, [whole(error_body("authentication_error"), 401)])
        assert "ANTHROPIC_API_KEY is not sent to a given base_url" in error.hint

    async def test_a_redirect_is_not_followed(self):
        """The key goes nowhere else."""
        async with AnthropicServer() as elsewhere:
            await failing(Redirected, [whole(b"", 307, location=elsewhere.url)], api_key="sk-ant-canary")
            assert elsewhere.connections == 0

    async def test_a_connection_that_breaks_keeps_the_text_for_diagnosis(self):
        """The error has the text so far, and counts as billed."""
        error = await failing(ConnectionLost, [head(length=9_999) + begun() + block() + said("Hel"), Pause(0.05)])
        assert (error.partial_text, error.maybe_billed) == ("Hel", True)

    async def test_what_breaks_after_the_end_takes_nothing_away(self):
        """The answer was complete, and paid for."""
        script = [head(length=9_999) + ANSWER.removesuffix(STOP), Pause(0.02), Step.RESET]
        assert (await ask(script)).text == "Hello world"

    async def test_a_slow_answer_ends_at_the_deadline(self):
        """Pings keep no request alive beyond it."""
        error = await failing(Timeout, [head() + begun(), Drip(event("ping"), 0.01)], timeout_s=1.5)
        assert error.maybe_billed

    async def test_an_answer_that_is_cut_off_anywhere_is_incomplete(self):
        """Without a stop_reason, the answer is an `Incomplete` error."""
        events = ANSWER.removesuffix(STOP).removesuffix(ended())
        cuts = [index for index in range(len(events)) if events.startswith(b"event:", index)]
        assert len(cuts) == 5
        for cut in [*cuts[1:], len(events)]:
            await failing(Incomplete, [whole(events[:cut])])
        await failing(Incomplete, [whole(b"")])

    async def test_text_survives_any_cut_of_the_bytes(self):
        """Byte by byte, with CRLF, comments and split characters."""
        body = (b": hi\n\n" + begun() + block() + said("é😀") + ended() + STOP).replace(b"\n", b"\r\n")
        assert (await ask([head(length=len(body)), *[bytes([byte]) for byte in body]])).text == "é😀"

    async def test_a_giant_answer_is_cut_off(self):
        """An answer that is too long is an error, in one line or in many."""
        for script in (
            [head() + b"data: ", Drip(b"x" * 50_000)],
            [head() + begun() + block(), Drip(said("x" * 9_000))],
        ):
            await failing(ResponseTooLarge, script, max_response_bytes=200_000)

    @pytest.mark.parametrize(
        "body",
        [
            block() + said("x"),
            said("x"),
            begun() + said("x"),
            begun() + block() + block(),
            begun() + block() + begun(id="msg_2"),
            begun() + block() + begun(),
            begun() + block() + said("x") + ended() + said("y"),
            begun() + block() + ended() + block(1),
            begun() + event("content_block_start", index="0", content_block={"type": "text"}),
            begun() + event("content_block_start", index=0, content_block=[]),
            begun() + block(text=3),
            begun() + block() + event("content_block_delta", index=0, delta="x"),
            begun() + block() + event("content_block_delta", index=0, delta={"type": "text_delta", "text": 3}),
            begun() + event("message_delta", delta={"stop_reason": 3}),
            begun() + event("message_delta", delta={"stop_reason": "end_turn"}, usage=[]),
            event("message_start", message="x"),
            begun(usage="many"),
            begun(model=["m"]),
            begun(content="text"),
            b"data: {not json}\n\n",
            b"data: [1, 2]\n\n",
            b"data: NaN\n\n",
            b"<html><b>502 Bad Gateway</b></html>",
            b'{"type": "message_batch"}',
            b"\xff\xfe\x00garbage",
        ],
    )
    async def test_wrong_shapes_are_malformed(self, body):
        """No KeyError, no TypeError, and a short message."""
        error = await failing(MalformedResponse, [whole(body)])
        assert len(str(error).encode()) < 400

    async def test_unknown_events_blocks_and_deltas_are_skipped(self):
        """The API may add some at any time."""
        body = (
            begun()
            + event("news", x=1)
            + block(0, "hologram", data="x")
            + event("content_block_delta", index=0, delta={"type": "hologram_delta", "data": "y"})
            + block(1)
            + event("content_block_delta", index=1, delta={"type": "citations_delta", "citation": {}})
            + said("x", 1)
            + ended()
            + STOP
        )
        assert (await ask([whole(body)])).text == "x"

    @pytest.mark.parametrize(
        "usage",
        [
            {"input_tokens": -5},
            {"input_tokens": 10**30},
            {"input_tokens": "5"},
            {"input_tokens": True},
            {"input_tokens": 5, "cache_read_input_tokens": -1},
            {"input_tokens": 5, "cache_creation_input_tokens": 1.5},
        ],
    )
    async def test_usage_that_makes_no_sense_is_replaced_by_a_guess(self, usage):
        """A budget neither overflows nor gets a refund."""
        body = begun(usage=usage) + block() + said("Hello") + said(" world") + ended() + STOP
        assert (await ask([whole(body)])).usage == Usage(1, 2)

    async def test_data_after_the_end_is_dropped(self):
        """Data after the end is ignored, and does not delay the answer."""
        assert (await ask([head() + ANSWER + ANSWER, Step.HANG])).text == "Hello world"

    @pytest.mark.parametrize("encoding", ["gzip", "br"])
    async def test_a_compressed_answer_is_refused(self, encoding):
        """It was not asked for."""
        await failing(MalformedResponse, [whole(b"x", content_encoding=encoding)])

    @pytest.mark.parametrize(
        "script", [[Step.HANG], [head() + begun(), Step.HANG], [head() + begun() + block(), Drip(said("x"), 0.001)]]
    )
    async def test_cancelling_closes_the_connection_at_once(self, script):
        """Whatever the server was doing, it sees us leave."""
        async with HostileServer(script) as server, AnthropicBackend("m", base_url=server.url) as backend:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(backend.generate, HI)
                with anyio.fail_after(5):
                    await server.until(lambda: len(server.requests) == 1)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)
