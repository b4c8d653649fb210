"""A real llama.cpp server with a tiny random model: one for each test process, on a port of its own."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sampling.backends.llama._server import LlamaServer
from sampling.testing.gguf_model import write_tiny_gguf

SLOTS = 8


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a model that babbles printable ASCII until `max_tokens`, a stop word or a grammar ends it."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def llama_server(tiny_gguf: Path) -> Iterator[LlamaServer]:
    """A running server with 8 slots of 16,384 tokens; `.base_url`, `.api_key.reveal()`, `.settings.model`."""
    with LlamaServer(tiny_gguf, slots=SLOTS, context_tokens=16_384, threads=1) as server:
        yield server


@pytest.fixture
def busy_slots_of() -> Callable[[str, str], int]:
    """Ask a server how many of its slots are generating, by its address and key; it blocks for about a millisecond."""

    def ask(address: str, key: str) -> int:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=10)
        with closing(connection):
            connection.request("GET", "/slots", headers={"Authorization": f"Bearer {key}"})
            return sum(slot["is_processing"] for slot in json.load(connection.getresponse()))

    return ask


@pytest.fixture
def busy_slots(llama_server: LlamaServer, busy_slots_of: Callable[[str, str], int]) -> Callable[[], int]:
    """Ask the running server how many of its slots are generating."""
    return partial(busy_slots_of, llama_server.address, llama_server.api_key.reveal())
