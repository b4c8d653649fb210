"""Row 33: code that blocks the event loop of a load run is named, in the log and on the report."""

import subprocess
import sys
import threading
import time

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from sampling.load import (
    Arrival,
    ClosedLoop,
    ImportedWorkload,
    LoadReport,
    LoadRun,
    OpenLoop,
    Slo,
    Stall,
    compare,
    find_capacity,
    load_table,
    render_html,
    run_load,
)
from sampling.load.traffic import _stalls as watched
from sampling.testing.leftovers import Leftovers, left_behind
from tests.load.reports import load_report
from tests.load.workloads import block_once

HERE = "traffic/test_stalls.py"
OPEN = OpenLoop(rate=20, requests=10)
STALL = Stall(at_s=1.5, blocked_s=2.0, where=("shop/prices.py:12 look_up", "shop/load.py:30 ask"))


def sleep_in_the_way() -> None:
    """Let other threads run, but not the event loop."""
    time.sleep(0.7)


def compute_in_the_way() -> None:
    """Let nobody run: this function is C, and holds the interpreter for as long as it takes."""
    sum(range(100_000_000))


def wait_for_a_process() -> None:
    """Wait where an event loop waits as well."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.7)"], check=True, capture_output=True)


def blocked_by(block, at: int = 3):
    """Return a workload in which one request blocks the event loop."""

    async def ask(arrival: Arrival) -> None:
        if arrival.index == at:
            block()
        await anyio.sleep(0.001)

    return ask


def line_of(function) -> int:
    """Return the line of the one statement of a function, below its docstring."""
    return function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("block", "profile"),
    [
        (sleep_in_the_way, OPEN),
        (sleep_in_the_way, ClosedLoop(users=2, requests=10)),
        (compute_in_the_way, OPEN),
    ],
    ids=["open loop", "closed loop", "with the interpreter held"],
)
@pytest.mark.anyio
async def test_what_blocks_the_loop_is_named_with_its_line(block, profile):
    """Row 33: a stall names the blocking function and its caller, not the loop or the generator."""
    with capture_logs() as logs:
        report = await run_load(blocked_by(block), profile)
    (stall,) = report.stalls
    assert f"{HERE}:{line_of(block)} {block.__name__}" == stall.where[0]
    assert stall.where[1].startswith(HERE)
    assert stall.where[1].endswith(" blocked_by.<locals>.ask")
    assert 2 == len(stall.where)
    assert stall.blocked_s >= 0.25
    assert 0 <= stall.at_s <= report.elapsed_s
    (line,) = (line for line in logs if line["event"] == "event_loop_blocked")
    assert ("warning", stall.where[0], [stall.where[1]]) == (line["log_level"], line["by"], line["called_from"])
    assert 0.25 <= line["blocked_s"] <= round(stall.blocked_s, 3)
    assert stall.where[0] in report.blocked
    assert report.blocked in report.notes


@pytest.mark.anyio
async def test_a_function_that_waits_for_a_process_is_not_taken_for_the_loop():
    """Row 33: both wait in the same module of the standard library."""
    report = await run_load(blocked_by(wait_for_a_process), OPEN)
    (stall,) = report.stalls
    assert any(place.endswith(" wait_for_a_process") for place in stall.where)
    assert "subprocess.py" in stall.where[0] or "selectors.py" in stall.where[0]


@pytest.mark.anyio
async def test_every_stall_is_told_once():
    """Row 33: two functions that block are two stalls, in their order."""

    async def ask(arrival: Arrival) -> None:
        if arrival.index in (2, 6):
            sleep_in_the_way()

    with capture_logs() as logs:
        report = await run_load(ask, OpenLoop(rate=10, requests=8))
    assert [2, 2] == [len(report.stalls), len([line for line in logs if line["event"] == "event_loop_blocked"])]
    earlier, later = report.stalls
    assert earlier.at_s + earlier.blocked_s <= later.at_s
    assert "blocked 2 times" in report.blocked


@pytest.mark.anyio
async def test_a_stall_that_ends_with_the_run_is_on_the_report():
    """Row 33: also where there is no turn of the loop after it in which anything could be noted."""

    async def ask(arrival: Arrival) -> None:
        sleep_in_the_way()
        load.stop()

    load = LoadRun(ask, OpenLoop(rate=1, duration_s=30))
    report = await load.run()
    assert [f"{HERE}:{line_of(sleep_in_the_way)} sleep_in_the_way"] == [stall.where[0] for stall in report.stalls]


@pytest.mark.anyio
async def test_a_loop_that_only_waits_is_not_blocked():
    """Row 33: neither for slow answers nor for the next arrival."""

    async def slow(arrival: Arrival) -> None:
        await anyio.sleep(0.8)

    with capture_logs() as logs:
        report = await run_load(slow, OpenLoop(rate=1, requests=2))
    assert ((), [], None) == (report.stalls, logs, report.blocked)


def test_nobody_watches_in_virtual_time(run, monkeypatch):
    """Row 33, C6: no thread, no task and no real clock, however long it really takes."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a thread was started in virtual time")

    monkeypatch.setattr(watched, "_StallMonitor", refuse)
    report = run(run_load, blocked_by(sleep_in_the_way), OpenLoop(rate=20, requests=10))
    assert (10, ()) == (report.succeeded, report.stalls)


