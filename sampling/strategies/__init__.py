"""Strategies, which decide what to ask and which answer to keep."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes

if TYPE_CHECKING:
    from sampling.strategies.best_of_n import BestOfNStrategy
    from sampling.strategies.budget_forcing import BudgetForcingStrategy, Thinking
    from sampling.strategies.diversity import Diverse
    from sampling.strategies.escalation import EscalationStrategy, Tier
    from sampling.strategies.hedged import HedgedSamplingStrategy
    from sampling.strategies.history import History
    from sampling.strategies.mbr import MBRStrategy
    from sampling.strategies.multi_turn import MultiTurnStrategy
    from sampling.strategies.rejection import RejectionSamplingStrategy
    from sampling.strategies.repair_template import RepairTemplateStrategy
    from sampling.strategies.similarity import EmbeddingSimilarity
    from sampling.strategies.voting import MajorityVotingStrategy

__all__ = [
    "BestOfNStrategy",
    "BudgetForcingStrategy",
    "Diverse",
    "EmbeddingSimilarity",
    "EscalationStrategy",
    "HedgedSamplingStrategy",
    "History",
    "MBRStrategy",
    "MajorityVotingStrategy",
    "MultiTurnStrategy",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Thinking",
    "Tier",
]

# Most programs use one of them.
__getattr__: Callable[[str], Any] = lazy_attributes(
    __name__,
    {
        "BestOfNStrategy": "sampling.strategies.best_of_n",
        "BudgetForcingStrategy": "sampling.strategies.budget_forcing",
        "Diverse": "sampling.strategies.diversity",
        "EmbeddingSimilarity": "sampling.strategies.similarity",
        "EscalationStrategy": "sampling.strategies.escalation",
        "HedgedSamplingStrategy": "sampling.strategies.hedged",
        "History": "sampling.strategies.history",
        "MBRStrategy": "sampling.strategies.mbr",
        "MajorityVotingStrategy": "sampling.strategies.voting",
        "MultiTurnStrategy": "sampling.strategies.multi_turn",
        "RejectionSamplingStrategy": "sampling.strategies.rejection",
        "RepairTemplateStrategy": "sampling.strategies.repair_template",
        "Thinking": "sampling.strategies.budget_forcing",
        "Tier": "sampling.strategies.escalation",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
