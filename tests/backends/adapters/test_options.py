"""Every option reaches the server through a library, or is refused by name: no library may drop one without a word."""

import importlib
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from sampling import Message, Options, Request
from sampling.backends.adapters import AdaptedBackend, from_langchain, from_litellm, from_pydantic_ai
from sampling.backends.adapters._errors import translate_error
from sampling.errors import BadRequest, ConnectionLost, FatalError, RateLimited, Unsupported
from sampling.testing.servers import HostileServer

# Or importing litellm would ask the network for the prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

pytestmark = [
    pytest.mark.anyio,
    # As in test_adapters.py: the OpenAI client does not close the generators that it reads streams with.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"),
    # Deprecated ways of using pydantic and the date, in litellm and botocore.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BODY = b'{"error": {"message": "refused", "code": 400, "status": "INVALID_ARGUMENT"}, "message": "refused"}'
REFUSAL = b"HTTP/1.1 400 .\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)

# The values are unlike all else in a request, so that they can be looked for in its text.
OPTIONS = {
    "temperature": (0.31, "0.31"),
    "max_tokens": (4321, "4321"),
    "seed": (98765, "98765"),
    "stop": (("QQ",), "QQ"),
    "top_p": (0.47, "0.47"),
    "top_k": (37, "37"),
    "min_p": (0.013, "0.013"),
    "frequency_penalty": (0.77, "0.77"),
    "presence_penalty": (0.66, "0.66"),
    "logit_bias": ({5: 7.5}, "7.5"),
    "logprobs": (3, "ogprobs"),
    "reasoning_effort": ("low", "low|hink"),
}
PENALTIES = {"frequency_penalty", "presence_penalty"}
REFUSED = {
    "google": {"min_p", "logit_bias"},
    "bedrock-claude": {"seed", "min_p", "logit_bias", "logprobs", *PENALTIES},
    "bedrock-llama": {"seed", "top_k", "min_p", "logit_bias", "logprobs", "reasoning_effort", *PENALTIES},
    "openai": set(),
    "responses": {"seed", "stop", "top_k", "min_p", "logit_bias", *PENALTIES},
    "litellm": {"seed", "min_p", "logit_bias", "logprobs"},
}
BEDROCK = {
    "bedrock-claude": "anthropic.claude-3-7-sonnet-20250219-v1:0",
    "bedrock-llama": "meta.llama3-1-70b-instruct-v1:0",
}
OPENAI = {"openai": "OpenAIChatModel", "responses": "OpenAIResponsesModel"}


def ask(**options: object) -> Request:
    return Request((Message("user", "hi"),), Options(**options))


def load(name: str) -> Any:
    return importlib.import_module(name)


@asynccontextmanager
async def backend_of(kind: str, url: str, **arguments: object) -> AsyncGenerator[AdaptedBackend]:
    """Open a client of a library, make a backend of it, and close the client."""
    if kind == "google":
        provider = load("pydantic_ai.providers.google").GoogleProvider(api_key="k", base_url=url)
        model = load("pydantic_ai.models.google").GoogleModel("gemini-2.5-flash", provider=provider)
        yield from_pydantic_ai(model, **arguments)
        await provider.client.aio.aclose()
        provider.client.close()
    elif kind in BEDROCK:
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        with closing(load("boto3").client("bedrock-runtime", endpoint_url=url, **keys)) as client:
            provider = load("pydantic_ai.providers.bedrock").BedrockProvider(bedrock_client=client)
            model = load("pydantic_ai.models.bedrock").BedrockConverseModel(BEDROCK[kind], provider=provider)
            yield from_pydantic_ai(model, **arguments)
    elif kind in OPENAI:
        async with load("openai").AsyncOpenAI(base_url=url, api_key="k") as client:
            provider = load("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
            model = getattr(load("pydantic_ai.models.openai"), OPENAI[kind])("gpt-4o", provider=provider)
            yield from_pydantic_ai(model, **arguments)
    else:
        litellm = load("litellm")
        litellm.suppress_debug_info = True
        litellm.telemetry = False
        client = load("litellm.llms.custom_httpx.http_handler").AsyncHTTPHandler()
        given = {"model": "gemini/gemini-2.5-flash", "api_base": url, "api_key": "k", "client": client, **arguments}
        yield from_litellm(litellm.acompletion, **given)
        await client.close()


async def sent(kind: str, request: Request, **arguments: object) -> str:
    """Return the body of what reached the server."""
    async with HostileServer([REFUSAL]) as server, backend_of(kind, server.url, **arguments) as backend:
        with pytest.raises(BadRequest, match="refused"):
            await backend.generate(request)
        (only,) = server.requests
    return only.body.decode()


async def refusal(kind: str, request: Request, **arguments: object) -> str:
    """Return the words of a refusal before anything was sent."""
    async with HostileServer([REFUSAL]) as server, backend_of(kind, server.url, **arguments) as backend:
        with pytest.raises(Unsupported) as caught:
            await backend.generate(request)
        assert not server.requests
    return str(caught.value)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", REFUSED)
async def test_every_option_that_a_model_has_reaches_the_server(kind, anyio_backend):
    """`top_p` reaches Google and Bedrock, and so do all others that they have."""
    reaching = {name: value for name, (value, _) in OPTIONS.items() if name not in REFUSED[kind]}
    # Claude takes no temperature while it thinks.
    effort = {"reasoning_effort": reaching.pop("reasoning_effort")} if "reasoning_effort" in reaching else {}
    body = await sent(kind, ask(**reaching))
    assert [] == [name for name in reaching if not re.search(OPTIONS[name][1], body)]
    if effort:
        assert re.search("low|hink", await sent(kind, ask(**effort)))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", REFUSED)
async def test_every_option_that_a_model_does_not_have_is_refused_by_name(kind, anyio_backend):
    """pydantic-ai ignores them, and litellm drops min_p: both without a word. Nothing is sent."""
    async with HostileServer([REFUSAL]) as server, backend_of(kind, server.url) as backend:
        for name in REFUSED[kind]:
            with pytest.raises(Unsupported, match=name):
                await backend.generate(ask(**{name: OPTIONS[name][0]}))
        assert not server.requests


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_model_does_not_have_can_be_dropped(anyio_backend):
    """With `drop_unsupported=True`, only the supported options are sent."""
    body = await sent("google", ask(min_p=0.013, top_k=37), drop_unsupported=True)
    assert "37" in body
    assert "0.013" not in body


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_settings_of_the_provider_are_passed_by_their_names(anyio_backend):
    """Google has no body for further options, so only its own settings can be given."""
    assert "tea" in await sent("google", ask(extra={"google_cached_content": "cachedContents/tea"}))
    assert "no extra_body, so options.extra can't set 'mirostat'" in await refusal("google", ask(extra={"mirostat": 2}))
    assert '"mirostat":2' in (await sent("openai", ask(extra={"mirostat": 2}))).replace(" ", "")


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": False}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_schema_is_asked_for_in_words_or_by_a_tool(anyio_backend):
    """Claude and Llama on Bedrock have no schemas, so a typed action would always be refused."""
    kind = "bedrock-llama"
    async with backend_of(kind, "http://127.0.0.1:1") as backend:
        with pytest.raises(BadRequest, match="Native structured output is not supported"):
            await backend.generate(ask(schema=SCHEMA))
    assert "matches this schema" in await sent(kind, ask(schema=SCHEMA), structured="prompt")
    body = json.loads(await sent("bedrock-claude", ask(schema=SCHEMA), structured="tool"))
    (tool,) = body["toolConfig"]["tools"]
    assert ("answer", {"any": {}}) == (tool["toolSpec"]["name"], body["toolConfig"]["toolChoice"])


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_answer_of_a_tool_is_the_text(anyio_backend):
    """As with the native backends, when generating and when streaming."""
    call = {"index": 0, "id": "c", "function": {"name": "answer", "arguments": '{"b": 2}'}}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    body = f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
    head = b"HTTP/1.1 200 .\r\nconnection: close\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    pieces: list[str] = []
    async with (
        HostileServer([head % len(body) + body]) as server,
        backend_of("openai", server.url, structured="tool") as backend,
    ):
        generation = await backend.stream(ask(schema=SCHEMA), pieces.append)
    assert ('{"b": 2}', "stop", ()) == (generation.text, generation.finish_reason, generation.tool_calls)
    assert ['{"b": 2}'] == pieces


# LangChain's packages for other providers pin each other's dependencies, so their models are imitated by these.
# Their names of arguments are those of langchain-google-genai 4.4, langchain-aws 1.9, langchain-anthropic 1.7 and
# langchain-ollama 1.1, to which every option was sent once.


class Chunk:
    usage_metadata = None
    tool_call_chunks = ()

    def __init__(self, content: str = "so", **metadata: object) -> None:
        self.content = content
        self.response_metadata = metadata


def chat_model(package: str, *fields: str):
    class Model:
        """Takes what a model of the package takes, and remembers it."""

        def __init__(self, given: dict) -> None:
            self.given = given

        def model_copy(self, update: dict):
            assert set(update) <= set(fields)
            self.given.update(update)
            return self

        async def astream(self, messages, stop=None, **arguments):
            self.given.update(arguments)
            yield Chunk(logprobs={"content": [{"token": "so", "logprob": -0.5}]})
            yield Chunk("", finish_reason="stop")

    Model.__module__ = f"{package}.chat_models"
    return Model({})


OF_LANGCHAIN = {
    "langchain_google_genai": (
        {"max_tokens": 9, "top_k": 3, "logprobs": 2},
        {"max_output_tokens": 9, "top_k": 3, "response_logprobs": True, "logprobs": 2},
        {"min_p", "logit_bias"},
    ),
    "langchain_openai": ({"top_k": 3, "min_p": 0.1}, {"extra_body": {"top_k": 3, "min_p": 0.1}}, set()),
    "langchain_anthropic": ({"top_k": 3}, {"top_k": 3}, {"seed", "min_p", "logit_bias", "logprobs", *PENALTIES}),
    "langchain_aws": ({"top_p": 0.5}, {"top_p": 0.5}, {"seed", "top_k", "min_p", "logprobs", "reasoning_effort"}),
    "langchain_ollama": (
        {"max_tokens": 9, "temperature": 0.5, "seed": 4},
        {"num_predict": 9, "temperature": 0.5, "seed": 4},
        {"min_p", "logit_bias", *PENALTIES},
    ),
    "langchain_other": ({"max_tokens": 9, "min_p": 0.1}, {"max_tokens": 9, "min_p": 0.1}, set()),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("package", OF_LANGCHAIN)
async def test_langchain_models_get_options_under_their_own_names(package, anyio_backend):
    """Google calls the limit of tokens max_output_tokens, and Ollama has fields of the model."""
    options, arguments, refused = OF_LANGCHAIN[package]
    model = chat_model(package, "num_predict", "temperature", "seed", "top_p", "top_k")
    answer = await from_langchain(model).generate(ask(**options))
    assert arguments == model.given
    assert ({"token": "so", "logprob": -0.5},) == answer.logprobs
    for name in refused:
        with pytest.raises(Unsupported, match=f"LangChain's Model does not support Options.{name}"):
            await from_langchain(model).generate(ask(**{name: OPTIONS[name][0]}))


@pytest.mark.parametrize(
    ("module", "name", "attributes", "kind"),
    [
        ("google.genai.errors", "ClientError", {"code": 429}, RateLimited),
        ("botocore.exceptions", "ClientError", {"response": {"ResponseMetadata": {"HTTPStatusCode": 400}}}, BadRequest),
        ("aiohttp.client_exceptions", "ClientError", {}, ConnectionLost),
        ("langchain_core.exceptions", "ModelInvalidRequestError", {}, BadRequest),
        ("litellm.exceptions", "UnsupportedParamsError", {"status_code": 400}, Unsupported),
    ],
)
def test_errors_of_one_name_are_told_apart(module, name, attributes, kind):
    """Google and Amazon have a ClientError that is about the request, and was taken for a lost connection."""
    error = type(name, (Exception,), {"__module__": module, **attributes})("no")
    assert type(translate_error(error, "it")) is kind


def test_a_status_is_found_on_the_response():
    """As httpx keeps it, for LangChain's models of Mistral."""
    httpx2 = importlib.import_module("httpx2")
    response = httpx2.Response(503, request=httpx2.Request("POST", "http://x"))
    error = httpx2.HTTPStatusError("no", request=response.request, response=response)
    assert "503" in str(translate_error(error, "it"))


def wrapped(message, cause):
    """Return an error as libraries wrap others, with a name that means a lost connection."""
    error = type("APIConnectionError", (Exception,), {})(message)
    error.__context__ = cause
    return error


def test_a_package_that_the_library_misses_is_no_lost_connection():
    """litellm 1.106 needs mcp for tools, and another try can't help."""
    cause = ModuleNotFoundError("No module named 'mcp'", name="mcp.types")
    error = translate_error(wrapped("OpenAIException - No module named 'mcp'", cause), "litellm")
    assert type(error) is FatalError
    assert "the package 'mcp'" in error.hint
    # One that was handled before the connection broke.
    assert type(translate_error(wrapped("reset by peer", cause), "litellm")) is ConnectionLost
