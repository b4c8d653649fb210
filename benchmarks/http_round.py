"""
Measure one round of one client, in its own process.

A round is a number of requests, sixteen in flight. Its CPU time is measured.
All contenders are timed by this one function, in the same interpreter, with the garbage collector on. Standard library
only, because the environment of the peers imports it, too.
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
from benchmarks.http_server import ANSWER
from benchmarks.worker import WrongWorkError

IN_FLIGHT = 16
WARM_UP = IN_FLIGHT
"""Unmeasured requests at the start of every round, which open the connections."""

LIMIT_S = 60
"""Maximum time of a round. After that, its process is killed."""

Ask = Callable[[], Awaitable[str | None]]
"""Asks the question once, and returns the text of the answer."""

Client = Callable[[str], AbstractAsyncContextManager[Ask]]
"""Opens a client for a base_url. This is not part of the measurement."""

Task = Callable[[], Coroutine[Any, Any, None]]
AllAtOnce = Callable[[Task, int], Coroutine[Any, Any, None]]
"""Runs this number of equal tasks at once, until all are done."""

Run = Callable[[Callable[[], Coroutine[Any, Any, Json]]], Json]
"""Runs an async function in a new event loop, as `trio.run` does."""


def serve_on_asyncio(clients: Mapping[str, Client]) -> None:
    """Serve in asyncio's own event loop."""

    async def all_at_once(task: Task, count: int) -> None:
        await asyncio.gather(*(task() for _ in range(count)))

    serve(clients, all_at_once, lambda function: asyncio.run(function()))


def serve(clients: Mapping[str, Client], all_at_once: AllAtOnce, run: Run) -> None:
    """
    Answer each line on stdin with the time of a round.

    A line is `{"client": …, "base_url": …, "requests": …}`.
    """

    def one_round(question: Json) -> Json:
        async def timed() -> Json:
            client = clients[question["client"]](question["base_url"])
            return await _time(client, all_at_once, question["requests"])

        gc.collect()
        signal.alarm(LIMIT_S)
        try:
            return run(timed)
        finally:
            signal.alarm(0)

    gc.collect()
    gc.freeze()  # The collector stays on, but does not scan imported modules again and again.
    answer_lines(one_round)


async def _time(client: AbstractAsyncContextManager[Ask], all_at_once: AllAtOnce, requests: int) -> Json:
    async with client as ask:

        def asking(times: int) -> Task:
            async def task() -> None:
                for _ in range(times):
                    if (text := await ask()) != ANSWER:
                        raise WrongWorkError(f"the answer must be {ANSWER!r}, not {text!r}")

            return task

        await all_at_once(asking(WARM_UP // IN_FLIGHT), IN_FLIGHT)
        started, started_cpu = time.perf_counter(), time.process_time()
        await all_at_once(asking(requests // IN_FLIGHT), IN_FLIGHT)
        return {"cpu_s": time.process_time() - started_cpu, "wall_s": time.perf_counter() - started}
