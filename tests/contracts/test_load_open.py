"""O: the open loop. Arrivals come on schedule, whatever the system under test does."""

import asyncio  # noqa: TID251 - its cancellations must not end a run on trio
import math
import random
from decimal import Decimal

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy
from sampling.load import (
    Answered,
    Arrival,
    ClosedLoop,
    LoadReport,
    LoadRun,
    OpenLoop,
    Slo,
    Summary,
    read_trace,
    run_load,
    strategy_workload,
)
from sampling.load.traffic._arrivals import instants
from sampling.testing import BOTH_LOOPS, cancel_at_every_step, run_virtual
from tests.load.clocks import jump_clock

NAN, INF = math.nan, math.inf


class Unhelpful:
    """A number that raises when it is used as one, and can't be hashed."""

    __hash__ = None

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __index__(self) -> int:
        raise RuntimeError("no index")


class Seen:
    """A workload that remembers its arrivals, and takes as long as it is told."""

    def __init__(self, *takes_s: float) -> None:
        self.takes_s = takes_s or (0.0,)
        self.arrivals: list[Arrival] = []
        self.sent_at: list[float] = []

    async def __call__(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        self.sent_at.append(anyio.current_time())
        await anyio.sleep(self.takes_s[(len(self.arrivals) - 1) % len(self.takes_s)])


def conserves(report: LoadReport) -> bool:
    return (
        report.scheduled == report.dropped + report.admitted
        and report.admitted == report.succeeded + report.failed + report.cancelled
    )


def test_arrival_i_is_at_i_over_rate_over_any_length(run):
    """O1: no sum of gaps, so no drift: the last of 100,000 instants at 7 per second is exact."""
    assert [number / 7 for number in range(100_000)] == list(instants(OpenLoop(rate=7, requests=100_000), seed=0))
    seen = Seen(0.3)
    run(run_load, seen, OpenLoop(rate=10, duration_s=60))
    assert [number / 10 for number in range(600)] == [arrival.intended_s for arrival in seen.arrivals]
    assert seen.sent_at == pytest.approx([number / 10 for number in range(600)], abs=1e-9)


def test_the_schedule_has_as_many_arrivals_as_fit_into_the_duration():
    """O1: rate × duration of them, also where that product is not exact in binary."""
    assert [6000, 3, 1, 30] == [
        len(list(instants(OpenLoop(rate=rate, duration_s=duration_s), seed=0)))
        for rate, duration_s in ((200, 30), (0.1, 30), (0.1, 0.5), (3, 10.0))
    ]


def test_under_a_ramp_arrival_i_is_where_the_integral_of_the_rate_reaches_i():
    """O1: 0.1 to 50 per second in 10 s are arrivals 0 to 250, and the warm-up has the initial rate."""
    ramp = list(instants(OpenLoop(rate=0.1, to_rate=50, duration_s=10), seed=0))
    assert 251 == len(ramp)
    assert list(range(251)) == pytest.approx([0.1 * at + 49.9 * at**2 / 20 for at in ramp], abs=1e-6)
    down = list(instants(OpenLoop(rate=50, to_rate=0.1, duration_s=10, warmup_s=2), seed=0))
    assert (100, 351) == (sum(at < 2 for at in down), len(down))


def test_under_a_shape_arrival_i_is_where_the_integral_of_the_rate_reaches_i():
    """O1: a tenth of the rate in the first half, and 1.9 times in the second, are rate × duration."""
    shape = OpenLoop(rate=20, duration_s=100, shape=lambda fraction: 0.1 if fraction < 0.5 else 1.9)
    found = list(instants(shape, seed=0))
    assert (2000, 100) == (len(found), sum(at < 50 - 1e-6 for at in found))
    assert found == sorted(found)


@pytest.mark.parametrize("seed", range(20))
def test_a_poisson_step_sends_what_was_asked_for(seed):
    """O1: rate × duration arrivals in the measurement, whatever the seed, also under a ramp and with a warm-up."""
    steady = OpenLoop(rate=3, duration_s=10, warmup_s=5, arrivals="poisson")
    found = list(instants(steady, seed))
    assert (15, 30) == (sum(at < 5 for at in found), sum(5 <= at < 15 for at in found))
    ramp = OpenLoop(rate=0.1, to_rate=50, duration_s=10, arrivals="poisson")
    found = list(instants(ramp, seed))
    assert 250 == len(found)
    assert found == sorted(found)
    assert 62.6 == pytest.approx(sum(at < 5 for at in found), abs=35)


def test_a_shape_that_raises_is_refused_before_anything_is_sent(run):
    """O13: the error has the exception of the shape, and the time at which it was raised."""

    def shape(fraction: float) -> float:
        return 1 / (0.5 - fraction) if fraction < 0.5 else 1 / 0

    seen = Seen()
    with pytest.raises(ValueError, match=r"shape raised ZeroDivisionError at 0.5 of the duration"):
        run(run_load, seen, OpenLoop(rate=10, duration_s=10, shape=shape))
    assert [] == seen.arrivals


def test_a_short_run_at_a_high_rate_keeps_few_levels(run):
    """O1: ten requests at a million per second, answered after ten seconds."""
    report = run(run_load, Seen(10.0), OpenLoop(rate=1e6, requests=10))
    assert 10 == report.succeeded
    assert len(report.samples.levels.values) <= 100


def test_requests_and_duration_end_the_run_at_the_first_of_them(run):
    """O11: it does not idle to the end, and the rate is over the time in which traffic was sent."""

    async def timed(profile: OpenLoop) -> tuple[LoadReport, float]:
        report = await run_load(Seen(0.1), profile)
        return report, anyio.current_time()

    report, ended_at = run(timed, OpenLoop(rate=10, duration_s=60, requests=20, warmup_s=1))
    assert (20, 2.0, 10.0) == (report.admitted, report.duration_s, pytest.approx(report.achieved_rate))
    assert 3.0 == pytest.approx(ended_at, abs=0.2)
    report, _ = run(timed, OpenLoop(rate=10, duration_s=1, requests=20))
    assert (10, 1.0) == (report.admitted, report.duration_s)
    for profile in (
        OpenLoop(rate=10, duration_s=60, requests=200, arrivals="poisson"),
        OpenLoop(trace=tuple(number / 10 for number in range(600)), requests=200),
    ):
        report, _ = run(timed, profile)
        assert (200, 10.0) == (report.admitted, pytest.approx(report.achieved_rate, rel=0.2))


def test_a_request_that_reaches_its_timeout_is_failed(run):
    """O12: its latency is at least the timeout, its permit is free again, and quick ones are not touched."""
    report = run(run_load, Seen(0.1, 30.0, 1.9999), OpenLoop(rate=3, duration_s=10, timeout_s=2.0, max_in_flight=20))
    assert (30, 20, 10, 0) == (report.admitted, report.succeeded, report.failed, report.dropped)
    assert {"Timeout": 10} == report.errors
    assert all(took >= 2.0 for took in report.samples.times("intended_s", "done_s", outcomes=("failed",)))
    with pytest.raises(ValueError, match="timeout_s must be > 0"):
        OpenLoop(rate=1, requests=1, timeout_s=0)


def test_a_cancellation_that_nobody_asked_for_is_a_failed_request(run):
    """O10: the run continues, and the request counts as failed."""

    async def stray(arrival: Arrival) -> None:
        await anyio.sleep(0.1)
        if arrival.index == 3:
            kind = anyio.get_cancelled_exc_class()
            raise kind._create() if hasattr(kind, "_create") else kind()

    report = run(run_load, stray, OpenLoop(rate=10, duration_s=10))
    assert (100, 99, {"UnexpectedCancellation": 1}) == (report.admitted, report.succeeded, report.errors)
    assert not report.interrupted


def test_a_workload_that_raises_when_drawn_is_a_failed_request(run):
    """O13: counted with its error, and what was measured is kept."""

    def source():
        yield from ("one", "two")
        raise LookupError("the database is gone")

    async def ask(request):
        return "yes"

    workload = strategy_workload(RejectionSamplingStrategy(), source(), None, ask)
    report = run(run_load, workload, OpenLoop(rate=10, duration_s=10))
    assert (2, {"LookupError": 1}, True) == (report.succeeded, report.errors, report.exhausted)


@pytest.mark.parametrize(
    ("answer", "ignored"),
    [
        (Answered(requests=2**40), {"requests": 1}),
        (Answered(output_tokens=-1, cost=NAN), {"output_tokens": 1, "cost": 1}),
        (Answered(input_tokens=NAN, cost=INF), {"input_tokens": 1, "cost": 1}),
        (Answered(input_tokens="many", cost="free"), {"input_tokens": 1, "cost": 1}),
        (Answered(input_tokens=1.5, cost=-1.0), {"input_tokens": 1, "cost": 1}),
        (Answered(input_tokens=None, output_tokens=None, cost=None, requests=None), {}),
        (Answered(input_tokens=7.0, output_tokens=2, cost=1), {}),
        (Answered(output_tokens=Decimal(5), cost=Decimal("0.5")), {}),
        (Answered(output_tokens=Decimal("sNaN"), cost=Decimal("NaN")), {"output_tokens": 1, "cost": 1}),
        (Answered(requests=Unhelpful(), cost=Unhelpful()), {"requests": 1, "cost": 1}),
    ],
)
def test_figures_of_an_answer_that_are_nonsense_are_left_out_and_counted(run, answer, ignored):
    """O13: the request keeps its outcome, and the report can be written."""

    async def answers(arrival: Arrival) -> Answered:
        return answer

    report = run(run_load, answers, OpenLoop(rate=1, requests=1))
    assert (1, ignored) == (report.succeeded, report.ignored)
    assert report == LoadReport.from_json(report.to_json())
    assert bool(ignored) == any("invalid numbers" in note for note in report.notes)


@pytest.mark.parametrize("gap", [-1.0, INF, 1e300, "long", None])
@pytest.mark.parametrize("operation", [["chat"], 5, Unhelpful()])
def test_nonsense_on_an_arrival_is_left_out_and_counted(run, gap, operation):
    """O13: an operation that is no name, and a time between tokens that is none."""

    async def answers(arrival: Arrival) -> None:
        arrival.operation, arrival.longest_gap_s = operation, gap

    report = run(run_load, answers, OpenLoop(rate=1, requests=3))
    assert (3, {"operation": 3, "time_between_tokens": 3}) == (report.succeeded, report.ignored)
    assert report == LoadReport.from_json(report.to_json())


class Wordless(Exception):
    """An error without a message."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        Wordless(),
        ExceptionGroup("two", [ValueError("a"), OSError("b")]),
        asyncio.CancelledError(),
        BaseExceptionGroup("one", [asyncio.CancelledError(), ValueError("a")]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("traffic", [OpenLoop(rate=10, requests=10), ClosedLoop(users=2, requests=10)])
def test_whatever_fails_is_counted_and_the_run_goes_on(run, error, traffic):
    """O10: errors without words, groups, and cancellations of asyncio, on trio too."""

    async def fails(arrival: Arrival) -> None:
        await anyio.sleep(0.1)
        raise error

    report = run(run_load, fails, traffic)
    assert (10, 10, False) == (report.admitted, report.failed, report.interrupted)


class Quit(BaseException):
    """It ends the program, like SystemExit."""


@pytest.mark.parametrize(("loop", "kind"), [("asyncio", Quit), ("trio", Quit), ("trio", SystemExit)])
def test_what_ends_the_program_passes_through_and_the_report_stays(loop, kind):
    """O5: it is no failed request, and what was measured until then can be had."""

    async def quits(arrival: Arrival) -> None:
        await anyio.sleep(0.1)
        if arrival.index == 5:
            raise kind

    load = LoadRun(quits, OpenLoop(rate=10, requests=10))
    with pytest.raises(BaseExceptionGroup) as raised:
        run_virtual(load.run, loop=loop)
    assert raised.group_contains(kind)
    report = load.report()
    assert report.interrupted
    assert (5, 0) == (report.succeeded, report.failed)


def test_any_number_of_operations_is_reported(run):
    """O13: operations after the first thousand are reported together."""

    async def names(arrival: Arrival) -> None:
        arrival.operation = f"user {arrival.index}"

    report = run(run_load, names, OpenLoop(rate=4000, duration_s=10))
    assert (40_000, 1001) == (report.succeeded, len(report.operations))
    assert 39_000 == report.operations["(other operations)"].sent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\ufeff0.5\n1.0\n", (0.0, 0.5)),
        ("time\n2026-03-01T10:00:00Z\n2026-03-01T12:00:01+02:00\n", (0.0, 1.0)),
        ("2026-03-01 10:00:00\n2026-03-01 09:59:59\n", (0.0, 1.0)),
    ],
)
def test_traces_have_marks_and_iso_times_and_may_be_unsorted(text, found):
    """O13: a BOM is skipped, ISO timestamps are read, and unsorted ones are sorted with a note."""
    with capture_logs() as logs:
        assert found == read_trace(text)
    assert ("09:59" in text) == any(entry["event"] == "trace_sorted" for entry in logs)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the trace is empty"),
        ("time\n\n", "the trace is empty"),
        ("1\nnan\n", "line 2 of the trace must begin with a number of seconds or an ISO time, got 'nan'"),
        ("1700000000000\n", "line 1 of the trace must begin with a number of seconds"),
        ("1\n1e400\n", "line 2 of the trace"),
        ("1\n2026-13-01\n", "line 2 of the trace"),
        ("2026-02-30T10:00:00Z\n2026-03-01T10:00:00Z\n", "line 1 of the trace must begin with .*got '2026-02-30T10"),
        ("0\x00\n1\n", "line 1 of the trace"),
        ("-1s\n0\n", "line 1 of the trace"),
    ],
)
def test_a_trace_without_instants_is_an_error_with_its_line(text, says):
    """O13: a trace without instants is an error with its line."""
    with pytest.raises(ValueError, match=says):
        read_trace(text)


def test_poisson_arrivals_have_seeded_exponential_gaps_with_the_mean_of_the_rate():
    """O1: Poisson gaps have mean and deviation 1 / rate, and a seed repeats them."""
    profile = OpenLoop(rate=50, duration_s=1000, arrivals="poisson")
    one, again, other = (list(instants(profile, seed)) for seed in (1, 1, 2))
    gaps = [later - earlier for earlier, later in zip([0.0, *one], one, strict=False)]
    assert 1 / 50 == pytest.approx(sum(gaps) / len(gaps), rel=0.02)
    assert (1 / 50) ** 2 == pytest.approx(sum((gap - 1 / 50) ** 2 for gap in gaps) / len(gaps), rel=0.05)
    assert one == again
    assert one != other


def test_bursts_come_together_and_keep_the_rate():
    """O1: ten at once every second are ten per second."""
    bursts = list(instants(OpenLoop(rate=10, duration_s=3, arrivals="burst", burst=10), seed=0))
    assert [0.0] * 10 + [1.0] * 10 + [2.0] * 10 == bursts


def test_a_trace_is_sent_as_it_is(run):
    """O1: instants of one's own are slept to as absolute ones."""
    seen = Seen()
    report = run(run_load, seen, OpenLoop(trace=(0.0, 0.5, 0.5, 7.25)))
    assert [0.0, 0.5, 0.5, 7.25] == seen.sent_at
    assert 4 == report.admitted


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "burst"])
def test_a_stalled_backend_changes_no_intended_time(run, arrivals):
    """O2: the clock never waits for the system under test."""
    profile = OpenLoop(rate=20, duration_s=10, arrivals=arrivals, max_in_flight=1000)
    quick, stalled = Seen(0.0), Seen(30.0)
    run(run_load, quick, profile, seed=3)
    run(run_load, stalled, profile, seed=3)
    assert [a.intended_s for a in quick.arrivals] == [a.intended_s for a in stalled.arrivals]
    assert stalled.sent_at == pytest.approx([a.intended_s for a in stalled.arrivals], abs=1e-9)


