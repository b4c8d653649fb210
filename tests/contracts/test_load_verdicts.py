"""R3: no PASS for a server that does not serve, and no blame on the client for it."""

from collections.abc import Callable
from functools import partial

import anyio
import attrs
import pytest

from sampling.load import Arrival, ClosedLoop, LoadReport, OpenLoop, Slo, find_capacity, judge, run_load
from sampling.load.model._confidence import clustering
from sampling.load.model._stall import Stall
from tests.load.bad_servers import BAD_SERVERS, RATE, BadServer

QUICK = {"warmup_s": 1.0, "hold_s": 20.0, "cooldown_s": 0.0}


def test_the_table_is_long_enough():
    """R3: at least thirty ways to be bad."""
    assert len(BAD_SERVERS) >= 30
    assert len(BAD_SERVERS) == len({bad.name for bad in BAD_SERVERS})


@pytest.mark.parametrize("bad", BAD_SERVERS, ids=lambda bad: bad.name)
def test_a_bad_server_trips_and_the_client_is_not_blamed(run: Callable, bad: BadServer):
    """R3: hung, failed, shed and stalled requests are above every limit."""
    traffic = OpenLoop(rate=RATE, duration_s=25, warmup_s=1, max_in_flight=bad.max_in_flight, drain_s=20)
    report: LoadReport = run(run_load, bad.make(), traffic, slo=bad.slo)
    assert "TRIP" == report.verdict, report.reasons
    assert report.reasons
    assert not any("client-limited" in reason for reason in report.reasons)


@pytest.mark.parametrize("bad", [bad for bad in BAD_SERVERS if not bad.serves_users], ids=lambda bad: bad.name)
def test_a_bad_server_trips_with_users_who_wait_for_it(run: Callable, bad: BadServer):
    """R3: users who wait send nothing, but a server that hangs or stands still does not pass for that."""
    traffic = ClosedLoop(users=60, think_time_s=0.25, horizon_s=26, warmup_s=1, drain_s=20)
    report: LoadReport = run(run_load, bad.make(), traffic, slo=bad.slo)
    assert "TRIP" == report.verdict, report.reasons
    assert not any("client-limited" in reason for reason in report.reasons)


def test_a_server_that_hangs_from_the_warm_up_on_trips(run):
    """R3: nothing could be sent in the measurement, and that is the server's doing, whatever the pool."""

    async def hangs(arrival: Arrival) -> None:
        await anyio.sleep(1000)

    reason = "requests of the warm-up, and then nothing could be sent"
    for traffic in (
        OpenLoop(rate=50, duration_s=20, warmup_s=5, max_in_flight=20, drain_s=5),
        ClosedLoop(users=10, horizon_s=25, warmup_s=5, drain_s=5),
    ):
        report = run(run_load, hangs, traffic, slo=Slo(p95_s=1.0))
        assert "TRIP" == report.verdict
        assert reason in report.reasons[0]


def test_only_the_unanswered_requests_of_the_warm_up_are_called_unanswered(run):
    """R3: the server answered some requests before it hung, and the reason does not count them."""

    async def hangs_later(arrival: Arrival) -> None:
        await anyio.sleep(0.1 if arrival.intended_s < 2 else 1000)

    for traffic in (
        OpenLoop(rate=50, duration_s=20, warmup_s=5, max_in_flight=20, drain_s=5),
        ClosedLoop(users=20, horizon_s=25, warmup_s=5, drain_s=5),
    ):
        report = run(run_load, hangs_later, traffic, slo=Slo(p95_s=1.0))
        assert ("unanswered: 20 requests of the warm-up, and then nothing could be sent",) == report.reasons


def test_users_who_were_lost_in_the_warm_up_count(run):
    """R3: a tenth of the users hang from the warm-up on, and the others are served well."""

    async def loses(arrival: Arrival) -> None:
        await anyio.sleep(1000 if arrival.user == 3 else 0.1)

    report = run(run_load, loses, ClosedLoop(users=10, horizon_s=25, warmup_s=5, drain_s=5), slo=Slo(p95_s=1.0))
    assert ("TRIP", ("10% > 1% of the users (1) were never answered again",)) == (report.verdict, report.reasons)


