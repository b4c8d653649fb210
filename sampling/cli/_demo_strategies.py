"""Score seven strategies on questions for the embedded model."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import anyio
import attrs

from sampling.backends.llama.models.arithmetic import Question, share_of_right_steps
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.results import SamplingResult
from sampling.strategies.best_of_n import BestOfNStrategy
from sampling.strategies.escalation import EscalationStrategy, Tier
from sampling.strategies.hedged import HedgedSamplingStrategy
from sampling.strategies.keys import number
from sampling.strategies.multi_turn import MultiTurnStrategy
from sampling.strategies.rejection import RejectionSamplingStrategy
from sampling.strategies.voting import MajorityVotingStrategy
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Usage

__all__ = ["UNTRUNCATED", "DemoAnswer", "DemoStrategy", "Score", "demo_strategies", "score_strategy"]

UNTRUNCATED = Options(temperature=1.0, max_tokens=64, top_k=0, top_p=1.0, min_p=0.0)
"""Sample from the full distribution. Most servers cut off unlikely tokens by default."""


@attrs.frozen
class DemoStrategy:
    """A strategy of the demo, with its name and settings."""

    name: str
    summary: str
    """Depth, breadth and checking in a few words."""

    strategy: BaseSamplingStrategy
    checked: bool
    """True if answers are checked during the call. Otherwise only the score knows which are right."""

    async def ask(self, question: Question, backend: Backend) -> "DemoAnswer":
        """Ask one question and grade the answer."""
        requirements = [question.requirement] if self.checked else []
        result = await self.strategy.sample(question.text, None, backend, requirements, options=UNTRUNCATED)
        return DemoAnswer.of(result, question)


@attrs.frozen
class DemoAnswer:
    """The graded answer to one question."""

    right: bool
    elapsed_s: float
    usage: Usage
    requests: int

    @classmethod
    def of(cls, result: SamplingResult[str], question: Question) -> "DemoAnswer":
        """Grade the result of a call against the question."""
        right = question.is_right(result.text or "")
        return cls(right, result.elapsed_s, result.usage, sum(one.requests for one in result.attempts))


@attrs.frozen
class Score:
    """The averages of one strategy over many questions."""

    name: str
    summary: str
    questions: int
    accuracy: float
    p50_s: float
    p95_s: float
    output_tokens: float
    """Mean tokens generated per question, cancelled attempts included."""

    input_tokens: float
    requests: float

    @classmethod
    def of(cls, strategy: DemoStrategy, answers: Sequence[DemoAnswer]) -> "Score":
        """Aggregate the answers of one strategy."""
        times = sorted(answer.elapsed_s for answer in answers)
        return cls(
            strategy.name,
            strategy.summary,
            len(answers),
            accuracy=statistics.fmean(answer.right for answer in answers),
            p50_s=_quantile(times, 0.5),
            p95_s=_quantile(times, 0.95),
            output_tokens=statistics.fmean(answer.usage.output_tokens for answer in answers),
            input_tokens=statistics.fmean(answer.usage.input_tokens for answer in answers),
            requests=statistics.fmean(answer.requests for answer in answers),
        )


def demo_strategies() -> list[DemoStrategy]:
    """Return the seven strategies of the demo, the simplest first."""
    return [
        DemoStrategy("one-shot", "ask once", RejectionSamplingStrategy(), checked=False),
        DemoStrategy(
            "rejection",
            "3 × 4, checked",
            RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4),
            checked=True,
        ),
        DemoStrategy("multi-turn repair", "4 deep, checked", MultiTurnStrategy(loop_budget=4), checked=True),
        DemoStrategy(
            "majority vote", "up to 9, no check", MajorityVotingStrategy(number, certainty=0.9), checked=False
        ),
        DemoStrategy("best-of-n", "4, steps scored", BestOfNStrategy(share_of_right_steps), checked=False),
        DemoStrategy(
            "hedged",
            "3 × up to 4, checked",
            HedgedSamplingStrategy(loop_budget=3, typical_s=0.05),
            checked=True,
        ),
        DemoStrategy("escalation", "1, then 3×4, checked", _escalation(), checked=True),
    ]


def _escalation() -> EscalationStrategy:
    """Ask once, then with 3 × 4 rejection sampling if that fails."""
    return EscalationStrategy(
        [
            Tier(strategy=RejectionSamplingStrategy()),
            Tier(strategy=RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4)),
        ],
        patience=3,
    )


async def score_strategy(
    strategy: DemoStrategy,
    questions: Iterable[Question],
    backend: Backend,
    *,
    concurrency: int = 2,
    advance: Callable[[], object] = lambda: None,
) -> Score:
    """Return the score of a strategy. Calls `advance` after each question."""
    answers: list[DemoAnswer] = []
    # All tasks take questions from the same iterator, so none is asked twice.
    remaining = iter(questions)

    async def ask_remaining() -> None:
        for question in remaining:
            answers.append(await strategy.ask(question, backend))
            advance()

    async with anyio.create_task_group() as group:
        for _ in range(concurrency):
            group.start_soon(ask_remaining)
    return Score.of(strategy, answers)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile of sorted values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
