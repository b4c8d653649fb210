"""Ask again, unchanged."""

from sampling.strategy import BaseSamplingStrategy

__all__ = ["RejectionSamplingStrategy"]


class RejectionSamplingStrategy(BaseSamplingStrategy):
    """
    Ask the same thing again until an answer is valid.

    If none is, the best failure is the one that met most requirements, and of equals the earliest.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """
