"""The contracts S1 to S18: sampling, depth × breadth, for every strategy that a point applies to."""

import subprocess
import sys
import threading

import anyio
import anyio.lowlevel
import attrs
import pytest
import structlog
from structlog.testing import capture_logs

import sampling
from sampling import (
    Action,
    BaseSamplingStrategy,
    Context,
    Generation,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Message,
    MultiTurnStrategy,
    RateLimited,
    RejectionSamplingStrategy,
    Repaired,
    RepairTemplateStrategy,
    Requirement,
    TransientError,
    Validation,
    current,
)
from sampling.testing import After, CapturedEvents, ScriptedBackend, Watch
from tests.contracts.kinds import (
    DECIDE_THEMSELVES,
    PUBLIC,
    START_LATE,
    OneTier,
    always,
    every_strategy,
    every_strategy_that_decides,
    requests_an_attempt,
    sample,
    says_yes,
    where_many_are_drawn,
    where_the_first_valid_ends,
)


class TestS1:
    @every_strategy
    @pytest.mark.parametrize("name", ["loop_budget", "concurrency_budget"])
    @pytest.mark.parametrize("value", [0, -1, -(10**9)])
    def test_a_budget_below_one_is_a_value_error(self, strategy_class, name, value):
        """S1: budgets are at least 1, else ValueError at construction."""
        with pytest.raises(ValueError, match=rf"{name} must be >= 1, got {value}"):
            strategy_class(**{name: value})

    @every_strategy
    @pytest.mark.parametrize("name", ["loop_budget", "concurrency_budget"])
    @pytest.mark.parametrize("value", [True, False, 1.0, 2.5, "3", [3]])
    def test_a_budget_that_is_no_int_is_a_type_error(self, strategy_class, name, value):
        """S1: booleans, floats and strings are TypeError."""
        with pytest.raises(TypeError, match=rf"{name} must be an int >= 1, got"):
            strategy_class(**{name: value})

    def test_it_does_not_rest_on_assert(self):
        """S1: never assert: the check is there under python -O too."""
        code = "import sampling\ntry: sampling.RejectionSamplingStrategy(loop_budget=0)\nexcept ValueError: print('ok')"
        done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert "ok" == done.stdout.strip()

    @every_strategy
    def test_a_budget_that_was_set_afterwards_is_checked_by_the_call(self, run, strategy_class):
        """S1: a bad value can't get past the constructor by assignment."""
        strategy = strategy_class()
        strategy.loop_budget = 0
        with pytest.raises(ValueError, match="loop_budget must be >= 1"):
            run(sample, strategy, always())


class TestS2:
    @every_strategy
    @pytest.mark.parametrize(("depth", "breadth"), [(1, 1), (1, 4), (4, 1), (3, 5)])
    def test_all_failing_makes_exactly_depth_times_breadth_slices(self, run, strategy_class, depth, breadth):
        """S2: at most loop_budget * concurrency_budget attempts, at most concurrency_budget at once."""
        backend = always(delay_s=1.0)
        result = run(sample, strategy_class(loop_budget=depth, concurrency_budget=breadth), backend)
        assert depth * breadth == len(result.slices)
        assert depth * breadth * requests_an_attempt(strategy_class) == len(backend.requests)
        assert breadth >= backend.max_in_flight
        assert breadth == backend.max_in_flight or strategy_class in START_LATE
        assert "exhausted" == result.stop_reason
        assert not result.success


class TestS3:
    @where_the_first_valid_ends
    def test_the_first_valid_slice_ends_the_call(self, run, strategy_class):
        """S3: with every fifth check passing and 3 × 3, there are at least 5 and fewer than 9 slices."""
        checked = []

        def every_fifth(text):
            checked.append(text)
            return len(checked) % 5 == 0

        strategy = strategy_class(loop_budget=3, concurrency_budget=3)
        result = run(sample, strategy, always(delay_s=1.0), [every_fifth])
        assert result.success
        assert 5 <= len(result.slices) < 9
        assert "validated" == result.stop_reason


