"""openai's `AsyncOpenAI`, in the peers' environment, with its default settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai import AsyncOpenAI

from benchmarks.http_round import Ask, serve_on_asyncio
from benchmarks.http_server import MODEL, QUESTION


@asynccontextmanager
async def streamed(base_url: str) -> AsyncIterator[Ask]:
    """Stream to the end and ask for the token counts, as our backend does."""
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
    """Without a stream: the least work that it can be given, and nothing that stops when it is cancelled."""
    async with AsyncOpenAI(base_url=base_url, api_key="key") as client:

        async def ask() -> str | None:
            completion = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION}]
            )
            return completion.choices[0].message.content

        yield ask


if __name__ == "__main__":
    serve_on_asyncio({"streamed": streamed, "whole": whole})
