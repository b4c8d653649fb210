"""Answer the model in the same conversation."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sampling.messages import Attempt
from sampling.results import Slice
from sampling.strategies.feedback import check_template, fill
from sampling.strategy import BaseSamplingStrategy

__all__ = ["MultiTurnStrategy"]

T = TypeVar("T")


class MultiTurnStrategy(BaseSamplingStrategy):
    """
    Tell the model, as the next turn of the same conversation, why its answer was not accepted.

    Each turn sends the whole conversation again, so the prompt grows with depth.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    template: str = "This is not acceptable yet, for these reasons:\n{reasons}\nPlease give the whole answer again."

    def __init__(self, *, template: str | None = None, **budgets: Any) -> None:
        """Take the template of a turn, which has {reasons} in it, and what the base takes."""
        super().__init__(**budgets)
        if template is not None:
            self.template = template
        check_template(self.template, "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Put the reasons of the checks that failed as a user's message after the answer."""
        last = history[-1]
        options = None if last.tried is None else last.tried.options
        return Attempt(last.action.with_text(fill(self.template, last)), last.context, options)

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose by merit; of equals, the deepest turn of the lowest subsample, which has been told the most."""
        return max(slices, key=lambda one: (one.passed, one.score, -one.subsample, one.attempt))
