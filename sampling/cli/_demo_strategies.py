"""Seven ways to ask the embedded model the same questions, and what comes of each."""

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

__all__ = ["AS_IT_IS", "Answer", "Score", "Way", "ask_all", "seven_ways"]

AS_IT_IS = Options(temperature=1.0, max_tokens=64, extra={"top_k": 0, "top_p": 1.0, "min_p": 0.0})
"""Draw from what the model has learned, and not from a part of it: most servers cut the unlikely off by default."""


@attrs.frozen
class Way:
    """One way of asking."""

    name: str
    how: str
    """What it does, in a few words: depth × breadth."""

    strategy: BaseSamplingStrategy
    checked: bool
    """Whether the answers are checked. Where they are not, nobody but us knows which of them are right."""

    async def ask(self, question: Question, backend: Backend) -> "Answer":
        """Ask one question, and see what comes of it."""
        requirements = [question.requirement] if self.checked else []
        result = await self.strategy.sample(question.text, None, backend, requirements, options=AS_IT_IS)
        return Answer.of(result, question)


@attrs.frozen
class Answer:
    """What came of one question."""

    right: bool
    elapsed_s: float
    usage: Usage
    requests: int

    @classmethod
    def of(cls, result: SamplingResult[str], question: Question) -> "Answer":
        """Look at what a call returned as one who knows what is right."""
        right = question.is_right(result.text or "")
        return cls(right, result.elapsed_s, result.usage, sum(one.requests for one in result.attempts))


@attrs.frozen
class Score:
    """How one way of asking did over many questions."""

    name: str
    how: str
    questions: int
    accuracy: float
    p50_s: float
    p95_s: float
    output_tokens: float
    """Tokens generated for a question, on average; those of the attempts that were cut off too."""

    input_tokens: float
    requests: float

    @classmethod
    def of(cls, way: Way, answers: Sequence[Answer]) -> "Score":
        """Sum up."""
        times = sorted(answer.elapsed_s for answer in answers)
        return cls(
            way.name,
            way.how,
            len(answers),
            accuracy=statistics.fmean(answer.right for answer in answers),
            p50_s=_quantile(times, 0.5),
            p95_s=_quantile(times, 0.95),
            output_tokens=statistics.fmean(answer.usage.output_tokens for answer in answers),
            input_tokens=statistics.fmean(answer.usage.input_tokens for answer in answers),
            requests=statistics.fmean(answer.requests for answer in answers),
        )


def seven_ways() -> list[Way]:
    """Return them, from the plainest on."""
    return [
        Way("one-shot", "ask once", RejectionSamplingStrategy(), checked=False),
        Way(
            "rejection",
            "3 × 4, checked",
            RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4),
            checked=True,
        ),
        Way("multi-turn repair", "4 deep, checked", MultiTurnStrategy(loop_budget=4), checked=True),
        Way("majority vote", "up to 9, no check", MajorityVotingStrategy(number, certainty=0.9), checked=False),
        Way("best-of-n", "4, steps scored", BestOfNStrategy(share_of_right_steps), checked=False),
        Way(
            "hedged",
            "3 × up to 4, checked",
            HedgedSamplingStrategy(loop_budget=3, typical_s=0.05),
            checked=True,
        ),
        Way("escalation", "1, then 3×4, checked", _escalation(), checked=True),
    ]


def _escalation() -> EscalationStrategy:
    """Ask once; if that is wrong, show what was wrong with it to four at once."""
    return EscalationStrategy(
        [
            Tier(strategy=RejectionSamplingStrategy()),
            Tier(strategy=RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4)),
        ],
        patience=3,
    )


async def ask_all(
    way: Way,
    questions: Iterable[Question],
    backend: Backend,
    *,
    at_once: int = 2,
    advance: Callable[[], object] = lambda: None,
) -> Score:
    """Ask all questions in one way, a few at a time, and sum up; `advance` is called after each."""
    answers: list[Answer] = []
    waiting = iter(questions)

    async def ask_those_waiting() -> None:
        for question in waiting:
            answers.append(await way.ask(question, backend))
            advance()

    async with anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(ask_those_waiting)
    return Score.of(way, answers)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below that share of all."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
