"""The strategies: pure decisions, one file an idea."""

from sampling.strategies.multi_turn import MultiTurnStrategy
from sampling.strategies.rejection import RejectionSamplingStrategy
from sampling.strategies.repair_template import RepairTemplateStrategy

__all__ = ["MultiTurnStrategy", "RejectionSamplingStrategy", "RepairTemplateStrategy"]