def test_a_permit_is_held_until_the_real_completion(run):
    """O3: with 5 permits at most 5 are in flight, and all other arrivals are dropped and counted."""
    in_flight, most = 0, 0

    async def slow(arrival: Arrival) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await anyio.sleep(0.95)
        in_flight -= 1

    report = run(run_load, slow, OpenLoop(rate=10, duration_s=10, max_in_flight=5))
    assert (5, 50, 50) == (most, report.admitted, report.dropped)
    assert 5 == report.peak_in_flight


def test_what_is_dropped_draws_nothing(run):
    """O4: admitted arrivals are a gapless prefix of the seeded sequence, and the index has the gaps."""

    async def drawn(takes_s: float) -> tuple[list[float], list[int], list[int]]:
        draws: list[float] = []
        seen = Seen(takes_s)

        async def workload(arrival: Arrival) -> None:
            draws.append(arrival.rng.random())
            await seen(arrival)

        await run_load(workload, OpenLoop(rate=10, duration_s=10, max_in_flight=3), seed=5)
        return draws, [a.index for a in seen.arrivals], [a.number for a in seen.arrivals]

    everything, indexes, _ = run(drawn, 0.0)
    some, gaps, numbers = run(drawn, 1.0)
    assert everything[: len(some)] == some
    assert len(some) < len(everything)
    assert list(range(100)) == indexes
    assert list(range(len(some))) == numbers
    assert sorted(set(gaps)) == gaps
    assert gaps[-1] > len(gaps)


