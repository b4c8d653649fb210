"""Our `OpenAIBackend`, with its default settings. It runs on asyncio or trio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.http_round import Ask, Task, serve, serve_on_asyncio
from benchmarks.http_server import MODEL, QUESTION
from sampling import Message, RejectionSamplingStrategy, Request
from sampling.backends.openai import OpenAIBackend


@asynccontextmanager
async def generate(base_url: str) -> AsyncIterator[Ask]:
    """Open a client that uses the backend itself. It always streams."""
    async with OpenAIBackend(base_url, "key", MODEL) as backend:

        async def ask() -> str:
            return (await backend.generate(Request((Message("user", QUESTION),)))).text

        yield ask


@asynccontextmanager
async def sample(base_url: str) -> AsyncIterator[Ask]:
    """Open a client that uses the engine, as most users do."""
    strategy = RejectionSamplingStrategy()
    async with OpenAIBackend(base_url, "key", MODEL) as backend:

        async def ask() -> str | None:
            return (await strategy.sample(QUESTION, None, backend)).text

        yield ask


CLIENTS = {"generate": generate, "sample": sample}

if __name__ == "__main__":
    if sys.argv[1:] == ["trio"]:
        import trio

        async def all_at_once(task: Task, count: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(task)

        serve(CLIENTS, all_at_once, trio.run)
    else:
        serve_on_asyncio(CLIENTS)
