"""The harness finds each planted defect within 50 seeds."""

import pytest

from sampling.testing import explore
from tests.faults.mutants import MUTANTS

WITHIN_SEEDS = 50


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_defect_is_found_within_fifty_seeds(monkeypatch, name, loop):
    """S9: the harness finds each planted bug within 50 seeds."""
    plant, scenario = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError) as found:
        explore(scenario, seeds=range(WITHIN_SEEDS), loops=[loop])
    assert any("replay with seed" in note for note in found.value.__notes__)


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "scenario", dict.fromkeys(scenario for _, scenario in MUTANTS.values()), ids=lambda one: one.__name__
)
def test_the_engine_itself_passes_the_same_seeds(scenario, loop):
    """The same seeds find no bug in the real engine."""
    explore(scenario, seeds=range(WITHIN_SEEDS), loops=[loop])