def test_the_probe_that_finds_a_finite_workload_empty_is_no_arrival(run):
    """O5: three requests are there, so three are scheduled."""

    class Three:
        left = 3

        def draw(self, arrival: Arrival):
            if not self.left:
                return None
            self.left -= 1
            return lambda: anyio.sleep(0.01)

    report = run(run_load, Three(), OpenLoop(rate=10, duration_s=10))
    assert (3, 3, 0, 3, True) == (
        report.scheduled,
        report.admitted,
        report.dropped,
        report.succeeded,
        report.exhausted,
    )


def test_the_counts_add_up_at_the_end_of_the_duration(run):
    """O5: what is unanswered when the drain ends is cancelled, and counted so."""
    report = run(run_load, Seen(0.1, 500.0), OpenLoop(rate=10, duration_s=4, max_in_flight=15, drain_s=5))
    assert conserves(report)
    assert report.cancelled > 0
    assert report.dropped > 0
    assert not report.interrupted


def test_the_counts_add_up_wherever_it_is_cancelled():
    """O5, I15: with the cancellation at every single step, on both loops, nothing is uncounted."""
    runs: list[LoadRun] = []

    async def scenario(world) -> None:
        async def workload(arrival: Arrival) -> None:
            await anyio.sleep(world.latency())
            if arrival.index % 4 == 3:
                raise RuntimeError("no")

        load = LoadRun(workload, OpenLoop(rate=4, duration_s=2, max_in_flight=2, warmup_s=0.5))
        runs.append(load)
        await load.run()

    def check(world, outcome) -> None:
        report = runs[-1].report()
        assert conserves(report)
        assert len(report.samples) == report.admitted
        assert "returned" != outcome.kind or not report.interrupted
        assert not outcome.left_running

    cancel_at_every_step(scenario, check=check)
    cancel_at_every_step(scenario, check=check, native=True)


