"""The harness finds each of the four planted races within 50 seeds."""

import pytest

import sampling.strategy
from sampling.testing import explore
from tests.faults.mutants import MUTANTS
from tests.faults.scenarios import errors_and_answers, plain_race

WITHIN_SEEDS = 50


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_race_is_found_within_fifty_seeds(monkeypatch, mutant, loop):
    """S9: the harness finds each planted bug within 50 seeds."""
    monkeypatch.setattr(sampling.strategy, "Run", mutant)
    with pytest.raises(AssertionError) as found:
        explore(errors_and_answers, seeds=range(WITHIN_SEEDS), loops=[loop])
    assert any("replay with seed" in note for note in found.value.__notes__)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_engine_itself_passes_the_same_seeds(loop):
    """The same seeds find no bug in the real engine."""
    for scenario in (errors_and_answers, plain_race):
        explore(scenario, seeds=range(WITHIN_SEEDS), loops=[loop])
