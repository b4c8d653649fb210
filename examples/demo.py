"""
What `make demo` shows: one call, deep and wide, on a toy model; then four ways of asking, side by side.

No key, no network: the backend is a toy that stands in for a model, in this process.
"""

from collections.abc import Iterable

import anyio
import attrs
from toy_model import REQUIREMENTS, ToyModel

from sampling import (
    BaseSamplingStrategy,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    SamplingResult,
    Usage,
)
from sampling.telemetry.progress import progress

QUESTION = "Name three rivers of Europe, comma separated, in alphabetical order."
QUESTIONS = 1_000
DEPTH = 4


@attrs.frozen
class Score:
    """How one way of asking did over many questions."""

    name: str
    successes: int
    attempts: int
    usage: Usage

    def row(self) -> str:
        """Render the score as a line of the table."""
        valid = f"{self.successes / QUESTIONS:.0%}"
        attempts = f"{self.attempts / QUESTIONS:.2f}"
        tokens = f"{self.usage.total_tokens / QUESTIONS:.0f}"
        return f"{self.name:<24}{valid:>10}{attempts:>20}{tokens:>20}"


async def one_call() -> None:
    """Ask one question, deep and wide, and show everything that came of it."""
    print("1. One call, three deep and four wide, with repair.")
    print("   The backend is a toy that stands in for a model: it breaks the rules as a seeded die decides.\n")
    strategy = RepairTemplateStrategy(loop_budget=3, concurrency_budget=4)
    model = ToyModel(seed=4, careful=0.4, word_s=0.2)
    with progress() as hooks:
        result = await strategy.sample(QUESTION, None, model, REQUIREMENTS, hooks=hooks)
    print(result.explain())


async def ask_many(name: str, strategy: BaseSamplingStrategy) -> Score:
    """Ask the toy many questions in one way, all of them at once."""
    model = ToyModel(seed=1)
    results: list[SamplingResult[str]] = []

    async def ask(number: int) -> None:
        results.append(await strategy.sample(f"{QUESTION} (No. {number})", None, model, REQUIREMENTS))

    async with anyio.create_task_group() as group:
        for number in range(QUESTIONS):
            group.start_soon(ask, number)
    return Score(
        name,
        successes=sum(result.success for result in results),
        attempts=sum(len(result.attempts) for result in results),
        usage=Usage.total(result.usage for result in results),
    )


def show(scores: Iterable[Score]) -> None:
    """Print the table."""
    print(f"{'':<24}{'valid':>10}{'attempts/question':>20}{'tokens/question':>20}")
    for score in scores:
        print(score.row())


async def main() -> None:
    """Run both parts."""
    await one_call()
    print(f"\n2. Four ways to ask the same toy {QUESTIONS:,} questions. The numbers show how the strategies work,")
    print("   not how good any real model is.\n")
    show(
        [
            await ask_many("one shot", RejectionSamplingStrategy()),
            await ask_many(f"rejection, {DEPTH} deep", RejectionSamplingStrategy(loop_budget=DEPTH)),
            await ask_many(f"repair template, {DEPTH} deep", RepairTemplateStrategy(loop_budget=DEPTH)),
            await ask_many(f"multi-turn, {DEPTH} deep", MultiTurnStrategy(loop_budget=DEPTH)),
        ]
    )


if __name__ == "__main__":
    anyio.run(main)
