"""R4, R14 to R16: what a report says of itself, of tokens, and of a run that was stopped."""

import csv
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable

import anyio
import pytest

from sampling import RejectionSamplingStrategy
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._virtual_run import run_virtual_until_signal
from sampling.load import (
    Answered,
    Arrival,
    CapacityRun,
    CapacitySettings,
    ClosedLoop,
    ImportedWorkload,
    LoadRun,
    OpenLoop,
    Slo,
    compare,
    find_capacity,
    load_table,
    mix,
    render_html,
    run_load,
    strategy_workload,
    write_report,
)
from tests.load.seeded import LOOPS, run_seeded

QUICK = {"warmup_s": 1.0, "hold_s": 10.0, "cooldown_s": 1.0}


async def quick(arrival: Arrival) -> None:
    await anyio.sleep(0.05)


async def other(arrival: Arrival) -> None:
    await anyio.sleep(0.05)


def ask(model: str, depth: int = 1):
    backend = SimulatedBackend(slots=8, time_to_first_token_s=0.1, time_per_token_s=0.01, output_tokens=10)
    backend.model = model
    return strategy_workload(RejectionSamplingStrategy(loop_budget=depth), ["one", "two"], None, backend)


# R14.


def test_a_report_says_what_was_measured_everywhere(run, tmp_path):
    """R14: backend, model, strategy with its budgets, questions, SLO, verdict and versions."""
    report = run(run_load, ask("qwen", 3), OpenLoop(rate=10, duration_s=10), slo=Slo(p95_s=2.0))
    about = report.about
    assert ("RejectionSamplingStrategy", 3, 1, "qwen") == (
        about["strategy"], about["loop_budget"], about["concurrency_budget"], about["model"],
    )  # fmt: skip
    assert "SimulatedBackend" in about["backend"]
    assert {"questions", "requirements", "sampling", "python", "started"} <= set(about)
    assert "virtual clock, 0 s" == about["started"]
    found = json.loads(report.to_json())
    assert ("PASS", [], about) == (found["verdict"], found["reasons"], found["about"])
    assert "model qwen" in load_table(report)
    page = render_html(report)
    assert "PASS" in page
    assert "qwen" in page
    write_report(report, tmp_path / "run.csv")
    (row,) = csv.DictReader((tmp_path / "run.csv").read_text().splitlines())
    assert ("PASS", "open", str(report.slo)) == (row["verdict"], row["model"], row["slo"])
    assert "qwen" == json.loads(row["about"])["model"]


@pytest.mark.parametrize("loop", LOOPS)
def test_two_runs_in_virtual_time_are_the_same_to_the_byte(loop):
    """R14: the time of a report is that of the virtual clock."""
    first, second = (
        run_seeded(loop, run_load, ask("qwen"), OpenLoop(rate=10, duration_s=5), slo=Slo(p95_s=2.0)).to_json()
        for _ in range(2)
    )
    assert first == second


def test_the_journal_of_another_workload_is_refused(run, tmp_path):
    """R14: the error names the differences, and the same workload resumes."""
    journal = tmp_path / "steps.jsonl"
    run(find_capacity, ask("qwen"), [10], Slo(p95_s=2.0), journal=journal, **QUICK)
    assert 1 == len(run(find_capacity, ask("qwen"), [10], Slo(p95_s=2.0), journal=journal, **QUICK).steps)
    with pytest.raises(ValueError, match=r"search: workload was {'model': 'qwen'} and is {'model': 'llama'}; use"):
        run(find_capacity, ask("llama"), [10], Slo(p95_s=2.0), journal=journal, **QUICK)
    with pytest.raises(ValueError, match=r"is of another search"):
        run(find_capacity, quick, [10], Slo(p95_s=2.0), journal=journal, **QUICK)


