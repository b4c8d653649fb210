"""Hedged sampling: late subsamples, by learned latencies."""

import copy
import random
import threading

import attrs
import pytest

from sampling import (
    Action,
    Context,
    HedgedSamplingStrategy,
    Hooks,
    IterationStarted,
    LoopStarted,
    Slice,
    TransientError,
)
from sampling.strategies._latencies import Latencies
from sampling.testing import After, CapturedEvents, ScriptedBackend


def is_yes(text):
    return text == "yes"


def attempt(seconds, outcome="valid"):
    return Slice(1, "id", 0, 0, outcome, Action("q"), Context(), started_s=10.0, finished_s=10.0 + seconds)


def taught(*seconds, outcome="valid", **settings):
    """Return a strategy that has observed these latencies."""
    strategy = HedgedSamplingStrategy(**settings)
    strategy.learn([attempt(one, outcome) for one in seconds])
    return strategy


async def starts(strategy, backend, reqs=(is_yes,)):
    """Make a call, and return the start of each attempt by subsample and attempt."""
    result = await strategy.sample("q", None, backend, reqs)
    return {(one.subsample, one.attempt): round(one.started_s, 3) for one in result.attempts}


class TestWhenAHedgeStarts:
    def test_one_request_is_enough_where_the_first_answer_is_fast_and_valid(self, run):
        """The call starts with a breadth of 1."""
        backend = ScriptedBackend(lambda _: After(0.01, "yes"))
        assert {(0, 0): 0.0} == run(starts, taught(*[1.0] * 20), backend)

    def test_hedges_are_spread_over_the_time_within_which_the_share_of_attempts_ends(self, run):
        """If every attempt took 2.2 s, they start after 0.2, 1.2 and 2.2 s."""
        backend = ScriptedBackend(lambda _: After(100.0, "yes"))
        expected = {(0, 0): 0.0, (1, 0): 0.2, (2, 0): 1.2, (3, 0): 2.2}
        assert expected == run(starts, taught(*[2.2] * 20), backend)

    def test_with_two_in_all_the_second_starts_when_the_share_of_attempts_would_have_ended(self, run):
        """This is the classical hedge."""
        strategy = taught(*[1.0] * 90, *[7.0] * 10, quantile=0.95, concurrency_budget=2)
        assert {(0, 0): 0.0, (1, 0): 7.0} == run(starts, strategy, ScriptedBackend(lambda _: After(100.0, "yes")))

    def test_a_failure_starts_one_at_once_while_its_subsample_goes_on(self, run):
        """After an invalid answer, the repair and the hedge start at the same time."""

        def reply(request):
            return After(0.1, "no") if request.iteration == 1 else After(5.0, "yes")

        seen = run(starts, taught(*[100.0] * 20, loop_budget=3), ScriptedBackend(reply))
        assert {(0, 0): 0.0, (0, 1): 0.1, (1, 0): 0.1} == seen

    @pytest.mark.parametrize("error", [TransientError("busy"), RuntimeError("broken")])
    def test_an_error_starts_one_at_once_too(self, run, error):
        """This attempt has no depth left."""

        def reply(request):
            return After(0.1, error) if request.subsample == 0 else After(1.0, "yes")

        assert {(0, 0): 0.0, (1, 0): 0.1} == run(starts, taught(*[100.0] * 20), ScriptedBackend(reply))

    def test_without_a_valid_answer_all_breadth_and_depth_is_used(self, run):
        """S2: exactly loop_budget * concurrency_budget attempts, and never more at once than the breadth."""
        backend = ScriptedBackend(lambda _: After(1.0, "no"))
        strategy = HedgedSamplingStrategy(loop_budget=2, concurrency_budget=3)
        result = run(strategy.sample, "q", None, backend, [is_yes])
        assert (6, "exhausted", 6) == (len(result.attempts), result.stop_reason, result.max_attempts)
        assert 3 >= backend.max_in_flight

    def test_a_hook_may_change_how_many_there_are(self, run):
        """S8: the breadth is that of the call after its hooks."""
        hooks = Hooks()

        @hooks.on(LoopStarted)
        def two(event):
            return attrs.evolve(event, concurrency_budget=2)

        strategy = taught(*[2.2] * 20, hooks=hooks)
        backend = ScriptedBackend(lambda _: After(100.0, "yes"))
        assert {(0, 0): 0.0, (1, 0): 2.2} == run(starts, strategy, backend)

    def test_a_deterministic_call_starts_all_at_once(self, run):
        """Semantics 8: nothing may depend on timing."""
        backend = ScriptedBackend(lambda request: After(2.0 - request.subsample / 2, "yes"))
        strategy = taught(*[9.0] * 20, deterministic=True, concurrency_budget=3)
        result = run(strategy.sample, "q", None, backend, [is_yes])
        assert (0, [0.0] * 3) == (result.best.subsample, [one.started_s for one in result.attempts])

    def test_events_of_hedges_carry_their_own_ids(self, run):
        """S9: iteration = subsample * loop_budget + attempt + 1, for late ones too."""
        events = CapturedEvents()
        backend = ScriptedBackend(lambda _: After(100.0, "yes"))
        strategy = taught(*[2.2] * 20, loop_budget=5, hooks=events)
        run(strategy.sample, "q", None, backend, [is_yes])
        assert [1, 6, 11, 16] == [event.iteration for event in events.of(IterationStarted)]