class TestS4:
    @every_strategy
    def test_no_attempt_follows_a_valid_one(self, run, strategy_class):
        """S4: a subsample ends after its own success, also when the call goes on."""

        class GoesOn(strategy_class):
            def settled(self, progress):
                return False

        def reply(request):
            return After(1.0, "yes" if request.attempt == 1 else "no")

        result = run(sample, GoesOn(loop_budget=4, concurrency_budget=3), ScriptedBackend(reply))
        expected = [(subsample, attempt) for subsample in range(3) for attempt in (0, 1)]
        made = [(one.subsample, one.attempt) for one in result.attempts]
        assert expected == made or (strategy_class in START_LATE and expected[:4] == made)


class TestS5:
    @where_the_first_valid_ends
    def test_what_was_complete_when_the_winner_came_is_in_the_result(self, run, strategy_class):
        """S5: the result has the winner and every slice that was complete by then."""
        delays = {0: 1.0, 1: 2.0, 2: 2.0, 3: 3.0}

        def reply(request):
            return After(delays[request.subsample], "no" if request.subsample == 0 else "yes")

        strategy = strategy_class(concurrency_budget=4)
        result = run(sample, strategy, ScriptedBackend(reply))
        assert {0} < {one.subsample for one in result.slices} <= {0, 1, 2}
        assert result.best in result.slices
        assert "cancelled" == result.attempts[3].outcome

    def test_both_of_two_winners_in_one_tick_are_kept(self, run):
        """S5, row 27: two valid answers at once make one winner and one LoopFinished."""
        captured = CapturedEvents()

        class FinishesBoth(RejectionSamplingStrategy):
            def done(self, slices):
                return len(slices) == 2

        strategy = FinishesBoth(concurrency_budget=2)
        result = run(sample, strategy, always("yes", delay_s=1.0), hooks=captured)
        assert ["valid", "valid"] == [one.outcome for one in result.slices]
        assert result.best in result.slices
        assert 2 == len(captured.of(IterationFinished))
        assert [True] == [event.success for event in captured.of(LoopFinished)]


class TestS6:
    @every_strategy
    @pytest.mark.parametrize("breadth", [1, 4])
    def test_the_failure_is_raised_with_its_own_type_if_no_slice_survives(self, run, strategy_class, breadth):
        """S6: re-raised with its own type, with 1 subsample and with many."""

        class Own(Exception):
            pass

        backend = ScriptedBackend(lambda request: After(request.subsample, Own(f"failed in {request.subsample}")))
        with pytest.raises(Own, match="failed in 0") as caught:
            run(sample, strategy_class(concurrency_budget=breadth), backend)
        if breadth > 1:
            assert isinstance(caught.value.__cause__, ExceptionGroup)
            assert breadth == len(caught.value.__cause__.exceptions)
        assert "iteration" in caught.value.__notes__[-1]

    @every_strategy
    def test_a_failing_sibling_does_not_mask_a_success(self, run, strategy_class):
        """S6: if one survives, a sibling's failure is on result.errors and logged once."""

        def reply(request):
            return RuntimeError("broken") if request.subsample == 0 else After(1.0, "yes")

        with capture_logs() as logs:
            result = run(sample, strategy_class(concurrency_budget=3), ScriptedBackend(reply))
        assert result.success
        assert ["broken"] == [str(error) for error in result.errors]
        assert ["RuntimeError"] == [line["error_type"] for line in logs if line["event"] == "attempt_failed"]

    @every_strategy
    def test_the_failure_is_on_the_result_also_when_nothing_was_valid(self, run, strategy_class):
        """S6, I5, row 30: some fail, the rest is invalid: a failure result with its errors."""

        def reply(request):
            return RuntimeError("broken") if request.subsample == 1 else "no"

        with capture_logs() as logs:
            result = run(sample, strategy_class(loop_budget=2, concurrency_budget=2), ScriptedBackend(reply))
        assert not result.success
        assert ["broken"] == [str(error) for error in result.errors]
        assert 1 == len([line for line in logs if line["event"] == "attempt_failed"])
        assert "RuntimeError" in str(result)


