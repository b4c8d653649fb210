"""`GeminiBackend` against a loopback server: what is asked, which key is sent where, and what is left behind."""

import pickle  # noqa: TID251 - to see that it refuses
import random
from contextlib import asynccontextmanager

import anyio
import pytest

import sampling
from sampling import (
    Context,
    GeminiBackend,
    Image,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    StreamingBackend,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from sampling.errors import AuthenticationFailed, BadRequest, Unsupported
from sampling.testing.conformance import check_backend
from sampling.testing.servers import GeminiServer, HostileServer, Reply, Step

ENVIRONMENT = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL")
GOOGLE = "https://generativelanguage.googleapis.com"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def asking(text="hi", **options):
    return Request((Message("user", text),), Options(**options))


def root(server):
    """Return the address of a hostile server, without the version that OpenAI's API has in it."""
    return f"http://127.0.0.1:{server.port}"


def babble(request):
    """Answer like a small model: with a call, as it is told, or with words by the seed up to a limit or a stop word."""
    sent = request.json()
    config = sent.get("generationConfig", {})
    if not sent["contents"]:
        return Reply(status=400, error={"error": {"code": 400, "message": "contents is not specified"}})
    last = sent["contents"][-1]["parts"][-1]
    if "tools" in sent and "functionResponse" not in last:
        name = sent["tools"][0]["functionDeclarations"][0]["name"]
        return Reply([], tool_calls=[ToolCall("call_1", name, '{"number": 7}')])
    if last.get("text", "").startswith("end with "):
        return Reply(["so"], finish_reason=last["text"].removeprefix("end with "))
    limit = config.get("maxOutputTokens", 10)
    weather = ("rain ", "wind ", "snow ", "sun ")
    words = random.Random(config.get("seed", 0)).choices(weather, k=limit)
    ended = "length"
    for number in range(len(words)):
        said = "".join(words[: number + 1])
        if any(stop in said for stop in config.get("stopSequences", [])):
            first = min(said.find(stop) for stop in config["stopSequences"] if stop in said)
            words, ended = [said[:first]], "stop"
            break
    usage = {"promptTokenCount": 4, "candidatesTokenCount": len(words)}
    return Reply(words, finish_reason=ended, interval_s=0.002, usage=usage)


@asynccontextmanager
async def babbling(**settings):
    async with (
        GeminiServer(babble) as server,
        GeminiBackend("gemini-2.5-flash", base_url=server.url, **settings) as backend,
    ):
        yield backend


async def test_it_keeps_every_promise_of_a_backend(everything):
    """The conformance suite passes: tools, parts, endings, usage, limits, seeds, streams, and nothing left behind."""
    claims = [*everything["claims"], "stop"]
    rules = await check_backend(babbling, bad_request=Request(()), claims=claims, endings=everything["endings"])
    assert "reports how its answers ended" in rules
    assert {"tools", "parts", "distinct_seeds", "usage"} <= set(claims)


async def test_an_answer_comes_back_with_its_usage_and_pieces():
    """One connection serves one request after the other."""
    async with GeminiServer(Reply(["a", "b"])) as server, GeminiBackend("m", base_url=server.url) as backend:
        assert isinstance(backend, StreamingBackend)
        for _ in range(3):
            pieces = []
            generation = await backend.stream(asking(), pieces.append)
            assert ["a", "b"] == pieces
            assert ("ab", "stop", "loopback") == (generation.text, generation.finish_reason, generation.model)
            assert Usage(10, 2) == generation.usage
            assert await backend.generate(asking()) == generation
        assert server.connections == 1


async def test_every_request_is_streamed_and_the_key_is_in_a_header():
    """Never in the URL, which proxies log."""
    async with GeminiServer() as server, GeminiBackend("m", "the-key-0123", base_url=server.url) as backend:
        await backend.generate(asking())
    (request,) = server.requests
    assert "/v1beta/models/m:streamGenerateContent?alt=sse" == request.path
    assert "the-key-0123" == request.headers["x-goog-api-key"]
    assert "the-key-0123" not in request.path
    assert "authorization" not in request.headers
    assert "identity" == request.headers["accept-encoding"]


class TestAddresses:
    def test_the_default_is_googles_and_needs_a_key(self):
        """The error says how to give one."""
        with pytest.raises(ValueError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
            GeminiBackend("m")
        assert GOOGLE == GeminiBackend("m", "a-key").base_url

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"GEMINI_API_KEY": "gemini"}, "gemini"),
            ({"GOOGLE_API_KEY": "google"}, "google"),
            ({"GEMINI_API_KEY": "gemini", "GOOGLE_API_KEY": "google"}, "gemini"),
            ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "google"}, "google"),
        ],
    )
    def test_either_key_of_the_environment_is_used(self, monkeypatch, environment, expected):
        """An empty one counts as none."""
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        backend = GeminiBackend("m")
        assert expected == backend._address.key.reveal()
        assert "from the environment" in repr(backend)

    @pytest.mark.parametrize("name", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
    async def test_a_key_of_the_environment_is_not_sent_to_a_given_address(self, monkeypatch, name):
        """Row 75: and where the server then refuses, the hint says why."""
        monkeypatch.setenv(name, "environment-key")
        reply = Reply(status=403, error={"error": {"code": 403, "message": "no key", "status": "PERMISSION_DENIED"}})
        async with GeminiServer(reply) as server, GeminiBackend("m", base_url=server.url) as backend:
            with pytest.raises(AuthenticationFailed, match="no key") as caught:
                await backend.generate(asking())
        assert "x-goog-api-key" not in server.requests[0].headers
        assert "send_env_key=True" in caught.value.hint
        assert f"withheld: {name}" in repr(backend)

    @pytest.mark.parametrize("name", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
    async def test_unless_it_is_told_to(self, monkeypatch, name):
        """With `send_env_key=True`, the key goes to a given base_url."""
        monkeypatch.setenv(name, "environment-key")
        async with GeminiServer() as server, GeminiBackend("m", base_url=server.url, send_env_key=True) as backend:
            await backend.generate(asking())
        assert "environment-key" == server.requests[0].headers["x-goog-api-key"]

    async def test_the_address_of_the_environment_gets_its_key(self, monkeypatch):
        """GOOGLE_GEMINI_BASE_URL is the name that Google's SDK has for it. So is the model's."""
        async with GeminiServer() as server:
            monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
            monkeypatch.setenv("GEMINI_API_KEY", "environment-key")
            monkeypatch.setenv("GEMINI_MODEL", "from-the-environment")
            async with GeminiBackend() as backend:
                await backend.generate(asking())
        assert "environment-key" == server.requests[0].headers["x-goog-api-key"]
        assert "/models/from-the-environment:" in server.requests[0].path

    async def test_without_a_model_the_error_says_where_to_name_one(self):
        """Nothing is sent."""
        async with GeminiServer() as server, GeminiBackend(base_url=server.url) as backend:
            with pytest.raises(BadRequest, match="no model") as caught:
                await backend.generate(asking())
        assert "GEMINI_MODEL" in caught.value.hint
        assert [] == server.requests

    async def test_another_version_of_the_api(self):
        """It is a part of the path."""
        async with GeminiServer() as server, GeminiBackend("m", base_url=server.url, api_version="v1") as backend:
            await backend.generate(asking())
        assert server.requests[0].path.startswith("/v1/models/m:")

    @pytest.mark.parametrize(
        ("wrong", "problem"),
        [
            ({"base_url": "http://example.com"}, "must be https"),
            ({"base_url": "https://169.254.169.254"}, "link-local"),
            ({"base_url": "https://user:pw@example.com"}, "password"),
            ({"base_url": f"{GOOGLE}/v1beta"}, "must end before '/v1beta'"),
            ({"base_url": GOOGLE, "allowed_hosts": ["example.com"]}, "allowed_hosts"),
            ({"api_version": "../x"}, "api_version"),
            ({"api_version": ""}, "api_version"),
            ({"api_version": 1}, "api_version"),
            ({"model": ""}, "model"),
            ({"model": 3}, "model"),
            ({"api_key": "a b"}, r"U\+0020"),
            ({"timeout_s": 0}, "timeout_s"),
            ({"max_response_bytes": 0}, "max_response_bytes"),
            ({"structured": "strict"}, "structured"),
            ({"include_thoughts": 1}, "include_thoughts"),
            ({"allow_missing_finish": "yes"}, "allow_missing_finish"),
            ({"drop_unsupported": None}, "drop_unsupported"),
            ({"headers": {"x": "a\nb"}}, "header 'x'"),
        ],
    )
    def test_wrong_arguments_are_named(self, wrong, problem):
        """Invalid arguments are named at construction."""
        with pytest.raises((TypeError, ValueError), match=problem):
            GeminiBackend(**{"model": "m", "api_key": "a-key", **wrong})

    def test_it_is_neither_pickled_nor_copied(self):
        """A backend holds a key, so pickling and copying it raises."""
        with pytest.raises(TypeError, match="a GeminiBackend can't be pickled"):
            pickle.dumps(GeminiBackend("m", "a-key"))

    def test_it_shows_what_it_is_and_no_key(self):
        """The repr has the address, the model and the version."""
        shown = repr(GeminiBackend("m", "a-key"))
        assert f"<GeminiBackend '{GOOGLE}', model='m', api_version='v1beta', key given, not open>" == shown

    def test_it_is_at_the_front_door(self):
        """`GeminiBackend` can be imported from `sampling`, on first use."""
        assert sampling.GeminiBackend is GeminiBackend
        assert "GeminiBackend" in sampling.__all__


class TestLosers:
    async def test_winning_disconnects_the_losers(self):
        """Contract 2: seven of seven are gone from the server, and what they used is on the result."""

        def reply(request):
            first = len(server.requests) == 1
            return Reply(["won"], interval_s=1) if first else Reply(["lost "], endless=True, interval_s=0.001)

        async with GeminiServer(reply) as server, GeminiBackend("m", base_url=server.url) as backend:
            won = Requirement("won", check=lambda text: text == "won")
            result = await RejectionSamplingStrategy(concurrency_budget=8).sample("hi", None, backend, [won])
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 7 and server.completed == 1)
        losers = [attempt for attempt in result.attempts if attempt.outcome == "cancelled"]
        assert len(losers) == 7
        assert all(loser.usage.input_tokens >= 1 for loser in losers)
        assert any(loser.usage.output_tokens > 1 for loser in losers)

    async def test_a_loser_that_still_waits_for_headers_is_disconnected_too(self):
        """Contract 2: its question counts once it was sent."""
        said = b'data: {"candidates": [{"content": {"parts": [{"text": "won"}]}, "finishReason": "STOP"}]}\n\n'
        async with (
            HostileServer([Step.HANG], [b"HTTP/1.1 200 OK\r\n\r\n" + said]) as server,
            GeminiBackend("m", base_url=root(server)) as backend,
        ):
            result = await RejectionSamplingStrategy(concurrency_budget=2).sample("hi " * 40, None, backend)
            with anyio.fail_after(5):
                await server.until(lambda: server.disconnects == 1)
        (loser,) = [attempt for attempt in result.attempts if attempt.outcome == "cancelled"]
        assert Usage(31, 0) == loser.usage


class TestConversations:
    async def test_a_repair_after_a_signed_call_sends_the_signature_back(self):
        """Gemini 3 refuses the conversation without it."""
        call = (
            b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {"x": 1}}, '
            b'"thoughtSignature": "c2ln"}]}, "finishReason": "STOP"}], "responseId": "r"}\n\n'
        )
        text = b'data: {"candidates": [{"content": {"parts": [{"text": "done"}]}, "finishReason": "STOP"}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
        tool = Tool("f", "Do it.", {"type": "object", "properties": {"x": {"type": "integer"}}})
        done = Requirement("says done", lambda text: text == "done")
        async with (
            HostileServer([head + call], [head + text]) as server,
            GeminiBackend("gemini-3-pro-preview", base_url=root(server)) as backend,
        ):
            strategy = MultiTurnStrategy(loop_budget=2)
            result = await strategy.sample("go", None, backend, [done], options=Options(tools=[tool]))
        assert result.success, result.explain()
        asked, called, answered, _ = server.requests[1].json()["contents"]
        assert [{"text": "go"}] == asked["parts"]
        assert [{"functionCall": {"name": "f", "args": {"x": 1}}, "thoughtSignature": "c2ln"}] == called["parts"]
        (response,) = answered["parts"]
        assert "f" == response["functionResponse"]["name"]
        assert "error" in response["functionResponse"]["response"]

    async def test_results_of_tools_are_an_action(self):
        """The next question is the results, with the same ids."""
        call = (
            b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"id": "i1", "name": "f", "args": {}}}]}, '
            b'"finishReason": "STOP"}]}\n\n'
        )
        tool = Tool("f", "Do it.", {"type": "object", "properties": {}})
        async with (
            HostileServer([b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + call]) as server,
            GeminiBackend("gemini-2.5-flash", base_url=root(server)) as backend,
        ):
            context = Context([Message("user", "go")])
            first = await backend.generate(Request(context.messages, Options(tools=[tool])))
            context = context.add(first.message, Message("tool", [ToolResult("i1", "42")]))
            await backend.generate(Request(context.messages, Options(tools=[tool])))
        response = server.requests[1].json()["contents"][2]["parts"][0]["functionResponse"]
        assert {"id": "i1", "name": "f", "response": {"output": "42"}} == response


async def test_a_part_that_can_not_be_sent_is_unsupported():
    """An image in a system message. Nothing is sent."""
    image = Message("system", [Image(b"\x89PNG\r\n\x1a\n0000")])
    async with GeminiServer() as server, GeminiBackend("m", base_url=server.url) as backend:
        with pytest.raises(Unsupported, match="system instruction"):
            await backend.generate(Request((image, Message("user", "hi"))))
    assert [] == server.requests
