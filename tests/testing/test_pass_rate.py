"""`assert_samples` measures how often a strategy finds a valid answer."""

from itertools import count

import anyio
import pytest

from sampling import Budget, Options, RejectionSamplingStrategy, TransientError
from sampling.testing import After, PassRate, PassRateTooLow, ScriptedBackend, assert_samples, assert_samples_sync

ONCE = RejectionSamplingStrategy(loop_budget=1)


def is_yes(text):
    return text == "yes"


def yes_of_ten(share):
    """A model that says yes to so many of every ten questions, evenly spread."""
    asked = count(1)

    async def model(_request):
        number = next(asked)
        await anyio.sleep(1)
        return "yes" if number * share // 10 > (number - 1) * share // 10 else "no"

    return model


def test_a_good_rate_passes(run):
    """It returns what was measured, with a confidence interval that contains the truth."""
    rate = run(assert_samples, ONCE, "q", None, yes_of_ten(10), [is_yes], pass_rate=0.9)
    assert 1.0 == rate.rate
    low, high = rate.interval
    assert low < 0.9 < high == 1.0


def test_a_low_rate_fails_with_the_reasons(run):
    """The message has the counts, the interval and the requirements that failed most often."""
    with pytest.raises(PassRateTooLow, match=r"the pass rate is too low: \d+ of \d+ passed: .* wanted 90%") as failure:
        run(assert_samples, ONCE, "q", None, yes_of_ten(5), [is_yes], pass_rate=0.9, samples=40)
    assert ' × "is yes"' in str(failure.value)
    assert 0.9 > failure.value.pass_rate.interval[1]


def test_a_rate_just_below_is_no_evidence(run):
    """Without a proof, 85 % of 20 samples do not refute 90 %."""
    answers = ["no"] * 3 + ["yes"] * 17
    rate = run(
        assert_samples,
        ONCE,
        "q",
        None,
        ScriptedBackend(answers),
        [is_yes],
        pass_rate=0.9,
        samples=20,
        max_concurrency=1,
    )
    assert (rate.passed, rate.failures) == (rate.samples - 3, ('3 × "is yes"',))


def test_a_proof_takes_more_than_no_evidence(run):
    """With `prove`, the interval must be wholly at or above the rate: 36 of 36, but not 35 of 36, prove 90 %."""
    assert 36 == run(assert_samples, ONCE, "q", None, yes_of_ten(10), [is_yes], samples=36, prove=True).passed
    almost = ScriptedBackend(["no"] + ["yes"] * 35)
    with pytest.raises(PassRateTooLow, match="not proven"):
        run(assert_samples, ONCE, "q", None, almost, [is_yes], samples=36, prove=True)


def test_it_stops_when_the_verdict_is_certain(run):
    """The rest of the calls is not made, and those under way are cancelled."""
    backend = ScriptedBackend(lambda request: After(1, "no"))
    with pytest.raises(PassRateTooLow):
        run(assert_samples, ONCE, "q", None, backend, [is_yes], pass_rate=0.9, samples=1000, max_concurrency=8)
    assert 0 == backend.in_flight
    assert len(backend.requests) < 200


def test_calls_are_bounded(run):
    """No more than `max_concurrency` at a time, and no more than `samples` in total."""
    backend = ScriptedBackend(lambda request: After(1, "yes"))
    run(assert_samples, ONCE, "q", None, backend, [is_yes], samples=36, prove=True, max_concurrency=5)
    assert (5, 36) == (backend.max_in_flight, len(backend.requests))


def test_each_call_has_its_own_seed(run):
    """Equal seeds would measure one sample many times."""
    backend = ScriptedBackend(lambda request: "yes")
    deep = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=2)
    run(assert_samples, deep, "q", None, backend, [is_yes], samples=36, prove=True, options=Options(seed=7))
    seeds = [request.options.seed for request in backend.requests]
    assert len(set(seeds)) == len(seeds)


def test_a_budget_that_ends_early_is_no_pass(run):
    """The calls share it, and a call that it cut off says nothing about the model."""
    budget = Budget(requests=10)
    with pytest.raises(PassRateTooLow, match="undecided, because the budget ended") as failure:
        run(assert_samples, ONCE, "q", None, yes_of_ten(10), [is_yes], samples=36, prove=True, budget=budget)
    assert (10, 10) == (failure.value.pass_rate.passed, failure.value.pass_rate.samples)


def test_an_error_of_the_backend_is_raised_as_it_is(run):
    """It says nothing about the answers."""
    backend = ScriptedBackend(lambda request: TransientError("no line"))
    with pytest.raises(TransientError, match="no line"):
        run(assert_samples, ONCE, "q", None, backend, [is_yes])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pass_rate": 0}, "pass_rate must be > 0"),
        ({"pass_rate": 1}, "pass_rate must be < 1"),
        ({"confidence": 1.5}, "confidence must be < 1"),
        ({"samples": 0}, "samples must be >= 1"),
        ({"samples": 20_000}, "samples must be <= 10000"),
        ({"samples": 10, "prove": True}, "use samples=36 or more"),
        ({"samples": 1, "pass_rate": 0.1}, "could never fail"),
        ({"max_concurrency": 0}, "max_concurrency must be >= 1"),
    ],
)
def test_settings_that_can_decide_nothing_are_refused(settings, message):
    """A check that can't fail, or can't pass, is an error before anything is asked."""
    backend = ScriptedBackend([])
    with pytest.raises(ValueError, match=message):
        assert_samples_sync(ONCE, "q", None, backend, [is_yes], **settings)
    assert not backend.requests


@pytest.mark.parametrize(
    ("passed", "samples", "low", "high"), [(27, 30, 0.7347, 0.9789), (0, 30, 0.0, 0.1157), (5, 10, 0.1871, 0.8129)]
)
def test_the_interval_is_exact(passed, samples, low, high):
    """These are the values that statistical tables give for Clopper and Pearson's interval."""
    assert (low, high) == tuple(round(bound, 4) for bound in PassRate(passed, samples, 0.9, 0.95).interval)
