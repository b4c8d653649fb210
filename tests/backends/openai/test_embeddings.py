"""Embeddings from servers that speak OpenAI's API."""

import copy
import json

import anyio
import pytest

from sampling import MBRStrategy, RateLimited, Timeout
from sampling.backends.openai import OpenAIEmbeddings
from sampling.errors import AuthenticationFailed, ConnectFailed, MalformedResponse, ResponseTooLarge
from sampling.strategies import EmbeddingSimilarity
from sampling.testing import ScriptedBackend
from sampling.testing.servers import HostileServer, Step

pytestmark = pytest.mark.anyio

KEY = "sk-canary-7f3a"


def answer(body, status="200 OK", kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    return [head.encode() + data]


def vector(*numbers):
    return answer({"data": [{"index": 0, "embedding": numbers}], "usage": {"prompt_tokens": 3}})


async def test_a_text_becomes_a_vector():
    """The request is one that every such server knows, with the key in its header."""
    async with HostileServer(vector(0.5, -1, 2e-3)) as server:
        embed = OpenAIEmbeddings(server.url, KEY, model="small")
        assert (0.5, -1.0, 0.002) == await embed("Grüße")
        [request] = server.requests
    assert request.path.endswith("/embeddings")
    assert f"Bearer {KEY}" == request.headers["authorization"]
    assert {"model": "small", "input": "Grüße", "encoding_format": "float"} == json.loads(request.body)
    assert KEY not in repr(embed)


async def test_answers_are_compared_by_what_it_returns():
    """As the similarity of minimum Bayes risk: the second vector is the closest to the two others."""
    async with HostileServer(vector(1, 0), vector(1, 1), vector(0, 1)) as server:
        similarity = EmbeddingSimilarity(OpenAIEmbeddings(server.url, model="small"))
        backend = ScriptedBackend(["a", "b", "c"])
        strategy = MBRStrategy(similarity, concurrency_budget=3)
        result = await strategy.sample("q", None, backend)
        inputs = [json.loads(request.body)["input"] for request in server.requests]
    assert {"a", "b", "c"} == set(inputs)
    assert inputs[1] == result.text


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answer({"error": {"message": f"bad key {KEY}"}}, "401 Unauthorized"), AuthenticationFailed),
        (answer({"error": {"message": "slow down"}}, "429 Too Many Requests"), RateLimited),
        (answer({"data": []}), MalformedResponse),
        (answer({"data": [{"embedding": "AAAA"}]}), MalformedResponse),
        (answer(b"<html>"), MalformedResponse),
        (answer(b'{"data": [{"embedding": [NaN]}]}'), MalformedResponse),
        (answer(b"[" * 100_000), MalformedResponse),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (5 * 1024 * 1024)], ResponseTooLarge),
    ],
)
async def test_what_is_no_vector_is_a_typed_error(script, error):
    """Errors are those of OpenAIBackend, and none contains the key."""
    async with HostileServer(script) as server:
        with pytest.raises(error) as caught:
            await OpenAIEmbeddings(server.url, KEY, model="small")("text")
    assert KEY not in str(caught.value)


async def test_a_server_that_hangs_is_given_up():
    """After its deadline, and at once when the caller is cancelled."""
    async with HostileServer([Step.HANG]) as server:
        with pytest.raises(Timeout, match="no embedding within"):
            await OpenAIEmbeddings(server.url, model="small", timeout_s=0.05)("text")
        with anyio.move_on_after(0.05) as scope:
            await OpenAIEmbeddings(server.url, model="small")("text")
    assert scope.cancelled_caught


async def test_a_server_that_is_not_there_is_a_typed_error():
    """Nothing was sent."""
    async with HostileServer([b""]) as server:
        url = server.url
    with pytest.raises(ConnectFailed):
        await OpenAIEmbeddings(url, model="small")("text")


async def test_bad_input_is_refused_and_the_key_stays_inside():
    """Invalid arguments are named before anything is sent."""
    embed = OpenAIEmbeddings("http://127.0.0.1:1/v1", KEY, model="small")
    with pytest.raises(TypeError, match="can't be pickled"):
        copy.copy(embed)
    with pytest.raises(TypeError, match="text must be a str"):
        await embed(7)
    with pytest.raises(ValueError, match="model must not be empty"):
        OpenAIEmbeddings("http://127.0.0.1:1/v1", model="")
    with pytest.raises(ValueError, match="timeout_s must be > 0"):
        OpenAIEmbeddings("http://127.0.0.1:1/v1", model="small", timeout_s=0)