def test_a_report_whose_counts_do_not_add_up_can_not_be_made(run):
    """O5: the laws are checked on the report, too: also on one that was read from a file."""
    report = run(run_load, Seen(), OpenLoop(rate=10, duration_s=1))
    broken = {**report.to_dict(), "dropped": 1}
    with pytest.raises(ValueError, match=r"expected scheduled = dropped \+ admitted"):
        LoadReport.from_dict(broken)


def test_a_stopped_run_returns_what_was_gathered(run):
    """O5: `stop()` ends the run at once, and the report is whole."""

    async def stopped() -> LoadReport:
        load = LoadRun(Seen(1.0), OpenLoop(rate=10, duration_s=100))
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await anyio.sleep(5.05)
                assert 51 == load.progress.scheduled
                load.stop()

            group.start_soon(stop)
            return await load.run()

    report = run(stopped)
    assert conserves(report)
    assert (51, 10, True) == (report.scheduled, report.cancelled, report.interrupted)


def test_latency_counts_from_the_intended_instant_and_service_time_from_the_send(run):
    """O6: a loop blocked for 3 s shows in latency and lag, and not in the service time."""

    async def blocked() -> LoadReport:
        async def workload(arrival: Arrival) -> None:
            if arrival.index == 10:
                jump_clock(3.0)
            else:
                await anyio.sleep(0.25)

        return await run_load(workload, OpenLoop(rate=10, duration_s=10, max_in_flight=1000))

    report = run(blocked)
    assert 3.0 == pytest.approx(report.schedule_lag.max, abs=0.11)
    assert report.latency.max == pytest.approx(report.schedule_lag.max + 0.25, abs=0.11)
    assert 0.25 == pytest.approx(report.service_time.p50)
    assert report.client_limited
    assert "schedule lag" in report.client_limit