class TestS7:
    @every_strategy_that_decides
    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_no_repair_is_computed_after_the_last_attempt(self, run, strategy_class, depth):
        """S7: a repair for every attempt but the last."""
        repairs = []

        class Counting(strategy_class):
            def repair(self, history):
                repairs.append(len(history))
                return super().repair(history)

        run(sample, Counting(loop_budget=depth, concurrency_budget=1), always())
        assert list(range(1, depth)) == repairs

    @every_strategy_that_decides
    def test_a_repair_sees_the_history_of_its_own_subsample_and_of_no_other(self, run, strategy_class):
        """S7: the whole of its own, and nothing of the others."""
        seen = []

        class Watching(strategy_class):
            def repair(self, history):
                seen.append([(one.subsample, one.attempt) for one in history])
                return super().repair(history)

        backend = ScriptedBackend(lambda request: After(1.0 + request.subsample, "no"))
        run(sample, Watching(loop_budget=3, concurrency_budget=3), backend)
        expected = [[(s, a) for a in range(n)] for s in range(3) for n in (1, 2)]
        assert expected == sorted(seen)

    @every_strategy
    def test_a_transient_error_is_no_reason_to_repair(self, run, strategy_class):
        """S7: after a transient error the same attempt is repeated, and no prompt mentions the error."""
        backend = ScriptedBackend(lambda request: RateLimited("slow down") if request.attempt == 1 else "no")
        result = run(sample, strategy_class(loop_budget=3, concurrency_budget=1), backend)
        assert ["invalid", "errored", "invalid"] == [one.outcome for one in result.attempts]
        first_of_attempt = {request.attempt: request.messages for request in reversed(backend.requests)}
        assert first_of_attempt[1] == first_of_attempt[2]
        assert not any("slow down" in message.content for request in backend.requests for message in request.messages)


class TestS8:
    @every_strategy
    def test_a_hook_may_change_both_budgets(self, run, strategy_class):
        """S8: a hook on loop start may change loop_budget and concurrency_budget."""
        hooks = Hooks()

        @hooks.on(LoopStarted)
        async def shallower(event):
            return attrs.evolve(event, loop_budget=2, concurrency_budget=3)

        strategy = strategy_class(loop_budget=5, concurrency_budget=1, hooks=hooks)
        result = run(sample, strategy, always())
        assert 6 == len(result.slices) == result.max_attempts
        assert [1, 2, 3, 4, 5, 6] == [one.iteration for one in result.slices]

    @pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", None, 10**9])
    @pytest.mark.parametrize("critical", [True, False])
    @every_strategy
    def test_a_bad_value_names_the_hook_and_the_value(self, run, strategy_class, value, critical):
        """S8, row 34: below 1, absurd, or of the wrong type: a ValueError that names the hook and the value."""
        hooks = Hooks()

        @hooks.on(LoopStarted, critical=critical)
        def meddler(event):
            return attrs.evolve(event, loop_budget=value)

        captured = CapturedEvents()
        with pytest.raises(ValueError, match="meddler") as caught:
            run(sample, strategy_class(hooks=hooks), always(), hooks=captured)
        assert (f"{value:,}" if value == 10**9 else repr(value)) in str(caught.value)
        assert [caught.value] == [event.error for event in captured.of(LoopFinished)]


