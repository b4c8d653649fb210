"""
Run schedules and mixed work for a long time, and check that nothing grows: `python -m benchmarks.soak`.

The first part runs the scenarios of the fault tests with seeds that the tests do not use. The second part makes calls,
fan-outs with a journal and synchronous calls against a server on loopback, some of them cancelled or failing. After
each round, when all work has ended, it counts tasks, threads, sockets and open files, and reads the resident memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median

import anyio
import attrs
import structlog

from benchmarks.resident import resident_bytes
from benchmarks.worker import ROOT
from sampling import (
    Budget,
    Limited,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    OpenAIBackend,
    RejectionSamplingStrategy,
    Retrying,
    fan_out,
)
from sampling.errors import SamplingError
from sampling.testing import explore
from sampling.testing.leftovers import Leftovers, left_behind
from sampling.testing.schedules import BOTH_LOOPS
from sampling.testing.servers import OpenAIServer, Reply

FIRST_SEED = 1_000_000
BATCH = 500
ROUND_CALLS = 200
MEMORY_MARGIN_MB = 8.0
"""The most that the resident memory may grow between the first and the last third of the rounds."""


@attrs.frozen
class Counts:
    """What a process holds when no work is under way."""

    tasks: int
    threads: int
    sockets: int
    files: int
    memory_mb: float


def now() -> Counts:
    """Count what this process holds."""
    gc.collect()
    left = Leftovers.now()
    return Counts(
        len(left.tasks),
        threading.active_count(),
        len(left.sockets),
        len(list(Path("/dev/fd").iterdir())),
        resident_bytes() / 1e6,
    )


# The schedules.


def run_batches(batches: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """Run batches of schedules, each given as its scenario and its first seed. Return their number and the growth."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.path.insert(0, str(ROOT))
    from tests.faults.scenarios import CAMPAIGN

    scenarios = list(CAMPAIGN)
    runs, warm_mb = 0, 0.0
    for number, (scenario, seed) in enumerate(batches):
        seeds = range(seed, seed + BATCH)
        try:
            runs += explore(scenarios[scenario], seeds=seeds, loops=[BOTH_LOOPS[number % 2]]).runs
        except AssertionError as failure:
            # Said at once: the pool raises it only when the other processes have ended.
            print(failure, file=sys.stderr, flush=True)
            raise
        if number == min(2 * len(scenarios), len(batches) - 1):
            gc.collect()
            warm_mb = resident_bytes() / 1e6
    gc.collect()
    return runs, resident_bytes() / 1e6 - warm_mb


