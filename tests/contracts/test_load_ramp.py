"""R: the ramp to the highest rate that holds an SLO."""

import csv
import json
import math
import random
from functools import partial

import anyio
import anyio.lowlevel
import attrs
import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy
from sampling.backends.simulated import SimulatedBackend
from sampling.load import (
    Answered,
    Arrival,
    CapacityAnswer,
    CapacityRun,
    CapacitySettings,
    LoadReport,
    OpenLoop,
    PreflightFailed,
    Slo,
    Step,
    Summary,
    find_capacity,
    judge,
    mix,
    parse_steps,
    run_load,
    strategy_workload,
)
from sampling.load.capacity._answer import CSV_COLUMNS
from sampling.testing import run_virtual
from tests.load.seeded import LOOPS, run_seeded

QUICK = {"warmup_s": 1.0, "hold_s": 10.0, "cooldown_s": 1.0}


class Queue:
    """One server that takes `service_s` for each request, one after the other: it holds 1 / service_s per second."""

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.free_at = 0.0
        self.arrivals: list[Arrival] = []
        self.at: list[float] = []

    async def __call__(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        now = anyio.current_time()
        self.at.append(now)
        self.free_at = max(self.free_at, now) + self.service_s
        await anyio.sleep_until(self.free_at)


async def instant(arrival: Arrival) -> None:
    await anyio.lowlevel.checkpoint()


# R1.


def test_steps_are_numbers_and_k_is_a_thousand():
    """R1: steps are numbers and k is a thousand."""
    assert (50.0, 100.0, 1500.0, 2000.0) == parse_steps("50, 100,1.5k,2K")
    assert (1.0, 2.5) == parse_steps([1, 2.5])


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("", "at least one rate"),
        ("50,,100", "a step must be a number, such as 50 or 1.5k, got ''"),
        ("50,-1", "every step must be finite and > 0, got -1"),
        ("0,50", "every step must be finite and > 0, got 0"),
        ("100,50", "steps must ascend: 50 comes after 100"),
        ("50,50", "steps must ascend: 50 comes after 50"),
        ("1e400", "a step must be finite, got '1e400'"),
        ("ten", "a step must be a number, such as 50 or 1.5k, got 'ten'"),
    ],
)
def test_a_bad_step_is_named(steps, says):
    """R1: a bad step is named."""
    with pytest.raises(ValueError, match=says):
        parse_steps(steps)


# R2.


def test_only_the_hold_counts(run):
    """R2: only the hold is judged, so a server that is slow at first passes."""
    queue = Queue(0.0)

    async def cold(arrival: Arrival) -> None:
        await queue(arrival)
        await anyio.sleep(5.0 if arrival.intended_s < 2 else 0.1)

    answer = run(find_capacity, cold, [5, 10], Slo(p95_s=1.0), warmup_s=2, hold_s=10, cooldown_s=7)
    assert ["PASS", "PASS"] == [step.verdict for step in answer.steps]
    assert [50, 100] == [step.report.admitted for step in answer.steps]
    assert [10, 20] == [step.report.warmup_sent for step in answer.steps]
    second = next(at for at in queue.at if at > 12.5)
    assert 12.0 + 0.1 + 7 == pytest.approx(second, abs=0.2)


def test_latencies_that_arrive_in_the_drain_belong_to_the_hold(run):
    """R2: everything takes 8 s, most of it after the last arrival."""

    async def slow(arrival: Arrival) -> None:
        await anyio.sleep(8.0)

    answer = run(find_capacity, slow, [5], Slo(p95_s=9.0), **QUICK)
    assert 50 == answer.steps[0].report.latency.count


# R3.


def build_report(run, latency_s: float = 0.1, *, count: int = 200, **changes: object) -> LoadReport:
    async def fixed(arrival: Arrival) -> None:
        await anyio.sleep(latency_s)

    report = run(run_load, fixed, OpenLoop(rate=20, duration_s=count / 20))
    return attrs.evolve(report, samples=None, **changes)


def test_what_was_not_measured_is_inconclusive(run):
    """R3: a failed measurement, nothing sent, an interrupted hold."""
    slo = Slo(p95_s=1.0)
    assert "INCONCLUSIVE" == judge(None, slo).verdict
    assert ("the probe broke",) == judge(build_report(run), slo, failure="the probe broke").reasons
    assert "INCONCLUSIVE" == judge(build_report(run, interrupted=True), slo).verdict


