"""This library, used as documented, without hooks."""

from __future__ import annotations

import sys

from benchmarks.scenarios import ANSWER, QUESTION, REQUIREMENT, Call, Checkpoint, Scenario, Tally
from benchmarks.worker import serve, serve_on_asyncio
from sampling import (
    Context,
    Generation,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Request,
    Requirement,
)


def conversation(turns: int) -> Context:
    """Return a context with this number of turns."""
    context = Context()
    for _ in range(turns):
        context = context.add(Message("user", QUESTION), Message("assistant", ANSWER))
    return context


def prepare(scenario: Scenario, tally: Tally, checkpoint: Checkpoint) -> Call:
    """Prepare the same call as the other contenders."""
    kind = MultiTurnStrategy if scenario.multi_turn else RejectionSamplingStrategy
    strategy = kind(loop_budget=scenario.depth, concurrency_budget=scenario.breadth)
    context = conversation(scenario.turns)
    passing = scenario.passing

    async def backend(_: Request) -> Generation:
        tally.requests += 1
        await checkpoint()
        return Generation(ANSWER)

    def check(_: str) -> bool:
        return passing

    requirements = [Requirement(REQUIREMENT, check=check)]

    async def call() -> bool:
        result = await strategy.sample(QUESTION, context, backend, requirements)
        return result.success

    return call


if __name__ == "__main__":
    if sys.argv[1:] == ["trio"]:
        import trio

        serve(prepare, trio.lowlevel.checkpoint, trio.run, fifo=False)
    else:
        serve_on_asyncio(prepare)
