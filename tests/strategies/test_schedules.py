"""Drawing strategies keep the invariants in seeded schedules, cancelled at every step."""

import pytest

from sampling import Budget, TransientError
from sampling.testing import Watch, cancel_at_every_step, explore
from tests.contracts.kinds import DRAW_MANY, EagerHedge, Varied
from tests.faults.scenarios import BREADTH, backend_of, table, watched

KINDS = [*DRAW_MANY, Varied, EagerHedge]
SEEDS = 2_000


async def every_kind(world):
    """A call of any of these strategies, whose answers, errors and delays come from the schedule."""
    strategy_class = world.rng.choice(KINDS)
    deterministic = world.rng.random() < 0.5
    strategy = strategy_class(loop_budget=2, concurrency_budget=BREADTH, deterministic=deterministic)
    world.reached(f"{strategy_class.__name__} {deterministic}")
    errors = [(TransientError, 0.1), (RuntimeError, 0.05)]
    return await watched(world, strategy, backend_of(table(world, yes=0.5, errors=errors)))


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_invariants_hold_in_every_schedule(loop):
    """I1 to I12, I19: 2,000 seeds, 1 % of them run twice to check that a seed determines everything."""
    kinds = [f"{kind.__name__} {deterministic}" for kind in KINDS for deterministic in (True, False)]
    exploration = explore(
        every_kind, seeds=range(SEEDS), loops=[loop], must_reach=[*kinds, "validated", "exhausted"], replay=0.01
    )
    assert SEEDS == exploration.runs


@pytest.mark.parametrize("strategy_class", KINDS)
def test_nothing_is_left_when_a_call_is_cancelled_at_any_step(strategy_class):
    """I6, I8, I9: no task, no request and no reservation outlives the call."""
    seen = {}

    async def scenario(world):
        budget = seen["budget"] = Budget(attempts=100)
        watch = seen["watch"] = Watch(backend_of(table(world, yes=0.5)))
        strategy = strategy_class(loop_budget=2, concurrency_budget=3)
        return await watch.sample(strategy, "q", None, [lambda text: text == "yes"], budget=budget)

    def check(world, outcome):
        assert not outcome.left_running
        seen["watch"].check()
        assert 0 == seen["budget"].reserved.attempts == seen["budget"].reserved.requests

    cancel_at_every_step(scenario, check=check)
