"""Chunks, addresses, refusals and connections that differ from OpenAI's own, and what is made of them."""

import json

import anyio
import pytest

from sampling import Budget, Message, Options, RejectionSamplingStrategy, Request, Usage
from sampling._http.dialling import Dialler
from sampling._redaction import Redactor
from sampling.backends.openai import OpenAIBackend, ToolCall
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._thinking import ThinkingSplitter
from sampling.backends.openai._usage import read_usage
from sampling.errors import (
    AnswerRejected,
    BadRequest,
    ConnectFailed,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
    ServerError,
)
from sampling.testing.servers import HostileServer, OpenAIServer, Reply, Step

HI = Request((Message("user", "hi"),))
OK = b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def read(*chunks, **settings):
    """Read chunks without a server."""
    answer = StreamedAnswer(Redactor(), split_thinking=True, **settings)
    for chunk in chunks:
        answer.add(json.dumps(chunk))
    return answer.generation()


def choice(finish_reason=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call(index=None, call_id=None, name=None, arguments=None):
    return choice(tool_calls=[{"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}])


END = choice("tool_calls")


class TestToolCalls:
    @pytest.mark.parametrize("ids", [("", ""), ("a", "b"), (None, None)])
    def test_an_index_that_is_used_again_begins_another_call(self, ids):
        """Gemini sends parallel calls whole, each with index 0 (https://github.com/su-kaka/gcli2api/pull/406)."""
        first, second = ids
        generation = read(call(0, first, "f", '{"city":"北京"}'), call(0, second, "f", '{"city":"上海"}'), END)
        expected = (first or "call_0", second or "call_1")
        assert expected == tuple(one.id for one in generation.tool_calls)
        assert ('{"city":"北京"}', '{"city":"上海"}') == tuple(one.arguments for one in generation.tool_calls)

    def test_an_id_in_every_chunk_is_one_call(self):
        """vLLM repeats the id, and some servers the name."""
        generation = read(call(0, "a", "f", '{"x"'), call(0, "a", "f", ": 1"), call(0, "a", None, "}"), END)
        assert (ToolCall("a", "f", '{"x": 1}'),) == generation.tool_calls

    def test_pieces_without_an_index_continue_the_last_call(self):
        """A piece without an index begins another call only if it has a name."""
        generation = read(
            call(None, "a", "f", '{"x"'), call(None, None, None, ": 1}"), call(None, None, "g", "{}"), END
        )
        assert (ToolCall("a", "f", '{"x": 1}'), ToolCall("call_1", "g", "{}")) == generation.tool_calls

    def test_calls_that_are_interleaved_are_kept_apart(self):
        """Interleaved calls are assembled and ordered by their index."""
        generation = read(
            call(1, "b", "g", '{"y"'),
            call(0, "a", "f", '{"x"'),
            call(1, None, None, ":2}"),
            call(0, arguments=":1}"),
            END,
        )
        assert (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", '{"y":2}')) == generation.tool_calls

    def test_arguments_that_are_an_object_become_text(self):
        """`arguments` is what the model wrote, as JSON."""
        assert '{"x": "é"}' == read(call(0, "a", "f", {"x": "é"}), END).tool_calls[0].arguments

    def test_a_call_that_ends_with_stop_ends_with_tool_calls(self):
        """Gemini says "stop" when it streams (https://github.com/googleapis/python-genai/issues/2868)."""
        assert "tool_calls" == read(call(0, "a", "f", "{}"), choice("stop")).finish_reason


class TestChunks:
    def test_a_finish_reason_on_every_chunk_ends_the_answer_at_the_last(self):
        """A finish_reason in every chunk counts at the last, and an empty one is ignored."""
        assert "abc" == read(*[choice("stop", content=piece) for piece in "abc"]).text
        assert "abc" == read(*[choice("", content=piece) for piece in "abc"], choice("stop")).text

    def test_a_second_answer_is_still_an_error(self):
        """Text after the end is more text only if all chunks had a finish_reason."""
        with pytest.raises(MalformedResponse, match="two answers"):
            read(choice(content="a"), choice("stop", content="b"), choice(content="a"))

    def test_chunks_with_ids_of_their_own_are_one_answer(self):
        """Some gateways number chunks, not answers."""
        assert (
            "abc"
            == read(*[{"id": f"{i}", **choice("stop" if i == 2 else None, content="abc"[i])} for i in range(3)]).text
        )

    def test_the_usage_may_have_another_id(self):
        """It has no text that could be mixed up."""
        usage = {"id": "b", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
        generation = read({"id": "a", **choice(content="x")}, {"id": "a", **choice("stop")}, usage)
        assert Usage(3, 1) == generation.usage

    def test_message_is_read_like_delta(self):
        """Piece by piece, or the whole once more at the end, which is not repeated."""
        said = [{"choices": [{"index": 0, "message": {"content": piece}}]} for piece in ("ha", "ha")]
        assert "haha" == read(*said, choice("stop")).text
        whole = {"choices": [{"index": 0, "message": {"content": "haha"}, "finish_reason": "stop"}]}
        assert "haha" == read(choice(content="ha"), choice(content="ha"), whole).text

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
    def test_reasoning_has_many_names(self, name):
        """A server that sends the reasoning in two fields does not duplicate it."""
        details = [{"type": "reasoning.text", "text": "hm"}]
        generation = read(choice(**{name: "hm", "reasoning_details": details}), choice("stop", content="a"))
        assert ("a", "hm") == (generation.text, generation.reasoning)
        assert "hm" == read(choice(reasoning_details=details), choice("stop", content="a")).reasoning

    @pytest.mark.parametrize(("given", "expected"), [("eos", "stop"), ("MAX_TOKENS", "length"), ("odd", "odd")])
    def test_finish_reasons_are_in_openais_words(self, given, expected):
        """An unknown finish_reason is passed on."""
        assert expected == read(choice(given, content="a")).finish_reason

    @pytest.mark.parametrize("reason", ["error", "insufficient_system_resource", "abort"])
    def test_a_server_that_gave_up_is_a_server_error(self, reason):
        """OpenRouter, DeepSeek and SGLang say so in the finish_reason."""
        with pytest.raises(ServerError, match=reason) as caught:
            read(choice(content="a"), choice(reason))
        assert caught.value.maybe_billed

    @pytest.mark.parametrize("reason", [None, "stop"])
    def test_groq_says_in_its_extension_why_it_stopped_early(self, reason):
        """The answer is cut off, whatever its finish_reason is."""
        with pytest.raises(ServerError, match="over capacity"):
            read(choice(content="a"), {**choice(reason), "x_groq": {"id": "1", "error": "over capacity"}})
        said = {**choice("stop"), "x_groq": {"id": "1", "error": None, "usage": {"prompt_tokens": 3}}}
        assert "a" == read(choice(content="a"), said).text

    def test_a_logprob_may_be_a_number(self):
        """Together sends that of the only token of the chunk, and the alternatives beside it."""
        token = {"index": 0, "delta": {"content": "a"}, "logprobs": -0.5, "top_logprobs": {"b": -1.5}}
        expected = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.5}]}
        assert (expected,) == read({"choices": [token]}, choice("stop")).logprobs


class TestThinking:
    @pytest.mark.parametrize(
        ("text", "reasoning", "answer"),
        [
            ("<think>why</think>\n\nbecause", "why", "because"),
            ("\n <thinking>a<b</thinking>c", "a<b", "c"),
            ("<think>never ends", "never ends", ""),
            ("<think></think>", "", ""),
            ("a <think>b</think> c", "", "a <think>b</think> c"),
            ("<thimble>", "", "<thimble>"),
            ("<thi", "", "<thi"),
            ("  plain", "", "  plain"),
            ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ],
    )
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_a_block_at_the_beginning_is_reasoning(self, text, reasoning, answer, size):
        """However the text is cut into pieces."""
        splitter = ThinkingSplitter()
        pairs = [splitter.add(text[i : i + size]) for i in range(0, len(text), size)] + [splitter.finish()]
        assert (reasoning, answer) == ("".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs))

    def test_ordinary_text_is_not_held_back(self):
        """The first piece that can't be a tag is passed on at once."""
        assert ("", "Hi") == ThinkingSplitter().add("Hi")


class TestUsage:
    @pytest.mark.parametrize(
        "given", [{"prompt_tokens_details": {"cache_write_tokens": 4}}, {"cache_creation_input_tokens": 4}]
    )
    def test_tokens_that_were_written_to_a_cache_are_found(self, given):
        """OpenAI has a detail for them, and litellm the name of Anthropic."""
        assert 4 == read_usage({"prompt_tokens": 10, "completion_tokens": 5, **given}).cache_write_tokens

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 4, "completion_tokens": 5}, Usage(10, 5, 0.0, 4)),
            ({"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5}, Usage(10, 5, 0.0, 4)),
            ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(10, 0, 0.0, 10)),
            ({"prompt_tokens": 10, "prompt_tokens_details": None, "completion_tokens": 5}, Usage(10, 5)),
            ({"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": 3}, Usage(10, 5, 0.0, 0, 3)),
            (
                {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 2}},
                Usage(10, 5, 0.0, 2),
            ),
            ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 2}, Usage(10, 5)),
        ],
    )
    def test_cached_and_reasoning_tokens_are_found(self, given, expected):
        """Wherever a provider puts them, and never more than there are."""
        assert expected == read_usage(given)


