"""Backends made of other libraries: the real libraries, talking to a real llama.cpp and to a server that misbehaves."""

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from sampling import (
    FatalError,
    Message,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    StreamingBackend,
    Timeout,
)
from sampling.backends.adapters import (
    AdaptedBackend,
    from_langchain,
    from_litellm,
    from_openai_client,
    from_pydantic_ai,
)
from sampling.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectFailed,
    ConnectionLost,
    Incomplete,
    ModelNotFound,
    QuotaExhausted,
    ServerError,
)
from sampling.testing.conformance import check_backend
from sampling.testing.servers import HostileServer, OpenAIServer, Reply, Step

# Or importing litellm would ask the network for the prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

pytestmark = [
    pytest.mark.anyio,
    # Neither the OpenAI client nor what it uses closes the generators that it reads streams with, and trio minds.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    # trio then closes them in any order, and one that another of them is closing can't be closed.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"),
]

of_litellm = [
    # Deprecated ways of using pydantic.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # It makes a coroutine in a thread; if it is cancelled in that very moment, nobody ever awaits it.
    pytest.mark.filterwarnings("ignore:coroutine 'OpenAIChatCompletion.async_streaming' was never awaited"),
]

PACKAGES = {"openai": "openai", "langchain": "langchain_openai", "pydantic-ai": "pydantic_ai", "litellm": "litellm"}
ASYNCIO_ONLY = {"langchain", "litellm"}
# llama.cpp closes every connection after a stream and does not say so: one that is used again may be gone.
NEW_CONNECTIONS = {"connection": "close"}
KEY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.delenv(name, raising=False)


# LangChain and litellm run on asyncio only, which a test of its own shows.
ON_LOOPS = [
    pytest.param(loop, library, id=f"{library}-{loop}", marks=of_litellm if library == "litellm" else ())
    for library in PACKAGES
    for loop in ("asyncio", "trio")
    if loop == "asyncio" or library not in ASYNCIO_ONLY
]
with_each_library = pytest.mark.parametrize(("anyio_backend", "library"), ON_LOOPS)


@pytest.fixture
def library() -> str:
    """Given by `with_each_library`."""
    raise NotImplementedError


def litellm_backend(base_url: str, key: str, **arguments: object) -> AdaptedBackend:
    litellm = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    address = {"api_base": base_url, "api_key": key, "extra_headers": NEW_CONNECTIONS}
    return from_litellm(litellm.acompletion, model="openai/tiny", **address, **arguments)


