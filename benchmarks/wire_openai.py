"""The `AsyncOpenAI` client, alone and driven by aiometer. It runs in the environment of the peers."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiometer
import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from benchmarks.http_line import Json
from benchmarks.wire_round import QUESTION, Ask, answers_job, check_answer, serve
from benchmarks.wire_server import MODEL


@asynccontextmanager
async def streamed(base_url: str, connections: int) -> AsyncIterator[Ask]:
    """Open a client that streams, with token counts. Our backend does the same."""
    # Its default keeps only 100 idle connections.
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    http_client = DefaultAsyncHttpxClient(limits=limits)
    async with AsyncOpenAI(base_url=base_url, api_key="key", http_client=http_client) as client:

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


async def many(question: Json) -> Json:
    """Measure the CPU time of many items, as `fan_out` has them."""
    async with streamed(question["base_url"], question["at_once"]) as ask:
        await aiometer.run_all([ask] * question["at_once"], max_at_once=question["at_once"])
        gc.collect()
        started = time.process_time()
        texts = await aiometer.run_all([ask] * question["items"], max_at_once=question["at_once"])
        took = time.process_time() - started
    for text in texts:
        check_answer(text, question["tokens"])
    return {"cpu_s": took}


if __name__ == "__main__":
    serve({"answers": answers_job(streamed), "many": many})
