"""A real llama.cpp server with a tiny random model: one for each test process, on a port of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sampling import Message, Options, Request, Tool
from sampling.backends.http import _default_transport
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.testing.gguf_model import write_tiny_gguf
from tests.llama_slots import LlamaSlots

SLOTS = 8


@pytest.fixture(params=["native", "httpcore2"])
def both_transports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each of our transports as the default."""
    monkeypatch.setattr(_default_transport, "DEFAULT", request.param)
    return request.param


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a model that babbles printable ASCII until `max_tokens`, a stop word or a grammar ends it."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def llama_server(tiny_gguf: Path) -> Iterator[LlamaServer]:
    """Yield a running server with 8 slots of 16,384 tokens."""
    with LlamaServer(LlamaSettings(tiny_gguf, slots=SLOTS, context_tokens=16_384, threads=1)) as server:
        yield server


@pytest.fixture
def busy_slots_of() -> Callable[[str, str], int]:
    """Return how many slots of a server are generating. Block for about a millisecond."""
    return lambda address, key: LlamaSlots(address, key).busy()


@pytest.fixture
def busy_slots(llama_server: LlamaServer) -> Callable[[], int]:
    """Ask the running server how many of its slots are generating."""
    return LlamaSlots(llama_server.address, llama_server.api_key.reveal()).busy


@pytest.fixture(scope="session")
def chat_server() -> Iterator[str]:
    """Yield the address of a server in a process of its own that obeys options, calls tools and takes images."""
    # Another process, because tasks and sockets of a server here would count as left behind.
    command = [sys.executable, str(Path(__file__).parent / "chat_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(30)


@pytest.fixture
def everything() -> dict[str, object]:
    """The arguments of `check_backend` for a backend that has every ability, on `chat_server`."""
    look = Tool("look", "Look.", {"type": "object", "properties": {"number": {"type": "integer"}}})
    ends = {ending: {} for ending in ("stop", "length", "content_filter")} | {"tool_calls": {"tools": [look]}}
    endings = {name: Request((Message("user", f"end with {name}"),), Options(**given)) for name, given in ends.items()}
    return {"endings": endings, "claims": ["usage", "max_tokens", "seed", "distinct_seeds", "tools", "parts"]}