@pytest.mark.parametrize("users", [1, 4, 20])
def test_slow_answers_are_no_standstill(run, users):
    """R3: a few slow answers, and a request that the end of the run cut off, do not count as a standstill."""

    async def bimodal(arrival: Arrival) -> None:
        await anyio.sleep(3.0 if arrival.rng.random() < 0.04 else 0.1)

    traffic = ClosedLoop(users=users, horizon_s=60 + 240 // users, drain_s=0)
    assert "PASS" == run(run_load, bimodal, traffic, slo=Slo(p95_s=1.0, error_rate=0.02)).verdict


def test_a_stall_of_the_client_is_no_standstill_of_the_server(run):
    """R3: the load generator's own pauses are left out."""
    stands = next(bad for bad in BAD_SERVERS if bad.name == "stalls three seconds of twenty")
    report = run(run_load, stands.make(), ClosedLoop(users=50, horizon_s=20, drain_s=5), slo=stands.slo)
    own = attrs.evolve(report, stalls=(Stall(at_s=0.0, blocked_s=4.0, where=()),))
    assert ("TRIP", "PASS") == (judge(report, stands.slo).verdict, judge(own, stands.slo).verdict)


async def fixed(arrival: Arrival, seconds: float) -> None:
    await anyio.sleep(seconds)


def test_a_good_server_passes(run):
    """R3: with the default error limit, which the report shows."""
    report = run(run_load, partial(fixed, seconds=0.1), OpenLoop(rate=50, duration_s=20), slo=Slo(p95_s=1.0))
    assert ("PASS", (), 0.01) == (report.verdict, report.reasons, report.slo.error_rate)
    assert "error=1%" in str(report.slo)
    assert report.confidence > 0.99


def test_the_error_limit_can_be_removed(run):
    """R3: with `error_rate=None`, written as error=none, and it stays removed in JSON."""

    async def fails(arrival: Arrival) -> None:
        if arrival.index % 50 == 0:
            raise OSError("no")

    slo = Slo(p95_s=1.0, error_rate=None)
    assert slo == Slo.parse("p95=1s,error=none") == Slo.from_dict(slo.to_dict()) == Slo.parse(str(slo))
    assert "PASS" == run(run_load, fails, OpenLoop(rate=50, duration_s=20), slo=slo).verdict
    assert "TRIP" == run(run_load, fails, OpenLoop(rate=50, duration_s=20), slo=Slo(p95_s=1.0)).verdict


def test_the_shortfall_is_that_from_the_target(run):
    """R3: a workload that ends after a third of the traffic can't pass, and neither can a schedule that is too thin."""
    report = run(run_load, partial(fixed, seconds=0.1), OpenLoop(rate=50, duration_s=20), slo=Slo(p95_s=1.0))
    thin = OpenLoop(rate=150, duration_s=20)
    judgement = judge(attrs.evolve(report, profile=thin), Slo(p95_s=1.0))
    assert ("INCONCLUSIVE", ("sent 50/s of 150/s: the traffic ended early",)) == (judgement.verdict, judgement.reasons)


def test_drops_of_a_pool_that_was_too_small_are_the_clients(run):
    """R3: 50 per second with a limit of 1 s need room for 50, so drops of a pool of 20 say nothing about the server."""
    slow = partial(fixed, seconds=0.9)
    small = run(run_load, slow, OpenLoop(rate=50, duration_s=20, max_in_flight=20), slo=Slo(p95_s=1.0))
    assert "INCONCLUSIVE" == small.verdict
    assert "raise max_in_flight to about 45" in small.reasons[0]
    broken = run(run_load, slow, OpenLoop(rate=50, duration_s=20, max_in_flight=20), slo=Slo(p95_s=0.5))
    assert "TRIP" == broken.verdict


def test_dropped_arrivals_count_like_errors(run):
    """R3: the pool had room for every answer at its limit, so what it could not take was not served."""

    async def stalls(arrival: Arrival) -> None:
        await anyio.sleep(1.9 if 10 <= arrival.intended_s < 11.5 else 0.01)

    report = run(run_load, stalls, OpenLoop(rate=50, duration_s=40, max_in_flight=50), slo=Slo(p95_s=1.0))
    assert report.dropped / report.scheduled < 0.05
    assert "TRIP" == report.verdict
    assert any(reason.startswith("dropped=") for reason in report.reasons)


def test_percentiles_are_over_everything_that_was_due(run):
    """R3: 4 % never answered and 2 % late together exceed the 5 % that a p95 allows, and 4 % alone do not."""

    async def serve(arrival: Arrival, late: int) -> None:
        if arrival.index % 100 < 4:
            raise OSError("no")
        await anyio.sleep(2.0 if arrival.index % 100 < 4 + late else 0.1)

    traffic, slo = OpenLoop(rate=50, duration_s=20), Slo(p95_s=1.0, error_rate=None)
    assert "TRIP" == run(run_load, partial(serve, late=2), traffic, slo=slo).verdict
    assert "PASS" == run(run_load, partial(serve, late=1), traffic, slo=slo).verdict


def test_users_who_start_within_their_think_time_are_active(run):
    """R13: without a warm-up, a closed loop with think time is judged, and not INCONCLUSIVE for ever."""
    traffic = ClosedLoop(users=20, think_time_s=2.0, horizon_s=30)
    report = run(run_load, partial(fixed, seconds=0.1), traffic, slo=Slo(p95_s=1.0))
    assert ("PASS", 20) == (report.verdict, report.active_users)


def test_a_pause_makes_samples_that_depend_on_each_other():
    """R12: a hundred late requests in one row are worth about one, scattered ones are worth themselves."""
    assert 1.0 == clustering([(5, 100)] * 20)
    assert clustering([(100, 100), *[(0, 100)] * 19]) > 50


def test_the_verdict_of_a_file_is_that_of_the_run(run):
    """R14: a report that was read without its samples has the same verdict."""

    async def flaky(arrival: Arrival) -> None:
        if arrival.index % 200 == 0:
            raise OSError("no")
        await anyio.sleep(0.99 if arrival.index % 21 == 0 else 0.1)

    report = run(run_load, flaky, OpenLoop(rate=50, duration_s=20), slo=Slo(p95_s=1.0))
    again = LoadReport.from_json(report.to_json())
    assert (report.verdict, report.reasons) == (again.verdict, again.reasons)
    assert report.verdict == judge(again, again.slo).verdict


@pytest.mark.parametrize("pause_at", [3.0, 23.0, 47.0, 88.0])
def test_one_pause_is_no_knee(run, pause_at):
    """R12: a server that holds 100 per second pauses for 3 s once, in any step, and its answer is not moved."""

    async def server(arrival: Arrival) -> None:
        now = anyio.current_time()
        if pause_at <= now < pause_at + 3:
            await anyio.sleep(pause_at + 3 - now)
        if searching["rate"] > 100:
            await anyio.sleep(2.0)
        await anyio.sleep(0.05)

    searching = {"rate": 0.0}

    async def search():
        from sampling.load import CapacityRun, CapacitySettings

        settings = CapacitySettings(steps="20,50,80,100,120", slo=Slo(p95_s=0.5), **QUICK)
        capacity = CapacityRun(server, settings)
        measure = capacity._measure

        async def note_rate(target, seed, holds):
            searching["rate"] = target
            return await measure(target, seed, holds)

        capacity._measure = note_rate
        return await capacity.run()

    answer = run(search)
    assert (100.0, 120.0) == (answer.max_rate, answer.first_trip)


def test_a_trip_is_believed_when_it_trips_again(run):
    """R12: TRIP, PASS, PASS at the first step is a pass, and TRIP, TRIP a trip. One is enough without `confirm`."""
    calls = {"runs": 0}

    async def slow_at_first(arrival: Arrival) -> None:
        calls["runs"] += arrival.index == 0
        await anyio.sleep(2.0 if calls["runs"] == 1 else 0.05)

    answer = run(find_capacity, slow_at_first, "20,40", Slo(p95_s=0.5), **QUICK)
    assert [(20, "TRIP"), (20, "PASS"), (20, "PASS"), (40, "PASS")] == [
        (s.target_rate, s.verdict) for s in answer.steps
    ]
    assert (40.0, None) == (answer.max_rate, answer.first_trip)
    calls["runs"] = 0
    hasty = run(find_capacity, slow_at_first, "20,40", Slo(p95_s=0.5), confirm=False, **QUICK)
    assert [(20, "TRIP")] == [(step.target_rate, step.verdict) for step in hasty.steps]


def test_passes_above_the_first_trip_are_named(run):
    """R12: in a note, because the answer is below it."""

    async def bad_in_the_middle(arrival: Arrival) -> None:
        gap = 1 / 40
        is_forty = abs(arrival.intended_s - arrival.index * gap) < 1e-6 and arrival.index > 0
        await anyio.sleep(2.0 if is_forty else 0.05)

    answer = run(find_capacity, bad_in_the_middle, "20,40,80", Slo(p95_s=0.5), stop_on_trip=False, **QUICK)
    assert (20.0, 40.0) == (answer.max_rate, answer.first_trip)
    assert any("passed above the first trip, which is luck: 80" in note for note in answer.notes)
    assert "note: passed above the first trip" in answer.render()
