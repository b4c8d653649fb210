"""I1 to I12 and I18 hold in every seeded schedule."""

import pytest

from sampling.testing import explore
from tests.faults.scenarios import CAMPAIGN, same_outcome_in_any_timing

SEEDS = 2_000


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("scenario", CAMPAIGN, ids=lambda scenario: scenario.__name__)
def test_the_invariants_hold_in_every_schedule(scenario, loop):
    """I1 to I12, I14, I18, I19, rows 27 to 30, 37, 45 to 51: 2,000 seeds of each scenario, 1 % of them replayed."""
    exploration = explore(scenario, seeds=range(SEEDS), loops=[loop], must_reach=CAMPAIGN[scenario], replay=0.01)
    assert SEEDS == exploration.runs


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize(("scenario", "seed", "loop"), [(same_outcome_in_any_timing, 1015886, "trio")])
def test_a_schedule_that_failed_once_passes(scenario, seed, loop):
    """Semantics 8: `make soak` found it. A vote took a second attempt before the draw that replaces a failed one."""
    assert 1 == explore(scenario, seeds=[seed], loops=[loop]).runs
