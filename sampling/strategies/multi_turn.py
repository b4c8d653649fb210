"""Answer the model in the same conversation."""

from collections.abc import Sequence
from typing import TypeVar, Unpack

from sampling.messages import Attempt, Message
from sampling.results import Slice, first_tried
from sampling.strategies._feedback import check_template, fill
from sampling.strategies.history import History, HistoryLike, as_history
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MultiTurnStrategy"]

T = TypeVar("T")


class MultiTurnStrategy(BaseSamplingStrategy):
    """
    Tell the model, as the next turn of the same conversation, why its answer was not accepted.

    Each turn sends the whole conversation again, so the prompt grows with depth, unless `history` leaves turns out.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    template: str = "This is not acceptable yet, for these reasons:\n{reasons}\nPlease give the whole answer again."

    history: History = History()
    """Which of the earlier turns are sent again."""

    def __init__(
        self, *, template: str | None = None, history: HistoryLike | None = None, **settings: Unpack[StrategySettings]
    ) -> None:
        """
        Take the template of a turn, which turns to keep, and what the base takes.

        The template has {reasons} in it. The history is "all", "best", how many of the last turns, or a `History`,
        which can have a limit in tokens too. The first question always stays.
        """
        super().__init__(**settings)
        self._take(template=template)
        self.history = as_history(self.history if history is None else history)
        check_template(self.template, "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Put the reasons of the checks that failed as a user's message after the answer."""
        if not self.history.keeps_all:
            return self._shortened(first_tried(history), self.history.kept(history))
        last = history[-1]
        options = None if last.tried is None else last.tried.options
        return Attempt(last.action.with_text(fill(self.template, last)), last.context, options)

    def _shortened(self, first: Attempt[T], kept: Sequence[Slice[T]]) -> Attempt[T]:
        """Go on as if nothing but these turns, or as many of them as there is room for, had followed the question."""
        newest = kept[-1]
        complaint = fill(self.template, newest)

        def said(turn: Slice[T]) -> list[str]:
            answer = turn.text or ""
            return [answer] if turn is newest else [answer, fill(self.template, turn)]

        asked = [message.content for message in first.messages]
        turns = self.history.within(kept, said, [*asked, complaint])
        if not turns:
            # Not even the newest answer has room: what was wrong with it is told with the question.
            return Attempt(first.action.with_text(f"{first.action.text}\n\n{complaint}"), first.context, first.options)
        in_turn = [first.action.text, *(text for turn in turns for text in said(turn))]
        messages = [Message("assistant" if number % 2 else "user", text) for number, text in enumerate(in_turn)]
        return Attempt(first.action.with_text(complaint), first.context.add(*messages), first.options)

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose by merit; of equals, the deepest turn of the lowest subsample, which has been told the most."""
        return max(slices, key=lambda one: (one.passed, one.score, -one.subsample, one.attempt))
