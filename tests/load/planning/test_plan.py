"""From a recording to a model of the server, from the model to a prediction, from that to a plan."""

import math

import anyio
import attrs
import pytest

from sampling.load import (
    Answered,
    Arrival,
    OpenLoop,
    ServerModel,
    Slo,
    calibrate,
    plan,
    run_load,
    simulate,
    strategy_workload,
)
from sampling.requirements import Requirement
from sampling.strategies import RejectionSamplingStrategy
from sampling.usage import Price

SERVER = ServerModel(
    slots=4,
    time_to_first_token_s=0.1,
    time_per_token_s=0.01,
    first_token_slowdown=0.3,
    token_slowdown=0.2,
    output_tokens=(20, 30, 40, 50, 60),
    pass_probability=0.6,
)
WHOLE_ANSWER = Requirement("valid", lambda text: "[fails" not in text)
"""Not the backend's own, which cuts hopeless answers short: a simulation knows nothing of that."""


def on_the_server(server: ServerModel, *, depth: int = 1, breadth: int = 1, seed: int = 1):
    backend = server.backend(seed=seed)
    strategy = RejectionSamplingStrategy(loop_budget=depth, concurrency_budget=breadth)
    return strategy_workload(strategy, [f"question {number}" for number in range(997)], None, backend, [WHOLE_ANSWER])


def busy(share: float, requests: int = 400) -> OpenLoop:
    rate = share * SERVER.saturation_rate
    return OpenLoop(rate=rate, requests=requests, arrivals="poisson", max_in_flight=10_000, drain_s=None)


# simulate.


@pytest.mark.parametrize(
    ("depth", "breadth", "share"), [(1, 1, 0.3), (1, 1, 0.7), (3, 1, 0.4), (2, 2, 0.25), (1, 4, 0.15)]
)
def test_a_simulation_finds_what_a_run_finds(run, depth, breadth, share):
    """It is the pure twin of `run_load` with a strategy and a simulated server: the same queue, slots and slowness."""
    profile = busy(share)
    found = simulate(SERVER, profile, depth=depth, breadth=breadth, seed=5)
    real = run(run_load, on_the_server(SERVER, depth=depth, breadth=breadth), profile, seed=5)
    assert real.scheduled == found.scheduled
    assert real.latency.mean == pytest.approx(found.latency.mean, rel=0.12)
    assert real.latency.p95 == pytest.approx(found.latency.p95, rel=0.2)
    assert real.validity_rate == pytest.approx(found.validity_rate, abs=0.06)
    assert real.requests == pytest.approx(found.requests, rel=0.06)
    assert real.output_tokens == pytest.approx(found.output_tokens, rel=0.08)


def test_a_lone_request_takes_exactly_as_long_as_it_should(run):
    """No chance and no queue: the simulation and the run agree to the microsecond."""
    server = attrs.evolve(SERVER, output_tokens=(50,))
    profile = OpenLoop(rate=0.1, requests=5)
    expected = pytest.approx(0.1 + 49 * 0.01, abs=1e-6)
    assert expected == simulate(server, profile).latency.max
    assert expected == run(run_load, on_the_server(server), profile).latency.max


def test_two_at_once_slow_each_other_down(run):
    """By the share that the model says, for as long as there are two."""
    server = attrs.evolve(SERVER, output_tokens=(50,))
    profile = OpenLoop(trace=(0.0, 0.0))
    expected = pytest.approx(1.3 * 0.1 + 49 * 1.2 * 0.01, abs=1e-6)
    assert expected == simulate(server, profile).latency.max
    assert expected == run(run_load, on_the_server(server), profile).latency.max


def test_who_comes_later_slows_down_who_was_there(run):
    """The pace changes at every moment, not only at the start."""
    server = attrs.evolve(SERVER, output_tokens=(51,), first_token_slowdown=0.0)
    # Alone until 0.35 s: the first token and half of the others are done. Then half of the time at 1.2 times the pace.
    profile = OpenLoop(trace=(0.0, 0.35))
    for report in (simulate(server, profile), run(run_load, on_the_server(server), profile)):
        samples = report.samples.columns
        took = dict(zip(samples["index"], samples["done_s"], strict=True))
        assert pytest.approx(0.35 + 1.2 * 0.25, abs=1e-6) == took[0]


