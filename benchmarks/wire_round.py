"""
Measure the CPU time of one round of requests, in the process of a client.

All clients on asyncio are timed by this one function. Standard library only, because the environment of the peers
imports it, too.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the peers know no other event loop
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.http_line import Json, answer_lines
from benchmarks.wire_server import allow_many_sockets, answer
from benchmarks.worker import WrongWorkError

QUESTION = "Write something."
LIMIT_S = 300
"""The most time of a round. After that, its process is killed."""

Ask = Callable[[], Awaitable[str | None]]
"""Asks the question once, and returns the text of the answer."""

Client = Callable[[str, int], AbstractAsyncContextManager[Ask]]
"""Opens a client for a base_url and a number of connections. This is not part of the measurement."""

Task = Callable[[], Coroutine[Any, Any, None]]
Job = Callable[[Json], Coroutine[Any, Any, Json]]


def check_answer(text: str | None, tokens: int) -> None:
    """Raise an error if an answer is not what the server sent."""
    if text != answer(tokens):
        raise WrongWorkError(f"the answer must be {answer(tokens)!r}, not {text!r}")


async def all_at_once(task: Task, count: int) -> None:
    """Run this number of equal tasks, until all are done."""
    await asyncio.gather(*(task() for _ in range(count)))


def answers_job(client: Client, run_all: Callable[[Task, int], Coroutine[Any, Any, None]] = all_at_once) -> Job:
    """Return a job that measures answers, with a number of streams at once."""

    async def measure(question: Json) -> Json:
        streams, tokens = question["streams"], question["tokens"]
        async with client(question["base_url"], streams) as ask:

            def asking(times: int) -> Task:
                async def task() -> None:
                    for _ in range(times):
                        check_answer(await ask(), tokens)

                return task

            await run_all(asking(1), streams)  # opens the connections
            gc.collect()
            started = time.process_time()
            await run_all(asking(question["times"]), streams)
            return {"cpu_s": time.process_time() - started}

    return measure


def serve(jobs: Mapping[str, Job], run: Callable[[Coroutine[Any, Any, Json]], Json] = asyncio.run) -> None:
    """Answer each line on stdin with the result of a job. A line is `{"job": …, …}`."""

    def one(question: Json) -> Json:
        gc.collect()
        signal.alarm(LIMIT_S)
        try:
            return run(jobs[question["job"]](question))
        finally:
            signal.alarm(0)

    allow_many_sockets()
    gc.collect()
    gc.freeze()  # The collector stays on, but does not scan imported modules again and again.
    answer_lines(one)