class TestS9:
    @every_strategy
    def test_iteration_is_unique_in_a_call_and_iteration_id_everywhere(self, run, strategy_class):
        """S9: iteration = subsample * loop_budget + attempt + 1, and ids that never repeat across calls."""
        ids = set()
        for _ in range(5):
            result = run(sample, strategy_class(loop_budget=3, concurrency_budget=4), always())
            assert list(range(1, 13)) == [one.iteration for one in result.attempts]
            assert all(one.iteration == one.subsample * 3 + one.attempt + 1 for one in result.attempts)
            ids.update(one.iteration_id for one in result.attempts)
        assert 5 * 12 == len(ids)

    def test_ids_sort_by_the_time_of_the_call(self, run):
        """S9: a later call's ids come after an earlier one's."""
        results = [run(sample, RejectionSamplingStrategy(loop_budget=12), always()) for _ in range(30)]
        ids = [one.iteration_id for result in results for one in result.attempts]
        assert sorted(ids) == ids

    def test_ids_do_not_repeat_across_processes(self):
        """S9: unique across processes too, forked ones included."""
        code = (
            "import os\nfrom sampling import RejectionSamplingStrategy\n"
            "async def ask(request): return request.iteration_id\n"
            "RejectionSamplingStrategy().sample_sync('q', None, ask)\n"
            "pid = os.fork()\n"
            "os.write(1, (RejectionSamplingStrategy().sample_sync('q', None, ask).text + ' ').encode())\n"
            "if pid: os.waitpid(pid, 0)\n"
        )
        outputs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
            for _ in range(2)
        ]
        ids = [one for output in outputs for one in output]
        assert 4 == len(ids) == len(set(ids))

    @every_strategy
    def test_everybody_reads_the_ids_of_their_own_subsample(self, run, strategy_class):
        """S9: a hook, a check, a backend and a log line, when A is on iteration 3 and B on iteration 7."""
        seen = []

        def note(where, expected_subsample):
            here = current()
            logged = structlog.contextvars.get_contextvars()
            seen.append((where, expected_subsample == here.subsample, logged["iteration_id"] == here.iteration_id))
            assert logged["sampling_id"] == here.sampling_id

        async def backend(request):
            note("backend", request.subsample)
            await anyio.sleep([0.0, 0.5, 0.25][(request.attempt + request.subsample) % 3])
            note("backend, later", request.subsample)
            assert request.iteration == current().iteration
            return str(request.subsample)

        async def check(text):
            note("check", int(text))
            await anyio.sleep(0.25)
            note("check, later", int(text))
            return False

        hooks = Hooks()

        @hooks.on(IterationStarted, IterationFinished, Repaired)
        async def watch(event):
            note(type(event).__name__, event.subsample)
            await anyio.sleep(0.25)
            note(f"{type(event).__name__}, later", event.subsample)

        strategy = strategy_class(loop_budget=4, concurrency_budget=3)
        run(sample, strategy, backend, [check], hooks=hooks)
        assert {(True, True)} == {(own, logged) for _, own, logged in seen}
        assert 10 == len({where for where, _, _ in seen})

    @every_strategy
    def test_nothing_is_left_of_the_ids_after_the_call(self, run, strategy_class):
        """S9: the ids are those of the call and are gone with it."""

        async def main():
            await sample(strategy_class(), always())
            return current(), structlog.contextvars.get_contextvars()

        assert (None, {}) == run(main)

    @every_strategy
    def test_a_nested_call_carries_its_parent(self, run, strategy_class):
        """S9, row 45: parent_id is the iteration_id of the attempt that made the call."""
        inner_results = []

        async def outer_backend(request):
            result = await sample(strategy_class(loop_budget=2, concurrency_budget=1), always())
            inner_results.append((request.iteration_id, result))
            return "yes"

        result = run(sample, strategy_class(concurrency_budget=1), outer_backend)
        asking, inner = inner_results[-1]
        assert requests_an_attempt(strategy_class) == len(inner_results)
        assert asking == inner.parent_id == result.best.iteration_id
        assert result.parent_id is None


class TestS10:
    @every_strategy
    def test_events_interleave_across_subsamples_and_are_in_order_within_one(self, run, strategy_class):
        """S10: iteration events are monotonic within a subsample."""
        captured = CapturedEvents()
        backend = ScriptedBackend(lambda request: After(1.0 + request.subsample / 4, "no"))
        run(sample, strategy_class(loop_budget=3, concurrency_budget=2), backend, hooks=captured)
        started = [event.iteration for event in captured.of(IterationStarted)]
        assert sorted(started) != started or strategy_class in START_LATE
        for subsample in range(2):
            own = [e.iteration for e in captured.of(IterationStarted) if e.subsample == subsample]
            assert sorted(own) == own

    @every_strategy
    def test_loop_finished_counts_slices_on_every_path(self, run, strategy_class):
        """S10: LoopFinished.iterations counts the slices that completed, when the call raises too."""
        hooks, captured = Hooks(), CapturedEvents()

        @hooks.on(IterationFinished, critical=True)
        def third_is_too_much(event):
            if event.iteration == 3:
                raise RuntimeError("enough")

        strategy = strategy_class(loop_budget=5, concurrency_budget=1, hooks=hooks)
        with pytest.raises(RuntimeError, match="enough"):
            run(sample, strategy, always(), hooks=captured)
        [finished] = [event for event in captured.of(LoopFinished) if event.parent_id is None]
        assert 3 == finished.iterations == finished.attempts
        assert isinstance(finished.error, RuntimeError)

    @every_strategy
    def test_loop_finished_comes_after_a_cancellation_too(self, run, strategy_class):
        """S10, I9: exactly once, also after a cancellation."""
        captured = CapturedEvents()

        async def main():
            with anyio.move_on_after(2.5 * requests_an_attempt(strategy_class)):
                await sample(strategy_class(loop_budget=9, concurrency_budget=1), always(delay_s=1.0), hooks=captured)

        run(main)
        [finished] = [event for event in captured.of(LoopFinished) if event.parent_id is None]
        assert 2 == finished.iterations
        assert 3 == finished.attempts
        assert "cancelled" == captured.of(IterationFinished)[-1].slice.outcome