def test_a_broken_limit_trips_with_every_reason(run):
    """R3: a broken limit trips with every reason."""
    judgement = judge(build_report(run, 0.143), Slo(p50_s=0.1, p95_s=0.1, p99_s=0.2, error_rate=0.1))
    assert ("TRIP", ("p50=143ms > 100ms", "p95=143ms > 100ms")) == (judgement.verdict, judgement.reasons)


def test_exactly_at_the_limit_passes(run):
    """R3: comparisons are strict."""
    report = build_report(run)
    assert "PASS" == judge(report, Slo(p95_s=report.latency.p95, error_rate=0.0)).verdict
    assert "TRIP" == judge(report, Slo(p95_s=math.nextafter(report.latency.p95, 0))).verdict


def test_a_trip_comes_before_the_shortfall(run):
    """R3: backpressure by the server is not a limit of the harness."""
    answer = run(find_capacity, Queue(1.0), [20], Slo(p95_s=0.5), max_in_flight=3, **QUICK)
    assert "TRIP" == answer.steps[0].verdict
    assert answer.steps[0].achieved_rate < 19


def test_a_full_pool_with_a_healthy_service_is_inconclusive_and_names_the_knob(run):
    """R3: too few permits for the rate make a step INCONCLUSIVE, naming `max_in_flight`."""

    async def healthy(arrival: Arrival) -> None:
        await anyio.sleep(0.5)

    answer = run(find_capacity, healthy, [20], Slo(p95_s=1.0), max_in_flight=3, **QUICK)
    (reason,) = answer.steps[0].reasons
    assert "INCONCLUSIVE" == answer.steps[0].verdict
    assert "client-limited" in reason
    assert "in-flight pool full: raise max_in_flight to about 10" in reason


def test_a_generator_that_runs_late_is_inconclusive_even_at_full_rate(run):
    """R3: at 98 % of its target rate, but late by more than a tenth of the tightest limit."""
    lag = Summary(200, 0.05, 0.05, 0.05, 0.06, 0.06, 0.06)
    late = judge(build_report(run, schedule_lag=lag), Slo(p95_s=0.5, p99_s=5.0))
    assert "INCONCLUSIVE" == late.verdict
    assert "could not emit on schedule (p99 lag 60ms, more than a tenth of 500ms)" in late.reasons[0]
    assert "PASS" == judge(build_report(run, schedule_lag=lag), Slo(p95_s=0.6)).verdict