def no_monitor_thread() -> bool:
    return not any(thread.name == "sampling load stalls" for thread in threading.enumerate())


@pytest.mark.parametrize("how", ["to its end", "stopped", "cancelled", "failing"])
@pytest.mark.anyio
async def test_no_thread_outlives_the_run(how):
    """I10: whichever way it ends."""

    async def ask(arrival: Arrival) -> None:
        assert not no_monitor_thread()
        if how == "stopped":
            load.stop()
        if how == "cancelled":
            scope.cancel()
        await anyio.sleep(0.001)

    class Failing:
        def draw(self, arrival: Arrival):
            raise LookupError("nothing to draw from")

    before = Leftovers.now()
    load = LoadRun(Failing() if how == "failing" else ask, OpenLoop(rate=100, requests=5))
    with anyio.CancelScope() as scope:
        report = await load.run()
        assert {"LookupError": 5} == report.errors if how == "failing" else not report.errors
    assert no_monitor_thread()
    assert not await left_behind(before, 1.0)


@pytest.mark.anyio
async def test_an_error_of_the_run_ends_the_monitor_and_is_raised_as_it_is():
    """I10: not in an exception group."""

    async def fail() -> None:
        raise LookupError("nothing to send")

    with pytest.raises(LookupError):
        await watched.watch_for_stalls(fail, anyio.current_time(), [])
    assert no_monitor_thread()


@pytest.mark.anyio
async def test_workers_hand_over_what_blocked_them():
    """Row 33: one of two processes stood still, and the report says where."""
    report = await run_load(ImportedWorkload("tests.load.workloads:block_once"), OPEN, workers=2)
    (stall,) = report.stalls
    assert "load/workloads.py" == stall.where[0].partition(":")[0]
    assert stall.where[0].endswith(f" {block_once.__name__}")


@pytest.mark.anyio
async def test_a_search_says_at_which_rate_something_blocked():
    """Row 33, R8: as a warning of the step."""
    answer = await find_capacity(
        blocked_by(sleep_in_the_way), [20], Slo(p95_s=5.0), warmup_s=0, hold_s=0.5, cooldown_s=0
    )
    (warning,) = answer.steps[0].warnings
    assert warning.startswith("20: the event loop was blocked once")
    assert "sleep_in_the_way" in warning


def with_stalls(*stalls: Stall) -> LoadReport:
    return attrs.evolve(load_report(), stalls=stalls)


def test_stalls_are_on_every_form_of_a_report():
    """Row 33: in JSON and back, on the console, in one line, and on the page."""
    report = with_stalls(STALL)
    assert report == LoadReport.from_json(report.to_json())
    said = (
        "the event loop was blocked once, for 2s at 1.5s, by shop/prices.py:12 look_up, called from shop/load.py:30 ask"
    )
    assert said == report.blocked
    assert f"note: {said}" in load_table(report)
    page = render_html(report)
    assert "Code that blocked the load generator" in page
    assert all(place in page for place in STALL.where)


def test_a_comparison_says_which_run_was_blocked():
    """Row 33: what differs may not be the server's doing."""
    assert (f"after: {with_stalls(STALL).blocked}",) == compare(load_report(), with_stalls(STALL)).remarks


def test_a_stall_of_the_warm_up_is_said_to_be_one():
    """Row 33: its instant is before the measurement."""
    assert "2s in the warm-up" in with_stalls(Stall(at_s=-1.0, blocked_s=2.0, where=STALL.where)).blocked


def test_a_report_of_before_there_were_stalls_can_be_read():
    """The schema is the same: what is not there is none."""
    found = load_report().to_dict()
    del found["stalls"]
    assert () == LoadReport.from_dict(found).stalls
