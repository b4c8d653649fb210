"""Restate the action with what failed."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sampling.messages import Attempt
from sampling.results import Slice, first_tried
from sampling.strategies.feedback import check_template, fill
from sampling.strategy import BaseSamplingStrategy

__all__ = ["RepairTemplateStrategy"]

T = TypeVar("T")


class RepairTemplateStrategy(BaseSamplingStrategy):
    """
    Ask the original question again, in the original conversation, together with why the last answer failed.

    The conversation does not grow, so the price of an attempt stays the same however deep it goes.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    template: str = "{action}\n\nAn earlier answer was not accepted, for these reasons:\n{reasons}"

    def __init__(self, *, template: str | None = None, **budgets: Any) -> None:
        """Take the template to restate with, which has {action} and {reasons} in it, and what the base takes."""
        super().__init__(**budgets)
        if template is not None:
            self.template = template
        check_template(self.template, "{action}", "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Restate the first action with the reasons of the checks that failed last."""
        original = first_tried(history)
        restated = fill(self.template, history[-1], action=original.action.text)
        return Attempt(original.action.with_text(restated), original.context, original.options)