def test_lateness_of_the_generator_is_not_blamed_on_the_server(run):
    """R3, row 69: a limit broken only by the generator's own lag is INCONCLUSIVE, and by the service is a TRIP."""
    lag = Summary(200, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    latency = Summary(200, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6)
    report = build_report(run, schedule_lag=lag, latency=latency)
    assert "INCONCLUSIVE" == judge(report, Slo(p95_s=0.55)).verdict
    assert "TRIP" == judge(report, Slo(p95_s=0.05)).verdict


def test_too_few_samples_for_a_percentile_are_inconclusive(run):
    """R3: p99 needs a hundred."""
    few = judge(build_report(run, count=99), Slo(p99_s=1.0))
    assert ("INCONCLUSIVE", ("p99 needs 100 samples, there are 99: hold longer",)) == (few.verdict, few.reasons)
    assert "PASS" == judge(build_report(run, count=100), Slo(p99_s=1.0)).verdict


def test_a_limit_on_what_nobody_told_is_inconclusive(run):
    """R6: an empty series has no percentiles, and says so."""
    judgement = judge(build_report(run), Slo(ttft_p95_s=1.0))
    assert ("ttft_p95 can't be computed: the series is empty",) == judgement.reasons


# R4, R5.


def test_the_ramp_stops_at_the_first_trip_if_told_so(run):
    """R4, R5: the answer is the highest rate that passed, with the reasons of the first trip as next limit."""
    answer = run(find_capacity, Queue(0.1), "4,8,16,32", Slo(p95_s=1.0), **QUICK)
    assert ["PASS", "PASS", "TRIP", "TRIP"] == [step.verdict for step in answer.steps]
    assert (8.0, 16.0, 0) == (answer.max_rate, answer.first_trip, answer.exit_code)
    assert "p95=" in answer.next_limit
    should_continue = run(find_capacity, Queue(0.1), "4,8,16,32", Slo(p95_s=1.0), stop_on_trip=False, **QUICK)
    assert [4, 8, 16, 16, 32, 32] == [step.target_rate for step in should_continue.steps]


def test_an_inconclusive_step_neither_stops_the_ramp_nor_passes(run):
    """R4: the generator can't reach 20 per second with 3 permits, and goes on to see 40."""

    async def healthy(arrival: Arrival) -> None:
        await anyio.sleep(0.5)

    answer = run(find_capacity, healthy, "4,20,40", Slo(p95_s=1.0), max_in_flight=3, **QUICK)
    assert ["PASS", "INCONCLUSIVE", "INCONCLUSIVE"] == [step.verdict for step in answer.steps]
    assert 4.0 == answer.max_rate


def test_what_passes_above_the_first_trip_is_no_answer():
    """R5: the answer is the largest rate that passed below the first trip."""
    steps = [
        Step(target_rate=rate, achieved_rate=rate, verdict=verdict)
        for rate, verdict in ((10, "PASS"), (20, "TRIP"), (40, "PASS"))
    ]
    assert 10 == CapacityAnswer(slo=Slo(p95_s=1), steps=tuple(steps)).max_rate
    nothing = CapacityAnswer(slo=Slo(p95_s=1), steps=tuple(steps[1:]))
    assert (None, 1) == (nothing.max_rate, nothing.exit_code)
    assert "none passed" in nothing.render()


def test_cancellation_stops_at_once_with_what_was_gathered(run):
    """R4: the cancelled hold is neither measured nor drained."""

    async def cancelled() -> tuple[CapacityAnswer, float]:
        search = CapacityRun(Queue(0.1), CapacitySettings(steps="2,4,8", slo=Slo(p95_s=1.0), **QUICK))
        with anyio.move_on_after(30.0):
            await search.run()
        return search.answer(), anyio.current_time()

    answer, ended_at = run(cancelled)
    assert (30.0, True, [2.0, 4.0]) == (ended_at, answer.interrupted, [step.target_rate for step in answer.steps])


def test_a_stopped_search_returns_what_was_gathered(run):
    """R4: as on Ctrl-C."""

    async def stopped() -> CapacityAnswer:
        search = CapacityRun(Queue(0.1), CapacitySettings(steps="2,4,8", slo=Slo(p95_s=1.0), **QUICK))
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await anyio.sleep(20.0)
                search.stop()

            group.start_soon(stop)
            return await search.run()

    answer = run(stopped)
    assert (True, 2.0, [2.0]) == (answer.interrupted, answer.max_rate, [step.target_rate for step in answer.steps])
    assert "interrupted: holds 2 per second" in answer.render()


# R6.


def test_percentiles_are_nearest_rank_by_ceiling():
    """R6: p99 of 100 samples is the 99th, and an empty series has none."""
    hundred = Summary.of(random.Random(0).sample(range(1, 101), 100))
    assert (100, 50.5, 50, 90, 95, 99, 100) == attrs.astuple(hundred)
    assert (1, 7, 7, 7, 7, 7, 7) == attrs.astuple(Summary.of([7]))
    assert (0, None, None, None, None, None, None) == attrs.astuple(Summary.of([]))


# R7.


def test_a_backlog_that_grows_over_its_limit_trips(run):
    """R7: at 12 per second, a server that does 10 falls behind by 2 every second."""
    held = run(find_capacity, Queue(0.1), [9, 12], Slo(backlog=5, backlog_slope=0.5), **QUICK)
    assert ["PASS", "TRIP", "TRIP"] == [step.verdict for step in held.steps]
    assert held.next_limit.startswith("backlog=+")
    assert "backlog_slope=+2.04/s > 0.5/s" in held.next_limit


def test_a_probe_of_the_queue_is_judged_instead(run):
    """R7: the server's own queue grows by one a second."""

    async def queue() -> float:
        return anyio.current_time()

    answer = run(find_capacity, instant, [20], Slo(backlog=5), probe=queue, **QUICK)
    assert ("backlog=+10 > 5",) == answer.steps[0].reasons


def test_a_queue_that_disappears_trips(run):
    """R7: a queue that disappears trips."""

    async def queue() -> float | None:
        return 3.0 if anyio.current_time() < 5 else None

    answer = run(find_capacity, instant, [20], Slo(p95_s=1.0), probe=queue, **QUICK)
    assert ("TRIP", ("the queue disappeared during the measurement",)) == (
        answer.steps[0].verdict,
        answer.steps[0].reasons,
    )


def test_a_probe_that_fails_is_retried_and_then_only_that_signal_is_dropped(run):
    """R7: a probe that fails once is retried, and one that keeps failing is dropped with a warning."""
    looks = 0

    async def shaky() -> float:
        nonlocal looks
        looks += 1
        if looks % 3:
            raise OSError("no queue today")
        return 1.0

    async def broken() -> float:
        raise OSError("no queue today")

    answer = run(find_capacity, instant, [20], Slo(p95_s=1.0, backlog=5), probe=shaky, **QUICK)
    assert ("PASS", ()) == (answer.steps[0].verdict, answer.steps[0].warnings)
    with capture_logs() as logs:
        answer = run(find_capacity, instant, [20], Slo(p95_s=1.0, backlog=5), probe=broken, **QUICK)
    assert "PASS" == answer.steps[0].verdict
    assert "failed 3 times (OSError: 'no queue today')" in answer.steps[0].warnings[0]
    assert ["backlog_probe_failed"] == [entry["event"] for entry in logs]


# R8.


def test_a_row_is_on_disk_as_soon_as_a_step_ends(run, tmp_path):
    """R8: a step's row is on disk before the next step starts, with a stable column order."""
    path = tmp_path / "steps.csv"
    rows_seen: list[int] = []

    async def workload(arrival: Arrival) -> None:
        rows_seen.append(len(path.read_text().splitlines()) - 1)

    answer = run(find_capacity, workload, "20,40", Slo(p95_s=1.0), csv=path, **QUICK)
    assert {0, 1} == set(rows_seen)
    header, *rows = csv.reader(path.read_text().splitlines())
    assert [*CSV_COLUMNS] == header
    assert ["20", "20", "PASS"] == rows[0][:3]
    answer.to_csv(tmp_path / "again.csv")
    assert path.read_text() == (tmp_path / "again.csv").read_text()


def test_an_interrupted_ramp_can_be_resumed(run, tmp_path):
    """R8: a resumed search runs only steps without a verdict, and ignores a torn last line."""
    journal = tmp_path / "ramp.jsonl"
    settings = CapacitySettings(steps="2,4,16", slo=Slo(p95_s=1.0), **QUICK)

    async def cut_short() -> None:
        with anyio.move_on_after(30.0):
            await CapacityRun(Queue(0.1), settings, journal=journal).run()

    run(cut_short)
    with journal.open("a") as file:
        file.write('{"target_rate": 16.0, "ver')
    queue = Queue(0.1)
    answer = run(CapacityRun(queue, settings, journal=journal).run)
    assert ["PASS", "PASS", "TRIP", "TRIP"] == [step.verdict for step in answer.steps]
    assert 2 * 176 == len(queue.arrivals)
    assert answer == CapacityAnswer.from_json(answer.to_json())
    assert [2.0, 4.0, 16.0, 16.0] == [json.loads(line)["target_rate"] for line in journal.read_text().splitlines()[1:]]


def test_the_journal_of_another_search_is_refused(run, tmp_path):
    """R8: the difference is shown."""
    journal = tmp_path / "ramp.jsonl"
    run(find_capacity, instant, [20], Slo(p95_s=1.0), journal=journal, **QUICK)
    with pytest.raises(ValueError, match=r"hold_s was 10.0 and is 20.0; use another file"):
        run(find_capacity, instant, [20], Slo(p95_s=1.0), journal=journal, **{**QUICK, "hold_s": 20.0})


# R9.


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rerun_makes_the_same_traffic(loop):
    """R9: two searches with one seed are identical to the byte, and each step has its own seed."""
    settings = {"arrivals": "poisson", "seed": 3, **QUICK}
    first, second = (run_seeded(loop, find_capacity, Queue(0.1), "4,6", Slo(p95_s=2.0), **settings) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert 2 == len({step.seed for step in first.steps})


def test_the_report_says_how_far_the_delivered_load_was_off(run):
    """R9: the report shows that half of the due arrivals were sent."""

    async def busy(arrival: Arrival) -> None:
        await anyio.sleep(0.15)

    report = run(run_load, busy, OpenLoop(rate=10, duration_s=10, max_in_flight=1))
    assert (0.5, 5.0, 10.0) == (report.delivered_share, report.achieved_rate, report.scheduled_rate)


# R10, R11.


def test_a_preflight_says_what_to_do_before_a_long_run(run):
    """R10: after one request, not after an hour."""
    sent = 0

    async def down(arrival: Arrival) -> None:
        nonlocal sent
        sent += 1
        raise ConnectionError("refused")

    with pytest.raises(PreflightFailed, match="the first request failed with ConnectionError: 'refused'") as caught:
        run(find_capacity, down, "10,20", Slo(p95_s=1.0), preflight=True, **QUICK)
    assert 1 == sent
    assert "check the address, the key" in caught.value.hint


def test_a_preflight_that_hangs_has_a_timeout(run):
    """R11: a preflight that hangs has a timeout."""
    with pytest.raises(PreflightFailed, match="was not answered within 5 s"):
        run(find_capacity, lambda arrival: anyio.sleep(math.inf), [10], Slo(p95_s=1.0), preflight=True, **QUICK)


def test_a_hung_probe_has_a_timeout(run):
    """R11: three tries of two seconds, and the step is judged without it."""

    async def hangs() -> float:
        await anyio.sleep(math.inf)
        return 0.0

    answer = run(
        find_capacity,
        instant,
        [20],
        Slo(p95_s=1.0, backlog=1),
        probe=hangs,
        probe_timeout_s=2,
        **{**QUICK, "hold_s": 20},
    )
    assert "PASS" == answer.steps[0].verdict
    assert "TimeoutError" in answer.steps[0].warnings[0]


def test_a_run_that_sent_nothing_can_not_pass(run):
    """R10: an empty workload."""

    class Empty:
        def draw(self, arrival: Arrival) -> None:
            return None

    answer = run(find_capacity, Empty(), [20], Slo(p95_s=1.0), **QUICK)
    assert ("INCONCLUSIVE", None) == (answer.steps[0].verdict, answer.max_rate)
    assert "nothing was sent" in answer.steps[0].reasons[0]


# R12.


def test_it_bisects_between_the_last_pass_and_the_first_trip(run):
    """R12: a server of 10 per second, found to 2 %, and only rates that were run are reported."""
    answer = run(find_capacity, Queue(0.1), "4,32", Slo(p95_s=0.5), refine=True, warmup_s=0, hold_s=60, cooldown_s=10)
    assert 10.0 == pytest.approx(answer.max_rate, rel=0.03)
    assert answer.max_rate in {step.target_rate for step in answer.steps if step.verdict == "PASS"}
    assert answer.first_trip - answer.max_rate <= 0.02 * answer.first_trip
    assert 0.8 < answer.confidence <= 1.0
    assert "refine" in {step.why for step in answer.steps}


def test_a_step_at_the_edge_is_repeated_and_the_confidence_says_so(run):
    """R12: 4.5 % of the requests exceed a limit that 5 % may: another run might find the opposite, so there is one."""

    async def search() -> CapacityAnswer:
        async def workload(arrival: Arrival) -> None:
            too_much = searching.target > 25
            await anyio.sleep(0.2 if too_much or arrival.number % 22 == 0 else 0.1)

        settings = CapacitySettings(steps="20,30", slo=Slo(p95_s=0.15), refine=True, precision=0.5, **QUICK)
        searching = CapacityRun(workload, settings)
        return await searching.run()

    answer = run(search)
    assert [(20, "ramp"), (30, "ramp"), (30, "repeat"), *[(20, "repeat")] * 3] == [
        (step.target_rate, step.why) for step in answer.steps
    ]
    held_s = [step.report.duration_s for step in answer.steps if step.target_rate == 20]
    assert [QUICK["hold_s"], *[2 * QUICK["hold_s"]] * 3] == held_s
    assert (20, (4, 4)) == (answer.max_rate, answer.passes)
    assert 0.5 < answer.confidence < 0.9
    assert answer.repeatability[0] < 0.6


# R13.


def test_the_axis_may_be_users(run):
    """R13: a search over users gives the same steps, verdicts and answer."""
    answer = run(
        find_capacity,
        Queue(0.1),
        "4,8,16",
        Slo(p95_s=0.5),
        axis="users",
        think_time_s=1.0,
        **{**QUICK, "hold_s": 30.0},
    )
    assert ["PASS", "PASS", "TRIP", "TRIP"] == [step.verdict for step in answer.steps]
    assert (8.0, 8.0) == (answer.max_rate, answer.best.achieved_rate)
    assert "holds 8 users" in answer.render()


def test_fewer_than_95_percent_active_users_are_inconclusive_with_the_shortfall(run):
    """R13: ten of twenty start during the warm-up."""
    answer = run(find_capacity, instant, [20], Slo(p95_s=1), axis="users", think_time_s=0.5, activate_per_s=10, **QUICK)
    assert "INCONCLUSIVE" == answer.steps[0].verdict
    assert "20(11) users became active" in answer.steps[0].reasons[0]


def test_operations_of_a_mix_have_their_own_latencies_and_limits(run):
    """R13, R8: operations are drawn by weight, and only those with a limit are judged."""

    async def chat(arrival: Arrival) -> None:
        await anyio.sleep(0.1)

    async def search(arrival: Arrival) -> None:
        await anyio.sleep(0.4)

    workload = mix({"chat": (3, chat), "search": (1, search)})
    slo = Slo(p95_s=1.0, operations={"search": Slo(p90_s=0.3)})
    answer = run(find_capacity, workload, [50], slo, **QUICK)
    report = answer.steps[0].report
    assert ("search.p90=400ms > 300ms",) == answer.steps[0].reasons
    assert 0.75 == pytest.approx(report.operations["chat"].sent / report.admitted, abs=0.05)
    assert 0.1 == pytest.approx(report.operations["chat"].latency.p99)
    assert "PASS" == run(find_capacity, workload, [50], Slo(p95_s=1.0), **QUICK).steps[0].verdict


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ({"a": (0, instant)}, "the weights of a mix must add up to something positive, got 0"),
        ({"a": (-1, instant)}, "the weight of 'a' must be >= 0, got -1"),
        ({}, "operations must not be empty"),
    ],
)
def test_weights_that_add_up_to_nothing_are_an_error(operations, says):
    """R13: weights that add up to nothing are an error."""
    with pytest.raises(ValueError, match=says):
        mix(operations)


