"""Repeat the question with the reasons of a failure."""

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
    Repeat the question with the reasons of the last failure.

    Use it when checks give reasons that a model can act on, and prompts must stay short.
    The conversation does not grow, so every attempt costs about the same, however deep the call goes.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    template: str = "{action}\n\nAn earlier answer was not accepted, for these reasons:\n{reasons}"

    history: History = History(1)
    """The earlier answers whose reasons go into the prompt."""

    def __init__(
        self, *, template: str | None = None, history: HistoryLike | None = None, **settings: Unpack[StrategySettings]
    ) -> None:
        """
        Set the template and the history.

        Args:
            template: Must contain {action} and {reasons}. It may contain {answer}, the newest failed answer.

            history: The number of latest answers, "all", "best", or a `History`, which can limit the tokens.

            settings: The settings of `BaseSamplingStrategy`.
        """
        super().__init__(**settings)
        self._take(template=template)
        self.history = as_history(self.history if history is None else history)
        check_template(self.template, "{action}", "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Restate the first action with the reasons of the failure."""
        original = first_tried(history)
        *older, newest = self.history.kept(history)
        always = [*(message.text for message in original.context), self._restated(original, [newest])]
        fitting = self.history.within(older, lambda one: [f"\n- {reason}" for reason in one.complaints], always)
        restated = self._restated(original, [*fitting, newest])
        return Attempt(original.action.with_text(restated), original.context, original.options)

    def _restated(self, original: Attempt[T], failed: Sequence[Slice[T]]) -> str:
        # Two answers often fail for the same reason. List it once.
        reasons = dict.fromkeys(reason for one in failed for reason in one.complaints)
        answer = failed[-1].text or ""
        return fill_fields(self.template, reasons=reasons, action=original.action.text, answer=answer)
