"""
Measure the speed of simulated traffic.

It passes the generator, the strategy and the simulated server, in virtual time, in a fresh process.
`python -m benchmarks.virtual <scenario>` is that process: it prints simulated requests per CPU second, the best of some
rounds. The scenarios add one part after the other, so that the difference between two is the cost of a part.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from benchmarks.report import Check, Row, Section, Settings, shout
from benchmarks.worker import ROOT

BOUND = 5_000
REQUESTS = 5_000
ROUNDS = 5
SCENARIOS = {
    "generator": "generator, and a sleep",
    "simulated": "generator and simulated server",
    "strategy": "generator, strategy and a sleep",
    "whole": "generator, strategy and simulated server",
    "first token": "the same, with the first token stamped",
}


def run(settings: Settings) -> list[Section]:
    """Measure each scenario in its own process."""
    rows = []
    for name, title in SCENARIOS.items():
        rate = _ask(name, quick=settings.quick)
        checks = (Check("per CPU second", rate, BOUND, at_least=True),) if name == "whole" else ()
        rows.append(Row(title, {"asyncio": rate}, checks))
    return [Section("Simulated traffic", "requests per CPU second, the most of all rounds", tuple(rows))]


def _ask(name: str, *, quick: bool) -> float | None:
    command = [sys.executable, "-m", "benchmarks.virtual", name, *(["quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        shout(f"{name} is NOT MEASURED: {done.stderr.strip()[-500:]}")
        return None
    return float(done.stdout)


# The process that is measured.


def measure(name: str, requests: int) -> float:
    """Return the number of simulated requests per CPU second."""
    import anyio

    from sampling import Message, RejectionSamplingStrategy, Request
    from sampling.backends.simulated import SimulatedBackend
    from sampling.load import Arrival, OpenLoop, run_load, strategy_workload
    from sampling.testing import run_virtual

    backend = SimulatedBackend(slots=64, output_tokens=64, tokens_per_piece=63, pass_probability=1.0)
    question = Request((Message("user", "hi"),))

    async def sleep(arrival: Arrival) -> None:
        await anyio.sleep(1.0)

    async def ask_server(arrival: Arrival) -> None:
        await backend.generate(question)

    async def answer(request: Request) -> str:
        await anyio.sleep(1.0)
        return "yes"

    def not_empty(text: str) -> bool:
        return bool(text)

    strategy = RejectionSamplingStrategy()
    workloads = {
        "generator": sleep,
        "simulated": ask_server,
        "strategy": strategy_workload(strategy, ["hi"], None, answer),
        "whole": strategy_workload(strategy, ["hi"], None, backend.generate, [not_empty]),
        "first token": strategy_workload(strategy, ["hi"], None, backend, [not_empty]),
    }
    profile = OpenLoop(rate=40, duration_s=requests / 40)
    started = time.process_time()
    report = run_virtual(partial(run_load, workloads[name], profile))
    took = time.process_time() - started
    if (report.succeeded, report.valid) != (requests, requests):
        raise RuntimeError(f"{report.valid} of {requests} requests were answered")
    return requests / took


if __name__ == "__main__":
    short = "quick" in sys.argv[2:]
    print(max(measure(sys.argv[1], REQUESTS // 5 if short else REQUESTS) for _ in range(2 if short else ROUNDS)))
