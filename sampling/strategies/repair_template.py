"""Restate the action with what failed."""

from collections.abc import Sequence
from typing import TypeVar, Unpack

from sampling.messages import Attempt
from sampling.results import Slice, first_tried
from sampling.strategies._feedback import check_template, fill_fields
from sampling.strategies.history import History, HistoryLike, as_history
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["RepairTemplateStrategy"]

T = TypeVar("T")


class RepairTemplateStrategy(BaseSamplingStrategy):
    """
    Ask the original question again, in the original conversation, together with why the last answer failed.

    The conversation does not grow, so the price of an attempt stays the same however deep it goes.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    template: str = "{action}\n\nAn earlier answer was not accepted, for these reasons:\n{reasons}"

    history: History = History(1)
    """The reasons of which earlier answers are told."""

    def __init__(
        self, *, template: str | None = None, history: HistoryLike | None = None, **settings: Unpack[StrategySettings]
    ) -> None:
        """
        Take the template to restate with, which earlier answers to tell of, and what the base takes.

        The template has {action} and {reasons} in it, and may have {answer}, for the newest answer that is told of.
        The history is how many of the last answers, "all", "best", or a `History`, which can have a limit in tokens.
        """
        super().__init__(**settings)
        self._take(template=template)
        self.history = as_history(self.history if history is None else history)
        check_template(self.template, "{action}", "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Restate the first action with the reasons of the checks that failed."""
        original = first_tried(history)
        *older, newest = self.history.kept(history)
        always = [*(message.content for message in original.context), self._restated(original, [newest])]
        told = self.history.within(older, lambda one: [f"\n- {reason}" for reason in one.complaints], always)
        restated = self._restated(original, [*told, newest])
        return Attempt(original.action.with_text(restated), original.context, original.options)

    def _restated(self, original: Attempt[T], told: Sequence[Slice[T]]) -> str:
        # The same complaint about two answers is told once.
        reasons = dict.fromkeys(reason for one in told for reason in one.complaints)
        answer = told[-1].text or ""
        return fill_fields(self.template, reasons=reasons, action=original.action.text, answer=answer)