class TestS11:
    async def watched(self, strategy, reply):
        """Make a call, and return its result and how many tasks it left."""
        watch = Watch(backend := ScriptedBackend(reply))
        before = len(anyio.get_running_tasks())
        result = await watch.sample(strategy, "q", None, [says_yes])
        if type(strategy) in DECIDE_THEMSELVES:  # what is watched is one call, and an escalation makes several
            watch.check()
        return result, backend, len(anyio.get_running_tasks()) - before

    @where_the_first_valid_ends
    def test_no_task_and_no_request_is_left_when_the_losers_are_cancelled(self, run, strategy_class):
        """S11, I6: after the call no producer task is pending and no backend request is either."""
        strategy = strategy_class(concurrency_budget=8)
        result, backend, left = run(
            self.watched, strategy, lambda request: After(1.0 if request.subsample == 3 else 1000.0, "yes")
        )
        assert 0 == left == backend.in_flight
        assert 7 == len(backend.cancelled) == [one.outcome for one in result.attempts].count("cancelled")
        assert pytest.approx(requests_an_attempt(strategy_class), abs=0.01) == result.elapsed_s

    @where_many_are_drawn
    def test_no_task_and_no_request_is_left_after_many_draws(self, run, strategy_class):
        """S11, I6: the same where the call does not end at the first valid answer."""
        strategy = strategy_class(concurrency_budget=8)
        result, backend, left = run(self.watched, strategy, lambda request: After(1.0 + request.subsample, "yes"))
        assert result.success
        assert 1 < len([one for one in result.slices if one.valid])
        assert 0 == left == backend.in_flight


class TestS12:
    def test_rejection_asks_the_same_again(self, run):
        """S12: the same action again."""
        backend = always()
        ctx = Context([Message("system", "be brief")])
        run(sample, RejectionSamplingStrategy(loop_budget=3), backend, ctx=ctx)
        assert 1 == len({request.messages for request in backend.requests})

    @every_strategy
    def test_the_best_failure_is_chosen_by_merit(self, run, strategy_class):
        """S12: most requirements passed, then the higher score."""
        reqs = [
            lambda text: "a" in text,
            lambda text: "b" in text,
            lambda text: Validation(False, "never", score=len(text)),
        ]
        answers = ["x", "ab", "abab", "aaaaaaaaa", "ba"]
        backend = ScriptedBackend(lambda request: answers[request.attempt])
        result = run(sample, strategy_class(loop_budget=5, concurrency_budget=1), backend, reqs)
        assert "abab" == result.text == result.best.text
        assert not result.success

    @every_strategy
    def test_a_tie_goes_to_the_earliest(self, run, strategy_class):
        """S12: ties go to the earliest iteration, whatever finished first."""
        backend = ScriptedBackend(lambda request: After(3.0 - request.subsample, f"{request.iteration}"))
        result = run(sample, strategy_class(loop_budget=2, concurrency_budget=3), backend)
        assert {MultiTurnStrategy: "2", OneTier: "6"}.get(strategy_class, "1") == result.text


class TestS13:
    def test_the_next_action_restates_the_original_with_what_failed(self, run):
        """S13: each requirement that failed with its reason, never those that passed. The context stays as it was."""
        reqs = [
            Requirement("is a poem", check=lambda text: True),
            Requirement("is short", check=lambda text: (False, "it has 80 words, 20 are allowed")),
            Requirement("rhymes", check=lambda text: False),
        ]
        backend = always("the answer")
        ctx = Context([Message("system", "be brief")])
        result = run(sample, RepairTemplateStrategy(loop_budget=3), backend, reqs, "Write a poem.", ctx)
        for request in backend.requests[1:]:
            assert ctx.messages == request.messages[:-1]
            restated = request.messages[-1].content
            assert restated.startswith("Write a poem.")
            assert 1 == restated.count("Write a poem.")
            assert restated.endswith("\n- is short: it has 80 words, 20 are allowed\n- rhymes")
            assert "is a poem" not in restated
            assert "the answer" not in restated
        assert 3 == len(result.slices[-1].context.messages)

    def test_braces_in_a_reason_are_left_alone(self, run):
        """S13: a reason may quote the model: nothing in it is a placeholder."""
        reqs = [lambda text: (False, "{action} {reasons} {0} {x.__class__}")]
        backend = always()
        run(sample, RepairTemplateStrategy(loop_budget=2), backend, reqs, "{action}? {reasons}!")
        assert "{action} {reasons} {0} {x.__class__}" in backend.requests[1].messages[-1].content


