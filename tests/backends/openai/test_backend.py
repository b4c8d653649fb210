"""`OpenAIBackend` against a loopback server that behaves: what is asked, what comes back, and what is left behind."""

import copy
import gc
import importlib.util
import pickle  # noqa: TID251 - to see that it refuses
import socket
import threading
from functools import partial
from pathlib import Path

import anyio
import httpcore2
import pytest
import structlog
from pydantic import BaseModel, ConfigDict

from sampling import Budget, Message, Options, RejectionSamplingStrategy, Request, Requirement, StreamingBackend, Usage
from sampling.backends.http._address import resolve_address
from sampling.backends.openai import OpenAIBackend
from sampling.errors import BadRequest, ConnectFailed, FatalError, RequestTooLarge, ResponseTooLarge
from sampling.testing.servers import HostileServer, OpenAIServer, Reply, Step

ENVIRONMENT = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def asking(text="hi", **options):
    return Request((Message("user", text),), Options(**options))


class TestAnswers:
    async def test_the_whole_text_comes_back_with_its_usage(self):
        """Usage is that of the final chunk, and one connection serves one request after the other."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            for _ in range(3):
                generation = await backend.generate(asking())
                assert generation.text == "Hello world"
                assert Usage(10, 2) == generation.usage
                assert generation.finish_reason == "stop"
                assert generation.model == "loopback"
            assert server.connections == 1
            with anyio.fail_after(5):
                await server.until(lambda: server.completed == 3)

    async def test_every_request_is_streamed_on_the_wire(self):
        """A cancelled request that is not streamed keeps the server busy, so there is none."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            await backend.generate(asking())
            await backend.stream(asking(), lambda piece: None)
        for request in server.requests:
            assert request.json()["stream"] is True
            assert request.json()["stream_options"] == {"include_usage": True}
            assert request.headers["accept-encoding"] == "identity"
            assert request.headers["accept"] == "text/event-stream"
            assert "authorization" not in request.headers

    async def test_a_stream_hands_over_each_piece_as_it_comes(self):
        """`stream` pushes text and returns the same Generation as `generate`."""
        async with OpenAIServer(Reply(["a", "b", "c"])) as server, OpenAIBackend(server.url, model="m") as backend:
            assert isinstance(backend, StreamingBackend)
            pieces = []
            generation = await backend.stream(asking(), pieces.append)
            assert pieces == ["a", "b", "c"]
            assert await backend.generate(asking()) == generation

    async def test_what_the_receiver_raises_stops_the_server_and_comes_through(self):
        """A generation that is cut is cut for real: the connection closes."""

        def enough(piece):
            raise KeyError(piece)

        async with OpenAIServer(Reply(["x"], endless=True)) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(KeyError):
                await backend.stream(asking(), enough)
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 1 and server.open == 0)

    async def test_options_are_passed_on(self):
        """All options are in the request, and `extra` overrides them."""
        options = {"temperature": 0.5, "seed": 7, "stop": ["\n"], "max_tokens": 9, "model": "other"}
        extra = {"n": 1, "logprobs": True, "tools": [{"type": "function"}], "seed": 8, "stream_options": {"x": 1}}
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            await backend.generate(asking(**options, extra=extra))
        assert server.requests[0].json() == {
            "model": "other",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "seed": 8,
            "stop": ["\n"],
            "max_tokens": 9,
            "n": 1,
            "logprobs": True,
            "tools": [{"type": "function"}],
            "stream": True,
            "stream_options": {"include_usage": True, "x": 1},
        }

    async def test_the_completions_endpoint_takes_a_text(self):
        """Messages are joined by empty lines, and the text of the choice comes back."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m", endpoint="completions") as backend:
            request = Request((Message("system", "one"), Message("user", "two")))
            assert (await backend.generate(request)).text == "Hello world"
        assert server.requests[0].path == "/v1/completions"
        assert server.requests[0].json()["prompt"] == "one\n\ntwo"

    async def test_headers_of_the_callers_own_are_sent(self):
        """A gateway may want more than a key."""
        async with (
            OpenAIServer() as server,
            OpenAIBackend(server.url, "the-key-itself", "m", headers={"X-Team": "blue"}) as backend,
        ):
            await backend.generate(asking())
        assert server.requests[0].headers["x-team"] == "blue"
        assert server.requests[0].headers["authorization"] == "Bearer the-key-itself"


class TestSchemas:
    async def sent(self, schema):
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            await backend.generate(asking(schema=schema))
        return server.requests[0].json()["response_format"]

    async def test_a_json_schema_goes_as_it_is(self):
        """It is strict only if OpenAI's strict mode would take it."""
        schema = {"title": "My thing", "type": "object", "properties": {"a": {"type": "integer"}}}
        assert {
            "type": "json_schema",
            "json_schema": {"name": "My_thing", "schema": schema, "strict": False},
        } == await self.sent(schema)

    async def test_a_pydantic_model_is_closed_and_strict(self):
        """The schema forbids additional properties, in nested classes too."""

        class Inner(BaseModel):
            b: int

        class Outer(BaseModel):
            a: list[Inner]

        sent = (await self.sent(Outer))["json_schema"]
        assert sent["name"] == "Outer"
        assert sent["strict"] is True
        assert sent["schema"]["additionalProperties"] is False
        assert sent["schema"]["$defs"]["Inner"]["additionalProperties"] is False
        assert "additionalProperties" not in Inner.model_json_schema()

    async def test_a_model_with_optional_fields_is_not_strict(self):
        """Strict mode would have the model fill in every field."""

        class Loose(BaseModel):
            model_config = ConfigDict(extra="allow")
            a: int = 3

        sent = (await self.sent(Loose))["json_schema"]
        assert sent["strict"] is False
        assert sent["schema"]["additionalProperties"] is True

    async def test_anything_else_is_a_type_error_that_names_the_option(self):
        """Bad input says what is allowed."""
        with pytest.raises(TypeError, match=r"options\.schema must be a JSON schema .* got 3"):
            await self.sent(3)