def batches_of(schedules: int, scenarios: int) -> Iterator[tuple[int, int]]:
    """Spread the schedules over all scenarios, twice each: once for every loop."""
    pairs = cycle([scenario for scenario in range(scenarios) for _ in BOTH_LOOPS])
    for number, scenario in enumerate(islice(pairs, -(-schedules // BATCH))):
        yield scenario, FIRST_SEED + number // (scenarios * len(BOTH_LOOPS)) * BATCH


def run_schedules(schedules: int, processes: int) -> dict[str, float]:
    """Run schedules in several processes."""
    from tests.faults.scenarios import CAMPAIGN

    batches = list(batches_of(schedules, len(CAMPAIGN)))
    size = max(1, -(-len(batches) // processes))
    size += size % 2  # so that every process begins with the first loop of a scenario
    shares = [batches[start : start + size] for start in range(0, len(batches), size)]
    began = time.monotonic()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(run_batches, shares))
    return {
        "schedules": sum(runs for runs, _ in done),
        "scenarios": len(CAMPAIGN),
        "minutes": round((time.monotonic() - began) / 60, 2),
        "growth_mb": round(max((growth for _, growth in done), default=0.0), 2),
    }


# The mixed work.


def reply_to(rng: Random) -> Reply:
    """Draw a reply: answers, slow answers, and errors of all kinds."""
    kind = rng.random()
    if kind < 0.05:
        return Reply(status=rng.choice([429, 500, 503]), headers={"retry-after": "0"})
    if kind < 0.15:
        return Reply(["no ", "no ", "no"], interval_s=0.05)
    return Reply([rng.choice(["yes", "no", "maybe"])], interval_s=rng.choice([0.0, 0.001]))


def is_yes(text: str) -> bool:
    """Accept one of three answers."""
    return text == "yes"


class Mixed:
    """Rounds of mixed work against one server."""

    def __init__(self, url: str, folder: Path, rng: Random) -> None:
        self.calls = 0
        self._url = url
        self._folder = folder
        self._rng = rng

    async def round(self, number: int) -> None:
        """Make calls, run a fan-out that is journalled, and call from a thread, all at once."""
        async with OpenAIBackend(self._url, model="any") as backend:
            layered = Limited(Retrying(backend, attempts=2), max_in_flight=16)
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(self._calls, layered)
                group.start_soon(self._fan_out, layered, number)
                group.start_soon(anyio.to_thread.run_sync, self._sync_calls)

    async def _calls(self, backend: object) -> None:
        strategies = [
            RejectionSamplingStrategy(loop_budget=2, concurrency_budget=4),
            RejectionSamplingStrategy(concurrency_budget=4, deterministic=True),
            MultiTurnStrategy(loop_budget=3),
            MajorityVotingStrategy(concurrency_budget=5),
        ]
        for _ in range(ROUND_CALLS // 8):
            budget = self._rng.choice([None, Budget(requests=6), Budget(deadline_s=0.05)])
            # Some callers give up.
            with anyio.move_on_after(self._rng.choice([0.005, 5.0, 5.0])):
                # Errors of the server are part of the work.
                with suppress(SamplingError):
                    await self._rng.choice(strategies).sample("q", None, backend, [is_yes], budget=budget)
            self.calls += 1

    async def _fan_out(self, backend: object, number: int) -> None:
        path = self._folder / f"{number}.journal"
        strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=2)
        questions = [f"q{item}" for item in range(50)]
        result = await fan_out(strategy, questions, None, backend, [is_yes], journal=path, on_error="continue")
        self.calls += len(result.outcomes)
        for file in self._folder.glob(f"{number}.journal*"):
            file.unlink()

    def _sync_calls(self) -> None:
        strategy = RejectionSamplingStrategy(concurrency_budget=2)
        for _ in range(5):
            with suppress(SamplingError):
                strategy.sample_sync("q", None, OpenAIBackend(self._url, model="any"), [is_yes])
            self.calls += 1


async def run_mixed(minutes: float) -> dict[str, object]:
    """Run rounds until the time is over, and compare what is left after each."""
    rng, counts = Random("soak"), list[Counts]()
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        async with OpenAIServer(lambda _: reply_to(rng)) as server:
            mixed = Mixed(server.url, Path(folder), rng)
            before = Leftovers.now()
            while time.monotonic() < deadline or len(counts) < 6:
                await mixed.round(len(counts))
                await left_behind(before, 5.0)
                server.requests.clear()
                counts.append(now())
    return {"rounds": len(counts), "calls": mixed.calls, **growth_of(counts)}


def growth_of(counts: Sequence[Counts]) -> dict[str, object]:
    """Compare the first third of the rounds, without the very first, with the last third."""
    third = max(1, len(counts) // 3)
    early, late = counts[1 : 1 + third], counts[-third:]
    figures: dict[str, object] = {}
    for name in ("tasks", "threads", "sockets", "files", "memory_mb"):
        pair = [median(getattr(one, name) for one in some) for some in (early, late)]
        figures[name] = [round(value, 2) for value in pair]
    return figures


def is_flat(schedules: dict[str, float], mixed: dict[str, object]) -> list[str]:
    """Return what grew."""
    grown = ["memory of the schedules"] if schedules["growth_mb"] > MEMORY_MARGIN_MB else []
    for name in ("tasks", "threads", "sockets", "files", "memory_mb"):
        early, late = mixed[name]
        if late > early + (MEMORY_MARGIN_MB if name == "memory_mb" else 0):
            grown.append(name)
    return grown


def main() -> int:
    """Run both parts, print the figures as JSON, and fail if anything grew."""
    parser = argparse.ArgumentParser(description="Run schedules and mixed work, and check that nothing grows.")
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=30.0, help="the duration of the mixed work")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    schedules = run_schedules(arguments.schedules, arguments.processes)
    print(json.dumps(schedules), flush=True)
    mixed = anyio.run(run_mixed, arguments.minutes)
    grown = is_flat(schedules, mixed)
    print(json.dumps({"minutes": arguments.minutes, **mixed, "python": platform.python_version(), "grown": grown}))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