def refusing(name, other):
    """A reply that refuses one parameter, as OpenAI does, and wants another."""
    message = f"Unsupported parameter: '{name}' is not supported with this model. Use '{other}' instead."
    error = {"message": message, "type": "invalid_request_error", "param": name, "code": "unsupported_parameter"}

    def reply(request):
        return Reply(status=400, error={"error": error}) if name in request.json() else Reply()

    return reply


class TestMaxTokens:
    async def test_a_refused_name_is_replaced_and_remembered(self):
        """The first request is sent twice, all later ones once, and each is counted."""
        budget = Budget(requests=10)
        async with (
            OpenAIServer(refusing("max_tokens", "max_completion_tokens")) as server,
            OpenAIBackend(server.url, model="m") as backend,
        ):
            for _ in range(2):
                result = await RejectionSamplingStrategy(concurrency_budget=1).sample(
                    "hi", None, backend, options=Options(max_tokens=5), budget=budget
                )
                assert result.success
        names = [sorted(request.json().keys() & {"max_tokens", "max_completion_tokens"}) for request in server.requests]
        assert [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]] == names
        assert 3 == budget.requests_made

    async def test_siblings_that_are_refused_at_once_all_go_on(self):
        """The first one to learn the name does not make the others fail."""
        async with (
            OpenAIServer(refusing("max_tokens", "max_completion_tokens")) as server,
            OpenAIBackend(server.url, model="m") as backend,
            anyio.create_task_group() as group,
        ):
            for _ in range(4):
                group.start_soon(backend.generate, Request(HI.messages, Options(max_tokens=5)))

    async def test_a_value_that_is_refused_is_the_first_error(self):
        """If the other name does not help, the name is not the problem, and is not tried again."""

        def reply(request):
            name = "max_tokens" if "max_tokens" in request.json() else "max_completion_tokens"
            return Reply(status=400, error={"error": {"message": f"{name} is too large"}})

        request = Request(HI.messages, Options(max_tokens=5))
        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            for expected in (2, 3):
                with pytest.raises(BadRequest, match=r"400: .*\bmax_tokens is too large"):
                    await backend.generate(request)
                assert expected == len(server.requests)

    @pytest.mark.parametrize(
        ("url", "settings", "name"),
        [
            ("https://api.openai.com/v1", {}, "max_completion_tokens"),
            ("https://eu.api.openai.com/v1", {}, "max_completion_tokens"),
            ("https://api.openai.com.evil.example/v1", {}, "max_tokens"),
            ("https://api.mistral.ai/v1", {}, "max_tokens"),
            ("https://x.openai.azure.com", {"api_version": "2024-10-21"}, "max_completion_tokens"),
        ],
    )
    def test_the_first_guess_is_by_the_address(self, url, settings, name):
        """Regions of OpenAI, and Azure, know the newer name."""
        assert name == OpenAIBackend(url, "k", "m", **settings)._max_tokens_name


