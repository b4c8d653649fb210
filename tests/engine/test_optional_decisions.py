"""The decisions that few strategies make: when a subsample starts, how it differs, when it ends, what is asked next."""

import math

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from sampling import (
    BaseSamplingStrategy,
    Generation,
    Hooks,
    LoopStarted,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    TransientError,
)
from sampling.errors import BadRequest, SelectionFailed
from sampling.protocols import Progress, Stage
from sampling.testing import After, CapturedEvents, ScriptedBackend


def is_yes(text):
    return text == "yes"


def recording(kind):
    """A backend-like answer after a second for each."""
    return ScriptedBackend(lambda _: After(1.0, kind))


class TestLateStarts:
    def test_each_answer_replaces_the_one_before(self, run):
        """Asked at the first start, when an attempt or a subsample has ended, and when the time has come."""
        asked = []

        class Late(BaseSamplingStrategy):
            def next_subsample_in_s(self, progress):
                asked.append((progress.now_s, progress.started, sorted(progress.ended)))
                return 3.0 - progress.now_s if progress.started == 1 else math.inf

        strategy = Late(loop_budget=2, concurrency_budget=3)
        result = run(strategy.sample, "q", None, recording("no"), [is_yes])
        assert [(0, 0.0), (0, 1.0), (1, 3.0), (1, 4.0)] == [(one.subsample, one.started_s) for one in result.attempts]
        assert (0.0, 1, []) == asked[0]
        assert [(3.0, 1, [0]), (3.0, 2, [0])] == [one for one in asked if one[0] == 3.0]
        assert (5.0, 2, [0, 1]) == asked[-1]

    def test_when_nothing_runs_and_nothing_is_to_start_the_call_is_over(self, run):
        """The third is never asked for: exhausted, with what there is."""

        class Two(BaseSamplingStrategy):
            def next_subsample_in_s(self, progress):
                return 0.0 if progress.started < 2 else math.inf

        result = run(Two(concurrency_budget=3).sample, "q", None, recording("no"), [is_yes])
        assert (2, "exhausted") == (len(result.attempts), result.stop_reason)

    def test_progress_says_what_runs_and_what_the_hooks_made_of_the_budgets(self, run):
        """S8: progress has the budgets of the call, and counts errored attempts as ended."""
        seen: list[Progress] = []
        hooks = Hooks()

        @hooks.on(LoopStarted)
        def wider(event):
            return attrs.evolve(event, concurrency_budget=4, loop_budget=2)

        class Watching(BaseSamplingStrategy):
            def next_subsample_in_s(self, progress):
                seen.append(progress)
                return 0.0 if progress.started < 2 else math.inf

        def reply(request):
            return After(1.0, TransientError("busy")) if request.iteration == 1 else After(1.5, "no")

        run(Watching(hooks=hooks).sample, "q", None, ScriptedBackend(reply), [is_yes])
        assert {(2, 4)} == {(one.loop_budget, one.concurrency_budget) for one in seen}
        at_one = next(one for one in seen if one.now_s == 1.0)
        assert (["errored"], 0) == ([one.outcome for one in at_one.attempts], len(at_one.slices))
        assert {0, 1} == {one.subsample for one in at_one.running}
        assert 0.0 == next(one.started_s for one in at_one.running if one.subsample == 1)

    @pytest.mark.parametrize("answer", [None, "soon", math.nan, True])
    def test_an_answer_that_is_no_time_is_an_error_that_names_the_decision(self, run, answer):
        """Row 56: typed, with the slices on it, and the siblings stopped."""

        class Wrong(BaseSamplingStrategy):
            def next_subsample_in_s(self, progress):
                return answer

        backend = recording("no")
        with pytest.raises(SelectionFailed, match="next_subsample_in_s"):
            run(Wrong(concurrency_budget=2).sample, "q", None, backend, [is_yes])
        assert 0 == backend.in_flight

    def test_a_decision_that_raises_ends_the_call(self, run):
        """Row 56: what it raised is the cause."""

        class Broken(BaseSamplingStrategy):
            def next_subsample_in_s(self, progress):
                return 1 / (1 - progress.started)

        with pytest.raises(SelectionFailed) as raised:
            run(Broken(concurrency_budget=2).sample, "q", None, recording("no"), [is_yes])
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