class TestRefusedBeforeSending:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"extra": {"stream": False}}, "sets stream"),
            ({"extra": {"messages": []}}, "sets messages"),
            ({"extra": {"x": object()}}, "not JSON"),
            ({"extra": {"x": float("nan")}}, "not JSON"),
        ],
    )
    async def test_what_cannot_be_sent_is_a_bad_request(self, options, problem):
        """Nothing goes out, and nothing of the request is quoted."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(BadRequest, match=problem):
                await backend.generate(asking(**options))
        assert server.requests == []

    async def test_half_a_surrogate_pair_is_a_bad_request(self):
        """UTF-8 has no way to say it."""
        async with OpenAIBackend("http://127.0.0.1:1", model="m") as backend:
            with pytest.raises(BadRequest, match="surrogate"):
                await backend.generate(asking("\ud83d"))

    async def test_a_long_request_is_not_sent(self):
        """max_request_bytes counts bytes, not characters."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m", max_request_bytes=500) as backend:
            await backend.generate(asking("x" * 200))
            with pytest.raises(RequestTooLarge, match="max_request_bytes=500"):
                await backend.generate(asking("é" * 200))
        assert len(server.requests) == 1

    async def test_no_model_says_where_to_name_one(self):
        """It is found out before anything is sent, and ends the call at once."""
        async with OpenAIBackend("http://127.0.0.1:1") as backend:
            with pytest.raises(BadRequest, match="no model was given") as caught:
                await backend.generate(asking())
        assert "OPENAI_MODEL" in caught.value.hint

    async def test_the_model_may_come_from_the_environment(self, monkeypatch):
        """An argument goes before it, and an option before both."""
        monkeypatch.setenv("OPENAI_MODEL", "from-env")
        async with OpenAIServer() as server, OpenAIBackend(server.url) as backend:
            await backend.generate(asking())
            await backend.generate(asking(model="from-options"))
        assert [request.json()["model"] for request in server.requests] == ["from-env", "from-options"]


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("ftp://example.com/v1", "must begin with https://"),
            ("file:///etc/passwd", "must begin with https://"),
            ("example.com/v1", "must begin with https://"),
            ("gpt-5-mini", "The name of a model is passed as model="),
            ("http://example.com/v1", "allow_http=True"),
            ("http://2130706433/v1", "whole IP address"),
            ("http://0x7f000001/v1", "whole IP address"),
            ("http://127.1/v1", "whole IP address"),
            ("https://169.0xfe.169.254/v1", "whole IP address"),
            ("https://169.254.169.0xFE./v1", "whole IP address"),
            ("https://169.254.169.254/v1", "link-local"),
            ("https://[::169.254.169.254]/v1", "link-local"),
            ("https://[::ffff:0:169.254.169.254]/v1", "link-local"),
            ("https://[64:ff9b:1::a9fe:a9fe]/v1", "link-local"),
            ("https://[fe80::1]/v1", "link-local"),
            ("https://[::ffff:169.254.169.254]/v1", "link-local"),
            ("https://[::ffff:a9fe:a9fe]/v1", "link-local"),
            ("https://[64:ff9b::a9fe:a9fe]/v1", "link-local"),
            ("https://[2002:a9fe:a9fe::1]/v1", "link-local"),
            ("https://user:hunter2@example.com/v1", "user name or password"),
            ("https://hunter2@example.com/v1", "user name or password"),
            ("https://example.com/v1?key=hunter2", "query or a fragment"),
            ("https://example.com/v1#hunter2", "query or a fragment"),
            ("https://example.com/v1\r\nX-Evil: hunter2", "printable ASCII"),
            ("https://example.com\\@evil.com/v1", "printable ASCII"),
            ("https://exämple.com/v1", "printable ASCII"),
            ("https:///v1", "must name a host"),
            ("https://a..b/v1", "must name a host"),
            (f"https://{'a' * 64}.b/v1", "must name a host"),
            ("https://example.com:99999/v1", "is not a URL"),
            ("https://[::1/v1", "is not a URL"),
            ("https://example.com/v1/chat/completions", "must end before"),
            ("  ", "must not be empty"),
        ],
    )
    def test_a_base_url_that_is_not_sound_is_refused(self, url, problem):
        """Row 75: with an error that names the argument, says what to do, and shows no password."""
        with pytest.raises(ValueError, match=problem) as caught:
            OpenAIBackend(url, "k")
        assert "base_url" in str(caught.value)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "http://localhost:8000/v1",
            "http://127.0.0.1",
            "http://127.5.5.5:1/",
            "http://[::1]:8000/v1",
            "https://a.b/v1/",
        ],
    )
    def test_a_sound_base_url_needs_no_key(self, url):
        """Servers of one's own have none."""
        assert url.rstrip("/") == OpenAIBackend(url).base_url

    def test_http_elsewhere_is_allowed_when_asked_for(self):
        """Row 75: on a network of one's own."""
        OpenAIBackend("http://10.0.0.7:8000/v1", allow_http=True)

    def test_openai_itself_needs_a_key(self):
        """The error says the three ways out."""
        with pytest.raises(ValueError, match=r"api_key=…, set OPENAI_API_KEY, or pass the base_url"):
            OpenAIBackend()

    @pytest.mark.parametrize(
        ("base_url", "environment", "send", "expected"),
        [
            (None, {"OPENAI_API_KEY": "env-key"}, False, "env-key"),
            (None, {"OPENAI_API_KEY": "env-key", "OPENAI_BASE_URL": "https://e.com/v1"}, False, "env-key"),
            ("https://given.com/v1", {"OPENAI_API_KEY": "env-key"}, False, None),
            ("https://given.com/v1", {"OPENAI_API_KEY": "env-key", "OPENAI_BASE_URL": "https://e.com"}, False, None),
            ("https://api.openai.com/v1", {"OPENAI_API_KEY": "env-key"}, False, None),
            ("https://given.com/v1", {"OPENAI_API_KEY": "env-key"}, True, "env-key"),
            (None, {"OPENAI_API_KEY": " env-key\n"}, False, "env-key"),
            (None, {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}, False, None),
        ],
    )
    def test_the_environments_key_goes_only_to_the_environments_address(self, base_url, environment, send, expected):
        """Row 75: a base_url that the caller names gets it only if the caller says so."""
        address = resolve_address(base_url, None, send_env_key=send, allow_http=False, environment=environment)
        assert expected == (None if address.key is None else address.key.reveal())

    async def test_a_withheld_key_is_really_not_sent(self, monkeypatch):
        """Row 75: and where the server then refuses, the hint says why."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-environment-key")
        reply = Reply(status=401, error={"error": {"message": "no key"}})
        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(Exception, match="401") as caught:
                await backend.generate(asking())
        assert "authorization" not in server.requests[0].headers
        assert "send_env_key=True" in caught.value.hint
        assert "withheld" in repr(backend)

    @pytest.mark.parametrize(
        ("key", "problem"),
        [
            ("", "must not be empty"),
            ("abc def", "U\\+0020 at position 3"),
            ("ab\u200bc", "U\\+200B"),
            ("a\nb", "U\\+000A"),
        ],
    )
    def test_a_key_that_cannot_be_one_is_refused_without_showing_it(self, key, problem):
        """A pasted blank or line break is found here, not by the server."""
        with pytest.raises(ValueError, match=problem) as caught:
            OpenAIBackend("https://a.b/v1", key)
        assert not key or repr(key) not in str(caught.value)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"timeout_s": 0},
            {"timeout_s": float("nan")},
            {"max_connections": 0},
            {"max_request_bytes": 0},
            {"max_response_bytes": 1.5},
            {"endpoint": "embeddings"},
            {"trust_env": "no"},
            {"headers": {"x": "a\r\nb"}},
            {"headers": {"x": 3}},
            {"ssl_context": True},
            {"model": ""},
            {"api_key": 3},
        ],
    )
    def test_wrong_arguments_are_named(self, wrong):
        """TypeError or ValueError, at construction."""
        (name,) = wrong
        with pytest.raises((TypeError, ValueError), match="header" if name == "headers" else name):
            OpenAIBackend("https://a.b/v1", **wrong)

    def test_openai_gets_the_newer_name_for_max_tokens(self):
        """Its reasoning models reject the old one, and other servers do not know the new one."""
        assert OpenAIBackend(api_key="k")._max_tokens_name == "max_completion_tokens"
        assert OpenAIBackend(api_key="k", endpoint="completions")._max_tokens_name == "max_tokens"
        assert OpenAIBackend("https://a.b/v1")._max_tokens_name == "max_tokens"

    @pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
    async def test_proxies_of_the_environment_are_used_only_when_trusted(self, monkeypatch, name):
        """Row 26: `trust_env` is off by default, and shows in the repr."""
        async with OpenAIServer() as proxy, OpenAIServer() as server:
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
            monkeypatch.setenv(name.lower(), proxy.url.removesuffix("/v1"))
            monkeypatch.setenv("no_proxy", "")
            async with OpenAIBackend(server.url, model="m") as direct:
                await direct.generate(asking())
            assert (len(server.requests), len(proxy.requests)) == (1, 0)
            async with OpenAIBackend(server.url, model="m", trust_env=True) as proxied:
                await proxied.generate(asking())
                assert "trust_env=True" in repr(proxied)
            assert (len(server.requests), len(proxy.requests)) == (1, 1)

    def test_a_proxy_that_cannot_be_used_is_refused_at_once(self, monkeypatch):
        """Row 26: and its password shows nowhere."""
        monkeypatch.setenv("no_proxy", "")
        unusable = [("ftp://me:hunter2@p:1", "must be http")]
        # No host, a password whose characters end the host, and ports that are none.
        broken = ("me:hunter2", "http://me:hunter2@", "http://me:hunter2/@p:1", "http://[me:hunter2@p", "http://p:0")
        unusable += [(proxy, "must be a URL with a host") for proxy in broken]
        if importlib.util.find_spec("socksio") is None:
            unusable.append(("socks5://me:hunter2@p:1", "socks"))
        for proxy, problem in unusable:
            monkeypatch.setenv("https_proxy", proxy)
            with pytest.raises((ValueError, ImportError), match=problem) as caught:
                OpenAIBackend("https://a.b/v1", trust_env=True)
            assert "hunter2" not in str(caught.value)
        monkeypatch.setenv("https_proxy", "http://me:hunter2@p:1")
        backend = OpenAIBackend("https://a.b/v1", trust_env=True)
        assert "hunter2" not in f"{backend!r} {vars(backend)}"


class TestLife:
    async def test_without_async_with_each_request_has_a_connection_of_its_own(self):
        """Nothing is left open, and one warning says what to do about it."""
        async with OpenAIServer() as server:
            backend = OpenAIBackend(server.url, model="m")
            with structlog.testing.capture_logs() as logs:
                for _ in range(2):
                    await backend.generate(asking())
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)
            assert server.connections == 2
        assert [entry["event"] for entry in logs] == ["connections_not_reused"]

    async def test_it_can_be_opened_again_after_it_was_closed(self):
        """A closed backend can be opened again, but an open one can't."""
        async with OpenAIServer() as server:
            backend = OpenAIBackend(server.url, model="m")
            async with backend:
                with pytest.raises(RuntimeError, match="already open"):
                    await backend.__aenter__()
                await backend.generate(asking())
            async with backend:
                await backend.generate(asking())
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)
            assert server.connections == 2

    async def test_another_event_loop_does_not_touch_the_connections_of_this_one(self):
        """In another event loop than the one that opened the backend, each request has its own connection."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m") as backend:
            await backend.generate(asking())
            elsewhere = partial(anyio.run, backend.generate, asking(), backend="asyncio")
            for number in range(2):
                assert (await anyio.to_thread.run_sync(elsewhere)).text == "Hello world"
                assert server.connections == number + 2
            await backend.generate(asking())
            assert server.connections == 3

    def test_sample_sync_needs_no_async_with(self):
        """Each call has an event loop of its own, so no connection may be kept from one to the next."""
        ready, stop = threading.Event(), threading.Event()
        urls = []

        async def serve():
            async with OpenAIServer() as server:
                urls.append(server.url)
                ready.set()
                await anyio.to_thread.run_sync(stop.wait)

        thread = threading.Thread(target=anyio.run, args=(serve,))
        thread.start()
        try:
            assert ready.wait(10)
            backend = OpenAIBackend(urls[0], model="m")
            for _ in range(2):
                assert RejectionSamplingStrategy().sample_sync("hi", None, backend).text == "Hello world"
        finally:
            stop.set()
            thread.join(10)

    def test_it_is_neither_pickled_nor_copied(self):
        """Row 72: the key would go with it."""
        backend = OpenAIBackend("https://a.b/v1", "sk-secret-secret")
        for leave in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="can't be pickled"):
                leave(backend)


class TestLosers:
    async def test_winning_disconnects_the_losers(self):
        """Seven of seven losers are gone from the server, and what they used is on the result."""

        def reply(request):
            first = len(server.requests) == 1
            return Reply(["won"], interval_s=1) if first else Reply(["lost "], endless=True, interval_s=0.001)

        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            strategy = RejectionSamplingStrategy(concurrency_budget=8)
            won = Requirement("won", check=lambda text: text == "won")
            result = await strategy.sample("hi", None, backend, [won])
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 7)
            assert len(server.requests) == 8
            with anyio.fail_after(5):
                await server.until(lambda: server.completed == 1)
            losers = [attempt for attempt in result.attempts if attempt.outcome == "cancelled"]
            assert len(losers) == 7
            assert all(loser.usage.input_tokens >= 1 for loser in losers)
            assert any(loser.usage.output_tokens > 1 for loser in losers)
            assert result.usage.total_tokens >= 11 + 7

    async def test_a_loser_that_still_waits_for_headers_is_disconnected_too(self):
        """The prompt of a cancelled request counts once it was sent, and not before."""

        said = b'data: {"choices": [{"index": 0, "delta": {"content": "won"}, "finish_reason": "stop"}]}\n\n'
        winner = [b"HTTP/1.1 200 OK\r\n\r\n" + said + b"data: [DONE]\n\n"]
        async with HostileServer([Step.HANG], winner) as server, OpenAIBackend(server.url, model="m") as backend:
            result = await RejectionSamplingStrategy(concurrency_budget=2).sample("hi " * 40, None, backend)
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 1)
            (loser,) = [attempt for attempt in result.attempts if attempt.outcome == "cancelled"]
            assert Usage(31, 0) == loser.usage

    async def test_a_budget_is_charged_for_losers(self):
        """Row 79: what cancelled requests used by then is settled."""
        budget = Budget(requests=8)

        def reply(request):
            return Reply(["won"], interval_s=0.05) if len(server.requests) == 1 else Reply(["x"], endless=True)

        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            won = Requirement("won", check=lambda text: text == "won")
            await RejectionSamplingStrategy(concurrency_budget=4).sample("hi", None, backend, [won], budget=budget)
        assert budget.spent.output_tokens > 1
        assert budget.reserved.requests == 0


def open_descriptors():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def pool_of(backend):
    return backend._transport._pool


@pytest.mark.usefixtures("both_transports")
class TestPool:
    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")
    async def test_it_survives_200_cancellations_under_contention(self):
        """Row 25: the pool is healthy after requests were cancelled while queued, connecting, sending and reading."""
        slow = Reply(["x"] * 5, interval_s=0.002)
        async with OpenAIServer(slow) as server, OpenAIBackend(server.url, model="m", max_connections=4) as backend:
            await backend.generate(asking())
            descriptors, threads = open_descriptors(), set(threading.enumerate())
            cancelled = 0

            async def ask_for(seconds):
                nonlocal cancelled
                with anyio.move_on_after(seconds) as scope:
                    await backend.generate(asking())
                cancelled += scope.cancelled_caught

            for wave in range(20):
                async with anyio.create_task_group() as tasks:
                    for number in range(16):
                        tasks.start_soon(ask_for, 0.0005 * (wave % 5) + 0.001 * number)
            assert cancelled >= 200
            assert "Requests: 0 active, 0 queued | Connections: 0 active" in repr(pool_of(backend))
            with anyio.fail_after(5):
                assert (await backend.generate(asking())).text == "xxxxx"
                await server.until(lambda: server.open <= 4)
            # Those that an earlier test left idle may end meanwhile; none may be new.
            assert set(threading.enumerate()) <= threads
            # Four connections may be kept, each with an end here and one at the server, which is in this process too.
            assert open_descriptors() <= descriptors + 2 * 3
            pool = pool_of(backend)
        assert pool.connections == []

    async def test_more_requests_than_connections_all_get_their_answer(self):
        """Row 25: they wait, and the server never sees more than max_connections."""
        async with OpenAIServer() as server, OpenAIBackend(server.url, model="m", max_connections=3) as backend:
            texts = []

            async def ask():
                texts.append((await backend.generate(asking())).text)

            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(ask)
            assert texts == ["Hello world"] * 30
            assert server.connections <= 3

    async def test_closing_the_backend_closes_every_socket(self):
        """I6: nothing is left at the server."""
        async with OpenAIServer() as server:
            async with OpenAIBackend(server.url, model="m") as backend:
                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(backend.generate, asking())
                assert server.open >= 1
            with anyio.fail_after(5):
                await server.until(lambda: server.open == 0)


@pytest.mark.usefixtures("both_transports")
class TestLimits:
    async def test_a_long_answer_is_cut_off(self):
        """Row 18: the connection closes at the limit."""
        endless = Reply(["x" * 1_000], endless=True)
        async with (
            OpenAIServer(endless) as server,
            OpenAIBackend(server.url, model="m", max_response_bytes=20_000) as backend,
        ):
            with pytest.raises(ResponseTooLarge, match="20,000 bytes") as caught:
                await backend.generate(asking())
            assert 5_000 < len(caught.value.partial_text) < 20_000
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 1)


class TestWhereItMayConnect:
    """Row 75: for a base_url that comes from someone else."""

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    async def test_public_only_refuses_what_is_in_the_own_network(self, host):
        """Row 75: the name is looked up and its addresses are checked before anything is sent."""
        async with OpenAIServer() as server:
            url = server.url.replace("127.0.0.1", host)
            async with OpenAIBackend(url, model="m", public_only=True) as backend:
                with pytest.raises(FatalError, match="not public, and public_only is set"):
                    await backend.generate(asking())
            assert server.connections == 0

    async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(self, monkeypatch):
        """Row 75: a name that answers differently the second time (DNS rebinding) gets nowhere."""
        answers = ["93.184.215.14", "127.0.0.1"]
        connected = []

        async def look_up(host, port, **_):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

        async def connect(self, host, port, *_):
            connected.append(host)
            raise httpcore2.ConnectError("no network here")

        monkeypatch.setattr("sampling.backends.http._httpcore.anyio.getaddrinfo", look_up)
        monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
        async with OpenAIBackend("https://rebinding.example/v1", model="m", public_only=True) as backend:
            with pytest.raises(ConnectFailed):
                await backend.generate(asking())
        assert connected == ["93.184.215.14"]
        assert answers == ["127.0.0.1"]

    async def test_a_name_that_does_not_exist_is_a_failed_connection(self, monkeypatch):
        """Row 8: with public_only too."""

        async def look_up(host, port, **_):
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr("sampling.backends.http._httpcore.anyio.getaddrinfo", look_up)
        async with OpenAIBackend("https://nowhere.example/v1", model="m", public_only=True) as backend:
            with pytest.raises(ConnectFailed):
                await backend.generate(asking())

    async def test_allowed_hosts_are_the_only_ones(self):
        """Row 75: an allow-list of hosts."""
        OpenAIBackend("https://Models.Example/v1", model="m", allowed_hosts=["models.example"])
        for url in ("https://evil.example/v1", "https://models.example.evil.example/v1"):
            with pytest.raises(ValueError, match=r"must be on one of the allowed_hosts \(models.example\), got"):
                OpenAIBackend(url, model="m", allowed_hosts=["models.example"])
        with pytest.raises(TypeError, match="allowed_hosts must be a list of host names"):
            OpenAIBackend("https://models.example/v1", model="m", allowed_hosts="models.example")
