"""Contract 2, on a real llama.cpp server: when `sample()` returns, the losers have stopped generating."""

from collections.abc import Callable

import anyio
import anyio.to_thread
import attrs
import pytest

from sampling import Generation, RejectionSamplingStrategy, Request, Requirement
from sampling.backends.llama._server import LlamaServer
from sampling.backends.openai import OpenAIBackend

pytestmark = pytest.mark.anyio

ENDLESS = 16_000
"""Tokens that take this server most of a minute, eight answers at a time: who is not stopped is seen."""


EIGHT = RejectionSamplingStrategy(concurrency_budget=8, accept_incomplete=True)
"""Every answer of this model is cut off by its limit."""


class OneIsBrief:
    """Asks for a brief answer in subsample 3, and for endless ones in all others."""

    def __init__(self, backend: OpenAIBackend) -> None:
        self.backend = backend

    async def generate(self, request: Request) -> Generation:
        options = attrs.evolve(request.options, max_tokens=200 if request.subsample == 3 else ENDLESS)
        return await self.backend.generate(attrs.evolve(request, options=options))


@pytest.fixture
def client(llama_server: LlamaServer) -> OpenAIBackend:
    return OpenAIBackend(llama_server.base_url, llama_server.api_key.reveal(), llama_server.settings.model)


async def wait_until_idle(busy_slots: Callable[[], int], within_s: float) -> int:
    """Return how many slots are busy when none is, or when the time is up."""
    deadline = anyio.current_time() + within_s
    while (busy := await anyio.to_thread.run_sync(busy_slots)) and anyio.current_time() < deadline:  # noqa: ASYNC110
        await anyio.sleep(0.01)
    return busy


async def test_no_slot_is_busy_after_sample_returned(client, busy_slots):
    """Contract 2: seven losers are generating when the winner comes, and none of them 100 ms later."""
    busy_at_the_win = []

    async def note_busy_slots(_: str) -> bool:
        busy_at_the_win.append(await anyio.to_thread.run_sync(busy_slots))
        return True

    async with client:
        result = await EIGHT.sample(
            "Tell me about rain.", None, OneIsBrief(client), [Requirement("is the first", note_busy_slots)]
        )
        await anyio.sleep(0.1)
        # Once is enough on a machine that does nothing else; the bound is far below what the losers had still to do.
        busy = await wait_until_idle(busy_slots, within_s=3)
    assert busy_at_the_win == [7]
    assert busy == 0
    assert [attempt.outcome for attempt in result.attempts] == ["cancelled"] * 3 + ["valid"] + ["cancelled"] * 4


async def test_what_the_losers_generated_is_on_the_result(client):
    """Contract 2: what losers spent is in `result.usage`, although the server never told how much it was."""
    async with client:
        result = await EIGHT.sample("Tell me about rain.", None, OneIsBrief(client))
    losers = [attempt.usage.output_tokens for attempt in result.attempts if attempt.outcome == "cancelled"]
    assert len(losers) == 7
    assert all(0 < tokens < ENDLESS for tokens in losers)
    assert result.usage.output_tokens == sum(losers) + 200


async def test_no_slot_is_busy_after_the_caller_was_cancelled(client, busy_slots):
    """Contract 10: a caller that gives up frees all slots."""
    async with client:
        with anyio.move_on_after(0.5) as gave_up:
            await EIGHT.sample("Tell me about rain.", None, OneIsBrief(client), [Requirement("never", lambda _: False)])
        busy = await wait_until_idle(busy_slots, within_s=3)
    assert gave_up.cancelled_caught
    assert busy == 0
