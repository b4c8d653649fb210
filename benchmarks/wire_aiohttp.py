"""A loop by hand on aiohttp and orjson, as one would write it for speed. It runs in the environment of the peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson

from benchmarks.wire_round import QUESTION, Ask, answers_job, serve
from benchmarks.wire_server import MODEL


@asynccontextmanager
async def by_hand(base_url: str, connections: int) -> AsyncIterator[Ask]:
    """Open a session."""
    connector = aiohttp.TCPConnector(limit=connections)
    headers = {"authorization": "Bearer key", "content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def ask() -> str:
            body = orjson.dumps(
                {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": QUESTION}],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            )
            texts = []
            async with session.post(f"{base_url}/chat/completions", data=body) as response:
                response.raise_for_status()
                unread = b""
                async for data in response.content.iter_any():
                    *events, unread = (unread + data).split(b"\n\n")
                    for event in events:
                        if event == b"data: [DONE]":
                            continue
                        chunk = orjson.loads(event[6:])
                        if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                            texts.append(text)
            return "".join(texts)

        yield ask


if __name__ == "__main__":
    serve({"answers": answers_job(by_hand)})
