"""Escalation from cheap to strong tiers, with everything on one result."""

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from sampling import (
    Budget,
    EscalationStrategy,
    Generation,
    HedgedSamplingStrategy,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Tier,
    TransientError,
    Usage,
    Validation,
    current,
)
from sampling.errors import AuthenticationFailed
from sampling.testing import After, CapturedEvents, ScriptedBackend, Watch


def is_yes(text):
    return (text == "yes", "say yes")


def saying(text, delay_s=1.0):
    return ScriptedBackend(lambda _: After(delay_s, Generation(text, Usage(10, 1))))


def failing(error):
    return ScriptedBackend(lambda _: error("down"))


class TestGoingUp:
    def test_a_conversation_goes_on_in_the_next_tier(self, run):
        """S20: with `carry="conversation"`, the next tier sees every turn that led to the best answer."""
        tiers = [Tier(saying("no"), MultiTurnStrategy(loop_budget=2)), (large := saying("yes"))]
        result = run(EscalationStrategy(tiers, carry="conversation").sample, "q", None, large, [is_yes])
        [asked] = large.requests
        assert ["q", "no", "no"] == [one.content for one in asked.messages if "\n" not in one.content]
        assert ["user", "assistant"] * 2 + ["user"] == [one.role for one in asked.messages]
        assert result.success

    def test_only_known_ways_to_carry_are_taken(self):
        """A misspelled one is an error that names all."""
        with pytest.raises(TypeError, match='carry must be True, False or "conversation"'):
            EscalationStrategy([saying("no")], carry="all")

    def test_the_next_tier_is_asked_only_if_the_last_gave_no_valid_answer(self, run):
        """S20: the strong tier is not called if the cheap one gives a valid answer."""
        small, large = saying("yes"), saying("yes")
        result = run(EscalationStrategy([small, large]).sample, "q", None, small, [is_yes])
        assert (True, 1, 0) == (result.success, len(small.requests), len(large.requests))

    def test_all_tiers_may_be_needed(self, run):
        """S20: n tiers, each with its own budgets."""
        tiers = [saying("no"), Tier(saying("no"), RejectionSamplingStrategy(loop_budget=3)), saying("yes")]
        result = run(EscalationStrategy(tiers).sample, "q", None, saying("unused"), [is_yes])
        assert (True, "yes", 5) == (result.success, result.text, len(result.attempts))
        assert ["no"] * 4 + ["yes"] == [one.text for one in result.slices]

    def test_a_tier_without_a_backend_asks_that_of_the_call_with_its_own_options(self, run):
        """A tier may be another model of the same server. Its options override the caller's."""
        backend = ScriptedBackend(lambda request: "yes" if request.options.model == "large" else "no")
        strategy = EscalationStrategy([Tier(), Tier(options=Options(model="large"))])
        result = run(strategy.sample, "q", None, backend, [is_yes], options=Options(model="small", temperature=0.5))
        assert result.success
        asked = [(request.options.model, request.options.temperature) for request in backend.requests]
        assert [("small", 0.5), ("large", 0.5)] == asked

    def test_depth_and_breadth_are_those_of_each_tier_without_a_strategy(self, run):
        """A tier without a strategy uses the budgets of the escalation, which a hook may change (S8)."""
        hooks = Hooks()

        @hooks.on(LoopStarted)
        def narrower(event):
            return attrs.evolve(event, concurrency_budget=2)

        small = saying("no")
        strategy = EscalationStrategy([small, small], loop_budget=2, concurrency_budget=4, hooks=hooks)
        result = run(strategy.sample, "q", None, small, [is_yes])
        assert (2, 8, 8) == (small.max_in_flight, len(small.requests), result.max_attempts)

    def test_the_next_tier_sees_the_best_attempt_and_why_it_failed(self, run):
        """S20: it gets the question, the best answer and the reasons, but not the other turns."""
        small = ScriptedBackend(["bad", "better", "worse"])
        large = saying("good")
        reqs = [
            Requirement("is not bad", lambda text: (text != "bad", "it is bad")),
            Requirement("is not worse", lambda text: (text != "worse", "it is worse")),
            Requirement("is good", lambda text: (text == "good", "it is not good")),
        ]
        strategy = EscalationStrategy([Tier(small, RejectionSamplingStrategy(loop_budget=3)), large])
        result = run(strategy.sample, "q", None, small, reqs)
        assert result.success
        (request,) = large.requests
        assert ["q", "better"] == [message.content for message in request.messages[:2]]
        assert ["user", "assistant", "user"] == [message.role for message in request.messages]
        assert "it is not good" in request.messages[-1].content
        assert "it is worse" not in request.messages[-1].content

    def test_nothing_is_carried_if_not_wanted_or_if_there_is_nothing(self, run):
        """The tier gets only the question."""
        large = saying("yes")
        for strategy in (
            EscalationStrategy([saying("no"), large], carry=False),
            EscalationStrategy([failing(TransientError), large]),
        ):
            assert run(strategy.sample, "q", None, large, [is_yes]).success
            assert [("user", "q")] == [(message.role, message.content) for message in large.requests.pop().messages]

    def test_a_subsample_without_progress_gives_its_tier_up(self, run):
        """No progress means: no more requirements met and no higher score than in the best attempt before."""
        scores = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.5, "e": 9.0}

        def scored(text):
            return Validation(text == "yes", score=scores.get(text, 0.0))

        for patience, asked in ((1, 3), (2, 4), (3, 5)):
            small, large = ScriptedBackend([*scores]), saying("yes")
            tiers = [Tier(small, MultiTurnStrategy(loop_budget=5)), large]
            result = run(EscalationStrategy(tiers, patience=patience).sample, "q", None, small, [scored])
            assert result.success
            assert asked == len(small.requests), f"with a patience of {patience}"

    def test_progress_in_requirements_met_keeps_a_tier_going(self, run):
        """Each attempt meets one more requirement, so patience never runs out."""
        small = ScriptedBackend(["", "a", "ab", "abc"])
        reqs = [Requirement(f"has {letter}", lambda text, letter=letter: letter in text) for letter in "abc"]
        strategy = EscalationStrategy([small, saying("unused")], loop_budget=4, patience=1)
        result = run(strategy.sample, "q", None, small, reqs)
        assert ("abc", 4) == (result.text, len(result.attempts))

    def test_where_no_tier_is_valid_the_best_of_all_is_the_answer(self, run):
        """The best by merit wins, and the strongest tier wins a tie."""
        reqs = [lambda text: "a" in text, lambda text: "b" in text]
        strategy = EscalationStrategy([saying("a"), saying("b"), saying("x")])
        result = run(strategy.sample, "q", None, saying("unused"), reqs)
        assert (False, "b", "exhausted") == (result.success, result.text, result.stop_reason)


