"""
The `OpenAIBackend` of mellea, with its default settings.

It runs in the environment of the peers, through its lowest public call.
By default it does not stream. Only its logs are turned off, here and in `peers.py`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from mellea.backends import ModelOption
from mellea.backends.openai import OpenAIBackend
from mellea.core import CBlock, MelleaLogger
from mellea.stdlib.context import SimpleContext

from benchmarks.http_round import Ask, serve_on_asyncio
from benchmarks.http_server import MODEL, QUESTION


@asynccontextmanager
async def generate(base_url: str, options: Mapping[str, Any] | None = None) -> AsyncIterator[Ask]:
    """Open a client that waits for the whole answer."""
    backend = OpenAIBackend(MODEL, base_url=base_url, api_key="key", model_options=options)
    action, context = CBlock(QUESTION), SimpleContext()

    async def ask() -> str:
        thunk, _ = await backend.generate_from_context(action, context)
        return await thunk.avalue()

    try:
        yield ask
    finally:
        await backend.aclose()


MelleaLogger.get_logger().setLevel(logging.CRITICAL)

if __name__ == "__main__":
    serve_on_asyncio({"whole": generate, "streamed": partial(generate, options={ModelOption.STREAM: True})})