class TestAzure:
    @pytest.mark.parametrize(
        ("suffix", "endpoint", "path"),
        [
            ("", "chat", "/openai/deployments/my%20model/chat/completions?api-version=2024-10-21"),
            ("/openai", "chat", "/openai/deployments/my%20model/chat/completions?api-version=2024-10-21"),
            ("/openai/deployments/d", "chat", "/openai/deployments/d/chat/completions?api-version=2024-10-21"),
            ("/openai/v1", "chat", "/openai/v1/chat/completions?api-version=2024-10-21"),
            ("", "completions", "/openai/deployments/my%20model/completions?api-version=2024-10-21"),
        ],
    )
    async def test_the_deployment_is_in_the_path_and_the_key_in_its_own_header(self, suffix, endpoint, path):
        """The model of the options is a deployment, too."""
        async with HostileServer([OK % len(ANSWER) + ANSWER]) as server:
            url = server.url.removesuffix("/v1") + suffix
            settings = {"endpoint": endpoint, "api_version": "2024-10-21"}
            async with OpenAIBackend(url, "the-key", "my model", **settings) as backend:
                assert "stop" == (await backend.generate(HI)).finish_reason
        (request,) = server.requests
        assert path == request.path
        assert "the-key" == request.headers["api-key"]
        assert "authorization" not in request.headers

    def test_the_environment_has_names_of_its_own(self, monkeypatch):
        """The key for OpenAI is not sent to Azure."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
        with pytest.raises(ValueError, match="AZURE_OPENAI_ENDPOINT"):
            OpenAIBackend(model="m", api_version="2024-10-21")
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com/")
        assert "key none" in repr(OpenAIBackend(model="m", api_version="2024-10-21"))
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
        assert "key from the environment" in repr(OpenAIBackend(model="m", api_version="2024-10-21"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "message", "kind"),
        [
            (404, "The model `gpt-x` does not exist or you do not have access to it.", ModelNotFound),
            (404, "model 'llama9' not found", ModelNotFound),
            (404, "models/gemini-9 is not found for API version v1beta", ModelNotFound),
            (404, "model: claude-9", ModelNotFound),
            (404, "No endpoints found for x/y.", ModelNotFound),
            (400, "Model Not Exist", ModelNotFound),
            (400, "x/y is not a valid model ID", ModelNotFound),
            (404, "POST /model/v1/chat/completions not found", BadRequest),
            (404, "Not found. This is the model server of team A.", BadRequest),
            (400, "This model does not support images; the file was not found", BadRequest),
        ],
    )
    async def test_a_missing_model_is_told_from_a_missing_path(self, status, message, kind):
        """The word "model" alone says nothing."""
        reply = Reply(status=status, error={"error": {"message": message}})
        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(BadRequest if kind is BadRequest else ModelNotFound) as caught:
                await backend.generate(HI)
        assert kind is type(caught.value)

    async def test_an_answer_that_the_server_refuses_costs_one_attempt(self):
        """Siblings and later attempts continue."""

        def reply(request):
            error = {"message": "Failed to generate JSON.", "code": "json_validate_failed", "failed_generation": "{"}
            return Reply(status=400, error={"error": error}) if len(server.requests) == 1 else Reply()

        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="m") as backend:
            result = await RejectionSamplingStrategy(loop_budget=2).sample("hi", None, backend)
        assert ["errored", "valid"] == [attempt.outcome for attempt in result.attempts]
        (error,) = result.errors
        assert isinstance(error, AnswerRejected)
        assert "{" == error.partial_text

    async def test_an_error_in_a_list_is_read(self):
        """Gemini wraps its errors."""
        body = json.dumps([{"error": {"code": 404, "message": "models/x is not found"}}]).encode()
        script = [b"HTTP/1.1 404 .\r\ncontent-length: %d\r\n\r\n" % len(body) + body]
        async with HostileServer(script) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(ModelNotFound, match="models/x is not found"):
                await backend.generate(HI)

    @pytest.mark.parametrize(
        ("detail", "kind", "wait_s"),
        [
            ({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}, RateLimited, 34.5),
            ({"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}, QuotaExhausted, None),
        ],
    )
    async def test_the_details_of_google_are_read(self, detail, kind, wait_s):
        """Gemini sends no Retry-After where it speaks the API of OpenAI, but says how long to wait."""
        error = {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED", "details": [detail]}
        body = json.dumps([{"error": error}]).encode()
        script = [b"HTTP/1.1 429 .\r\ncontent-length: %d\r\n\r\n" % len(body) + body]
        async with HostileServer(script) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(kind) as caught:
                await backend.generate(HI)
        assert wait_s == getattr(caught.value, "retry_after_s", None)

    async def test_json_that_is_called_a_stream_is_read(self):
        """A server that ignores `stream` may still send the header."""
        whole = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": None}
        body = json.dumps(whole, indent=1).encode()
        async with HostileServer([OK % len(body) + body]) as server, OpenAIBackend(server.url, model="m") as backend:
            assert "Hello" == (await backend.generate(HI)).text


class TestIdleConnections:
    FIRST = OK % len(ANSWER) + ANSWER

    async def test_one_that_the_server_closes_costs_no_attempt(self):
        """The server reads the second request and closes. It is sent again on a new connection."""
        async with HostileServer([self.FIRST, Step.READ], [self.FIRST]) as server:
            async with OpenAIBackend(server.url, model="m") as backend:
                for _ in range(2):
                    assert "Hello" == (await backend.generate(HI)).text
            assert (2, 3) == (server.connections, len(server.requests))

    async def test_one_that_is_reset_costs_no_attempt(self):
        """As a server does that has forgotten the connection."""
        async with (
            HostileServer([self.FIRST, Step.READ, Step.RESET], [self.FIRST]) as server,
            OpenAIBackend(server.url, model="m") as backend,
        ):
            for _ in range(2):
                assert "Hello" == (await backend.generate(HI)).text

    async def test_a_new_connection_that_breaks_is_an_error(self):
        """It was not idle, so the server may have begun to work."""
        async with HostileServer([], [self.FIRST]) as server, OpenAIBackend(server.url, model="m") as backend:
            with pytest.raises(Exception, match="the connection to the server broke"):
                await backend.generate(HI)
            assert 1 == server.connections

    async def test_half_a_head_is_an_error(self):
        """The server has begun to answer, and may charge for it."""
        script = [self.FIRST, Step.READ, b"HTTP/1.1 200 OK\r\ncontent-"]
        async with HostileServer(script, [self.FIRST]) as server, OpenAIBackend(server.url, model="m") as backend:
            await backend.generate(HI)
            with pytest.raises(Exception, match="the connection to the server broke"):
                await backend.generate(HI)
            assert 1 == server.connections

    async def test_an_attempt_that_never_connects_costs_nothing(self, monkeypatch):
        """Not even if an idle connection had counted the request as sent."""

        async def refuse(self, host, port, timeout_s):
            raise OSError("no network here")

        budget = Budget(tokens=100)
        async with (
            HostileServer([self.FIRST, Step.READ]) as server,
            OpenAIBackend(server.url, model="m") as backend,
        ):
            await backend.generate(HI)
            monkeypatch.setattr(Dialler, "dial", refuse)
            with pytest.raises(ConnectFailed):
                await RejectionSamplingStrategy().sample("hi", None, backend, budget=budget)
            assert 2 == len(server.requests)
        assert 0 == budget.tokens_charged
