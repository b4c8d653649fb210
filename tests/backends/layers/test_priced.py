"""Pricing: what tokens cost is on the usage, for losers and failures too, and a budget stops by it."""

import anyio
import pytest

from sampling import (
    Budget,
    Generation,
    Message,
    Price,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Priced
from sampling.testing import ScriptedBackend

ASK = Request((Message("user", "hello"),))
PRICE = Price(2.0, 8.0)
NEVER = Requirement("never", check=lambda _: False)


def test_an_answer_has_its_price(run):
    """A million tokens of input cost 2, of output 8."""
    backend = Priced(ScriptedBackend([Generation("a", Usage(500_000, 250_000))]), PRICE)

    assert Usage(500_000, 250_000, 3.0) == run(backend.generate, ASK).usage


def test_what_the_server_says_it_cost_is_kept(run):
    """A server knows its discounts; a price list does not."""
    backend = Priced(ScriptedBackend([Generation("a", Usage(500_000, 250_000, 0.25))]), PRICE)

    assert 0.25 == run(backend.generate, ASK).usage.cost


def test_losers_and_failures_are_priced_by_what_they_had_used(run):
    """One wins, one fails and one is cancelled: all three are paid for."""

    async def answer(request):
        report_usage(Usage(1_000_000, 0))
        await anyio.sleep([3, 1, 10][request.subsample])
        if request.subsample == 1:
            raise TransientError("gone")
        return Generation("a", Usage(1_000_000, 1_000_000))

    strategy = RejectionSamplingStrategy(concurrency_budget=3)
    result = run(strategy.sample, "hello", None, Priced(answer, PRICE), [])

    assert ["valid", "errored", "cancelled"] == [one.outcome for one in result.attempts]
    assert [10.0, 2.0, 2.0] == [one.usage.cost for one in result.attempts]
    assert 14.0 == result.usage.cost


def test_a_budget_stops_by_the_price(run):
    """`Budget(cost=…)` needs to know what things cost; a price list is enough."""
    backend = Priced(ScriptedBackend([Generation("a", Usage(0, 125_000))] * 10), PRICE)

    async def call():
        return await RejectionSamplingStrategy(loop_budget=10).sample(
            "hello", None, backend, [NEVER], budget=Budget(cost=3.0)
        )

    result = run(call)

    assert "budget" == result.stop_reason
    assert 3.0 == result.usage.cost


def test_a_stream_has_its_price_too(run):
    """And its pieces come through."""
    pieces = []

    generation = run(Priced(ScriptedBackend([Generation("a b", Usage(0, 2))]), PRICE).stream, ASK, pieces.append)

    assert "a b" == "".join(pieces)
    assert 16e-6 == generation.usage.cost


def test_bad_prices_are_refused_by_name():
    """Negative ones, text, and a bare number where a Price belongs."""
    with pytest.raises(ValueError, match="input_per_million must be >= 0, got -1"):
        Price(-1, 0)
    with pytest.raises(TypeError, match="output_per_million must be a number >= 0, got 'x'"):
        Price(1, "x")
    with pytest.raises(TypeError, match="price must be a Price, got 3"):
        Priced(ScriptedBackend([]), 3)
    assert "price=Price(input_per_million=2.0, output_per_million=8.0)" in repr(Priced(ScriptedBackend([]), PRICE))