@pytest.mark.parametrize("by_name", [True, False])
def test_the_journal_of_a_workload_whose_code_changed_is_refused(run, tmp_path, monkeypatch, by_name):
    """R14: a workload of the same name may ask another question today."""
    monkeypatch.syspath_prepend(tmp_path)

    def search(question: str):
        (tmp_path / "asks.py").write_text(f"async def work(arrival):\n    return {question!r} and None\n")
        monkeypatch.delitem(sys.modules, "asks", raising=False)
        importlib.invalidate_caches()
        workload = ImportedWorkload("asks:work") if by_name else importlib.import_module("asks").work
        return run(find_capacity, workload, [10], Slo(p95_s=2.0), journal=tmp_path / "steps.jsonl", **QUICK)

    assert search("a").steps == search("a").steps
    with pytest.raises(ValueError, match=r"is of another search: workload was .*'code'"):
        search("another question")


def test_the_journal_of_a_search_with_a_shape_is_resumed(run, tmp_path):
    """R8, R14: the next process has the same function at another address, and another shape is refused."""

    def search(shape: Callable[[float], float]):
        journal = tmp_path / "steps.jsonl"
        return run(find_capacity, quick, [10], Slo(p95_s=2.0), shape=shape, journal=journal, **QUICK)

    first = search(lambda fraction: 1 + fraction)
    assert first.steps == search(lambda fraction: 1 + fraction).steps
    with pytest.raises(ValueError, match="is of another search: shape was"):
        search(lambda fraction: 2 - fraction)


@pytest.mark.parametrize(
    "data", [b"a,b\n1,2\n", b"{]\n", b'{"schema": "x"}\n', b"[1]\n", b"\xef\xbb\xbf{}\n", b"null\n", b"\xff\xfe{\x00"]
)
def test_a_file_that_is_no_journal_is_refused_and_kept(run, tmp_path, data):
    """R14: the error names the file, which is not changed."""
    path = tmp_path / "notes.jsonl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"notes\.jsonl is not the journal of a capacity search"):
        run(find_capacity, quick, [10], Slo(p95_s=2.0), journal=path, **QUICK)
    assert data == path.read_bytes()


def test_a_comparison_of_unlike_runs_says_so(run):
    """R14: of runs and of searches."""
    before, after = (run(run_load, work, OpenLoop(rate=10, duration_s=5)) for work in (quick, other))
    assert any(remark.startswith("not the same thing: workload was") for remark in compare(before, after).remarks)
    assert () == compare(before, before).remarks
    searches = [run(find_capacity, work, [10], Slo(p95_s=2.0), **QUICK) for work in (quick, other)]
    assert "not the same thing" in compare(*searches).render()


def test_a_run_in_which_everything_failed_is_headlined_so(run):
    """R14: and not with its rate alone."""

    async def fails(arrival: Arrival) -> None:
        raise OSError("no")

    report = run(run_load, fails, OpenLoop(rate=10, duration_s=5), slo=Slo(p95_s=1.0))
    assert "<h1>Nothing was answered: 10 requests per second</h1>" in render_html(report)
    assert "TRIP" in render_html(report)


def test_a_search_shows_its_operations(run):
    """R8, R14: in the table, and in a column of the CSV that a program can read."""
    work = mix({"chat": (3, quick), "search": (1, other)})
    answer = run(find_capacity, work, [20], Slo(p95_s=1.0), **QUICK)
    assert "operation" in answer.render()
    assert "search" in answer.render()
    assert {"chat", "search"} == set(answer.about["operations"])


# R15.


def stream(gaps_s: list[float]):
    async def server(arrival: Arrival) -> Answered:
        await anyio.sleep(0.2)
        arrival.token()
        for gap_s in gaps_s:
            await anyio.sleep(gap_s)
            arrival.token()
        return Answered(output_tokens=len(gaps_s) + 1)

    return server