class TestSettled:
    def test_it_is_asked_when_less_can_come_too(self, run):
        """After a slice, after an error, and when a subsample has ended."""
        asked = []

        class Counting(BaseSamplingStrategy):
            def settled(self, progress):
                asked.append((progress.now_s, len(progress.slices), sorted(progress.ended)))
                return len(progress.ended) == 2

        def reply(request):
            return (After(1.0, "no"), After(2.0, RuntimeError("broken")), After(9.0, "no"))[request.subsample]

        result = run(Counting(concurrency_budget=3).sample, "q", None, ScriptedBackend(reply), [is_yes])
        assert [(1.0, 1, []), (1.0, 1, [0]), (2.0, 1, [0]), (2.0, 1, [0, 1])] == asked
        assert 2.0 == result.elapsed_s
        assert ["invalid", "errored", "cancelled"] == [one.outcome for one in result.attempts]

    def test_by_default_it_is_what_done_says(self):
        """The default of `settled` returns `done` of the slices."""

        class Never(BaseSamplingStrategy):
            def done(self, slices):
                return slices == "the slices"

        progress = Progress(
            slices="the slices",
            attempts=(),
            started=1,
            running=(),
            ended=frozenset(),
            loop_budget=1,
            concurrency_budget=1,
            now_s=0.0,
        )
        assert Never().settled(progress)


class TestVariation:
    def test_each_attempt_of_each_subsample_may_differ(self, run):
        """`vary` receives the plan of `repair`, and the slice has the varied attempt."""

        class Warmer(MultiTurnStrategy):
            def vary(self, plan, subsample, attempt):
                return attrs.evolve(plan, options=Options(temperature=float(10 * subsample + attempt)))

        backend = recording("no")
        result = run(Warmer(loop_budget=2, concurrency_budget=2).sample, "q", None, backend, [is_yes])
        expected = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 10.0, (1, 1): 11.0}
        asked = {(one.subsample, one.attempt): one.options.temperature for one in backend.requests}
        assert expected == asked
        assert expected == {(one.subsample, one.attempt): one.tried.options.temperature for one in result.slices}

    def test_a_variation_is_an_argument_of_every_strategy(self, run):
        """A plain function will do."""

        def by_model(plan, subsample, attempt):
            return attrs.evolve(plan, options=Options(model="ab"[subsample]))

        backend = recording("no")
        strategy = RejectionSamplingStrategy(concurrency_budget=2, variation=by_model)
        run(strategy.sample, "q", None, backend, [is_yes], options=Options(temperature=1.0))
        assert [("a", 1.0), ("b", 1.0)] == sorted(
            (one.options.model, one.options.temperature) for one in backend.requests
        )

    @pytest.mark.parametrize("answer", [None, "q"])
    def test_what_is_no_attempt_ends_the_call_with_an_error_that_names_it(self, run, answer):
        """A slip in a strategy, not a failure of a backend: it is raised as it is."""
        strategy = RejectionSamplingStrategy(variation=lambda plan, subsample, attempt: answer)
        with pytest.raises(TypeError, match="returns must be an Attempt"):
            run(strategy.sample, "q", None, recording("no"), [is_yes])

    def test_a_variation_that_is_not_callable_is_refused(self):
        """The argument, the value and what is allowed."""
        with pytest.raises(TypeError, match="variation must be a callable of"):
            RejectionSamplingStrategy(variation=0.7)


class TestGoesOn:
    def test_a_subsample_may_give_up_before_its_depth_is_used(self, run):
        """Asked before repair, with the history of that subsample."""

        class Impatient(MultiTurnStrategy):
            def should_continue(self, history):
                return len(history) < 2 + history[0].subsample

        result = run(Impatient(loop_budget=9, concurrency_budget=2).sample, "q", None, recording("no"), [is_yes])
        assert [0, 0, 1, 1, 1] == [one.subsample for one in result.attempts]

    def test_one_that_raises_ends_its_subsample(self, run):
        """Row 55: as repair does."""

        class Broken(MultiTurnStrategy):
            def should_continue(self, history):
                raise LookupError("in should_continue")

        result = run(Broken(loop_budget=3).sample, "q", None, recording("no"), [is_yes])
        assert (1, ["LookupError"]) == (len(result.attempts), [type(error).__name__ for error in result.errors])


class TestLearning:
    def test_it_sees_every_attempt_when_the_call_is_over(self, run):
        """However the call ended: cancelled and errored attempts too."""
        lessons = []

        class Learning(BaseSamplingStrategy):
            def learn(self, attempts):
                lessons.append([one.outcome for one in attempts])

        def reply(request):
            return (After(1.0, RuntimeError("x")), After(2.0, "yes"), After(9.0, "no"))[request.subsample]

        run(Learning(concurrency_budget=3).sample, "q", None, ScriptedBackend(reply), [is_yes])
        with pytest.raises(RuntimeError):
            run(Learning().sample, "q", None, ScriptedBackend(reply), [is_yes])
        assert [["errored", "valid", "cancelled"], ["errored"]] == lessons