def test_a_run_that_keeps_its_schedule_says_nothing_of_a_client_limit(run):
    """O6: the lag is still reported."""
    report = run(run_load, Seen(0.2), OpenLoop(rate=10, duration_s=10))
    assert not report.client_limited
    assert 100 == report.schedule_lag.count
    assert 0.0 == pytest.approx(report.schedule_lag.max, abs=1e-9)


@pytest.mark.parametrize("rate", [0, -1, NAN, INF])
def test_a_rate_that_is_not_finite_and_positive_is_an_error(rate):
    """O7: rate 0 or infinity would collapse all instants into one."""
    with pytest.raises(ValueError, match="rate must be"):
        OpenLoop(rate=rate, duration_s=1)


def test_an_unknown_arrival_model_is_an_error():
    """O7: an unknown arrival model is an error."""
    with pytest.raises(ValueError, match=r"arrivals must be one of constant, poisson, burst, got 'uniform'"):
        OpenLoop(rate=1, duration_s=1, arrivals="uniform")


def test_goodput_and_success_are_over_what_was_sent(run):
    """O8: goodput and success rates are over what was sent, without dropped arrivals."""
    count = 0

    async def workload(arrival: Arrival) -> Answered:
        nonlocal count
        count += 1
        await anyio.sleep(0.45 if count % 4 == 2 else 0.15)
        if count % 4 == 3:
            raise RuntimeError("no")
        return Answered(valid=count % 4 != 0)

    profile = OpenLoop(rate=10, duration_s=40, max_in_flight=1)
    report = run(run_load, workload, profile, slo=Slo(p95_s=0.3))
    assert report.dropped > 100
    assert 0.25 == pytest.approx(report.good / report.admitted, abs=0.02)
    assert report.good_share == report.good / report.admitted
    assert report.goodput == report.good / 40
    assert report.success_rate == report.succeeded / report.admitted
    assert "open" == report.model


