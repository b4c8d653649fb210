"""
Make one measurement of a fan-out, in its own process.

Run it as `python -m benchmarks.fanout_side <what> <items> [<journal>]`.
Prints one line of JSON. The backend answers after one checkpoint, so that the fan-out itself is measured.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from benchmarks.resident import peak_bytes
from sampling import RejectionSamplingStrategy, Request

AT_ONCE = int(os.environ.get("AT_ONCE", "64"))
STRATEGY = RejectionSamplingStrategy()
SMALL = 10_000
WINDOW = 1_000


async def backend(_request: Request) -> str:
    """Answer after one checkpoint."""
    await checkpoint()
    return "ok"


def questions(count: int) -> list[str]:
    """Return the items."""
    return [f"question {number}" for number in range(count)]


async def ours(items: int, journal: str | None = None) -> dict[str, float]:
    """Measure `fan_out`."""
    from sampling import fan_out

    asked = questions(items)
    started = time.perf_counter()
    result = await fan_out(STRATEGY, asked, None, backend, max_concurrency=AT_ONCE, journal=journal)
    seconds = time.perf_counter() - started
    if result.counts()["succeeded"] != items:
        raise SystemExit("not all items succeeded")
    return {"seconds": seconds}


async def aiometer(items: int, _journal: str | None = None) -> dict[str, float]:
    """Measure the same calls with aiometer."""
    from aiometer import run_all  # pyright: ignore[reportMissingImports]

    asked = questions(items)
    started = time.perf_counter()
    calls = [partial(STRATEGY.sample, question, None, backend) for question in asked]
    results = await run_all(calls, max_at_once=AT_ONCE)
    seconds = time.perf_counter() - started
    if sum(result.success for result in results) != items:
        raise SystemExit("not all items succeeded")
    return {"seconds": seconds}


async def versus(items: int, folder: str | None = None) -> dict[str, list[float]]:
    """
    Measure all of them in turns, in seconds.

    Each turn has a part of the items, so that a slow phase of the machine affects all of them.
    """
    ways = {"ours": ours, "journal": ours, "aiometer": aiometer}
    if not find_spec("aiometer"):
        del ways["aiometer"]
    found: dict[str, list[float]] = {way: [] for way in ways}
    turns = max(2, items // SMALL)
    for turn in range(turns):
        for way, measure in ways.items():
            gc.collect()
            journal = f"{folder}/{AT_ONCE}-{turn}.db" if way == "journal" else None
            found[way].append((await measure(items // turns, journal))["seconds"])
    return found


async def sqlite(items: int, journal: str | None = None) -> dict[str, float]:
    """Measure reading the whole file with sqlite3 alone."""
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
    """
    Measure `open_fan_out` over a generator.

    The results are the CPU time per item in short runs and in a long one, and the peak memory.
    """
    short = [await _cpu_per_item(SMALL) for _ in range(5)]
    long = await _cpu_per_item(items)
    short += [await _cpu_per_item(SMALL) for _ in range(5)]
    peak = peak_bytes() / 1e6
    # Medians on both sides, so that a slow phase of the machine favours neither.
    return {"few": median(window for run in short for window in run), "many": median(long), "megabytes": peak}


async def _cpu_per_item(items: int) -> list[float]:
    """Return the CPU seconds per item, for each window."""
    from sampling import open_fan_out

    def asked() -> Iterator[str]:
        for number in range(items):
            yield f"question {number}"

    windows, taken, since = [], 0, time.process_time()
    async with open_fan_out(STRATEGY, asked(), None, backend, max_concurrency=AT_ONCE) as outcomes:
        async for _ in outcomes:
            taken += 1
            if not taken % WINDOW:
                now = time.process_time()
                windows.append((now - since) / WINDOW)
                since = now
    if taken != items:
        raise SystemExit("not all items came out")
    return windows


WAYS: dict[str, Any] = {"versus": versus, "finish": ours, "resume": ours, "sqlite": sqlite, "stream": stream}

if __name__ == "__main__":
    what, count, *where = sys.argv[1:]
    gc.collect()
    gc.freeze()
    print(json.dumps(anyio.run(WAYS[what], int(count), where[0] if where else None)))
