"""Faults of clocks, servers and generators: rows 31 to 33 and 68 to 71, I15, I16."""

import time
from itertools import pairwise

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.load import Arrival, ClosedLoop, LoadReport, OpenLoop, Slo, find_capacity, run_load
from sampling.load.capacity._search import Trial, find_bracket, next_trial
from sampling.testing import run_virtual
from tests.load.clocks import jump_clock
from tests.load.seeded import LOOPS, run_seeded


async def moment(arrival: Arrival) -> None:
    await anyio.sleep(0.01)


class Stalling:
    """A server that answers in 10 ms, but stands still once, from 10 s on for 5 s."""

    async def __call__(self, arrival: Arrival) -> None:
        if 10 <= anyio.current_time() < 15:
            await anyio.sleep_until(15)
        await anyio.sleep(0.01)


def test_a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one(run):
    """Coordinated omission: 5 s in 30 s at 100 per second. Open loop p99 above 4 s, closed loop under 1 s."""
    opened = run(run_load, Stalling(), OpenLoop(rate=100, duration_s=30, max_in_flight=1000))
    closed = run(run_load, Stalling(), ClosedLoop(users=10, horizon_s=30, think_time_s=0.09))
    assert 100 == pytest.approx(closed.admitted / 25, rel=0.02)
    assert opened.latency.p99 > 4
    assert closed.latency.p99 < 1
    assert any("a stall hardly shows" in note for note in closed.notes)


def test_sends_go_on_during_a_stall_up_to_the_limit_and_the_rest_is_dropped(run):
    """Row 68: of 500 arrivals during the stall 200 are sent, on schedule, and 300 are counted as dropped."""
    report = run(run_load, Stalling(), OpenLoop(rate=100, duration_s=30, max_in_flight=200))
    assert 300 == pytest.approx(report.dropped, abs=3)
    assert 0.0 == pytest.approx(report.schedule_lag.max, abs=1e-9)
    assert 300 == pytest.approx(sum(bin_.dropped for bin_ in report.timeline if 10 <= bin_.at_s < 15), abs=3)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_wall_clock_is_not_looked_at(loop, monkeypatch):
    """Row 31: it jumps by an hour, back and forth, and no time changes."""
    quiet = run_seeded(loop, run_load, moment, OpenLoop(rate=50, duration_s=4))
    jumps = iter([0.0, 3600.0, -3600.0] * 100_000)
    monkeypatch.setattr(time, "time", lambda: 1.7e9 + next(jumps))
    assert quiet.to_json() == run_seeded(loop, run_load, moment, OpenLoop(rate=50, duration_s=4)).to_json()


def test_after_a_suspended_machine_there_is_no_burst(run):
    """Row 32: after ten minutes of sleep, missed arrivals are counted, and the rest is sent as planned."""
    sent_at: list[float] = []

    async def suspended(arrival: Arrival) -> None:
        sent_at.append(anyio.current_time())
        if arrival.index == 20:
            jump_clock(600.0)

    report = run(run_load, suspended, OpenLoop(rate=10, duration_s=700))
    assert 6000 == pytest.approx(report.missed, abs=3)
    assert (7000, 7000) == (report.scheduled, report.admitted + report.dropped)
    assert all(later - earlier > 0.05 for earlier, later in pairwise(sent_at[22:]))
    assert "were missed" in report.client_limit


def test_a_blocked_loop_is_made_up_for_and_counts_as_latency(run):
    """Row 33: after a stall of two seconds nothing is missed, and latency counts from the intended instant."""

    async def blocks(arrival: Arrival) -> None:
        if arrival.index == 50:
            jump_clock(2.0)

    report = run(run_load, blocks, OpenLoop(rate=50, duration_s=10, max_in_flight=1000))
    assert (500, 0) == (report.admitted, report.missed)
    assert 2.0 == pytest.approx(report.latency.max, abs=0.05)
    assert 0.2 == pytest.approx(
        sum(time_s > 0.01 for time_s in report.samples.times("intended_s", "done_s")) / 500, abs=0.01
    )
    assert report.client_limited


def test_a_rate_that_the_client_can_not_send_is_client_limited(run):
    """Row 69: each request blocks the loop for 2 ms, so 5,000 per second can't leave."""

    async def heavy(arrival: Arrival) -> None:
        jump_clock(0.002)

    answer = run(
        find_capacity, heavy, [5000], Slo(p95_s=0.05), warmup_s=0, hold_s=0.2, cooldown_s=0, max_in_flight=10_000
    )
    (step,) = answer.steps
    assert ("INCONCLUSIVE", None) == (step.verdict, answer.max_rate)
    assert "client-limited" in step.reasons[0]
    assert step.report.client_limited


def test_errors_that_come_fast_do_not_flatter_the_percentiles(run):
    """Row 71: when all requests fail at once there is no latency, and the error rate is judged."""

    async def fails(arrival: Arrival) -> None:
        raise ConnectionError

    async def some_fail(arrival: Arrival) -> None:
        if arrival.index % 2:
            raise ConnectionError
        await anyio.sleep(0.5)

    quick = {"warmup_s": 0.0, "hold_s": 10.0, "cooldown_s": 0.0}
    answer = run(find_capacity, fails, [20], Slo(p95_s=1.0, error_rate=0.01), **quick)
    reasons = ("p95=unanswered > 1s (of 200 due: 200 failed)", "error rate=100% > 1%")
    assert ("TRIP", reasons) == (answer.steps[0].verdict, answer.steps[0].reasons)
    unlimited = run(find_capacity, fails, [20], Slo(p95_s=1.0, error_rate=None), **quick)
    assert ("TRIP", reasons[:1]) == (unlimited.steps[0].verdict, unlimited.steps[0].reasons)
    half = run(run_load, some_fail, OpenLoop(rate=20, duration_s=10))
    assert (0.5, 100, 100) == (pytest.approx(half.latency.p50), half.latency.count, half.error_latency.count)


