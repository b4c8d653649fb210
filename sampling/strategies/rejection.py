"""Send the same prompt until an answer is valid."""

from sampling.strategy import BaseSamplingStrategy

__all__ = ["RejectionSamplingStrategy"]


class RejectionSamplingStrategy(BaseSamplingStrategy):
    """
    Send the same prompt until an answer is valid.

    Use it when a check is reliable, and its reasons would not help the model.
    Every attempt costs the same: the prompt does not grow.
    If no answer is valid, the result is the one that met the most requirements. The earliest wins a tie.
    See `BaseSamplingStrategy` for the cost of breadth.
    """
