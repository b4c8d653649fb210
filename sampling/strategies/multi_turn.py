"""Reply with the reasons of a failure, in the same conversation."""

from collections.abc import Sequence
from typing import TypeVar, Unpack

from sampling.messages import Attempt, Message, answer_calls
from sampling.results import Slice, first_tried
from sampling.strategies._feedback import check_template, fill
from sampling.strategies.history import History, HistoryLike, as_history
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MultiTurnStrategy"]

T = TypeVar("T")


class MultiTurnStrategy(BaseSamplingStrategy):
    """
    Reply with the reasons of a failure in the same conversation.

    Use it when checks give reasons that a model can act on, and it should see its earlier answers.
    Each turn sends the whole conversation again, so the prompt grows with depth, unless `history` drops turns.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    template: str = "This is not acceptable yet, for these reasons:\n{reasons}\nPlease give the whole answer again."

    history: History = History()
    """The earlier turns to send again."""

    def __init__(
        self, *, template: str | None = None, history: HistoryLike | None = None, **settings: Unpack[StrategySettings]
    ) -> None:
        """
        Set the template and the history.

        Args:
            template: Must contain {reasons}.

            history: "all", "best", the number of latest turns, or a `History`, which can limit the tokens.
                The first question is always kept.

            settings: The settings of `BaseSamplingStrategy`.
        """
        super().__init__(**settings)
        self._take(template=template)
        self.history = as_history(self.history if history is None else history)
        check_template(self.template, "{reasons}")

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]:
        """Add a user message with the reasons of the failure."""
        if not self.history.keeps_all:
            return self._shortened(first_tried(history), self.history.kept(history))
        # The context of the newest slice already holds all earlier turns.
        last = history[-1]
        options = None if last.tried is None else last.tried.options
        return Attempt(last.action.with_content(fill(self.template, last)), last.context, options)

    def _shortened(self, first: Attempt[T], kept: Sequence[Slice[T]]) -> Attempt[T]:
        """Continue a conversation of the kept turns that fit."""
        newest = kept[-1]
        feedback = fill(self.template, newest)

        def texts_of(turn: Slice[T]) -> list[str]:
            answer = turn.text or ""
            return [answer] if turn is newest else [answer, fill(self.template, turn)]

        prompt = [message.text for message in first.messages]
        turns = self.history.within(kept, texts_of, [*prompt, feedback])
        if not turns:
            # Not even the newest answer fits. The model must still learn why it failed.
            return Attempt(first.action.with_text(f"{first.action.text}\n\n{feedback}"), first.context, first.options)
        messages = [Message(first.action.role, first.action.content)]
        for turn in turns:
            answer = Message("assistant", "") if turn.generation is None else turn.generation.message
            messages.append(answer)
            if turn is not newest:
                # A tool call needs a result before the conversation continues.
                messages.extend([*answer_calls((answer,))[1:], Message("user", fill(self.template, turn))])
        return Attempt(first.action.with_content(feedback), first.context.add(*messages), first.options)

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Return the slice with the most merit.

        The deepest turn of the lowest subsample wins a tie, because the model had the most feedback there.
        """
        return max(slices, key=lambda one: (one.passed, one.score, -one.subsample, one.attempt))
