"""The `AsyncOpenAI` client, with its default settings. It runs in the environment of the peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai import AsyncOpenAI

from benchmarks.http_round import Ask, serve_on_asyncio
from benchmarks.http_server import MODEL, QUESTION


@asynccontextmanager
async def streamed(base_url: str) -> AsyncIterator[Ask]:
    """Open a client that streams, with token counts. Our backend does the same."""
    async with AsyncOpenAI(base_url=base_url, api_key="key") as client:

        async def ask() -> str:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": QUESTION}],
                stream=True,
                stream_options={"include_usage": True},
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return "".join(pieces)

        yield ask


@asynccontextmanager
async def whole(base_url: str) -> AsyncIterator[Ask]:
    """
    Open a client that does not stream.

    That is the least work, but cancelling such a request does not stop the server.
    """
    async with AsyncOpenAI(base_url=base_url, api_key="key") as client:

        async def ask() -> str | None:
            completion = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION}]
            )
            return completion.choices[0].message.content

        yield ask


if __name__ == "__main__":
    serve_on_asyncio({"streamed": streamed, "whole": whole})
