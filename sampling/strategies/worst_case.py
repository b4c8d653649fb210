"""The most that calls can ask for, before any of them is made."""

from collections.abc import Iterator, Sequence

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
"""About what is told of an answer that failed."""

JUDGE_TOKENS = 200
"""About what a judge is told besides the requirement and the answer."""

VERDICT_TOKENS = 100
"""About what a judge replies."""


@attrs.frozen
class WorstCase:
    """What a call takes if every attempt is made, and every answer is as long as it may be."""

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
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def cost(self, price: Price) -> float:
        """Return what these tokens cost."""
        return price.of(Usage(self.input_tokens, self.output_tokens))


class WorstCases:
    """
    Knows the worst case of every question to one strategy.

    A token is taken for four characters, as budgets do, what a model is told about a failed answer for a hundred
    tokens, and so is what a judge replies. What layers send again, such as `Retrying`, comes on top.
    """

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        requirements: Sequence[Requirement] = (),
        context: Context | None = None,
        options: Options | None = None,
    ) -> None:
        self._stages = tuple(_stages(strategy))
        both = (*as_requirements("requirements", strategy.requirements), *requirements)
        judged = [requirement.description for requirement in both if requirement.judged]
        self._judges = len(judged)
        self._judges_read = sum(estimate_tokens(len(sentence)) + JUDGE_TOKENS for sentence in judged)
        self._context_chars = 0 if context is None else context.chars
        self._max_tokens = None if options is None else options.max_tokens

    def of(self, question: str, *, longest_answer: int = 0) -> WorstCase:
        """Return the worst case of one question, with an answer of that many tokens where the options say none."""
        answer = longest_answer if self._max_tokens is None else self._max_tokens
        prompt = estimate_tokens(self._context_chars + len(question)) + 1
        first, *later = self._stages
        whole = self._of_stage(first, prompt, answer)
        for stage in later:
            # It is shown the best answer so far, and why that failed.
            whole += self._of_stage(stage, prompt + answer + FEEDBACK_TOKENS, answer)
        return whole

    def _of_stage(self, strategy: BaseSamplingStrategy, prompt: int, answer: int) -> WorstCase:
        depth, breadth = strategy.loop_budget, strategy.concurrency_budget
        attempts = depth * breadth
        # A conversation grows, with every answer that failed, by that answer and by what was wrong with it.
        regrown = breadth * depth * (depth - 1) // 2 * (answer + FEEDBACK_TOKENS)
        judged = attempts * self._judges
        asked = _requests_of_attempt(strategy)
        return WorstCase(
            attempts,
            attempts * asked + judged,
            asked * (attempts * prompt + regrown) + judged * answer + attempts * self._judges_read,
            attempts * (answer + _thoughts_of_attempt(strategy)) + judged * VERDICT_TOKENS,
        )


def _stages(strategy: BaseSamplingStrategy) -> Iterator[BaseSamplingStrategy]:
    """Give the strategies of all calls that one call may make."""
    if isinstance(strategy, EscalationStrategy):
        for tier in strategy.tiers:
            yield from _stages(tier.strategy) if tier.strategy is not None else iter([strategy])
    else:
        yield strategy


def _requests_of_attempt(strategy: BaseSamplingStrategy) -> int:
    return 2 + strategy.thinking.most_waits if isinstance(strategy, BudgetForcingStrategy) else 1


def _thoughts_of_attempt(strategy: BaseSamplingStrategy) -> int:
    return strategy.thinking.tokens if isinstance(strategy, BudgetForcingStrategy) else 0
