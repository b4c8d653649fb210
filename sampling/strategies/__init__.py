"""Strategies: what to ask, and which answer to keep."""

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
