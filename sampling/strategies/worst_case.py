"""Upper bounds on the usage of a call."""

from collections.abc import Iterator, Sequence
from itertools import chain

import attrs

from sampling._text import estimate_tokens
from sampling.messages import Context, Options
from sampling.requirements import Requirement, as_requirements
from sampling.strategies.budget_forcing import BudgetForcingStrategy
from sampling.strategies.escalation import EscalationStrategy
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Price, Usage

__all__ = ["WorstCase", "WorstCases"]


FEEDBACK_TOKENS = 100
"""Estimated tokens of the feedback on a failed answer."""

JUDGE_TOKENS = 200
"""Estimated tokens of a judge's prompt, besides the requirement and the answer."""

VERDICT_TOKENS = 100
"""Estimated tokens of a judge's reply."""


@attrs.frozen
class WorstCase:
    """
    The maximum usage of a call.

    It makes every attempt, and every answer has the maximum length.
    """

    attempts: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "WorstCase") -> "WorstCase":
        return WorstCase(
            self.attempts + other.attempts,
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def cost(self, price: Price) -> float:
        """Return the cost of these tokens."""
        return price.of(Usage(self.input_tokens, self.output_tokens))


class WorstCases:
    """
    Upper bounds for questions to one strategy.

    A token counts as four characters, as in budgets. The feedback on a failed answer counts as a hundred tokens,
    and so does a judge's reply. Requests that layers such as `Retrying` repeat are not included,
    and a check of your own counts as one request if it is judged, however many it sends.
    """

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        requirements: Sequence[Requirement] = (),
        context: Context | None = None,
        options: Options | None = None,
    ) -> None:
        self._stages = tuple(_stages(strategy))
        self._carries_all = _carries_conversation(strategy)
        # The requirements of a tier's strategy are checked on that tier only. Counting them on all is an upper bound.
        own = [as_requirements("requirements", stage.requirements) for stage in (strategy, *self._stages)]
        all_of_them = dict.fromkeys(chain(*own, requirements))
        judged = [one.description for requirement in all_of_them for one in _judges(requirement)]
        self._judges = len(judged)
        self._judges_read = sum(estimate_tokens(len(sentence)) + JUDGE_TOKENS for sentence in judged)
        self._context_chars = 0 if context is None else context.chars
        self._max_tokens = None if options is None else options.max_tokens

    def of(self, question: str, *, longest_answer: int = 0) -> WorstCase:
        """
        Return the worst case of one question.

        `longest_answer` applies if the options have no `max_tokens`.
        """
        answer = longest_answer if self._max_tokens is None else self._max_tokens
        # The estimate rounds down, and this is an upper bound.
        prompt = estimate_tokens(self._context_chars + len(question)) + 1
        first, *later = self._stages
        whole = self._of_stage(first, prompt, answer)
        turns = first.loop_budget if self._carries_all else 1
        for stage in later:
            # The prompt of a later tier has the best answer so far and the feedback on it, or all turns before it.
            whole += self._of_stage(stage, prompt + turns * (answer + FEEDBACK_TOKENS), answer)
            turns += stage.loop_budget if self._carries_all else 0
        return whole

    def _of_stage(self, strategy: BaseSamplingStrategy, prompt: int, answer: int) -> WorstCase:
        depth, breadth = strategy.loop_budget, strategy.concurrency_budget
        attempts = depth * breadth
        # Every failed answer adds itself and the feedback on it to the conversation.
        regrown = breadth * depth * (depth - 1) // 2 * (answer + FEEDBACK_TOKENS)
        judged = attempts * self._judges
        requests = _requests_of_attempt(strategy)
        return WorstCase(
            attempts,
            attempts * requests + judged,
            # A judge reads the whole conversation, too.
            (requests + self._judges) * (attempts * prompt + regrown) + judged * answer + attempts * self._judges_read,
            attempts * (answer + _thoughts_of_attempt(strategy)) + judged * VERDICT_TOKENS,
        )


def _stages(strategy: BaseSamplingStrategy) -> Iterator[BaseSamplingStrategy]:
    """Yield the strategies of all nested calls."""
    if isinstance(strategy, EscalationStrategy):
        for tier in strategy.tiers:
            yield from _stages(tier.strategy) if tier.strategy is not None else iter([strategy])
    else:
        yield strategy


def _carries_conversation(strategy: BaseSamplingStrategy) -> bool:
    if not isinstance(strategy, EscalationStrategy):
        return False
    inside = [tier.strategy for tier in strategy.tiers if tier.strategy is not None]
    return strategy.carry == "conversation" or any(_carries_conversation(one) for one in inside)


def _judges(requirement: Requirement) -> Iterator[Requirement]:
    """Yield the judged requirements in a combination, or the requirement itself."""
    if not requirement.judged:
        return
    parts: Sequence[Requirement] = getattr(getattr(requirement.check, "__self__", None), "parts", ())
    for part in parts:
        yield from _judges(part)
    if not parts:
        yield requirement


def _requests_of_attempt(strategy: BaseSamplingStrategy) -> int:
    return 2 + strategy.thinking.most_waits if isinstance(strategy, BudgetForcingStrategy) else 1


def _thoughts_of_attempt(strategy: BaseSamplingStrategy) -> int:
    return strategy.thinking.tokens if isinstance(strategy, BudgetForcingStrategy) else 0
