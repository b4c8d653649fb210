"""mellea, doing the least that it allows. Runs in an environment of its own, see `peers.py`.

The backend computes nothing, renders nothing and hands over an answer that is already computed, so that no streaming
machinery starts; there are no plugins, no telemetry and no progress bar, and log lines below CRITICAL are not made.
The context is `SimpleContext` where the strategy allows it, the check returns a result that is made beforehand, and the
action is its `CBlock`: plain text, as ours is.
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
    """The same call as the other contenders make."""
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
