"""
Measure the memory of many waiting calls.

`python -m benchmarks.memory <contender> <calls> <rss|tracemalloc>` is that process: it prints bytes per call.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the peers know no other event loop, and their environments have no anyio
import gc
import importlib
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from benchmarks.peers import MELLEA
from benchmarks.report import Check, Row, Section, Settings, shout
from benchmarks.resident import resident_bytes
from benchmarks.scenarios import Prepare, Scenario, Tally
from benchmarks.worker import ROOT, NotMeasuredError, WrongWorkError

CALLS = 10_000
BOUND_KB = 20
SCENARIO = Scenario(1, 2, passing=True)


def run(settings: Settings) -> list[Section]:
    """Measure resident and allocated memory of each contender."""
    modules = {"ours": "ours", "floor": "floor", **({"mellea": "mellea_side"} if settings.peers else {})}
    rows = []
    for meter, title in (("rss", "resident"), ("tracemalloc", "allocated by Python")):
        times = 3 if meter == "rss" and not settings.quick else 1
        values = {name: _kilobytes(name, module, meter, times) for name, module in modules.items()}
        checks = (Check("KB per call", values["ours"], BOUND_KB),) if meter == "rss" else ()
        rows.append(Row(f"{CALLS:,} calls of 1×2, {title}", values, checks))
    peers = {MELLEA.package: MELLEA.version} if settings.peers else {}
    return [Section("Memory", "KB (1,000 bytes) per call that waits", tuple(rows), peers)]


def _kilobytes(name: str, module: str, meter: str, times: int) -> float | None:
    try:
        python, env = (MELLEA.python(), MELLEA.env()) if name == "mellea" else (Path(sys.executable), None)
        return median(_ask(python, env, module, meter) for _ in range(times))
    except NotMeasuredError as error:
        shout(f"Memory of {name} is NOT MEASURED: {error}")
        return None


def _ask(python: Path, env: dict[str, str] | None, module: str, meter: str) -> float:
    command = [python, "-m", "benchmarks.memory", module, str(CALLS), meter]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(done.stderr.strip())
    return float(done.stdout.split()[-1]) / 1000


# The process that is measured.


async def hold(prepare: Prepare, calls: int, meter: Callable[[], int]) -> float:
    """
    Measure while all requests wait, and return bytes per call.

    Then the requests are answered, and all calls must succeed.
    """
    await prepare(SCENARIO, Tally(), lambda: asyncio.sleep(0))()  # everything that is created once is created now
    tally = Tally()
    all_wait, answered = asyncio.Event(), asyncio.Event()

    def wait() -> Awaitable[object]:
        if tally.requests == calls * SCENARIO.attempts:
            all_wait.set()
        return answered.wait()

    call = prepare(SCENARIO, tally, wait)
    gc.collect()
    before = meter()
    running = [asyncio.ensure_future(call()) for _ in range(calls)]
    await all_wait.wait()
    gc.collect()
    held = meter() - before
    answered.set()
    if not all(await asyncio.gather(*running)):
        raise WrongWorkError("a call did not succeed")
    return held / calls


def allocated() -> int:
    """Return the memory allocated by Python, in bytes."""
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    contender: Prepare = importlib.import_module(f"benchmarks.{sys.argv[1]}").prepare
    if sys.argv[3] == "tracemalloc":
        tracemalloc.start()
    print(asyncio.run(hold(contender, int(sys.argv[2]), allocated if sys.argv[3] == "tracemalloc" else resident_bytes)))
