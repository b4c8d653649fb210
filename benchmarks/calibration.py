"""
Compare the simulation with a real llama.cpp server.

The model is calibrated at two rates, and predicts three others.

All rates take turns, in short segments, so that changes of the machine affect all of them alike.
The load generator and the server need the whole machine. A segment in which other programs used it is repeated.
This is decided by the processor times of the system, never by the measured times of the segment.

If no server model explains the two recorded rates, the pace of the machine changed, and everything is recorded once
more. The predicted rates do not influence this decision.

Service times are compared, which begin when a request is really sent, because a late load generator is not the fault
of the server. The difference between two halves of a measurement shows how much of the error is noise.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.neighbours import Reading, others_since
from benchmarks.report import Check, Row, Section, Settings, shout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sampling.load import Calibration, LoadReport

SLOTS = 8
RECORDED = (0.25, 0.8)
PREDICTED = (0.15, 0.4, 0.6)
"""Rates, as shares of the capacity: the rate at which all slots are busy."""

MOST_OTHERS = 0.02
"""Maximum number of processors that other programs may use during a valid segment."""

TRIES = 2
"""Maximum number of recordings, if no model explains the first."""

_FILLED = 3
"""Number of segments in which the capacity of the server is measured."""

PATIENCE_S = 280.0
"""Maximum time for all segments."""

WITHIN = 0.15
PERCENTS = (50, 95)

Runs = dict[float, list["LoadReport"]]


def run(settings: Settings) -> list[Section]:
    """Measure, calibrate, predict and compare."""
    segments, seconds = (2, 2.0) if settings.quick else (12, 3.0)
    runs: Runs = {}
    calibration: Calibration | None = None
    try:
        for _ in range(1 if settings.quick else TRIES):
            runs = anyio.run(partial(_measure, segments=segments, seconds=seconds))
            calibration = _calibrate(runs, segments)
            if calibration is None or not calibration.notes:
                break
    except ImportError as error:
        shout(f"Simulation against reality is NOT MEASURED: {error}")
    return [_section(runs, calibration)]


def _calibrate(runs: Runs, segments: int) -> Calibration | None:
    from sampling.load import calibrate

    if any(len(found) < segments for found in runs.values()):
        shout(
            f"Simulation against reality is NOT MEASURED: in {PATIENCE_S:g} s, others left the machine alone too seldom"
        )
        return None
    calibration = calibrate([run for share in RECORDED for run in runs[share]], slots=SLOTS)
    shout(str(calibration))
    return calibration


async def _measure(*, segments: int, seconds: float) -> Runs:
    from sampling.backends.llama import LlamaBackend
    from sampling.backends.llama.models.arithmetic import held_out
    from sampling.load import ClosedLoop, OpenLoop, run_load, strategy_workload
    from sampling.messages import Options
    from sampling.strategies import RejectionSamplingStrategy

    questions = [question.text for question in held_out(500, seed=1)]
    # One thread: with two, on two cores, the threads of llama.cpp spin while anything else runs.
    async with LlamaBackend(slots=SLOTS, threads=1) as backend:
        options = Options(temperature=1.0, max_tokens=64)
        workload = strategy_workload(RejectionSamplingStrategy(), questions, None, backend, options=options)
        await run_load(workload, ClosedLoop(users=SLOTS, requests=100))
        give_up_at = anyio.current_time() + PATIENCE_S
        filled: list[LoadReport] = []
        while len(filled) < _FILLED and anyio.current_time() < give_up_at:
            filled += await _undisturbed(partial(run_load, workload, ClosedLoop(users=SLOTS, horizon_s=seconds)))
        runs: Runs = {share: [] for share in (*RECORDED, *PREDICTED)}
        while (short := [share for share in runs if len(runs[share]) < segments]) and anyio.current_time() < give_up_at:
            full = median(run.answered_rate for run in filled)
            for share in short:
                traffic = OpenLoop(rate=full * share, duration_s=seconds, arrivals="poisson", max_in_flight=10_000)
                runs[share] += await _undisturbed(partial(run_load, workload, traffic, seed=len(runs[share])))
        return runs


async def _undisturbed(measure: Callable[[], Awaitable[LoadReport]]) -> list[LoadReport]:
    """
    Return the measurement, or nothing if it was disturbed.

    It is disturbed if other programs used the machine meanwhile.
    """
    before = Reading.now()
    found = await measure()
    return [found] if others_since(before) <= MOST_OTHERS else []


def _section(runs: Runs, calibration: Calibration | None) -> Section:
    from sampling.load import simulate

    rows = []
    for share in PREDICTED:
        measured = runs[share] if calibration is not None else []
        predicted = [simulate(calibration.server, run.profile, seed=run.seed) for run in measured]
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
    from sampling.load.model._recording import ANSWERED
    from sampling.load.model._series import nearest_rank

    times = [time for run in runs if run.samples for time in run.samples.times("sent_s", "done_s", outcomes=ANSWERED)]
    return nearest_rank(sorted(times), percent)