def test_a_simulation_is_a_function_of_its_seed():
    """C6: the same seed gives the same report to the byte, another seed another."""
    reports = [simulate(SERVER, busy(0.5), depth=2, breadth=2, seed=seed).to_json() for seed in (1, 1, 2)]
    assert reports[0] == reports[1] != reports[2]


def test_what_finds_no_permit_is_dropped_and_what_is_late_is_cancelled():
    """O3 and O5 hold in a simulation too: the report checks them."""
    profile = OpenLoop(rate=50, duration_s=10, max_in_flight=20, drain_s=1, warmup_s=2)
    report = simulate(SERVER, profile)
    assert report.dropped > 0
    assert report.cancelled > 0
    assert report.warmup_sent > 0
    assert 20 == report.peak_in_flight


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"slots": 0}, "slots must be >= 1"),
        ({"pass_probability": 1.5}, "pass_probability must be <= 1"),
        ({"time_per_token_s": -1}, "time_per_token_s"),
        ({"output_tokens": ()}, "output_tokens must not be empty"),
        ({"output_tokens": (0,)}, "output_tokens must be >= 1"),
        ({"jitter": math.nan}, "jitter"),
    ],
)
def test_a_server_that_can_not_be_is_refused(changes, complaint):
    """The error names the invalid parameter."""
    with pytest.raises(ValueError, match=complaint):
        attrs.evolve(SERVER, **changes)


# calibrate.


def test_a_known_server_is_found_from_two_runs(run):
    """Slots, times, slownesses and pass rate come back, and predict percentiles at other rates."""
    recorded = [run(run_load, on_the_server(SERVER), busy(share), seed=3) for share in (0.3, 1.0)]
    found = calibrate(recorded)
    server = found.server
    assert SERVER.slots == server.slots
    assert SERVER.time_to_first_token_s == pytest.approx(server.time_to_first_token_s, rel=0.05)
    assert SERVER.time_per_token_s == pytest.approx(server.time_per_token_s, rel=0.05)
    assert SERVER.first_token_slowdown == pytest.approx(server.first_token_slowdown, rel=0.25)
    assert SERVER.token_slowdown == pytest.approx(server.token_slowdown, rel=0.25)
    assert SERVER.pass_probability == pytest.approx(server.pass_probability, abs=0.05)
    assert found.error < 0.05
    assert () == found.notes
    for share in (0.2, 0.5, 0.7):
        predicted, measured = simulate(server, busy(share), seed=9), simulate(SERVER, busy(share), seed=9)
        assert measured.latency.p50 == pytest.approx(predicted.latency.p50, rel=0.1)
        assert measured.latency.p95 == pytest.approx(predicted.latency.p95, rel=0.1)


def test_slots_that_were_never_full_are_said_to_be_a_guess(run):
    """A note says that the slots are a guess, unless they are given."""
    idle = run(run_load, on_the_server(SERVER), busy(0.05, 60), seed=3)
    assert "there may be more slots" in calibrate(idle).notes[0]
    assert (4, ()) == (calibrate(idle, slots=4).server.slots, calibrate(idle, slots=4).notes)


def answers_after(first_s: float, rest_s: float):
    async def answer(arrival: Arrival) -> Answered:
        await anyio.sleep(first_s)
        arrival.first_token()
        await anyio.sleep(rest_s)
        return Answered(output_tokens=11)

    return answer


@pytest.mark.parametrize("rest_s", [0.0, 0.5])
def test_further_tokens_may_take_no_time(run, rest_s):
    """A proxy may send all tokens together."""
    server = calibrate(run(run_load, answers_after(0.25, rest_s), OpenLoop(rate=4, duration_s=20))).server
    assert (0.25, rest_s / 10) == pytest.approx((server.time_to_first_token_s, server.time_per_token_s))


@pytest.mark.parametrize("reports", [None, 3, [None]])
def test_what_is_no_report_can_not_be_calibrated_from(reports):
    """The error names the argument."""
    with pytest.raises(TypeError, match="report"):
        calibrate(reports)


@pytest.mark.parametrize("rest_s", [0.0, 0.5])
def test_first_tokens_that_took_no_time_can_not_be_calibrated_from(run, rest_s):
    """The error names them, and is not one of arithmetic."""
    report = run(run_load, answers_after(0.0, rest_s), OpenLoop(rate=4, duration_s=20))
    with pytest.raises(ValueError, match="the first tokens of this run took no time"):
        calibrate(report)


