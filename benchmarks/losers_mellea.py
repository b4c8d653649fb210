"""
The backend and rejection sampling of mellea.

It runs in the environment of the peers, with its default settings.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mellea.backends import ModelOption
from mellea.backends.openai import OpenAIBackend
from mellea.core import CBlock, MelleaLogger, Requirement, ValidationResult
from mellea.stdlib.context import SimpleContext
from mellea.stdlib.sampling import RejectionSamplingStrategy

from benchmarks.losers_round import MAX_TOKENS, TEMPERATURE, Ask, Round, is_right, serve


@asynccontextmanager
async def client(one: Round) -> AsyncIterator[Ask]:
    """Open a client that returns the first right answer."""
    strategy = RejectionSamplingStrategy(loop_budget=one.depth, concurrency_budget=one.breadth)
    options = {ModelOption.TEMPERATURE: TEMPERATURE, ModelOption.MAX_NEW_TOKENS: MAX_TOKENS}
    backend = OpenAIBackend(one.model, base_url=one.base_url, api_key=one.key, model_options=options)

    async def ask(text: str, answer: int) -> bool:
        def check(context: object) -> ValidationResult:
            return ValidationResult(result=is_right(str(context.last_output()), answer))

        right = Requirement("the answer is right", validation_fn=check)
        result = await strategy.sample(CBlock(text), SimpleContext(), backend, [right], show_progress=False)
        return result.success

    try:
        yield ask
    finally:
        await backend.aclose()


MelleaLogger.get_logger().setLevel(logging.CRITICAL)

if __name__ == "__main__":
    serve(client)
