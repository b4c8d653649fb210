"""`LlamaBackend` and `LlamaServer`: a real llama.cpp with a tiny model, in a process of its own and in this one."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pydantic
import pytest
from structlog.testing import capture_logs

from sampling import FatalError, Message, Options, RejectionSamplingStrategy, Request, Requirement
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama._server import LlamaSettings
from sampling.backends.llama._threads import LlamaInProcess
from sampling.backends.openai import OpenAIBackend
from sampling.errors import BadRequest, ModelNotFound
from sampling.testing.conformance import check_backend
from sampling.testing.leftovers import Leftovers, left_behind

pytestmark = pytest.mark.anyio

both_ways = pytest.mark.parametrize("in_process", [False, True], ids=["own process", "this process"])


def ask(text: str = "Tell me about rain.", **options: object) -> Request:
    return Request((Message("user", text),), Options(**options))


@pytest.fixture
def new_backend(tiny_gguf: Path):
    def make(**arguments: object) -> LlamaBackend:
        return LlamaBackend(tiny_gguf, **{"context_tokens": 8_192, "threads": 1, **arguments})

    return make


@both_ways
async def test_it_keeps_every_promise_of_a_backend(new_backend, in_process):
    """The conformance suite passes: usage, limits, streams, cancellation, and nothing left behind."""
    rules = await check_backend(
        lambda: new_backend(in_process=in_process), bad_request=ask(extra={"grammar": "root ::= (("})
    )
    assert len(rules) == 10


async def test_the_http_backend_keeps_every_promise_on_a_real_server(llama_server):
    """The conformance suite passes for `OpenAIBackend` on llama.cpp."""

    def make() -> OpenAIBackend:
        # llama.cpp closes its connection after every stream without saying so.
        return OpenAIBackend(
            llama_server.base_url,
            llama_server.api_key.reveal(),
            llama_server.settings.model,
            headers={"connection": "close"},
        )

    await check_backend(make, bad_request=ask("too long " * 10_000))


@both_ways
async def test_an_answer_says_what_it_took_and_who_gave_it(new_backend, in_process):
    """Tokens, the reason for the end, and the model's name: that of its file, not its path."""
    async with new_backend(in_process=in_process) as backend:
        answer = await backend.generate(ask("hi", max_tokens=5))
    assert (answer.usage.output_tokens, answer.finish_reason, answer.model) == (5, "length", "tiny")
    # The tiny model has a token for each letter: "user: hi\n" and "assistant:", and one for the beginning.
    assert answer.usage.input_tokens == 20


@both_ways
async def test_a_grammar_constrains_the_answer(new_backend, in_process):
    """With a GBNF grammar, even a model of random weights says nothing else."""
    async with new_backend(in_process=in_process) as backend:
        answer = await backend.generate(ask(extra={"grammar": 'root ::= "yes" | "no"'}))
    assert answer.text in {"yes", "no"}
    assert answer.finish_reason == "stop"


@both_ways
async def test_a_json_schema_constrains_the_answer(new_backend, in_process):
    """With a JSON schema, the answer is JSON of that form."""
    schema = {
        "type": "object",
        "properties": {"wet": {"type": "boolean"}, "kind": {"enum": ["rain", "snow"]}},
        "required": ["wet", "kind"],
        "additionalProperties": False,
    }
    async with new_backend(in_process=in_process) as backend:
        answer = json.loads((await backend.generate(ask(schema=schema))).text)
    assert type(answer["wet"]) is bool
    assert answer["kind"] in {"rain", "snow"}


class Weather(pydantic.BaseModel):
    wet: bool
    mm: int = pydantic.Field(ge=0, le=99)


async def test_a_pydantic_model_constrains_the_answer(new_backend):
    """A model class works as a schema, and the answer parses as one of it."""
    async with new_backend() as backend:
        answer = await backend.generate(ask(schema=Weather))
    Weather.model_validate_json(answer.text)


async def test_a_grammar_that_is_none_is_a_bad_request(new_backend):
    """Row 5: what llama.cpp can't parse is refused, and the same request would be again."""
    async with new_backend() as backend:
        with pytest.raises(BadRequest, match="failed to parse grammar"):
            await backend.generate(ask(extra={"grammar": "root ::= (("}))