def test_times_per_token_and_between_tokens_are_measured(run):
    """R15: the average after the first token, and the longest gap of a request."""
    report = run(run_load, stream([0.01, 0.01, 0.07, 0.01]), OpenLoop(rate=5, duration_s=10))
    assert (0.025, 0.07) == (
        pytest.approx(report.time_per_output_token.p50),
        pytest.approx(report.time_between_tokens.p99, rel=1e-5),
    )
    assert (50, 50) == (report.time_per_output_token.count, report.time_between_tokens.count)
    assert "time per output token" in load_table(report)


def test_times_of_tokens_can_be_limits(run):
    """R15: limits work on the command line too, and goodput is within all of them."""
    slo = Slo.parse("ttft_p95=300ms,tpot_p95=20ms,itl_p99=50ms")
    assert slo == Slo(ttft_p95_s=0.3, tpot_p95_s=0.02, itl_p99_s=0.05)
    report = run(run_load, stream([0.01, 0.01, 0.07, 0.01]), OpenLoop(rate=20, duration_s=10), slo=slo)
    assert ("tpot_p95=25ms > 20ms", "itl_p99=70ms > 50ms") == report.reasons
    assert 0 == report.good
    fine = run(run_load, stream([0.01] * 4), OpenLoop(rate=20, duration_s=10), slo=slo)
    assert ("PASS", 200) == (fine.verdict, fine.good)


def test_the_tokens_of_a_strategy_are_timed(run):
    """R15: a simulated model with 10 ms per token."""
    report = run(run_load, ask("qwen"), OpenLoop(rate=5, duration_s=10))
    assert 0.01 == pytest.approx(report.time_per_output_token.p50, rel=0.2)
    assert report.time_between_tokens.count


# R4, R16.


@pytest.mark.parametrize("stop_at", [0.05, 0.6, 6.0, 11.5, 13.0])
def test_a_stop_is_obeyed_at_once(run, stop_at):
    """R4: in the preflight, the warm-up, the hold, the cool-down and between steps."""

    async def slow(arrival: Arrival) -> None:
        await anyio.sleep(0.3)

    async def stopped() -> tuple[float, int]:
        settings = CapacitySettings(steps="10,20", slo=Slo(p95_s=1.0), preflight=True, **{**QUICK, "cooldown_s": 30.0})
        search = CapacityRun(slow, settings)
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await anyio.sleep(stop_at)
                search.stop()

            group.start_soon(stop)
            answer = await search.run()
        assert answer.interrupted
        return anyio.current_time(), len(answer.steps)

    ended_at, steps = run(stopped)
    assert stop_at == ended_at
    assert steps == (stop_at > 12)


def test_a_search_that_is_stopped_before_it_begins_sends_nothing(run):
    """R4: a search that is stopped before it begins sends nothing."""
    sent: list[Arrival] = []

    async def noted(arrival: Arrival) -> None:
        sent.append(arrival)

    search = CapacityRun(noted, CapacitySettings(steps="10", slo=Slo(p95_s=1.0), **QUICK))
    search.stop()
    answer = run(search.run)
    assert (True, (), []) == (answer.interrupted, answer.steps, sent)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_in_virtual_time_and_keeps_its_results(number):
    """R16: what was gathered is returned, with the signal for the exit code."""

    async def interrupts(arrival: Arrival) -> None:
        await anyio.sleep(0.1)
        if arrival.index == 50:
            os.kill(os.getpid(), number)

    run = LoadRun(interrupts, OpenLoop(rate=10, duration_s=1000))
    before = signal.getsignal(number)
    report, received = run_virtual_until_signal(run.run, run.stop)
    assert (number, True) == (received, report.interrupted)
    assert 50 <= report.succeeded <= 60
    assert before is signal.getsignal(number)


def test_think_time_and_warm_up_are_on_top_of_the_duration():
    """O11: `--users --duration 30s --warmup 10s` measures 30 s."""
    from sampling.cli._traffic import Traffic

    profile = Traffic(users=3, duration="30s", warmup="10s").profile()
    assert isinstance(profile, ClosedLoop)
    assert 30.0 == profile.measured_s
