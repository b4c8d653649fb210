"""Tasks of an open loop that serve one request after another: cheaper, and no request can tell."""

from contextvars import ContextVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sampling.load import Arrival, LoadReport, LoadRun, OpenLoop, current_arrival, run_load
from tests.load.clocks import jump_clock

MARK: ContextVar[str] = ContextVar("mark", default="unmarked")


def test_a_task_that_is_free_serves_the_next_request(run):
    """O3: as many tasks as requests at once, whatever the number of requests."""
    tasks: set[int] = set()

    async def workload(arrival: Arrival) -> None:
        tasks.add(anyio.get_current_task().id)
        await anyio.sleep(0.15)

    report = run(run_load, workload, OpenLoop(rate=10, requests=40))
    assert (40, 2, 2) == (report.succeeded, report.peak_in_flight, len(tasks))


def test_no_request_sees_what_another_left_in_its_context(run):
    """O4: every request runs as if it were alone, its arrival is its own, and the others' variables are not seen."""
    seen: list[str] = []

    async def workload(arrival: Arrival) -> None:
        assert arrival is current_arrival()
        seen.append(MARK.get())
        if arrival.index % 3 == 0:
            MARK.set(f"left by {arrival.index}")
        await anyio.sleep(0.01)

    MARK.set("the caller's")
    report = run(run_load, workload, OpenLoop(rate=10, requests=30))
    assert (30, {"the caller's"}) == (report.succeeded, set(seen))
    assert current_arrival() is None


def test_after_a_stall_no_arrival_is_dropped_for_a_request_that_is_answered(run):
    """O3, row 33: of a hundred arrivals due at once, twenty are in flight at a time."""

    async def workload(arrival: Arrival) -> None:
        if arrival.index == 10:
            jump_clock(2.0)

    report = run(run_load, workload, OpenLoop(rate=50, duration_s=10, max_in_flight=20))
    assert (500, 0) == (report.succeeded, report.dropped)


@pytest.mark.parametrize("stop_at_s", [0.0, 0.05, 0.1, 0.15])
def test_what_was_handed_to_a_free_task_is_counted_when_the_run_is_stopped(run, stop_at_s):
    """O5: admitted = succeeded + failed + cancelled, also where a task was called and cancelled in one turn."""

    async def stopped() -> LoadReport:
        async def workload(arrival: Arrival) -> None:
            if arrival.intended_s >= stop_at_s:
                load.stop()
            await checkpoint()

        load = LoadRun(workload, OpenLoop(rate=100, duration_s=1, max_in_flight=10))
        return await load.run()

    report = run(stopped)
    assert report.interrupted
    assert report.admitted == report.succeeded + report.failed + report.cancelled > 0