async def test_another_model_than_the_loaded_one_is_not_found(new_backend):
    """A request for another model is an error, though llama.cpp would answer with the one it has."""
    async with new_backend() as backend:
        with pytest.raises(ModelNotFound, match="has loaded 'tiny', not 'huge'"):
            await backend.generate(ask(model="huge"))
        await backend.generate(ask(model="tiny", max_tokens=1))


@both_ways
async def test_requests_that_are_cancelled_while_their_prompt_is_read_free_their_slots(
    new_backend, in_process, busy_slots_of
):
    """Reading eight such prompts takes ten seconds and more: llama.cpp stops long before."""
    async with new_backend(in_process=in_process, context_tokens=16_384) as backend:
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(backend.generate, ask(f"{number} " + "x" * 16_000, max_tokens=10))
            await anyio.sleep(0.3)
            group.cancel_scope.cancel()
        key = backend._settings.api_key.reveal()
        with anyio.fail_after(5):
            while await anyio.to_thread.run_sync(busy_slots_of, backend._host.base_url, key):  # noqa: ASYNC110
                await anyio.sleep(0.01)


@both_ways
async def test_a_request_that_waits_for_a_slot_can_be_cancelled(new_backend, in_process):
    """Row 38: it waits on our side, where a cancellation reaches it while the slot is still in use."""
    ended = []

    async def take_the_slot(backend: LlamaBackend) -> None:
        ended.append(await backend.generate(ask(max_tokens=4_000)))

    async with new_backend(slots=1, in_process=in_process) as backend:
        async with anyio.create_task_group() as group:
            group.start_soon(take_the_slot, backend)
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.1) as gave_up:
                await backend.generate(ask(max_tokens=1))
            assert gave_up.cancelled_caught
            assert not ended
            group.cancel_scope.cancel()
        await backend.generate(ask(max_tokens=1))


@both_ways
def test_it_works_without_an_event_loop_too(new_backend, in_process):
    """A plain `with` opens it for `sample_sync`, and nothing is logged: connections to llama.cpp are never reused."""
    with capture_logs() as logs, new_backend(in_process=in_process) as backend:
        result = RejectionSamplingStrategy(concurrency_budget=2, accept_incomplete=True).sample_sync(
            "Rain?",
            None,
            backend,
            [Requirement("is short", lambda text: len(text) == 3)],
            options=Options(max_tokens=3),
        )
    assert result.success
    assert logs == []


# What can go wrong.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model_path": 7}, TypeError, "model_path must be the path of a GGUF file, got 7"),
        ({"model_path": "/no/such.gguf"}, ValueError, "got '/no/such.gguf': there is no such file"),
        ({"slots": 0}, ValueError, "slots must be >= 1, got 0"),
        ({"context_tokens": "4k"}, TypeError, "context_tokens must be an int >= 1, got '4k'"),
        ({"threads": 0}, ValueError, "threads must be >= 1, got 0"),
        ({"gpu_layers": -1}, ValueError, "gpu_layers must be >= 0, got -1"),
        ({"startup_timeout_s": 0}, ValueError, "startup_timeout_s must be > 0, got 0"),
    ],
)
def test_wrong_arguments_are_named(tiny_gguf, arguments, error, message):
    """An argument that can't be used is an error where it is passed in, with its name and value."""
    with pytest.raises(error, match=message):
        LlamaBackend(**{"model_path": tiny_gguf, **arguments})


