"""
mellea, with the least work that it allows.

It runs in its own environment, see `peers.py`.
The backend returns a fixed answer that is already computed, so that no streaming starts. There are no plugins, no
telemetry, no progress bar, and no log lines below CRITICAL. The context is a `SimpleContext` where the strategy allows
it, the check returns a prepared result, and the action is a `CBlock`: plain text, like ours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mellea.core import (
    Backend,
    CBlock,
    Context,
    GenerateLog,
    MelleaLogger,
    ModelOutputThunk,
    Requirement,
    ValidationResult,
)
from mellea.stdlib.components import Message
from mellea.stdlib.context import ChatContext, SimpleContext
from mellea.stdlib.sampling import MultiTurnStrategy, RejectionSamplingStrategy

from benchmarks.scenarios import ANSWER, QUESTION, REQUIREMENT, Call, Checkpoint, Scenario, Tally
from benchmarks.worker import serve_on_asyncio


class OneCheckpointBackend(Backend):
    """Answers after one turn of the event loop."""

    _model_id = "none"
    _provider = "none"

    def __init__(self, tally: Tally, checkpoint: Checkpoint) -> None:
        self._tally = tally
        self._checkpoint = checkpoint

    async def _generate_from_context(
        self, action: Any, ctx: Context, **_: Any
    ) -> tuple[ModelOutputThunk[str], Context]:
        self._tally.requests += 1
        await self._checkpoint()
        answer: ModelOutputThunk[str] = ModelOutputThunk(ANSWER)
        answer._generate_log = GenerateLog()  # sample() asserts that there is one
        return answer, ctx.add(action).add(answer)

    async def _generate_from_raw(
        self, actions: Sequence[Any], ctx: Context, **_: Any
    ) -> tuple[list[ModelOutputThunk[str]], dict[str, Any] | None]:
        raise NotImplementedError


def prepare(scenario: Scenario, tally: Tally, checkpoint: Checkpoint) -> Call:
    """Prepare the same call as the other contenders."""
    kind = MultiTurnStrategy if scenario.multi_turn else RejectionSamplingStrategy
    strategy = kind(loop_budget=scenario.depth, concurrency_budget=scenario.breadth)
    backend = OneCheckpointBackend(tally, checkpoint)
    action = CBlock(QUESTION)
    verdict = ValidationResult(result=scenario.passing)
    requirements = [Requirement(REQUIREMENT, validation_fn=lambda _: verdict)]
    context: Context = ChatContext() if scenario.multi_turn else SimpleContext()
    for _ in range(scenario.turns):
        context = context.add(Message("user", QUESTION)).add(ModelOutputThunk(ANSWER))

    async def call() -> bool:
        result = await strategy.sample(action, context, backend, requirements, show_progress=False)
        return result.success

    return call


MelleaLogger.get_logger().setLevel(logging.CRITICAL)

if __name__ == "__main__":
    serve_on_asyncio(prepare)
