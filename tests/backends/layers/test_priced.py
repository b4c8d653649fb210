"""Pricing: what tokens cost is on the usage, for losers and failures too, and a budget stops by it."""

import anyio
import genai_prices
import pytest

from sampling import (
    Budget,
    Generation,
    Message,
    Options,
    Price,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Priced
from sampling.errors import BadRequest, ConnectFailed
from sampling.testing import ScriptedBackend

ASK = Request((Message("user", "hello"),))
PRICE = Price(2.0, 8.0)
NEVER = Requirement("never", check=lambda _: False)


def test_an_answer_has_its_price(run):
    """A million tokens of input cost 2, of output 8."""
    backend = Priced(ScriptedBackend([Generation("a", Usage(500_000, 250_000))]), PRICE)

    assert Usage(500_000, 250_000, 3.0) == run(backend.generate, ASK).usage


def test_what_the_server_says_it_cost_is_kept(run):
    """A cost that the server reports is kept."""
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
    """A price list is enough for `Budget(cost=…)`."""
    backend = Priced(ScriptedBackend([Generation("a", Usage(0, 125_000))] * 10), PRICE)

    async def call():
        return await RejectionSamplingStrategy(loop_budget=10).sample(
            "hello", None, backend, [NEVER], budget=Budget(cost=3.0)
        )

    result = run(call)

    assert "budget" == result.stop_reason
    assert 3.0 == result.usage.cost


def test_a_stream_has_its_price_too(run):
    """A streamed answer has a cost, and its pieces are passed on."""
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
    with pytest.raises(TypeError, match="price must be a Price or None, got 3"):
        Priced(ScriptedBackend([]), 3)
    assert "price=Price(input_per_million=2.0, output_per_million=8.0, cached_input_per_million=None, cache" in repr(
        Priced(ScriptedBackend([]), PRICE)
    )


def test_cached_input_has_its_own_price(run):
    """Of a million tokens, 800,000 from the cache at a tenth of the price."""
    price = Price(2.0, 8.0, 0.2)
    backend = Priced(ScriptedBackend([Generation("a", Usage(1_000_000, 0, 0.0, 800_000))]), price)

    assert 0.56 == pytest.approx(run(backend.generate, ASK).usage.cost)
    assert 2.0 == PRICE.of(Usage(1_000_000, 0, 0.0, 800_000))


def test_input_that_is_written_to_a_cache_has_its_own_price(run):
    """Anthropic charges a quarter more for it."""
    written = Usage(1_000_000, 0, cached_input_tokens=200_000, cache_write_tokens=800_000)
    assert 0.2 * 0.1 + 0.8 * 1.25 == pytest.approx(Price(1.0, 5.0, 0.1, 1.25).of(written))
    assert 1.0 == pytest.approx(Price(1.0, 5.0).of(written))
    cost = run(Priced(of_model("claude-haiku-4-5", used=written)).generate, ASK).usage.cost
    plain = run(Priced(of_model("claude-haiku-4-5", used=Usage(1_000_000, 0))).generate, ASK).usage.cost
    assert plain * (0.2 * 0.1 + 0.8 * 1.25) == pytest.approx(cost)


def test_writes_to_a_cache_add_up():
    """They are no part of a comparison, because journals do not keep them."""
    one = Usage(5, 1, cache_write_tokens=2)
    assert 4 == (one + one).cache_write_tokens == Usage.total([one, one]).cache_write_tokens
    assert one == Usage(5, 1)
    with pytest.raises(ValueError, match="cache_write_tokens"):
        Usage(cache_write_tokens=-1)


def of_model(model, url=None, used=None):
    """A backend that names its model, and its address."""
    backend = ScriptedBackend([Generation("a", used or Usage(1_000_000, 0, 0.0, 800_000))])
    backend.model = model
    backend.base_url = url
    return backend


def test_the_price_list_knows_models_and_their_caches(run):
    """No price has to be typed in. The numbers are those of the list, so they may change with it."""
    cached = run(Priced(of_model("gpt-5-mini", "https://api.openai.com/v1")).generate, ASK).usage
    whole = genai_prices.calc_price(genai_prices.Usage(input_tokens=1_000_000), "gpt-5-mini", provider_id="openai")

    assert 0 < cached.cost < float(whole.total_price)


def test_a_model_that_the_list_does_not_know_is_refused_before_it_is_asked(run):
    """At construction, or when its name comes with the request."""
    with pytest.raises(ValueError, match=r"no price is known for the model 'my-own'\. Pass a Price"):
        Priced(of_model("my-own"))
    backend = of_model("gpt-5-mini")
    with pytest.raises(BadRequest, match="no price is known"):
        run(Priced(backend).generate, Request(ASK.messages, Options(model="my-own")))
    with pytest.raises(BadRequest, match="needs the name of the model"):
        run(Priced(ScriptedBackend(["a"])).generate, ASK)
    assert [] == list(backend.requests)


def test_an_attempt_that_never_connected_costs_nothing(run):
    """Nothing was reported, so nothing is priced."""

    async def refuse(request):
        raise ConnectFailed("nobody there")

    budget = Budget(cost=1.0)
    with pytest.raises(ConnectFailed):
        run(RejectionSamplingStrategy().sample, "hello", None, Priced(refuse, PRICE), budget=budget)
    assert 0.0 == budget.spent.cost