class TestS14:
    @pytest.mark.parametrize("depth", [1, 2, 5])
    def test_the_context_grows_by_question_and_answer(self, run, depth):
        """S14: after loop_budget failing turns the deepest context has 2 * loop_budget messages."""
        backend = ScriptedBackend(lambda request: f"answer {request.attempt}")
        result = run(sample, MultiTurnStrategy(loop_budget=depth), backend, [lambda text: (False, f"not {text}")])
        deepest = max(result.slices, key=lambda one: one.attempt)
        assert 2 * depth == len(deepest.context.messages)
        assert ["user", "assistant"] * depth == [message.role for message in deepest.context.messages]
        for number, request in enumerate(backend.requests):
            assert 2 * number + 1 == len(request.messages)
            if number:
                assert f"answer {number - 1}" == request.messages[-2].content
                assert f"not answer {number - 1}" in request.messages[-1].content

    def test_the_failure_is_the_deepest_turn_of_the_lowest_subsample(self, run):
        """S14: the order of completion does not matter."""
        backend = ScriptedBackend(lambda request: After(4.0 - request.subsample, f"{request.iteration}"))
        result = run(sample, MultiTurnStrategy(loop_budget=3, concurrency_budget=3), backend)
        assert (0, 2) == (result.best.subsample, result.best.attempt)


class TestS15:
    @every_strategy
    def test_validation_ctx_is_what_requirements_see(self, run, strategy_class):
        """S15: validation_ctx is used when given."""
        seen = []

        def check(text, view):
            seen.append(view.context)
            return True

        given = Context([Message("user", "judge by this")])
        strategy = strategy_class(concurrency_budget=1)
        run(sample, strategy, always(), [check], validation_ctx=given)
        result = run(sample, strategy, always(), [check])
        assert given is seen[0]
        assert result.best.context == seen[1]
        assert ["q", "no"] == [message.content for message in seen[1].messages]

    def test_an_empty_validation_ctx_is_one_too(self, run):
        """S15: an empty context is a context, not a missing one."""
        seen = []
        given = Context()
        check = Requirement("sees", check=lambda text, view: seen.append(view.context) is None)
        run(sample, RejectionSamplingStrategy(), always(), [check], validation_ctx=given)
        assert [given] == seen

    @every_strategy
    def test_the_strategys_requirements_come_first_and_each_once(self, run, strategy_class):
        """S15: the strategy's, then the call's, in the order given, each once."""
        order = []

        def named(name):
            return Requirement(name, check=lambda text: order.append(name) is None)

        a, b, c, d = (named(name) for name in "abcd")
        strategy = strategy_class(requirements=[b, a], concurrency_budget=1)
        result = run(sample, strategy, always(), [d, a, c, d])
        assert ["b", "a", "d", "c"] == order
        told = [validation.requirement.description for validation in result.best.validations]
        assert ["b", "a", "d", "c"] == [name for name in told if name in "abcd"]