def test_a_verdict_that_noise_made_is_confirmed(run):
    """Row 70: a trip at the edge is repeated, and the repetition decides."""
    runs = {40.0: 0}

    async def search():
        from sampling.load import CapacityRun, CapacitySettings

        async def workload(arrival: Arrival) -> None:
            bad_luck = searching.target == 40 and runs[40.0] == 1 and arrival.number % 17 == 0
            await anyio.sleep(0.2 if bad_luck or searching.target > 45 else 0.1)

        settings = CapacitySettings(
            steps="20,40", slo=Slo(p95_s=0.15), refine=True, precision=0.6, warmup_s=0, hold_s=10, cooldown_s=0
        )
        searching = CapacityRun(workload, settings)
        original = searching._measure

        async def measure(target: float, seed: int, holds: int):
            runs[target] = runs.get(target, 0) + 1
            return await original(target, seed, holds)

        searching._measure = measure
        return await searching.run()

    answer = run(search)
    assert ["TRIP", "PASS", "PASS"] == [step.verdict for step in answer.steps if step.target_rate == 40]
    assert 40 == answer.max_rate


@settings(max_examples=150, deadline=None)
@given(
    st.floats(5, 500),
    st.lists(st.tuples(st.sampled_from(["PASS", "TRIP", "INCONCLUSIVE"]), st.booleans()), min_size=60, max_size=60),
    st.floats(0, 1),
)
def test_the_search_ends_and_never_reports_an_untested_rate(truth, noise, honesty):
    """I16: whatever the verdicts say, honest or noise, it ends, and its bracket is made of rates that were run."""
    script = iter(noise)

    def verdict(rate: float) -> Trial:
        kind, edge = next(script)
        honest = "PASS" if rate <= truth else "TRIP"
        return Trial(rate, honest if edge and honesty > 0.5 else kind, edge)

    trials = [verdict(rate) for rate in (10.0, 50.0, 100.0)]
    while (following := next_trial(trials, precision=0.02, most_trials=40)) is not None:
        trials.append(verdict(following.rate))
    assert len(trials) <= 40
    bracket = find_bracket(trials)
    rates = {trial.rate for trial in trials if trial.verdict == "PASS"}
    assert bracket.passed is None or bracket.passed in rates
    assert bracket.passed is None or bracket.tripped is None or bracket.passed < bracket.tripped
    assert max(sum(trial.rate == rate for trial in trials) for rate in {t.rate for t in trials}) <= 5


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 99), st.sampled_from([0.01, 0.05, 0.2]))
def test_an_honest_search_brackets_the_truth(truth, precision):
    """I16: what passes is at or below it, what trips is above it, and they are as close as was asked for."""
    trials = [Trial(rate, "PASS" if rate <= truth else "TRIP") for rate in (2.0, 100.0)]
    while (following := next_trial(trials, precision=precision)) is not None:
        trials.append(Trial(following.rate, "PASS" if following.rate <= truth else "TRIP"))
    bracket = find_bracket(trials)
    assert bracket.passed <= truth < bracket.tripped
    assert bracket.tripped - bracket.passed <= precision * bracket.tripped


def test_the_closed_loop_keeps_its_concurrency(run):
    """I15: without think time, as many requests as users are in flight at all times."""

    async def busy(arrival: Arrival) -> None:
        await anyio.sleep(arrival.rng.choice((0.25, 0.5, 1.0)))

    report = run(run_load, busy, ClosedLoop(users=7, horizon_s=50))
    assert 7 == report.peak_in_flight
    assert {7} == {bin_.in_flight for bin_ in report.timeline[1:-1]}


def test_a_million_requests_keep_exact_percentiles_in_little_memory():
    """O6: a request needs about 60 bytes, and percentiles equal those of a full sort."""
    from sampling.load.model._aggregation import build_report
    from sampling.load.model._recording import Recording
    from sampling.load.model._workload import Answered

    recording = Recording(1.0)
    count = 20_000
    for number in range(count):
        arrival = Arrival(number, number / 100)
        latency_s = (number * 7919) % count / 1000
        recording.add(
            arrival,
            sent_s=number / 100,
            first_s=float("nan"),
            done_s=number / 100 + latency_s,
            outcome="valid",
            answer=Answered(),
        )
    recording.tally.scheduled = recording.tally.admitted = recording.tally.succeeded = count
    per_request = sum(len(column) * column.itemsize for column in recording.columns.values()) / count
    assert per_request < 64
    report: LoadReport = build_report(recording, OpenLoop(rate=100, duration_s=200), seed=0)
    assert (9.999, 17.999, 18.999, 19.799) == pytest.approx(
        (report.latency.p50, report.latency.p90, report.latency.p95, report.latency.p99)
    )


def test_the_generator_runs_in_real_time_too():
    """Row 33: on a real clock, the report has the generator's own lag."""
    report = anyio.run(run_load, moment, OpenLoop(rate=200, duration_s=0.2))
    assert (40, 40) == (report.scheduled, report.admitted)
    assert report.schedule_lag.max >= 0


def test_virtual_time_makes_an_hour_in_a_moment():
    """An hour of traffic is simulated, not waited for."""
    report = run_virtual(run_load, moment, OpenLoop(rate=1, duration_s=3600))
    assert (3600, 3600.0) == (report.succeeded, report.duration_s)