def test_warm_up_traffic_is_paced_and_not_counted(run):
    """O9: 5 s at 10 per second before the measurement: one every 0.1 s, none of them in the report."""
    seen = Seen(0.3)
    report = run(run_load, seen, OpenLoop(rate=10, duration_s=10, warmup_s=5))
    assert seen.sent_at == pytest.approx([number / 10 for number in range(150)], abs=1e-9)
    assert (50, 100, 100, 100) == (report.warmup_sent, report.scheduled, report.admitted, report.latency.count)


def test_a_failing_call_is_counted_as_failed_and_releases_its_permit(run):
    """O10: with one permit and calls that all fail, all of them are sent."""

    async def fails(arrival: Arrival) -> None:
        await anyio.sleep(0.05)
        raise ConnectionError("down\x1b[31m")

    report = run(run_load, fails, OpenLoop(rate=10, duration_s=5, max_in_flight=1))
    assert (50, 0, 50) == (report.admitted, report.dropped, report.failed)
    assert {"ConnectionError": 50} == report.errors
    assert "\x1b" not in report.error_messages["ConnectionError"]
    assert Summary() == report.latency


@pytest.mark.parametrize("loop", BOTH_LOOPS)
def test_the_same_seed_gives_the_same_bytes(loop):
    """O1, C6: two runs in virtual time are identical to the byte, samples and all."""

    async def noisy(arrival: Arrival) -> Answered:
        await anyio.sleep(arrival.rng.expovariate(4))
        return Answered(valid=arrival.rng.random() < 0.9, output_tokens=arrival.rng.randrange(100))

    async def once() -> str:
        profile = OpenLoop(rate=20, duration_s=20, arrivals="poisson", max_in_flight=6)
        return (await run_load(noisy, profile, seed=11)).to_json(samples=True)

    assert run_virtual(once, loop=loop, seed=1) == run_virtual(once, loop=loop, seed=1)


def test_arrivals_have_streams_of_their_own():
    """O4: neighbours share no draw, and a request's draws depend on nothing but its name."""
    arrivals = [Arrival(number, 0.0, number=number, seed=seed) for seed in (1, 2) for number in range(500)]
    assert 1000 == len({arrival.rng.random() for arrival in arrivals})
    assert random.Random(arrivals[0].seed).random() == Arrival(9, 5.0, number=0, seed=1).rng.random()
