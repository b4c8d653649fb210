"""Seeds: samples of a call differ, and runs repeat."""

from sampling import (
    Action,
    Attempt,
    Context,
    Diverse,
    MajorityVotingStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
)
from sampling.strategy import BaseSamplingStrategy
from sampling.testing import ScriptedBackend

NEVER = [lambda text: False]


def seeds(backend):
    return sorted((request.iteration, request.options.seed) for request in backend.requests)


def test_each_iteration_has_its_own(run):
    """S23: iteration i sends the seed of the call plus i - 1."""
    backend = ScriptedBackend(lambda request: "no")
    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3)
    run(strategy.sample, "Q", None, backend, NEVER, options=Options(seed=40))
    assert [(1, 40), (2, 41), (3, 42), (4, 43), (5, 44), (6, 45)] == seeds(backend)


def test_draws_of_a_vote_differ(run):
    """S23: otherwise a vote would be unanimous."""
    backend = ScriptedBackend(lambda request: str(request.options.seed))
    strategy = MajorityVotingStrategy(loop_budget=1, concurrency_budget=4)
    run(strategy.sample, "Q", None, backend, options=Options(seed=7))
    assert [(1, 7), (2, 8), (3, 9), (4, 10)] == seeds(backend)


def test_a_variation_is_sent_as_it_is(run):
    """S23: `Diverse` says which seed a subsample gets."""
    backend = ScriptedBackend(lambda request: "no")
    strategy = RejectionSamplingStrategy(concurrency_budget=2, variation=Diverse(seeds=(5, 5)))
    run(strategy.sample, "Q", None, backend, NEVER, options=Options(seed=40))
    assert [(1, 5), (2, 5)] == seeds(backend)


def test_a_repair_is_sent_as_it_is(run):
    """S23: a strategy may repeat a seed on purpose."""

    class Same(BaseSamplingStrategy):
        loop_budget = 3

        def repair(self, history):
            return Attempt(Action("Q"), Context(), Options(seed=3))

    backend = ScriptedBackend(lambda request: "no")
    run(Same().sample, "Q", None, backend, NEVER, options=Options(seed=40))
    assert [(1, 40), (2, 3), (3, 3)] == seeds(backend)


def test_a_judge_gets_none(run):
    """S23: the seed is that of the samples."""
    backend = ScriptedBackend(lambda request: "yes")
    run(RejectionSamplingStrategy().sample, "Q", None, backend, [Requirement("is good")], options=Options(seed=40))
    assert [40, None] == [request.options.seed for request in backend.requests]
    assert ["Q", None] == [request.action and request.action.text for request in backend.requests]
