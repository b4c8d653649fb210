"""
The floor: a minimal implementation by hand.

It is thirty lines of plain asyncio, without hooks and records.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the floor is written in plain asyncio
from collections.abc import Awaitable, Callable

from benchmarks.scenarios import ANSWER, QUESTION, REQUIREMENT, Call, Checkpoint, Scenario, Tally
from benchmarks.worker import serve_on_asyncio

Message = dict[str, str]
Answer = tuple[bool, str]
Backend = Callable[[list[Message]], Awaitable[str]]
Check = Callable[[str], bool]


async def subsample(
    queue: asyncio.Queue[Answer | None],
    conversation: list[Message],
    backend: Backend,
    check: Check,
    *,
    depth: int,
    multi_turn: bool,
) -> None:
    """Ask up to `depth` times in a row."""
    try:
        for _ in range(depth):
            text = await backend(conversation)
            passed = check(text)
            queue.put_nowait((passed, text))
            if passed:
                break
            if multi_turn:
                conversation.append({"role": "assistant", "content": text})
                conversation.append({"role": "user", "content": f"Try again. {REQUIREMENT}"})
    finally:
        queue.put_nowait(None)


async def first_valid(
    messages: list[Message], backend: Backend, check: Check, *, depth: int, breadth: int, multi_turn: bool
) -> Answer:
    """Ask `breadth` times at once, and stop at the first answer that passes."""
    queue: asyncio.Queue[Answer | None] = asyncio.Queue()
    tasks = [
        asyncio.create_task(subsample(queue, list(messages), backend, check, depth=depth, multi_turn=multi_turn))
        for _ in range(breadth)
    ]
    answers: list[Answer] = []
    running = breadth
    try:
        while running:
            answer = await queue.get()
            if answer is None:
                running -= 1
                continue
            answers.append(answer)
            if answer[0]:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answers[-1]


def prepare(scenario: Scenario, tally: Tally, checkpoint: Checkpoint) -> Call:
    """Prepare the same call as the other contenders."""
    turn: list[Message] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    messages = [*turn * scenario.turns, turn[0]]
    passing = scenario.passing

    async def backend(_: list[Message]) -> str:
        tally.requests += 1
        await checkpoint()
        return ANSWER

    def check(_: str) -> bool:
        return passing

    async def call() -> bool:
        passed, _ = await first_valid(
            messages,
            backend,
            check,
            depth=scenario.depth,
            breadth=scenario.breadth,
            multi_turn=scenario.multi_turn,
        )
        return passed

    return call


if __name__ == "__main__":
    serve_on_asyncio(prepare)
