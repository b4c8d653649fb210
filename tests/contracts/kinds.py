"""The strategies that the contracts S1 to S18 are tested with."""

import pytest

import sampling
from sampling import (
    BaseSamplingStrategy,
    BestOfNStrategy,
    BudgetForcingStrategy,
    Diverse,
    EscalationStrategy,
    HedgedSamplingStrategy,
    MajorityVotingStrategy,
    MBRStrategy,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Tier,
)
from sampling.strategies import EmbeddingSimilarity, Thinking
from sampling.testing import After, ScriptedBackend


class VotingOnAHunch(MajorityVotingStrategy):
    """A vote that ends at 90 % certainty."""

    certainty = 0.9


class MBRByEmbedding(MBRStrategy):
    """Minimum Bayes risk with an asynchronous similarity."""

    def __init__(self, **budgets):
        super().__init__(EmbeddingSimilarity(lambda text: [1.0, len(text)]), **budgets)


class BestByLength(BestOfNStrategy):
    """Best of n with a score."""

    def __init__(self, **budgets):
        super().__init__(len, **budgets)


class Varied(RejectionSamplingStrategy):
    """Rejection with a different request in every subsample."""

    variation = Diverse(temperatures=(0.1, 0.7, 1.0), seeds=range(100), prompts=("", "Be brief."), models=("a", "b"))


class OneThought(BudgetForcingStrategy):
    """Budget forcing with one thought before each answer: two requests per attempt."""

    thinking = Thinking(tokens=1)


class EagerHedge(HedgedSamplingStrategy):
    """Hedging for which every attempt is slow."""

    typical_s = 0.001


class OneTier(EscalationStrategy):
    """An escalation with a single tier."""

    patience = 1_000

    def __init__(self, **budgets):
        super().__init__([Tier()], **budgets)


FIRST_VALID_ENDS = [
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    MultiTurnStrategy,
    Varied,
    OneThought,
    EagerHedge,
    OneTier,
]
DRAW_MANY = [MajorityVotingStrategy, VotingOnAHunch, MBRStrategy, MBRByEmbedding, BestOfNStrategy, BestByLength]
STRATEGIES = [*FIRST_VALID_ENDS, *DRAW_MANY]

START_LATE = {MajorityVotingStrategy, VotingOnAHunch, EagerHedge}
"""Strategies that do not start all subsamples at once."""

PUBLIC = [
    thing
    for thing in vars(sampling).values()
    if isinstance(thing, type) and issubclass(thing, BaseSamplingStrategy) and thing is not BaseSamplingStrategy
]
"""Every strategy that a user can import from the front door."""

DECIDE_THEMSELVES = [strategy for strategy in STRATEGIES if strategy is not OneTier]
"""Strategies that make the decisions of a call. An escalation leaves them to its tiers."""

every_strategy = pytest.mark.parametrize("strategy_class", STRATEGIES)
every_strategy_that_decides = pytest.mark.parametrize("strategy_class", DECIDE_THEMSELVES)
where_the_first_valid_ends = pytest.mark.parametrize("strategy_class", FIRST_VALID_ENDS)
where_many_are_drawn = pytest.mark.parametrize("strategy_class", DRAW_MANY)


def requests_an_attempt(strategy_class):
    """Return the number of requests per attempt."""
    return 2 if issubclass(strategy_class, BudgetForcingStrategy) else 1


def always(text="no", delay_s=0.0):
    """Return a backend that always gives the same answer."""
    return ScriptedBackend(lambda _: After(delay_s, text))


def says_yes(text):
    return text == "yes"


async def sample(strategy, backend, reqs=(says_yes,), action="q", ctx=None, **arguments):
    return await strategy.sample(action, ctx, backend, reqs, **arguments)