class TestTheJudge:
    def test_it_is_really_asked_on_every_tier_by_the_backend_of_that_tier(self, run):
        """S20: a model judges the sentence, and its no fails the attempt."""

        def tier(verdict):
            return ScriptedBackend(lambda request: verdict if request.messages[0].role == "system" else "hello")

        small, large = tier("no\nToo curt"), tier("yes")
        result = run(EscalationStrategy([small, large]).sample, "greet", None, small, ["is polite"])
        assert (True, 2, 2) == (result.success, len(small.requests), len(large.requests))
        assert "Too curt" in large.requests[0].messages[-1].content

    def test_one_that_always_says_no_lets_nothing_pass(self, run):
        """S20: the judge runs once for each answer, on each tier."""
        backend = ScriptedBackend(lambda request: "no" if request.messages[0].role == "system" else "hello")
        strategy = EscalationStrategy([backend] * 3, loop_budget=2)
        result = run(strategy.sample, "greet", None, backend, ["is polite"])
        judged = [request for request in backend.requests if request.messages[0].role == "system"]
        assert (False, 6, 6) == (result.success, len(result.slices), len(judged))


class TestOneCall:
    def test_hooks_fire_on_every_tier_and_tiers_carry_their_parent(self, run):
        """S20: the hooks of the escalation, of the tier and of the call all fire."""
        own, of_tier, of_call = CapturedEvents(), CapturedEvents(), CapturedEvents()
        tiers = [saying("no"), Tier(saying("yes"), RejectionSamplingStrategy(hooks=of_tier))]
        strategy = EscalationStrategy(tiers, hooks=own)
        result = run(strategy.sample, "q", None, saying("unused"), [is_yes], hooks=of_call)
        loop = ["LoopStarted", "IterationStarted", "IterationFinished", "LoopFinished"]
        assert ["LoopStarted", *loop, *loop, "LoopFinished"] == own.names == of_call.names
        assert loop == of_tier.names
        outer, *inner = own.of(LoopStarted)
        assert (result.sampling_id, None) == (outer.sampling_id, outer.parent_id)
        assert [result.sampling_id] * 2 == [event.parent_id for event in inner]
        assert 3 == len({event.sampling_id for event in own.of(LoopStarted)})
        assert ["EscalationStrategy", "MultiTurnStrategy", "RejectionSamplingStrategy"] == [
            event.strategy for event in own.of(LoopStarted)
        ]

    def test_what_all_tiers_did_is_on_the_result(self, run):
        """I1: attempts, slices, usage and times of every tier. LoopFinished has the same."""

        async def main():
            watch = Watch(saying("no"))
            large = ScriptedBackend(lambda request: After(1.0 + request.subsample, Generation("yes", Usage(10, 1))))
            tiers = [Tier(), Tier(large, MultiTurnStrategy(concurrency_budget=3))]
            await watch.sample(EscalationStrategy(tiers, loop_budget=2), "q", None, [is_yes])
            watch.check()
            return watch

        watch = run(main)
        result = watch.result
        outcomes = ["invalid", "invalid", "valid", "cancelled", "cancelled"]
        assert outcomes == [one.outcome for one in result.attempts]
        assert [0.0, 1.0, 2.0, 2.0, 2.0] == [one.started_s for one in result.attempts]
        assert [1.0, 2.0, 3.0, 3.0, 3.0] == [one.finished_s for one in result.attempts]
        assert (3, Usage(30, 3)) == (len(result.slices), result.usage)
        assert (3.0, 5) == (result.elapsed_s, result.max_attempts)
        ends = watch.events.of(LoopFinished)
        assert [2, 3, 5] == [end.attempts for end in ends]
        assert [Usage(20, 2), Usage(10, 1), Usage(30, 3)] == [end.usage for end in ends]

    def test_one_budget_governs_all_tiers(self, run):
        """Semantics 9: when it runs out, the best so far is the result, and no further tier starts."""
        budget, third = Budget(attempts=3), saying("yes")
        strategy = EscalationStrategy([saying("no"), saying("no"), third], loop_budget=2)
        result = run(strategy.sample, "q", None, third, [is_yes], budget=budget)
        assert (False, "budget", 3, 0) == (
            result.success,
            result.stop_reason,
            len(result.attempts),
            len(third.requests),
        )
        assert "attempts" in result.stop_detail
        assert 3 == budget.attempts_made

    def test_one_deadline_governs_all_tiers(self, run):
        """I12: it is exact in every tier."""
        strategy = EscalationStrategy([saying("no", 2.0), saying("no", 2.0), saying("yes", 2.0)])
        result = run(strategy.sample, "q", None, saying("unused"), [is_yes], budget=Budget(deadline_s=3.0))
        assert ("deadline", 3.0, "no") == (result.stop_reason, result.elapsed_s, result.text)
        assert ["invalid", "cancelled"] == [one.outcome for one in result.attempts]

    def test_requirements_of_all_are_checked_each_once(self, run):
        """S15: the requirements of the tier, of the escalation and of the call."""
        checked = []

        def noting(name):
            return Requirement(name, lambda _: checked.append(name) is None)

        both = noting("both")
        tier = Tier(strategy=MultiTurnStrategy(requirements=[noting("tier"), both]))
        strategy = EscalationStrategy([tier], requirements=[noting("escalation"), both])
        run(strategy.sample, "q", None, saying("yes"), [noting("call")])
        assert ["tier", "both", "escalation", "call"] == checked

    def test_ids_are_those_of_the_call_that_asks(self, run):
        """S9: a backend reads the ids of the tier's call, whose parent is the outer call."""
        seen = []

        async def backend(request):
            await anyio.sleep(1.0)
            seen.append(current())
            return "yes"

        result = run(EscalationStrategy([backend]).sample, "q", None, backend, [is_yes])
        assert [result.best.iteration_id] == [one.iteration_id for one in seen]
        assert [result.sampling_id] == [one.parent_id for one in seen]

    def test_a_failure_of_a_hook_on_a_tier_is_on_the_result(self, run):
        """Row 46: it is recorded, and the call continues."""
        hooks = Hooks()

        @hooks.on(IterationStarted)
        def breaks(event):
            raise ValueError("a hook's own")

        strategy = EscalationStrategy([Tier(strategy=RejectionSamplingStrategy(hooks=hooks))])
        result = run(strategy.sample, "q", None, saying("yes"), [is_yes])
        assert (True, ["IterationStarted"]) == (result.success, [one.event for one in result.hook_failures])

    def test_a_critical_hook_ends_the_whole_call_from_within_a_tier(self, run):
        """Its exception does not count as a failure of a tier."""
        hooks, large = Hooks(), saying("yes")

        @hooks.on(IterationFinished, critical=True)
        def vetoes(event):
            raise KeyError("stop")

        with pytest.raises(KeyError):
            run(EscalationStrategy([saying("no"), large], hooks=hooks).sample, "q", None, large, [is_yes])
        assert not large.requests


