"""Our `OpenAIBackend`, with its default transport, on asyncio or on trio."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio.lowlevel import checkpoint

from benchmarks.http_line import Json
from benchmarks.resident import resident_bytes
from benchmarks.wire_round import QUESTION, Ask, Task, all_at_once, answers_job, check_answer, serve
from benchmarks.wire_server import BREADTH, HOLD, MODEL
from sampling import Message, RejectionSamplingStrategy, Request, fan_out
from sampling.backends.openai import OpenAIBackend
from sampling.errors import SamplingError

REQUEST = Request((Message("user", QUESTION),))
HELD_REQUEST = Request((Message("user", HOLD),))
STALL_STEP_S = 0.005


@asynccontextmanager
async def generate(base_url: str, connections: int) -> AsyncIterator[Ask]:
    """Open a client that uses the backend itself. It always streams."""
    async with OpenAIBackend(base_url, "key", MODEL, max_connections=connections) as backend:

        async def ask() -> str:
            return (await backend.generate(REQUEST)).text

        yield ask


async def in_group(task: Task, count: int) -> None:
    """Run this number of equal tasks on any event loop."""
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(task)


@asynccontextmanager
async def _held(question: Json, backend: OpenAIBackend) -> AsyncIterator[None]:
    """Keep streams open: each has got its first token, and no more comes."""
    arrived = 0
    all_here = anyio.Event()

    def receive(_: str) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == question["held"]:
            all_here.set()

    async def hold() -> None:
        await backend.stream(HELD_REQUEST, receive)

    async with anyio.create_task_group() as group:
        for number in range(question["held"]):
            group.start_soon(hold)
            if number % 100 == 99:
                await anyio.sleep(0.02)  # Not all at once: that is measured elsewhere.
        await all_here.wait()
        yield
        group.cancel_scope.cancel()


async def one_more(question: Json) -> Json:
    """Measure requests one after the other, while other streams of the backend are open."""
    connections = question["held"] + 1
    async with (
        OpenAIBackend(question["base_url"], "key", MODEL, max_connections=connections) as backend,
        _held(question, backend),
    ):
        for _ in range(5):
            await backend.generate(REQUEST)
        gc.collect()
        started = time.process_time()
        for _ in range(question["requests"]):
            check_answer((await backend.generate(REQUEST)).text, question["tokens"])
        took = time.process_time() - started
    return {"cpu_s": took}


async def burst(question: Json) -> Json:
    """Start streams all at once, and return how many failed and for how long the event loop was blocked."""
    failures: list[str] = []
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            before = time.monotonic()
            await anyio.sleep(STALL_STEP_S)
            longest_s = max(longest_s, time.monotonic() - before - STALL_STEP_S)

    async with OpenAIBackend(question["base_url"], "key", MODEL, max_connections=question["streams"]) as backend:

        async def ask() -> None:
            try:
                check_answer((await backend.generate(REQUEST)).text, question["tokens"])
            except SamplingError as error:
                failures.append(type(error).__name__)

        started = time.process_time()
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            await in_group(ask, question["streams"])
            watching.cancel_scope.cancel()
        took = time.process_time() - started
    return {"cpu_s": took, "failures": len(failures), "kinds": sorted(set(failures)), "stall_s": longest_s}


async def many(question: Json) -> Json:
    """Measure the CPU time of a fan-out."""
    strategy, at_once = RejectionSamplingStrategy(), question["at_once"]
    async with OpenAIBackend(question["base_url"], "key", MODEL, max_connections=at_once) as backend:

        async def run(items: int) -> Any:
            return await fan_out(strategy, [QUESTION] * items, None, backend, max_concurrency=at_once)

        await run(at_once)
        gc.collect()
        started = time.process_time()
        result = await run(question["items"])
        took = time.process_time() - started
    for outcome in result.outcomes:
        check_answer(outcome.result.text, question["tokens"])
    return {"cpu_s": took}


async def memory(question: Json) -> Json:
    """Measure the resident memory of open streams. The buffers of sockets are the kernel's."""
    connections = question["held"]
    async with OpenAIBackend(question["base_url"], "key", MODEL, max_connections=connections) as backend:
        async with _held({"held": 20}, backend):
            pass
        gc.collect()
        before = resident_bytes()
        async with _held(question, backend):
            gc.collect()
            return {"bytes": (resident_bytes() - before) / connections}


async def race(question: Json) -> Json:
    """Ask 1×8, one call after the other in several tasks, and count what is left behind."""
    strategy = RejectionSamplingStrategy(loop_budget=1, concurrency_budget=BREADTH)
    numbers = iter(range(question["first"], question["first"] + question["calls"]))
    async with OpenAIBackend(question["base_url"], "key", MODEL, max_connections=10 * BREADTH) as backend:

        async def ask() -> None:
            for number in numbers:
                result = await strategy.sample(f"call {number}", None, backend)
                check_answer(result.text, question["tokens"])

        started = time.process_time()
        await in_group(ask, question["callers"])
        took = time.process_time() - started
    await anyio.sleep(0.2)
    gc.collect()
    # A loop has sockets of its own to wake it.
    return {"cpu_s": took, "sockets": _sockets() - question["own_sockets"]}


def _sockets() -> int:
    """Return the number of open sockets of this process."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself is gone by now
            count += str(link.readlink()).startswith("socket:")
    return count


async def nothing(_: Json) -> Json:
    """Count the sockets that an idle event loop has."""
    await checkpoint()
    return {"sockets": _sockets()}


JOBS = {"one_more": one_more, "burst": burst, "many": many, "memory": memory, "race": race, "nothing": nothing}

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if sys.argv[1:] == ["trio"]:
        import trio

        def run_on_trio(job: Coroutine[Any, Any, Json]) -> Json:
            async def main() -> Json:
                return await job

            return trio.run(main)

        serve({"answers": answers_job(generate, in_group), **JOBS}, run_on_trio)
    else:
        serve({"answers": answers_job(generate, all_at_once), **JOBS})