@both_ways
@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"no model at all", "invalid magic characters"), (b"GGUF" + bytes(99), "bad GGUF version")],
)
async def test_a_file_that_is_no_model_is_a_fatal_error(tmp_path, in_process, content, reason):
    """The error names the file, and says what llama.cpp said if it is a process whose words can be read."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(FatalError, match=r"llama.cpp can't load '.*broken.gguf'") as caught:
        async with LlamaBackend(path, in_process=in_process):
            pass
    assert in_process or any(reason in note for note in caught.value.__notes__)


async def test_a_model_that_takes_too_long_to_load_is_a_fatal_error(new_backend):
    """The time to load is bounded, and the process is gone."""
    backend = new_backend(startup_timeout_s=0.001)
    with pytest.raises(FatalError, match=r"did not load 'tiny' within 0.001 s"):
        async with backend:
            pass


@both_ways
async def test_it_is_of_no_use_before_it_is_opened(new_backend, in_process):
    """The error says how to open it."""
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await new_backend(in_process=in_process).generate(ask())


async def test_it_can_be_opened_again_after_it_was_closed_but_not_twice_at_once(new_backend):
    """Opening is not for once, but each opening has its own closing."""
    backend = new_backend()
    for _ in range(2):
        async with backend:
            with pytest.raises(RuntimeError, match="already"):
                await backend.__aenter__()
            await backend.generate(ask(max_tokens=1))


def servers() -> set[int]:
    """Return the ids of the processes that serve models to this one."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may hold anything; the state and the parent come after it.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            command = (stat.parent / "cmdline").read_text()
            if int(parent) == os.getpid() and state != "Z" and "llama/_process.py" in command:
                found.add(int(stat.parent.name))
    return found


on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


@on_linux
async def test_a_server_that_dies_is_a_fatal_error(new_backend):
    """Another try can't help where nobody is left to answer: this ends the call instead of costing an attempt."""
    before = servers()
    async with new_backend() as backend:
        await backend.generate(ask(max_tokens=1))
        (server,) = servers() - before
        os.kill(server, signal.SIGKILL)
        while servers() - before:  # noqa: ASYNC110 - the end of a process sets no event
            await anyio.sleep(0.01)
        with pytest.raises(FatalError, match="the process that ran 'tiny' has ended"):
            await backend.generate(ask(max_tokens=1))


@on_linux
@both_ways
async def test_cancelling_while_the_model_loads_leaves_nothing_behind(new_backend, in_process):
    """Contract 10: no process and no thread outlive an opening that was cancelled."""
    before, servers_before = Leftovers.now(), servers()
    with anyio.move_on_after(0.01) as gave_up:
        async with new_backend(in_process=in_process):
            pass
    assert gave_up.cancelled_caught
    assert servers() == servers_before
    assert not await left_behind(before, grace_s=5)


def test_a_model_that_is_not_wanted_any_more_is_not_loaded(tiny_gguf):
    """A load that is cancelled before its thread starts does no work, and the backend can be opened again."""
    host = LlamaInProcess(LlamaSettings(model_path=tiny_gguf, slots=1, context_tokens=64, threads=1))
    host.launch()
    host.stop()
    host.wait_until_ready()
    assert not host.running
    with host:
        assert host.running
    assert not host.running


def status_of(address: str, method: str, path: str, body: str | None = None) -> int | None:
    """Return the status that a request without a key gets, or None if nobody is there."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=10)
    with closing(connection):
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except OSError:
            return None


def test_a_server_ends_with_the_process_that_started_it(tiny_gguf):
    """Row 58: even a process that is killed leaves no server behind to hold its memory."""
    program = (
        "import sys, time; from sampling.backends.llama._server import LlamaServer, LlamaSettings\n"
        "with LlamaServer(LlamaSettings(sys.argv[1], threads=1)) as server:\n"
        "    print(server.address, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tiny_gguf)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 - this interpreter
        address = parent.stdout.readline().strip()
        assert status_of(address, "GET", "/health") == 200
        parent.kill()
    deadline = time.monotonic() + 10
    while status_of(address, "GET", "/health") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert status_of(address, "GET", "/health") is None


# The key.


def test_who_has_no_key_gets_no_answer(llama_server):
    """The server refuses requests without its key, because every local user can reach the port."""
    question = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    assert status_of(llama_server.address, "POST", "/v1/chat/completions", question) == 401
    assert status_of(llama_server.address, "GET", "/slots") == 401


@on_linux
def test_the_key_is_not_shown(llama_server):
    """I17: it is neither in a repr, nor in the arguments or the environment of the process, which others can read."""
    key = llama_server.api_key.reveal()
    assert key not in repr(llama_server) + repr(llama_server.settings) + repr(vars(llama_server))
    for server in servers():
        for file in ("cmdline", "environ"):
            assert key not in Path(f"/proc/{server}/{file}").read_text()