def test_a_shape_is_anchored_anew_at_each_step(run):
    """R13: half the rate in the first half of each hold, one and a half times in the second."""
    queue = Queue(0.0)
    answer = run(
        find_capacity,
        queue,
        [20, 40],
        Slo(p95_s=1.0),
        shape=lambda fraction: 0.5 if fraction < 0.5 else 1.5,
        **{**QUICK, "warmup_s": 0.0, "cooldown_s": 5.0},
    )
    halves = [[bin_.sent for bin_ in step.report.timeline] for step in answer.steps]
    for sent, rate in zip(halves, (20, 40), strict=True):
        assert (rate * 0.5 * 5, rate * 1.5 * 5) == pytest.approx((sum(sent[:30]), sum(sent[30:])), rel=0.05)


# Against a known truth.


@pytest.mark.parametrize("seed", range(20))
def test_capacity_is_found_within_five_percent_of_the_truth(seed):
    """R12, I16: on 20 random servers of known capacity, only tested rates are reported."""
    rng = random.Random(seed)
    slots, tokens = rng.randint(1, 6), rng.randint(4, 40)
    first_s, token_s = rng.uniform(0.05, 0.5), rng.uniform(0.005, 0.05)
    service_s = first_s + (tokens - 1) * token_s
    truth = slots / service_s
    backend = SimulatedBackend(
        seed=seed,
        slots=slots,
        time_to_first_token_s=first_s,
        time_per_token_s=token_s,
        output_tokens=tokens,
        tokens_per_piece=tokens,
        pass_probability=1.0,
    )
    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, backend)
    hold_s = max(25 * service_s, 120 / truth)
    search = partial(
        find_capacity,
        workload,
        [truth * rng.uniform(0.2, 0.7), truth * rng.uniform(1.2, 3.0)],
        Slo(p95_s=1.5 * service_s),
        warmup_s=0,
        hold_s=hold_s,
        cooldown_s=0,
        drain_s=None,
        refine=True,
    )
    answer = run_virtual(search, loop="trio" if seed % 5 == 0 else "asyncio")
    assert truth == pytest.approx(answer.max_rate, rel=0.05)
    assert answer.max_rate in {step.target_rate for step in answer.steps if step.verdict == "PASS"}


def test_little_says_how_many_requests_to_allow_in_flight(run):
    """At 20 per second and half a second each, ten are in flight."""

    async def fixed(arrival: Arrival) -> Answered:
        await anyio.sleep(0.5)
        return Answered()

    answer = run(find_capacity, fixed, [20], Slo(p95_s=1.0), **QUICK)
    assert 10 == pytest.approx(answer.suggested_in_flight, abs=1)
    assert 10.0 == pytest.approx(answer.best.report.mean_in_flight, abs=0.5)