class TestErrors:
    def test_a_tier_that_only_failed_is_passed_over_and_its_errors_are_kept(self, run):
        """S6: they are on the result, and logged once."""
        with capture_logs() as logs:
            strategy = EscalationStrategy([failing(RateLimited), saying("yes")], loop_budget=2)
            result = run(strategy.sample, "q", None, saying("unused"), [is_yes])
        assert result.success
        assert ["RateLimited"] * 2 == [type(error).__name__ for error in result.errors]
        assert ["errored", "errored", "valid"] == [one.outcome for one in result.attempts]
        assert 2 == sum(log["event"] == "attempt_failed" for log in logs)

    def test_a_fatal_error_ends_the_call(self, run):
        """Semantics 5: the next tier can't help against a bad key."""
        large = saying("yes")
        with pytest.raises(AuthenticationFailed):
            run(EscalationStrategy([failing(AuthenticationFailed), large]).sample, "q", None, large, [is_yes])
        assert not large.requests

    def test_a_fatal_error_after_an_answer_leaves_that_answer(self, run):
        """Semantics 4: there is a result, with the error on it."""
        strategy = EscalationStrategy([saying("no"), failing(AuthenticationFailed), saying("yes")])
        result = run(strategy.sample, "q", None, saying("unused"), [is_yes])
        assert (False, "failed", "no") == (result.success, result.stop_reason, result.text)
        assert ["AuthenticationFailed"] == [type(error).__name__ for error in result.errors]

    def test_where_every_tier_failed_the_first_failure_is_raised_from_all(self, run):
        """S6 and row 29: it has its own type. Each error has its iteration in a note, once."""
        strategy = EscalationStrategy([failing(RateLimited), failing(RuntimeError)], loop_budget=2)
        with pytest.raises(RateLimited) as raised:
            run(strategy.sample, "q", None, saying("unused"), [is_yes])
        group = raised.value.__cause__
        assert ["RateLimited", "RateLimited", "RuntimeError"] == [type(error).__name__ for error in group.exceptions]
        iterations = [[note for note in error.__notes__ if "iteration" in note] for error in group.exceptions]
        assert [1, 1, 1] == [len(notes) for notes in iterations]

    def test_a_single_tier_raises_what_it_would_raise_alone(self, run):
        """The error of a single tier is not wrapped in another group."""
        with pytest.raises(RateLimited) as raised:
            run(EscalationStrategy([failing(RateLimited)], loop_budget=2).sample, "q", None, saying("unused"))
        assert 2 == len(raised.value.__cause__.exceptions)
        assert raised.value.__cause__.__cause__ is None


