"""One measurement of a fan-out, in a process of its own: `python -m benchmarks.fanout_side <what> <items> [<journal>]`.

Prints one line of JSON. The backend answers after one checkpoint, so what is measured is the fan-out itself.
"""

from __future__ import annotations

import gc
import json
import resource
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from sampling import RejectionSamplingStrategy, Request

AT_ONCE = 64
STRATEGY = RejectionSamplingStrategy()
SMALL = 10_000


async def backend(_request: Request) -> str:
    """Answer."""
    await checkpoint()
    return "ok"


def questions(count: int) -> list[str]:
    """What is asked."""
    return [f"question {number}" for number in range(count)]


async def ours(items: int, journal: str | None = None) -> dict[str, float]:
    """`fan_out`."""
    from sampling import fan_out

    asked = questions(items)
    started = time.perf_counter()
    result = await fan_out(STRATEGY, asked, None, backend, max_concurrency=AT_ONCE, journal=journal)
    seconds = time.perf_counter() - started
    if result.counts()["succeeded"] != items:
        raise SystemExit("not all items succeeded")
    return {"seconds": seconds}


async def aiometer(items: int, _journal: str | None = None) -> dict[str, float]:
    """The peer, driving the same calls."""
    from aiometer import run_all  # pyright: ignore[reportMissingImports]

    asked = questions(items)
    started = time.perf_counter()
    calls = [partial(STRATEGY.sample, question, None, backend) for question in asked]
    results = await run_all(calls, max_at_once=AT_ONCE)
    seconds = time.perf_counter() - started
    if sum(result.success for result in results) != items:
        raise SystemExit("not all items succeeded")
    return {"seconds": seconds}


async def sqlite(items: int, journal: str | None = None) -> dict[str, float]:
    """Reading the same file with sqlite3, all of it, and nothing else."""
    started = time.perf_counter()
    with closing(sqlite3.connect(str(journal))) as database:
        tables = [
            database.execute(f"SELECT * FROM {table}").fetchall() for table in ("run", "lives", "intents", "outcomes")
        ]
    seconds = time.perf_counter() - started
    if len(tables[-1]) != items:
        raise SystemExit("not all items are there")
    return {"seconds": seconds}


async def stream(items: int, _journal: str | None = None) -> dict[str, float]:
    """`open_fan_out` over a generator: CPU time per item for a few and for all of them, and the most memory."""
    few = min([await _cpu_per_item(min(SMALL, items)) for _ in range(3)])
    many = await _cpu_per_item(items)
    return {"few": few, "many": many, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def _cpu_per_item(items: int) -> float:
    from sampling import open_fan_out

    def asked() -> Iterator[str]:
        for number in range(items):
            yield f"question {number}"

    taken = 0
    started = time.process_time()
    async with open_fan_out(STRATEGY, asked(), None, backend, max_concurrency=AT_ONCE) as outcomes:
        async for _ in outcomes:
            taken += 1
    if taken != items:
        raise SystemExit("not all items came out")
    return (time.process_time() - started) / items


WAYS: dict[str, Any] = {
    "ours": ours,
    "journal": ours,
    "resume": ours,
    "aiometer": aiometer,
    "sqlite": sqlite,
    "stream": stream,
}

if __name__ == "__main__":
    what, count, *where = sys.argv[1:]
    gc.collect()
    gc.freeze()
    print(json.dumps(anyio.run(WAYS[what], int(count), where[0] if where else None)))
