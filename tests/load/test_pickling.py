"""Values of `sampling.load` go through pickle, so that they can be sent to other processes and kept in caches."""

import copy
import pickle  # noqa: TID251 - what is tested is that it can be done
from functools import cache

import anyio
import attrs
import pytest

import sampling.load
from sampling.load import (
    Answered,
    Arrival,
    Backlog,
    CapacityRun,
    CapacitySettings,
    ImportedWorkload,
    Lengths,
    OpenLoop,
    Population,
    PreflightFailed,
    ServerModel,
    Slo,
    Stall,
    Tally,
    WorkerFailed,
    calibrate,
    compare,
    judge,
    plan,
    run_load,
    run_populations,
    simulate,
)
from sampling.load import ClosedLoop as Closed
from sampling.testing import run_virtual

PUBLIC = {
    name: kind
    for name in sampling.load.__all__
    if isinstance(kind := getattr(sampling.load, name), type) and (attrs.has(kind) or issubclass(kind, Exception))
}
SLO = Slo(p95_s=2.0, operations={"chat": Slo(p99_s=3.0, error_rate=None)})
OPEN, CLOSED = OpenLoop(rate=20, duration_s=10), Closed(users=2, requests=20)
SERVER = ServerModel(slots=4, time_to_first_token_s=0.1, time_per_token_s=0.01)


async def ask(arrival: Arrival) -> Answered:
    arrival.operation = "chat"
    await anyio.sleep(0.1)
    arrival.token()
    return Answered(output_tokens=3)


async def measure() -> list[object]:
    settings = CapacitySettings(steps=(10, 20), slo=SLO, warmup_s=0, hold_s=10, cooldown_s=0)
    answer = await CapacityRun(ask, settings).run()
    populations = [Population(name="one", workload=ask, profile=OPEN, slo=SLO)]
    report = await run_load(ask, OPEN, slo=SLO)
    together = await run_populations(populations)
    comparison = compare(report, report)
    return [
        *(settings, answer, *answer.steps, report, report.latency, *report.timeline, *report.operations.values()),
        *(judge(report, SLO), comparison, *comparison.changes, *populations, together, together.total),
    ]


@cache
def values() -> dict[type, object]:
    """Return a value of each public class, made as users make them."""
    planned = plan(SERVER, rate=2, slo=SLO, depths=(1,), breadths=(1,), requests=100)
    calibrated = calibrate(simulate(SERVER, OpenLoop(rate=2, requests=200)), slots=4)
    found = [
        *(OPEN, CLOSED, SLO, Answered(cost=1.5), Backlog(growth=1.0), Tally(scheduled=1), Lengths(10, stdev=2)),
        *(ImportedWorkload("shop:chat", {"a": 1}), Stall(at_s=1.0, blocked_s=0.5, where=("a.py:1 f",))),
        *(SERVER, planned, *planned.options, calibrated, PreflightFailed("no"), WorkerFailed("no")),
        *run_virtual(measure),
    ]
    return {type(value): value for value in found}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_value_can_be_pickled_and_copied(name):
    """It is equal afterwards, an error in its text."""
    value = values()[PUBLIC[name]]
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):  # noqa: S301 - made here
        assert type(value) is type(again)
        assert (str(value) == str(again)) if isinstance(value, Exception) else (value == again)


def test_what_was_measured_is_pickled_with_its_samples():
    """A report of another process can be judged and calibrated as if it were of this one."""
    report = run_virtual(lambda: run_load(ask, OPEN, slo=SLO))
    again = pickle.loads(pickle.dumps(report))  # noqa: S301 - made here
    assert judge(report, SLO) == judge(again, again.slo)
    assert report.to_json(samples=True) == again.to_json(samples=True)