def test_what_can_not_be_calibrated_from_is_refused(run):
    """The error says what to record instead."""
    good = run(run_load, on_the_server(SERVER), busy(0.3, 60), seed=3)
    deep = run(run_load, on_the_server(SERVER, depth=3), busy(0.3, 60), seed=3)

    async def silent(_arrival):
        return None

    untold = run(run_load, silent, OpenLoop(rate=10, requests=60))
    few = run(run_load, on_the_server(SERVER), busy(0.3, 10), seed=3)
    for report, complaint in (
        (attrs.evolve(good, samples=None), "samples=True"),
        (deep, "depth 1 and breadth 1"),
        (untold, "times to first token"),
        (few, "30 answered requests"),
    ):
        with pytest.raises(ValueError, match=complaint):
            calibrate(report)
    with pytest.raises(ValueError, match="must not be empty"):
        calibrate([])


# plan.

PRICE = Price(input_per_million=1.0, output_per_million=10.0)


def test_the_cheapest_pair_that_meets_the_slo_is_the_best():
    """Depth is cheaper than breadth: it pays for the next attempt only when the last one failed."""
    made = plan(SERVER, rate=0.5, slo=Slo(validity_rate=0.8), price=PRICE, requests=500)
    assert (2, 1) == (made.best.depth, made.best.breadth)
    assert all(made.best.cost_per_call <= option.cost_per_call for option in made.options if option.holds)
    assert made.cost_per_hour == pytest.approx(made.best.cost_per_call * 0.5 * 3600)
    assert 0 == made.exit_code


def test_a_deadline_makes_breadth_worth_its_price():
    """When there is no time for a second attempt, several at once are the only way."""
    quick = attrs.evolve(SERVER, slots=32, first_token_slowdown=0.0, token_slowdown=0.0, output_tokens=(50,))
    made = plan(quick, rate=0.5, slo=Slo(p99_s=0.7, validity_rate=0.8), price=PRICE, requests=500)
    assert (1, 2) == (made.best.depth, made.best.breadth)


def test_breadth_fills_a_small_server():
    """At a rate that it holds with one subsample, four make everyone wait."""
    made = plan(SERVER, rate=0.4 * SERVER.saturation_rate, slo=Slo(p95_s=2), depths=(1,), breadths=(1, 4), requests=500)
    narrow, wide = made.options
    assert narrow.holds
    assert not wide.holds
    assert "p95=" in wide.judgement.reasons[0]


def test_if_nothing_meets_the_slo_the_closest_is_named_with_its_reason():
    """Exit code 1, as R5 has it."""
    made = plan(SERVER, rate=1, slo=Slo(p50_s=0.01), depths=(1, 2), breadths=(1,), requests=200)
    assert (None, 1) == (made.best, made.exit_code)
    assert "no depth × breadth meets the SLO at 1 per second; the closest, 1 deep × 1 wide: p50=" in str(made)


def test_a_plan_is_a_function_of_its_seed_and_shows_every_pair():
    """All pairs get the same arrivals, and the table marks the best."""
    plans = [plan(SERVER, rate=0.5, slo=Slo(validity_rate=0.8), requests=200, seed=4) for _ in range(2)]
    assert plans[0].to_json() == plans[1].to_json()
    table = plans[0].render()
    assert 16 == sum(f"{depth}×{breadth} " in table for depth in range(1, 5) for breadth in range(1, 5))
    assert 1 == table.count("* ")
    assert "tokens/call" in table


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rate": 0}, "rate must be > 0"),
        ({"slo": Slo()}, "slo needs at least one limit"),
        ({"requests": 10}, "requests must be >= 100"),
        ({"depths": ()}, "depths and breadths must not be empty"),
        ({"depths": (0,)}, "loop_budget must be >= 1"),
    ],
)
def test_a_plan_that_can_not_be_made_is_refused(arguments, complaint):
    """The error names the argument."""
    given = {"rate": 1, "slo": Slo(p95_s=1), **arguments}
    with pytest.raises(ValueError, match=complaint):
        plan(SERVER, **given)


def test_a_plan_never_recommends_what_gives_no_valid_answer():
    """This holds even if the SLO has no limit on validity."""
    server = ServerModel(
        slots=8, time_to_first_token_s=0.1, time_per_token_s=0.01, output_tokens=(10,), pass_probability=0.0
    )
    made = plan(server, rate=1, slo=Slo(p95_s=60), depths=(1,), breadths=(1,), requests=100)
    assert (None, 1) == (made.best, made.exit_code)
    assert "no answer was valid" in made.render()