@asynccontextmanager
async def adapted(library: str, base_url: str, key: str = KEY, **arguments: object) -> AsyncGenerator[AdaptedBackend]:
    """Open a client of a library, make a backend of it, and close the client."""
    pytest.importorskip(PACKAGES[library])
    if library == "litellm":
        yield litellm_backend(base_url, key, **arguments)
        return
    openai = importlib.import_module("openai")
    address = {"base_url": base_url, "api_key": key, "default_headers": NEW_CONNECTIONS}
    async with openai.AsyncOpenAI(max_retries=0, **address) as client:
        if library == "openai":
            yield from_openai_client(client, model="tiny", **arguments)
        elif library == "langchain":
            parts = {"root_async_client": client, "async_client": client.chat.completions}
            chat_model = importlib.import_module("langchain_openai").ChatOpenAI
            yield from_langchain(chat_model(model="tiny", base_url=base_url, api_key=key, **parts), **arguments)
        else:
            provider = importlib.import_module("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
            model = importlib.import_module("pydantic_ai.models.openai").OpenAIChatModel("tiny", provider=provider)
            yield from_pydantic_ai(model, **arguments)


@pytest.fixture
def on_llama(library: str, llama_server) -> Callable:
    """Opens a backend of one of the libraries on the real server."""
    return lambda: adapted(library, llama_server.base_url, llama_server.api_key.reveal())


def ask(text: str = "Tell me about rain.", **options: object) -> Request:
    return Request((Message("user", text),), Options(**options))


# On a real model.


@with_each_library
async def test_each_keeps_every_promise_of_a_backend(on_llama):
    """The conformance suite passes: usage, limits, streams, cancellation, and nothing left behind."""
    await check_backend(on_llama, bad_request=ask("too long " * 10_000))


@with_each_library
async def test_each_has_tools_parts_seeds_and_all_endings(library, chat_server, everything):
    """The conformance suite passes with all that a provider may have."""
    rules = await check_backend(lambda: adapted(library, chat_server), **everything)
    claimed = {
        "calls tools, and accepts their results",
        "accepts images along with text",
        "reports how its answers ended",
    }
    assert claimed <= {*rules}


@with_each_library
async def test_an_answer_says_what_it_took_and_who_gave_it(on_llama):
    """Tokens, the reason for the end and the model come through, and so do the roles of all messages."""
    messages = [Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b"), Message("user", "hi")]
    async with on_llama() as backend:
        assert isinstance(backend, StreamingBackend)
        answer = await backend.generate(Request(messages, Options(max_tokens=5)))
    assert (answer.usage.output_tokens, answer.finish_reason, answer.model) == (5, "length", "tiny")
    # A token for each letter of "system: Be brief.\n…assistant:", and one for the beginning.
    said = "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant:"
    assert answer.usage.input_tokens == len(said) + 1


@with_each_library
async def test_a_schema_constrains_the_answer(on_llama):
    """Options.schema reaches the server."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["rain", "snow"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    async with on_llama() as backend:
        answer = await backend.generate(ask(schema=schema, temperature=0.5, seed=3))
    assert json.loads(answer.text)["kind"] in {"rain", "snow"}


@with_each_library
async def test_what_only_the_server_knows_reaches_it(on_llama, library):
    """`Options.extra` reaches the library, for LangChain by the parameter that each model names."""
    extra = {"grammar": 'root ::= "yes"'}
    async with on_llama() as backend:
        answer = await backend.generate(ask(extra={"extra_body": extra} if library == "langchain" else extra))
        same = await backend.generate(ask(extra={"extra_body": extra}))
    assert answer.text == same.text == "yes"


@with_each_library
async def test_losers_stop_on_the_server(on_llama, busy_slots):
    """Contract 2: when the winner comes, the streams of the losers are closed, and the server stops generating."""
    async with on_llama() as backend:

        async def generate(request: Request):
            brief = request.subsample == 2
            return await backend.generate(ask(max_tokens=50 if brief else 16_000))

        busy = []

        async def note_busy_slots(_: str) -> bool:
            busy.append(await anyio.to_thread.run_sync(busy_slots))
            return True

        result = await RejectionSamplingStrategy(concurrency_budget=4, accept_incomplete=True).sample(
            "Rain?", None, generate, [Requirement("is the first", note_busy_slots)]
        )
        await anyio.sleep(0.1)
        deadline = anyio.current_time() + 3
        while (left := await anyio.to_thread.run_sync(busy_slots)) and anyio.current_time() < deadline:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    assert busy == [3]
    assert left == 0
    assert all(attempt.usage.output_tokens > 0 for attempt in result.attempts)


# What can go wrong.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, AuthenticationFailed),
        (402, QuotaExhausted),
        (403, AuthenticationFailed),
        (404, ModelNotFound),
        (422, BadRequest),
        (429, RateLimited),
        (500, ServerError),
        (503, ServerError),
    ],
)
@with_each_library
async def test_a_refusal_is_the_typed_error_for_its_status(library, status, kind):
    """Rows 1, 4 and 5: what the library raises becomes the error that says whether another try may help."""
    message = "no such model" if status == 404 else "whatever it is"
    error = {"error": {"message": message, "type": "none", "code": "none"}}
    reply = Reply(status=status, error=error, headers={"retry-after": "7"})
    async with OpenAIServer(reply) as server, adapted(library, server.url) as backend:
        with pytest.raises(kind) as caught:
            await backend.generate(ask())
        assert len(server.requests) == 1, "the library retried by itself"
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after_s", 7.0) == 7.0
    assert KEY not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@with_each_library
async def test_a_key_that_a_server_repeats_is_not_shown(library):
    """I17: servers quote the key that they refuse, and libraries quote the server."""
    reply = Reply(status=401, error={"error": {"message": f"Incorrect API key provided: {KEY}"}})
    async with OpenAIServer(reply) as server, adapted(library, server.url) as backend:
        with pytest.raises(AuthenticationFailed) as caught:
            await backend.generate(ask())
    assert KEY not in str(caught.value)
    assert KEY not in repr(backend)


@with_each_library
async def test_a_server_that_is_not_there_is_a_failed_connection(library):
    """Row 8: nothing was sent, so another try costs nothing."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with adapted(library, f"http://127.0.0.1:{unused.getsockname()[1]}/v1") as backend:
            with pytest.raises(ConnectFailed):
                await backend.generate(ask())


@with_each_library
async def test_a_stream_that_breaks_is_a_transient_error(library):
    """Row 10: half an answer is an error that another try may help with, and never an answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    choice = {"index": 0, "delta": {"content": "half"}}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    event = f"data: {json.dumps(chunk)}\n\n".encode()
    script = [head, b"%x\r\n%b\r\n" % (len(event), event), Step.RESET]
    async with HostileServer(script) as server, adapted(library, server.url) as backend:
        # litellm took the break for the end before version 1.100.
        with pytest.raises((Incomplete, ConnectionLost) if library == "litellm" else ConnectionLost):
            await backend.generate(ask())


@with_each_library
async def test_an_answer_without_an_end_is_incomplete(library):
    """Row 13: a stream that ends without a finish_reason is an error, not an answer."""
    async with OpenAIServer(Reply(finish_reason=None)) as server, adapted(library, server.url) as backend:
        with pytest.raises(Incomplete):
            await backend.generate(ask())


@pytest.mark.parametrize(
    ("anyio_backend", "strict"), [("asyncio", "langchain"), ("asyncio", "pydantic-ai"), ("trio", "pydantic-ai")]
)
async def test_a_model_that_never_says_why_it_ended_can_be_allowed_to(strict, anyio_backend):
    """With `allow_missing_finish=True`, an answer without a finish_reason is accepted."""
    async with (
        OpenAIServer(Reply(finish_reason=None)) as server,
        adapted(strict, server.url, allow_missing_finish=True) as backend,
    ):
        answer = await backend.generate(ask())
    assert (answer.text, answer.finish_reason) == ("Hello world", "unknown")


@with_each_library
async def test_a_server_that_never_ends_is_a_timeout(library):
    """Row 11: there is a total deadline around whatever the library does, and the connection is closed."""
    async with (
        OpenAIServer(Reply(endless=True, interval_s=0.01)) as server,
        adapted(library, server.url, timeout_s=0.3) as backend,
    ):
        with pytest.raises(Timeout, match=r"within 0.3 s"):
            await backend.generate(ask())
        await server.until(lambda: server.disconnects == 1)


@with_each_library
async def test_what_a_receiver_raises_is_not_taken_for_the_librarys(library):
    """A ValueError of the library is a bad request, and one that the receiver of a stream raises passes through."""

    def refuse(_: str) -> None:
        raise ValueError("mine")

    async with OpenAIServer() as server, adapted(library, server.url) as backend:
        with pytest.raises(ValueError, match="mine"):
            await backend.stream(ask(), refuse)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("asyncio_only", sorted(ASYNCIO_ONLY))
async def test_a_library_for_asyncio_says_so_on_trio(asyncio_only, anyio_backend):
    """The error says what to do, where the library would fail somewhere inside."""
    async with adapted(asyncio_only, "http://127.0.0.1:1/v1") as backend:
        with pytest.raises(FatalError, match="runs on asyncio only"):
            await backend.generate(ask())


@pytest.mark.parametrize(("anyio_backend", "strict"), [("asyncio", "langchain"), ("trio", "pydantic-ai")])
async def test_tool_messages_are_refused_where_they_can_not_be_passed_on(strict, anyio_backend):
    """A tool's answer without its call means nothing to LangChain and pydantic-ai."""
    async with adapted(strict, "http://127.0.0.1:1/v1") as backend:
        with pytest.raises(BadRequest, match="a message of role 'tool' can't be passed to"):
            await backend.generate(Request([Message("tool", "42")]))


@pytest.mark.parametrize("adapter", [from_langchain, from_litellm, from_openai_client, from_pydantic_ai])
def test_what_is_not_of_the_library_is_refused(adapter):
    """An adapter raises an error that names the type it accepts."""
    with pytest.raises(TypeError, match=r"must be .*, got 7"):
        adapter(7)


async def litellm_like(**_: object) -> str:
    return "not a stream"


async def test_a_function_that_does_not_stream_is_told_so():
    """Without a stream nothing could stop the server, so an answer in one piece is refused."""
    with pytest.raises(BadRequest, match="expected a stream of chunks, got a str"):
        await from_litellm(litellm_like, model="any").generate(ask())


def test_a_timeout_must_be_positive():
    """The error names the argument and the value."""
    with pytest.raises(ValueError, match=r"timeout_s must be > 0, got 0"):
        from_litellm(litellm_like, timeout_s=0)


def test_no_library_is_imported_before_it_is_used():
    """Importing the adapters imports none of the libraries."""
    program = (
        "import sys, sampling.backends.adapters\n"
        "print(*({'openai', 'litellm', 'langchain_core', 'pydantic_ai', 'httpx2'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - this interpreter
    assert ended.stdout.strip() == ""
