"""Our `OpenAIBackend` and rejection sampling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.losers_round import MAX_TOKENS, TEMPERATURE, Ask, Round, is_right, serve
from sampling import Options, RejectionSamplingStrategy, Requirement
from sampling.backends.openai import OpenAIBackend


@asynccontextmanager
async def client(one: Round) -> AsyncIterator[Ask]:
    """Open a client that stops at the first right answer."""
    strategy = RejectionSamplingStrategy(loop_budget=one.depth, concurrency_budget=one.breadth)
    options = Options(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
    # llama.cpp closes its connection after every stream, but does not announce it in a header.
    async with OpenAIBackend(one.base_url, one.key, one.model, headers={"connection": "close"}) as backend:

        async def ask(text: str, answer: int) -> bool:
            right = Requirement("the answer is right", lambda said: is_right(said, answer))
            return (await strategy.sample(text, None, backend, [right], options=options)).success

        yield ask


if __name__ == "__main__":
    serve(client)