class TestWhatItLearns:
    def test_before_anything_is_seen_it_goes_by_the_typical_time(self):
        """The prior has a median of `typical_s`, and half of it lies between about half and twice that."""
        latencies = Latencies(2.0, 256)
        assert 0 == len(latencies)
        assert [1.0, 2.0, 4.0] == [pytest.approx(latencies.quantile(q), rel=0.15) for q in (0.25, 0.5, 0.75)]

    def test_sixteen_attempts_replace_the_prior(self):
        """Each observation replaces one latency of the prior."""
        latencies = Latencies(1000.0, 256)
        latencies.add([attempt(1.0)] * 15)
        assert 1.0 < latencies.quantile(0.99)
        latencies.add([attempt(1.0)])
        assert 1.0 == latencies.quantile(0.99)

    def test_old_attempts_are_forgotten(self):
        """The window is bounded, so the strategy adapts to a server that became faster."""
        latencies = Latencies(1.0, 32)
        latencies.add([attempt(50.0)] * 100)
        latencies.add([attempt(2.0)] * 32)
        assert (32, 2.0) == (len(latencies), latencies.quantile(0.99))

    def test_a_cancelled_attempt_says_only_that_it_would_have_taken_longer(self):
        """A textbook case of the product-limit estimate: 6, 6, 6, 6+, 7, 9+, 10, 10+, 11+, 13, 16, …, from 21 cases."""
        ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
        cut = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
        latencies = Latencies(1.0, 256)
        latencies.add([attempt(one) for one in ended])
        for outcome, some in (("cancelled", cut[::2]), ("errored", cut[1::2])):
            latencies.add([attempt(one, outcome) for one in some])
        # The published survival: 0.857 after 6, 0.807 after 7, 0.753 after 10, 0.690 after 13, 0.627 after 16, …
        shares = (0.14, 0.15, 0.2, 0.3, 0.35, 0.45, 0.54)
        assert [6, 7, 10, 13, 16, 22, 23] == [latencies.quantile(share) for share in shares]

    def test_a_share_that_never_ended_is_at_least_the_longest_time_seen(self):
        """The estimate never exceeds the observations."""
        latencies = Latencies(1.0, 256)
        latencies.add([attempt(1.0)] * 8)
        latencies.add([attempt(30.0, "cancelled")] * 8)
        assert 30.0 == latencies.quantile(0.9)

    def test_learning_from_winners_only_would_make_it_believe_that_all_are_fast(self):
        """Cancelled losers keep the estimate close to the real latencies."""
        rng = random.Random(3)
        winners, all_of_them = Latencies(1.0, 4000), Latencies(1.0, 4000)
        for _ in range(1000):
            fast, slow = sorted(rng.lognormvariate(0, 1) for _ in range(2))
            assert fast <= slow
            winners.add([attempt(fast)])
            all_of_them.add([attempt(fast), attempt(fast, "cancelled")])
        assert 1.0 == pytest.approx(all_of_them.quantile(0.5), rel=0.1)
        assert 0.7 > winners.quantile(0.5)

    def test_calls_teach_the_strategy_that_made_them(self, run):
        """The next call uses the latencies, with losers as censored observations."""
        strategy = HedgedSamplingStrategy(concurrency_budget=2, typical_s=500.0, quantile=0.5)

        async def main():
            for _ in range(16):
                await strategy.sample("q", None, ScriptedBackend(lambda _: After(3.0, "yes")), [is_yes])
            return await starts(strategy, ScriptedBackend(lambda _: After(100.0, "yes")))

        assert {(0, 0): 0.0, (1, 0): 3.0} == run(main)

    def test_a_copy_knows_what_was_known_and_learns_by_itself(self):
        """A strategy may be sent to another process, as on a cluster."""
        strategy = taught(*[7.0] * 20)
        other = copy.deepcopy(strategy)
        other.learn([attempt(1.0)] * 256)
        assert (7.0, 1.0) == (strategy._latencies.quantile(0.5), other._latencies.quantile(0.5))

    def test_many_threads_may_teach_one_strategy(self):
        """Nothing is lost or broken when several threads add latencies and read quantiles."""
        latencies = Latencies(1.0, 10_000)
        failures = []

        def work(seconds):
            try:
                for _ in range(300):
                    latencies.add([attempt(seconds)])
                    latencies.quantile(0.5)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (1.0, 2.0, 3.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ([], 900, 2.0) == (failures, len(latencies), latencies.quantile(0.5))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"quantile": 1.0}, ValueError, "quantile must be < 1, got 1.0"),
        ({"quantile": 0}, ValueError, "quantile must be > 0, got 0"),
        ({"quantile": "0.9"}, TypeError, "quantile must be a number > 0, got '0.9' (str)"),
        ({"typical_s": 0}, ValueError, "typical_s must be > 0, got 0"),
        ({"window": 0}, ValueError, "window must be >= 1, got 0"),
        ({"window": 2.5}, TypeError, "window must be an int >= 1, got 2.5 (float)"),
        ({"concurrency_budget": 0}, ValueError, "concurrency_budget must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_named(settings, error, message):
    """The error has the argument, the value and the allowed values."""
    with pytest.raises(error) as raised:
        HedgedSamplingStrategy(**settings)
    assert message == str(raised.value)


def test_a_hedge_asks_the_same_question(run):
    """It sends the same request, only later."""
    backend = ScriptedBackend(lambda _: "no")
    run(HedgedSamplingStrategy(loop_budget=2).sample, "q", None, backend, [is_yes])
    assert 1 == len({request.messages for request in backend.requests})
