"""Simulation against reality: a llama.cpp server, calibrated at two rates, then predicted at three others.

All rates take turns, in short segments: when the machine is busy with something else, that meets all of them alike.
Service times are compared, from when a request was really sent: how late the load generator was is not the server's.
How far two halves of the same measurement are apart says how much of an error is the machine's own.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.report import Check, Row, Section, Settings, shout

if TYPE_CHECKING:
    from sampling.load import LoadReport

SLOTS = 8
RECORDED = (0.25, 0.8)
PREDICTED = (0.15, 0.4, 0.6)
"""Rates, as shares of what the server answers when all slots are busy."""

WITHIN = 0.15
PERCENTS = (50, 95)

Runs = dict[float, list["LoadReport"]]


def run(settings: Settings) -> list[Section]:
    """Measure, calibrate, predict, compare."""
    cycles, seconds = (2, 2.0) if settings.quick else (8, 6.0)
    try:
        runs = anyio.run(partial(_measure, cycles=cycles, seconds=seconds))
    except ImportError as error:
        shout(f"Simulation against reality is NOT MEASURED: {error}")
        runs = {}
    return [_section(runs)]


async def _measure(*, cycles: int, seconds: float) -> Runs:
    from sampling.backends.llama import LlamaBackend
    from sampling.backends.models.arithmetic import held_out
    from sampling.load import ClosedLoop, OpenLoop, run_load, strategy_workload
    from sampling.messages import Options
    from sampling.strategies import RejectionSamplingStrategy

    questions = [question.text for question in held_out(500, seed=1)]
    # One thread: with two, on two cores, llama.cpp's threads spin for each other whenever anything else runs.
    async with LlamaBackend(slots=SLOTS, threads=1) as backend:
        options = Options(temperature=1.0, max_tokens=64)
        workload = strategy_workload(RejectionSamplingStrategy(), questions, None, backend, options=options)
        await run_load(workload, ClosedLoop(users=SLOTS, requests=100))
        full = median(
            [(await run_load(workload, ClosedLoop(users=SLOTS, horizon_s=seconds))).answered_rate for _ in range(3)]
        )
        runs: Runs = {share: [] for share in (*RECORDED, *PREDICTED)}
        for cycle in range(cycles):
            for share, found in runs.items():
                traffic = OpenLoop(rate=full * share, duration_s=seconds, arrivals="poisson", max_in_flight=10_000)
                found.append(await run_load(workload, traffic, seed=cycle))
        return runs


def _section(runs: Runs) -> Section:
    from sampling.load import calibrate, simulate

    rows = []
    server = None
    if runs:
        calibration = calibrate([run for share in RECORDED for run in runs[share]], slots=SLOTS)
        shout(str(calibration))
        server = calibration.server
    for share in PREDICTED:
        measured = runs.get(share, [])
        predicted = [simulate(server, run.profile, seed=run.seed) for run in measured] if server else []
        rows += [_row(share, percent, predicted, measured) for percent in PERCENTS]
    return Section("llama.cpp, 8 slots: simulated and measured service times", "ms", tuple(rows))


def _row(share: float, percent: int, predicted: list[LoadReport], measured: list[LoadReport]) -> Row:
    name = f"p{percent} at {share:.0%} of capacity"
    if not measured:
        return Row(name, {"predicted": None, "measured": None}, (Check("off by", None, WITHIN),))
    expected, found = _pooled(predicted, percent), _pooled(measured, percent)
    halves = [_pooled(measured[start::2], percent) for start in (0, 1)]
    values: dict[str, float | None] = {
        "predicted": expected * 1000,
        "measured": found * 1000,
        "first half": halves[0] * 1000,
        "second half": halves[1] * 1000,
    }
    details: dict[str, Any] = {
        "each": [run.service_time.at(percent) for run in measured],
        "p95 schedule lag": [run.schedule_lag.p95 for run in measured],
        "halves apart by": abs(math.log(halves[0] / halves[1])),
    }
    return Row(name, values, (Check("off by", abs(expected / found - 1), WITHIN),), details)


def _pooled(runs: list[LoadReport], percent: int) -> float:
    """Return a percentile of the service times of several runs together."""
    from sampling.load.series import nearest_rank

    answered = ("valid", "invalid")
    times = [time for run in runs if run.samples for time in run.samples.times("sent_s", "done_s", outcomes=answered)]
    return nearest_rank(sorted(times), percent)