class TestNesting:
    def test_a_tier_may_vote(self, run):
        """The result is the winner of the vote, not the first answer."""
        draws = ScriptedBackend(lambda request: "b" if request.subsample == 0 else "a")
        strategy = EscalationStrategy([Tier(draws, MajorityVotingStrategy(concurrency_budget=3))])
        result = run(strategy.sample, "q", None, draws)
        assert ("a", True) == (result.text, any(result.best is one for one in result.slices))

    def test_a_tier_may_hedge_and_escalate_by_itself(self, run):
        """The id of each call is the parent of the next."""
        events = CapturedEvents()
        inner = EscalationStrategy([saying("no"), Tier(saying("yes"), HedgedSamplingStrategy(concurrency_budget=2))])
        strategy = EscalationStrategy([saying("no"), Tier(strategy=inner)])
        result = run(strategy.sample, "q", None, saying("unused"), [is_yes], hooks=events)
        assert (True, 3.0) == (result.success, result.elapsed_s)
        assert [0.0, 1.0, 2.0] == [one.started_s for one in result.attempts[:3]]
        parents = {event.sampling_id: event.parent_id for event in events.of(LoopStarted)}
        depth = {None: -1}
        for sampling_id, parent_id in parents.items():
            depth[sampling_id] = depth[parent_id] + 1
        assert [0, 1, 1, 2, 2] == [depth[sampling_id] for sampling_id in parents]

    def test_each_tier_of_a_deterministic_escalation_is_deterministic(self, run):
        """Semantics 8 applies to each tier."""
        backend = ScriptedBackend(lambda request: After(3.0 - request.subsample, "yes"))
        strategy = EscalationStrategy([Tier()], concurrency_budget=3, deterministic=True)
        assert 0 == run(strategy.sample, "q", None, backend, [is_yes]).best.subsample


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "tiers must not be empty"),
        (("small",), TypeError, "tiers must be a list of tiers or backends, got 'small' (str)"),
        ((["small"],), TypeError, "backend must be"),
        (([ScriptedBackend],), TypeError, "backend must be an instance, got the class ScriptedBackend"),
    ],
)
def test_bad_tiers_are_named(arguments, error, message):
    """The error has the argument, the value and the allowed values."""
    with pytest.raises(error) as raised:
        EscalationStrategy(*arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Tier(strategy=RejectionSamplingStrategy),
            TypeError,
            "strategy must be a strategy or None, got <class",
        ),
        (lambda: Tier(options={"model": "x"}), TypeError, "options must be Options or None, got {'model': 'x'} (dict)"),
        (lambda: EscalationStrategy([Tier()], patience=0), ValueError, "patience must be >= 1, got 0"),
        (
            lambda: EscalationStrategy([Tier()], carry="no"),
            TypeError,
            "carry must be True, False or",
        ),
        (
            lambda: EscalationStrategy([Tier()], template="again"),
            ValueError,
            "template must contain {reasons}, got 'again'",
        ),
    ],
)
def test_bad_settings_are_named(make, error, message):
    """The error has the argument, the value and the allowed values."""
    with pytest.raises(error) as raised:
        make()
    assert message in str(raised.value)
