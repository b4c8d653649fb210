"""
Count the bytecode instructions of a request, on its way through backend, transport and event loop.

`python -m benchmarks.wire_instructions` counts an answer of 8 tokens that arrives at once, and one of 72 tokens that
arrive one by one. `--functions 40` also lists the functions with the most. Counts have no noise, as times do.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251 - what is counted is the path on asyncio
import os
import sys
from collections import Counter
from types import CodeType

from benchmarks.http import direct
from benchmarks.http_line import LineWorker
from benchmarks.instructions import name_of, part_of, tracer
from benchmarks.wire_ours import generate
from benchmarks.wire_round import all_at_once
from benchmarks.wire_server import AT_ONCE, EACH, path

STREAMS, TIMES = 16, 5


async def count(base_url: str) -> Counter[CodeType]:
    """Return the instructions per request, by function."""
    found: Counter[CodeType] = Counter()
    async with generate(base_url, STREAMS) as ask:

        async def task() -> None:
            for _ in range(TIMES):
                await ask()

        await all_at_once(task, STREAMS)  # opens the connections and fills caches
        sys.settrace(tracer(found))
        try:
            await all_at_once(task, STREAMS)
        finally:
            sys.settrace(None)
    return Counter({code: instructions / (STREAMS * TIMES) for code, instructions in found.items()})


def main() -> None:
    """Count, and print the sums."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire_instructions", description=__doc__)
    parser.add_argument("--functions", type=int, default=0, help="how many functions to list (%(default)s)")
    arguments = parser.parse_args()
    server = LineWorker([sys.executable, "-m", "benchmarks.wire_server"], direct(os.environ))
    port = server.ask()["port"]
    for way, tokens in ((AT_ONCE, 8), (EACH, 72)):
        found = asyncio.run(count(f"http://127.0.0.1:{port}{path('vllm', way, tokens)}"))
        parts: Counter[str] = Counter()
        for code, instructions in found.items():
            parts[part_of(code.co_filename)] += instructions
        listed = ", ".join(f"{part} {instructions:,.0f}" for part, instructions in parts.most_common())
        print(f"{tokens} tokens, {way}: {parts.total():,.0f} instructions ({listed})")
        for code, instructions in found.most_common(arguments.functions):
            print(f"{instructions:10.1f}  {part_of(code.co_filename):8}  {name_of(code)}")
    server.close()


if __name__ == "__main__":
    main()