class TestS16:
    @every_strategy
    @pytest.mark.parametrize("passes", [True, False])
    def test_async_checks_are_awaited(self, run, strategy_class, passes):
        """S16: an async check that says no is a no."""

        async def check(text):
            await anyio.sleep(0.5)
            return passes

        class Checker:
            async def __call__(self, text):
                return passes

        for one in (check, Checker(), lambda text: check(text)):  # noqa: PLW0108 - a plain function that hands on a coroutine
            assert passes is run(sample, strategy_class(), always(), [one]).success

    @every_strategy
    def test_async_checks_run_concurrently_and_keep_their_order(self, run, strategy_class):
        """S16: the checks of one attempt run concurrently, and validations keep the order of requirements."""

        def slow(name, delay_s):
            async def check(text):
                await anyio.sleep(delay_s)
                return True, name

            return check

        reqs = [slow("a", 3.0), slow("b", 1.0), slow("c", 2.0)]
        result = run(sample, strategy_class(concurrency_budget=1), always(), reqs)
        assert 3.0 == result.elapsed_s
        assert ["a", "b", "c"] == [validation.reason for validation in result.best.validations if validation.reason]

    @pytest.mark.anyio
    async def test_a_blocking_check_does_not_block_the_loop(self):
        """S16: a check that is marked as blocking runs in a thread while the loop goes on."""
        ticked = threading.Event()
        threads = []

        def wait_for_the_loop(text):
            threads.append(threading.current_thread())
            return ticked.wait(timeout=60)

        async def tick():
            await anyio.lowlevel.checkpoint()
            ticked.set()

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            blocking = Requirement("waits", check=wait_for_the_loop, blocking=True)
            result = await sample(RejectionSamplingStrategy(), always(), [blocking])
        assert result.success
        assert threading.main_thread() not in threads


class TestS17:
    @every_strategy
    def test_without_a_parser_the_value_is_the_text(self, run, strategy_class):
        """S17: an action without a parser gives the raw text."""
        assert "no" == run(sample, strategy_class(), always(), []).value

    @every_strategy
    def test_with_a_parser_the_value_is_parsed(self, run, strategy_class):
        """S17: and checks can see it."""
        seen = []
        check = Requirement("sees", check=lambda text, view: seen.append(view.value) is None)
        result = run(sample, strategy_class(), always("42"), [check], Action("n?", int))
        assert 42 == result.value == seen[0]
        assert "42" == result.text

    @every_strategy
    def test_a_parser_that_raises_makes_the_attempt_invalid_with_that_reason(self, run, strategy_class):
        """S17: and the reason gets into the repair, where there is one."""
        backend = ScriptedBackend(lambda request: "42" if request.attempt else "forty")
        strategy = strategy_class(loop_budget=2, concurrency_budget=1)
        result = run(sample, strategy, backend, [], Action("n?", int))
        assert 42 == result.value
        assert "invalid literal for int()" in result.slices[0].validations[0].reason
        if strategy_class in {RepairTemplateStrategy, MultiTurnStrategy}:
            assert "invalid literal for int()" in backend.requests[1].messages[-1].content


class TestS18:
    @pytest.mark.parametrize("strategy_class", [BaseSamplingStrategy, *PUBLIC])
    def test_the_docstring_says_what_breadth_costs(self, strategy_class):
        """S18: requests multiply, rate limits come sooner, the winner depends on timing without deterministic=True."""
        doc = strategy_class.__doc__
        if strategy_class is not BaseSamplingStrategy:
            assert "for the cost of breadth" in doc
            assert "BaseSamplingStrategy" in doc
            doc = BaseSamplingStrategy.__doc__
        for words in ("number of requests multiplies", "rate limits come sooner", "timing", "deterministic=True"):
            assert words in doc


class TestTheExampleOfTheFeel:
    def test_a_function_a_string_and_a_lambda_are_enough(self, run):
        """S1 to S17 in five lines: the example of the README."""
        answers = ["Rhine, Danube", "Rhine", "Rhine, Danube, Elbe", "Rhine", "Oder"]

        async def ask(request):
            await anyio.sleep(1.0 + len(answers) / 10)
            return Generation(answers.pop(), sampling.Usage(10, 5))

        async def main():
            strategy = MultiTurnStrategy(loop_budget=3, concurrency_budget=4)
            reqs = [lambda text: text.count(",") == 2]
            return await strategy.sample("Name three rivers, comma separated.", Context(), ask, reqs)

        result = run(main)
        assert result.success
        assert "Rhine, Danube, Elbe" == result.value
        assert str(result).startswith("success in 1.")
        assert "of 12 attempts" in str(result)
        assert '"Rhine, Danube, Elbe"' in str(result)

    def test_transient_errors_cost_an_attempt_and_the_subsample_goes_on(self, run):
        """Semantics 5: a retryable error costs one attempt."""
        backend = ScriptedBackend([TransientError("hiccup"), "yes"])
        result = run(sample, RejectionSamplingStrategy(loop_budget=2), backend)
        assert result.success
        assert ["errored", "valid"] == [one.outcome for one in result.attempts]