def test_a_strategy_may_wrap_the_backend(run):
    """`wrap_backend` gets the caller's backend, and returns the one to use."""

    class Shouting(BaseSamplingStrategy):
        def wrap_backend(self, backend):
            async def loud(request):
                answer = await backend.generate(request)
                return Generation(answer.text.upper())

            return loud

    assert "YES" == run(Shouting().sample, "q", None, recording("yes")).text


class TestStages:
    def test_calls_are_made_one_after_the_other_and_select_chooses_among_their_winners(self, run):
        """A draft, and then a second opinion on it: a pipeline of two calls."""

        class Refined(BaseSamplingStrategy):
            def next_stage(self, first, results):
                if len(results) == 2:
                    return None
                return Stage(strategy=RejectionSamplingStrategy(), first=first)

            def select(self, slices):
                return slices[-1]

        backend = ScriptedBackend(["draft", "final"])
        events = CapturedEvents()
        result = run(Refined().sample, "q", None, backend, hooks=events)
        assert ("final", 2) == (result.text, len(result.attempts))
        assert ["draft", "final"] == [one.text for one in result.slices]

    @pytest.mark.parametrize("answer", ["a stage", 7])
    def test_what_is_no_stage_is_an_error_that_names_the_decision(self, run, answer):
        """Row 56, for the newest of the decisions."""

        class Wrong(BaseSamplingStrategy):
            def next_stage(self, first, results):
                return answer

        with pytest.raises(SelectionFailed, match="next_stage"):
            run(Wrong().sample, "q", None, recording("yes"))

    def test_no_stage_at_all_is_an_error(self, run):
        """There would be nothing to return."""

        class Idle(BaseSamplingStrategy):
            def next_stage(self, first, results):
                return None

        with pytest.raises(SelectionFailed, match="there is no call to make"):
            run(Idle().sample, "q", None, recording("yes"))


class TestDecisionsThatFail:
    """Semantics 3 and 10: a strategy that fails loses neither an answer nor a cancellation."""

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_a_variation_that_raises_ends_its_subsample_only(self, run, deterministic):
        def vary(plan, subsample, attempt):
            if subsample == 1:
                raise ZeroDivisionError("in the variation")
            return plan

        backend = ScriptedBackend(
            lambda request: After(1.0 + request.subsample, BadRequest("no") if request.subsample else "yes")
        )
        strategy = RejectionSamplingStrategy(concurrency_budget=3, variation=vary, deterministic=deterministic)
        with capture_logs():
            result = run(strategy.sample, "q", None, backend)
        assert result.success
        assert {ZeroDivisionError, BadRequest} >= {type(error) for error in result.errors} >= {ZeroDivisionError}

    def test_a_variation_that_always_raises_is_the_failure_of_the_call(self, run):
        with pytest.raises(ZeroDivisionError):
            run(RejectionSamplingStrategy(variation=lambda *_: 1 / 0).sample, "q", None, ScriptedBackend(["yes"]))

    def test_a_failure_to_learn_is_logged(self, run):
        class Forgetful(RejectionSamplingStrategy):
            def learn(self, attempts):
                raise ZeroDivisionError("while learning")

        with capture_logs() as logs:
            assert run(Forgetful().sample, "q", None, ScriptedBackend(["yes"])).success
        assert ["learn_failed"] == [line["event"] for line in logs]

        async def cancelled():
            with anyio.move_on_after(1) as scope:
                await Forgetful().sample("q", None, lambda request: anyio.sleep(100))
            return scope.cancelled_caught

        with capture_logs():
            assert run(cancelled)

    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("passes", [False, True])
    def test_a_strategy_may_change_the_list_that_it_selects_from(self, run, passes, breadth):
        class Careless(RejectionSamplingStrategy):
            def select(self, slices):
                first = slices[0]
                slices.clear()
                return first

            select_from_failure = select

        strategy = Careless(concurrency_budget=breadth)
        result = run(strategy.sample, "q", None, ScriptedBackend(["yes"] * 3), [lambda text: passes])
        assert passes == result.success
        assert "yes" == result.value
        assert result.slices

    @pytest.mark.parametrize("votes", [None, (1, 2, 3), "abc"])
    def test_votes_that_are_no_pair_are_named(self, run, votes):
        class Miscounted(RejectionSamplingStrategy):
            def count_votes(self, slices):
                return votes

        with pytest.raises(SelectionFailed, match=r"count_votes\(\) returned .*, not a tuple of agreement and margin"):
            run(Miscounted().sample, "q", None, ScriptedBackend(["yes"]))
