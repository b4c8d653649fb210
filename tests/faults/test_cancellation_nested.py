"""Cancel hedged and escalated calls at every step."""

import anyio
import pytest

from sampling import (
    EscalationStrategy,
    HedgedSamplingStrategy,
    LoopFinished,
    LoopStarted,
    Tier,
)
from sampling.testing import After, ScriptedBackend, cancel_at_every_step
from tests.faults.scenarios import HedgedOnTheGrid
from tests.faults.watched_calls import call_with_everything


def hedged(hooks):
    return HedgedOnTheGrid(loop_budget=2, concurrency_budget=3, hooks=hooks)


def escalated(hooks):
    """Return two tiers. The second is an escalation whose last tier is hedged."""
    inner = EscalationStrategy([Tier(), Tier(strategy=HedgedOnTheGrid(concurrency_budget=2))], hooks=hooks)
    return EscalationStrategy([Tier(), Tier(strategy=inner)], concurrency_budget=2)


def call_of(make):
    """Make the second request raise and the fourth right, in any tier."""
    return call_with_everything(make, lambda _, asked: len(asked))


@pytest.mark.parametrize("make", [hedged, escalated])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_scope_that_is_cancelled_at_any_step(make, loop, seed):
    """Rows 35 and 45: I1 to I12 hold for every step, and every inner call ends exactly once."""
    scenario, seen = call_of(make)
    kinds = set()

    def check(world, outcome):
        kinds.add(outcome.kind)
        assert not outcome.left_running
        watch, budget = seen["watch"], seen["budget"]
        watch.check()
        assert (0, 0, 0) == (budget.reserved.attempts, budget.reserved.requests, budget.reserved.tokens)
        started = [event.sampling_id for event in watch.events.of(LoopStarted)]
        finished = [event.sampling_id for event in watch.events.of(LoopFinished)]
        assert sorted(started) == sorted(finished)

    outcomes = cancel_at_every_step(scenario, check=check, loops=[loop], seed=seed)
    assert {"returned", "cancelled"} <= kinds
    assert len(outcomes) > 20


@pytest.mark.parametrize("make", [hedged, escalated])
def test_a_native_cancellation_at_any_step(make):
    """Row 36: a native cancel propagates, and no task is left."""
    scenario, seen = call_of(make)

    def check(world, outcome):
        assert not outcome.left_running
        if outcome.step is not None and seen["watch"].result is None:
            assert "cancelled" == outcome.kind
        seen["watch"].check()

    outcomes = cancel_at_every_step(scenario, check=check, native=True)
    assert "cancelled" in {outcome.kind for outcome in outcomes}


def test_a_cancelled_call_teaches_that_its_attempts_would_have_taken_longer(run):
    """Cancelled calls count as slow. Otherwise a hedge would never learn that a server has become slow."""
    strategy = HedgedSamplingStrategy(concurrency_budget=2, typical_s=0.001, quantile=0.5)

    async def main():
        for _ in range(20):
            with anyio.move_on_after(8.0):
                await strategy.sample("q", None, ScriptedBackend(lambda _: After(100.0, "yes")))
        backend = ScriptedBackend(lambda _: After(100.0, "yes"))
        with anyio.move_on_after(8.0):
            await strategy.sample("q", None, backend)
        return len(backend.requests)

    assert 1 == run(main)
