"""
Run a contender in its own process.

It runs one round at a time, so that the rounds of all contenders interleave.
All contenders are timed by this one function, in the same interpreter, with the garbage collector on. Standard library
only, because the environment of a peer has nothing else.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the peers know no other event loop, and their environments have no anyio
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.scenarios import Call, Checkpoint, Prepare, Scenario, Tally

ROOT = Path(__file__).parent.parent

Run = Callable[[Callable[[], Coroutine[Any, Any, float]]], float]
"""Runs an async function in a new event loop, as `trio.run` does."""


class WrongWorkError(Exception):
    """A contender did not do the work that is measured."""


class NotMeasuredError(Exception):
    """A contender can't be started, or failed in a round."""


# The process that is measured.


def serve_on_asyncio(prepare: Prepare) -> None:
    """Serve on asyncio, where a checkpoint is `asyncio.sleep(0)`."""
    serve(prepare, lambda: asyncio.sleep(0), lambda function: asyncio.run(function()))


def serve(prepare: Prepare, checkpoint: Checkpoint, run: Run, *, fifo: bool = True) -> None:
    """
    Answer each line on stdin with the time of a round.

    A line is `{"scenario": …, "seconds": …}`. The time is in seconds per attempt.
    Without `fifo`, the event loop may let the first subsample win before the others have sent their requests.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a contender must not be taken for an answer
    rounds: dict[Scenario, Callable[[], float]] = {}
    gc.collect()
    gc.freeze()  # The collector stays on, but does not scan imported modules again and again.
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        scenario = Scenario(**request["scenario"])
        try:
            if scenario not in rounds:
                exact = fifo or not scenario.passing
                rounds[scenario] = _calibrate(prepare, checkpoint, run, scenario, request["seconds"], exact=exact)
            answer: dict[str, object] = {"seconds_per_attempt": rounds[scenario]()}
        except Exception:  # noqa: BLE001 - it is reported, and the other scenarios can still be measured
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


def _calibrate(
    prepare: Prepare, checkpoint: Checkpoint, run: Run, scenario: Scenario, seconds: float, *, exact: bool
) -> Callable[[], float]:
    """
    Warm up, and return a function that measures a round.

    Every round has the same number of calls, which take about `seconds`.
    """
    tally = Tally()
    call = prepare(scenario, tally, checkpoint)

    def measure(calls: int) -> float:
        async def timed() -> float:
            return await _time(call, calls, scenario, tally, exact=exact)

        gc.collect()
        return run(timed)

    for calls in (1, 1, 4):  # The first calls import and fill caches, so their times are not used.
        measure(calls)
    calls = 1
    while (took := measure(calls)) < seconds / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / took))
    return lambda: measure(calls) / (calls * scenario.attempts)


async def _time(call: Call, calls: int, scenario: Scenario, tally: Tally, *, exact: bool) -> float:
    await call()  # everything that is created once per event loop is created now
    tally.requests = 0
    succeeded = 0
    started = time.perf_counter()
    for _ in range(calls):
        succeeded += await call()
    elapsed = time.perf_counter() - started
    if tally.requests > calls * scenario.attempts or (exact and tally.requests < calls * scenario.attempts):
        raise WrongWorkError(f"{calls} calls must ask {calls * scenario.attempts} times, not {tally.requests} times")
    if succeeded != calls * scenario.passing:
        raise WrongWorkError(f"{succeeded} of {calls} calls succeeded")
    return elapsed


# The process that asks.


class Worker:
    """The process of a contender."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=env,
        )
        self._answer()

    def round(self, scenario: Scenario, seconds: float) -> float:
        """Measure one round, in seconds per attempt. It takes about `seconds`."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"scenario": asdict(scenario), "seconds": seconds}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise NotMeasuredError("its process has died") from None
        return self._answer()["seconds_per_attempt"]

    def close(self) -> None:
        """Close stdin, which ends the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotMeasuredError(f"its process stopped with exit code {self._process.wait()}, see above for why")
        answer = json.loads(line)
        if "error" in answer:
            raise NotMeasuredError(answer["error"].strip())
        return answer
