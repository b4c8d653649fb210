"""Several processes: the same traffic, their own streams, and no sample lost. Real processes, on both loops."""

from itertools import chain, pairwise, product

import pytest

from sampling.load import Arrival, ClosedLoop, ImportedWorkload, OpenLoop, WorkerFailed, run_load
from sampling.load.traffic._arrivals import instants, share
from tests.load import workloads

pytestmark = pytest.mark.anyio

HERE = "tests.load.workloads"


async def test_all_workers_together_make_the_traffic_of_one():
    """R9: every instant of the one schedule is there once, and no sample is lost on the way."""
    profile = OpenLoop(rate=200, duration_s=0.5, arrivals="poisson", warmup_s=0.1)
    report = await run_load(workloads.quick, profile, workers=2, seed=3)
    due = [instant for instant in instants(profile, 3) if instant >= 0.1]
    assert due == sorted(report.samples.columns["intended_s"])
    assert (len(due), len(due), 2) == (report.admitted, report.latency.count, report.workers)
    assert report.succeeded == report.valid + report.invalid
    assert 3 * report.admitted == report.output_tokens


async def test_users_and_their_requests_are_shared_out():
    """C3, C5: as many requests and users as with one process."""
    report = await run_load(workloads.failing, ClosedLoop(users=5, requests=23), workers=2)
    assert (23, {"RuntimeError": 23}) == (report.failed, report.errors)
    assert "\x1b" not in report.error_messages["RuntimeError"]
    assert {"completed": 0, "cancelled": 0, "horizon": 0, "budget": 5} == report.user_ends
    assert {0, 1, 2, 3, 4} == set(report.samples.columns["user"])


async def test_a_worker_opens_what_its_workload_needs():
    """A workload address with arguments is called, and with one worker opened in this process."""
    workload = ImportedWorkload(f"{HERE}:with_client", {"delay_s": 0.001})
    for workers in (1, 2):
        report = await run_load(workload, OpenLoop(rate=100, requests=10), workers=workers)
        assert 10 == report.succeeded


async def test_a_worker_that_dies_fails_the_run():
    """The death of a worker is an error, because its part of the traffic is unknown."""
    with pytest.raises(WorkerFailed, match=r"worker . of 2 died before it returned its recording"):
        await run_load(workloads.dying, OpenLoop(rate=100, requests=10), workers=2)


async def test_a_worker_that_can_not_start_says_why():
    """The error has the message of the worker."""
    with pytest.raises(WorkerFailed, match=r"could not start: LookupError: 'no such server'"):
        await run_load(ImportedWorkload(f"{HERE}:not_there", {}), OpenLoop(rate=100, requests=10), workers=2)


async def test_what_other_processes_can_not_make_is_refused():
    """Bad input: it says what to pass instead."""

    async def local(arrival) -> None: ...

    with pytest.raises(ValueError, match="async function at the top level of an importable module"):
        await run_load(local, OpenLoop(rate=1, requests=1), workers=2)
    profile = OpenLoop(rate=1, duration_s=1, shape=lambda fraction: 1.0)
    with pytest.raises(ValueError, match="a shape is code"):
        await run_load(workloads.quick, profile, workers=2)
    with pytest.raises(ValueError, match=r"target must be 'package.module:name', got 'nowhere'"):
        ImportedWorkload("nowhere")


def test_no_two_workers_draw_the_same_gaps():
    """R9: no two workers share a stream, shown by repeated gaps."""
    profile = OpenLoop(rate=50, duration_s=100, arrivals="poisson")
    parts = [[instant for _, instant in share(instants(profile, 7), worker, 4)] for worker in range(4)]
    gaps = [later - earlier for part in parts for earlier, later in pairwise(part)]
    assert len(gaps) == len(set(gaps))
    assert sorted(chain(*parts)) == list(instants(profile, 7))


def test_every_worker_has_draws_of_its_own():
    """R9: seeds are derived per (run, worker, user, request)."""
    names = list(product((1, 2), (0, 1), (None, 0, 1), (0, 1)))
    seeds = {Arrival(0, 0.0, seed=s, worker=w, user=u, number=n).seed for s, w, u, n in names}
    assert len(names) == len(seeds)
