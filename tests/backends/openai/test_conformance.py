"""`OpenAIBackend` keeps every promise of a backend, with all abilities."""

import pytest

from sampling import Retrying, ToolLoop
from sampling.backends.openai import OpenAIBackend
from sampling.testing.conformance import check_backend

pytestmark = pytest.mark.anyio


async def test_it_has_tools_parts_seeds_and_all_endings(anyio_backend, both_transports, chat_server, everything):
    """The conformance suite passes with all that a provider may have."""
    rules = await check_backend(lambda: OpenAIBackend(chat_server, model="any"), **everything)
    assert "reports how its answers ended" in rules


async def test_the_responses_api_has_all_that_openai_has_there(anyio_backend, chat_server, everything):
    """The conformance suite passes. The API has no seeds."""
    claims = [claim for claim in everything["claims"] if claim not in {"seed", "distinct_seeds"}]
    rules = await check_backend(
        lambda: OpenAIBackend(chat_server, model="any", endpoint="responses"), **{**everything, "claims": claims}
    )
    assert "reports how its answers ended" in rules


async def test_tools_that_are_run_change_nothing_else(anyio_backend, chat_server, everything):
    """`ToolLoop` streams, stops and accounts like the backend inside. Only the calls of tools are its own."""

    async def note(number: int) -> int:
        """Note a number, and get its place."""
        return number + 1

    # max_tokens is the limit of each round.
    claims = [claim for claim in everything["claims"] if claim not in {"tools", "max_tokens"}]
    await check_backend(lambda: ToolLoop(Retrying(OpenAIBackend(chat_server, model="any")), [note]), claims=claims)
