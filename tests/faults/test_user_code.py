"""Rows 44 and 50 to 57: faults in user code."""

import gc
import threading

import anyio
import pytest

from sampling import (
    Attempt,
    BaseSamplingStrategy,
    Context,
    IterationFinished,
    LoopFinished,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Requirement,
    Validation,
)
from sampling._engine.run import Run
from sampling.errors import BadVerdict, CheckTimeout, ContextTooLarge, SelectionFailed, WrongThread
from sampling.testing import After, CapturedEvents, ScriptedBackend, Watch


async def sample(strategy, backend=None, reqs=(lambda text: text == "yes",), **arguments):
    backend = backend or ScriptedBackend(lambda _: After(1.0, "no"))
    return await strategy.sample("q", None, backend, reqs, **arguments)


class TestWhatIsNoFailureOfAnAttempt:
    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("error", [SystemExit(3), MemoryError(), RecursionError(), KeyboardInterrupt()], ids=repr)
    @pytest.mark.parametrize("where", ["backend", "check", "repair", "done"])
    def test_it_propagates_bare(self, run, error, breadth, where):
        """Row 44: SystemExit, MemoryError and RecursionError propagate unchanged from anywhere, and losers stop."""

        def explode(place):
            if place == where:
                raise error

        class Strategy(MultiTurnStrategy):
            def repair(self, history):
                explode("repair")
                return super().repair(history)

            def done(self, slices):
                explode("done")
                return super().done(slices)

        class Backend:
            in_flight = 0

            async def generate(self, request):
                self.in_flight += 1
                try:
                    await anyio.sleep(1.0 + request.subsample)
                    explode("backend")
                finally:
                    self.in_flight -= 1
                return "no"

        def check(text):
            explode("check")
            return False

        backend, captured = Backend(), CapturedEvents()
        strategy = Strategy(loop_budget=2, concurrency_budget=breadth)
        with pytest.raises(type(error)) as caught:
            run(sample, strategy, backend, [check], hooks=captured)
        assert error is caught.value
        assert 0 == backend.in_flight
        assert [error] == [event.error for event in captured.of(LoopFinished)]


class TestChecks:
    @pytest.mark.parametrize("blocking", [False, True])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_check_that_raises_makes_the_attempt_invalid(self, run, is_async, blocking):
        """Row 50: an error is not a failed check. The attempt is invalid, and the error is kept."""

        def broken(text):
            raise ZeroDivisionError("in the check")

        async def broken_later(text):
            broken(text)

        requirement = Requirement("divides", check=broken_later if is_async else broken, blocking=blocking)
        result = run(sample, RejectionSamplingStrategy(loop_budget=2), ScriptedBackend(["a", "b"]), [requirement])
        assert ["invalid", "invalid"] == [one.outcome for one in result.slices]
        validation = result.slices[0].validations[0]
        assert isinstance(validation.error, ZeroDivisionError)
        assert result.slices[0].error is validation.error
        assert 2 == len(result.errors)
        assert "in the check" not in validation.complaint
        assert "broke" in result.explain()

    def test_a_check_that_hangs_has_a_timeout(self, run):
        """Row 51: an error, and the slot is released."""
        requirement = Requirement("ends", check=lambda text: anyio.sleep_forever(), timeout_s=2.0)
        backend = ScriptedBackend(lambda _: After(1.0, "no"))
        result = run(sample, RejectionSamplingStrategy(loop_budget=2), backend, [requirement])
        assert 6.0 == result.elapsed_s
        assert [CheckTimeout, CheckTimeout] == [type(error) for error in result.errors]

    def test_an_async_check_has_a_timeout_even_if_nobody_set_one(self, run):
        """Row 51: the strategy's own."""
        strategy = RejectionSamplingStrategy(check_timeout_s=3.0)
        result = run(sample, strategy, None, [lambda text: anyio.sleep_forever()])
        assert 4.0 == result.elapsed_s

    @pytest.mark.anyio
    async def test_a_blocking_check_that_hangs_is_left_behind_after_its_timeout(self):
        """Rows 41, 51 and 52: a thread can't be stopped, but the call does not wait for it."""
        release = threading.Event()
        requirement = Requirement("ends", check=lambda text: release.wait(60), blocking=True, timeout_s=0.05)
        try:
            result = await sample(RejectionSamplingStrategy(), ScriptedBackend(["no"]), [requirement])
        finally:
            release.set()
        assert [CheckTimeout] == [type(error) for error in result.errors]

    @pytest.mark.parametrize(
        "verdict",
        [None, 1, 0, "yes", [], (True,), (True, "x", 1), ("yes", "x"), (True, 3), {}],
        ids=repr,
    )
    @pytest.mark.parametrize("breadth", [1, 2])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_what_is_no_verdict_is_a_type_error_that_names_the_requirement(self, run, verdict, breadth, is_async):
        """Row 53, semantics 6: a result that is not a bool is a bug of the check, which no retry can fix."""

        async def answers_later(text):
            await anyio.sleep(0.25)
            return verdict

        requirement = Requirement("is well answered", check=answers_later if is_async else lambda text: verdict)

        async def passes_later(text):
            await anyio.sleep(5.0)
            return True

        other = Requirement("waits", check=passes_later)
        with pytest.raises(TypeError, match="'is well answered'") as caught:
            run(
                sample, RejectionSamplingStrategy(loop_budget=3, concurrency_budget=breadth), None, [other, requirement]
            )
        assert isinstance(caught.value, BadVerdict)
        gc.collect()

    @pytest.mark.parametrize("score", ["high", [1], object], ids=repr)
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_score_that_is_no_number_is_a_type_error_too(self, run, score, is_async):
        """Row 53: a score that `float()` does not take."""

        async def later(text):
            return Validation(True, score=score)

        check = later if is_async else lambda text: Validation(True, score=score)
        with pytest.raises(TypeError, match="'is scored'"):
            run(sample, RejectionSamplingStrategy(), None, [Requirement("is scored", check=check)])

    def test_a_valid_sibling_beats_a_bad_verdict(self, run):
        """I3: an earlier winner is not lost."""

        def check(text):
            return True if text == "yes" else None

        backend = ScriptedBackend(lambda request: After(1.0 + request.subsample, "no" if request.subsample else "yes"))
        assert run(sample, RejectionSamplingStrategy(concurrency_budget=2), backend, [check]).success

    def test_a_coroutine_from_a_plain_function_is_awaited(self, run):
        """Row 53, semantics 6: a coroutine is always awaited, even from a lambda or a thread."""

        async def later(text):
            await anyio.sleep(0.5)
            return text == "yes"

        for blocking in (False, True):
            requirement = Requirement("says yes", check=lambda text: later(text), blocking=blocking)  # noqa: PLW0108
            assert not run(sample, RejectionSamplingStrategy(), None, [requirement]).success

    def test_what_a_cancellation_kept_from_starting_is_closed(self, run):
        """Row 52: every coroutine is awaited. A warning would fail this test."""

        async def never(text):
            return True

        def immediately(request):
            return "yes" if request.subsample == 0 else After(0.0, "no")

        for _ in range(5):
            reqs = [lambda text: text == "yes", never, never]
            run(
                sample,
                RejectionSamplingStrategy(loop_budget=3, concurrency_budget=6),
                ScriptedBackend(immediately),
                reqs,
            )
        gc.collect()


class TestRepair:
    @pytest.mark.parametrize("breadth", [1, 3])
    def test_a_repair_that_raises_ends_its_subsample(self, run, breadth):
        """Row 55: the subsample ends, its slices and the error are on the result."""

        class Broken(BaseSamplingStrategy):
            def repair(self, history):
                if history[-1].subsample == 0:
                    raise LookupError("in repair")
                return super().repair(history)

        watch = Watch(ScriptedBackend(lambda _: After(1.0, "no")))
        strategy = Broken(loop_budget=3, concurrency_budget=breadth)
        result = run(watch.sample, strategy, "q", None, [lambda text: False])
        watch.check()
        assert 1 + 3 * (breadth - 1) == len(result.slices)
        assert ["in repair"] == [str(error) for error in result.errors]
        assert "failed" if breadth == 1 else "exhausted" == result.stop_reason

    @pytest.mark.parametrize("answer", [None, "ask again", Context(), 3], ids=repr)
    def test_a_repair_that_returns_something_else_says_so(self, run, answer):
        """Row 55: a wrong type."""

        class Alien(BaseSamplingStrategy):
            def repair(self, history):
                return answer

        result = run(sample, Alien(loop_budget=3))
        [error] = result.errors
        assert isinstance(error, TypeError)
        assert "repair() returns must be an Attempt" in str(error)

    def test_a_context_that_grows_without_end_is_stopped(self, run):
        """Row 55: infinite growth is capped."""

        class Doubling(BaseSamplingStrategy):
            def repair(self, history):
                last = history[-1]
                return Attempt(last.action, last.context.add(*last.context.messages))

        result = run(sample, Doubling(loop_budget=100, max_context_chars=10_000))
        [error] = result.errors
        assert isinstance(error, ContextTooLarge)
        assert len(result.slices) < 20
        assert "max_context_chars is 10,000" in str(error)


class TestSelection:
    @pytest.mark.parametrize("name", ["select", "select_from_failure"])
    @pytest.mark.parametrize("answer", [-1, 99, None, "first"], ids=repr)
    def test_a_choice_that_is_none_of_the_slices_is_a_typed_error(self, run, name, answer):
        """Row 56: a selection that is not one of the slices raises a typed error with the slices."""
        strategy_class = type("Odd", (BaseSamplingStrategy,), {name: lambda self, slices: answer})
        backend = ScriptedBackend(["yes" if name == "select" else "no"])
        with pytest.raises(SelectionFailed, match="not one of the slices") as caught:
            run(sample, strategy_class(), backend)
        assert 1 == len(caught.value.slices)

    @pytest.mark.parametrize("name", ["select", "select_from_failure", "done"])
    @pytest.mark.parametrize("breadth", [1, 3])
    def test_a_choice_that_raises_is_a_typed_error(self, run, name, breadth):
        """Row 56: an exception keeps its cause and the slices, and every attempt ends."""

        def broken(self, slices):
            raise LookupError("in the choice")

        strategy_class = type("Odd", (BaseSamplingStrategy,), {name: broken})
        backend = ScriptedBackend(lambda _: After(1.0, "yes" if name == "select" else "no"))
        watch = Watch(backend)
        with pytest.raises(SelectionFailed, match="in the choice") as caught:
            run(watch.sample, strategy_class(concurrency_budget=breadth), "q", None, [lambda text: text == "yes"])
        watch.check()
        assert isinstance(caught.value.__cause__, LookupError)
        assert caught.value.slices

    def test_done_answers_true_or_false(self, run):
        """Row 56: a missing return does not count as False."""

        class Forgetful(BaseSamplingStrategy):
            def done(self, slices):
                slices[-1].valid  # noqa: B018 - the mistake

        with pytest.raises(SelectionFailed, match="returned None, not True or False"):
            run(sample, Forgetful())

    def test_done_may_give_up_without_a_valid_slice(self, run):
        """A strategy can end a call before its budget is spent."""

        class GivesUp(BaseSamplingStrategy):
            def done(self, slices):
                return super().done(slices) or len(slices) == 3

        result = run(sample, GivesUp(loop_budget=9))
        assert 3 == len(result.slices)
        assert "exhausted" == result.stop_reason


class TestThreads:
    def test_nothing_can_be_added_from_another_thread(self, run, monkeypatch):
        """Row 57: a record that another thread adds is refused."""
        runs = []

        class Spied(Run):
            def __init__(self, *args):
                super().__init__(*args)
                runs.append(self)

        monkeypatch.setattr("sampling.strategy.Run", Spied)
        result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["no"]))
        refused = []

        def intrude():
            try:
                runs[0].queue.put(result.slices[0])
            except WrongThread as error:
                refused.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        assert 1 == len(refused)
        assert isinstance(refused[0], RuntimeError)


class TestSmallestCalls:
    def test_the_smallest_call_there_is(self, run):
        """Row 34: breadth 1, depth 1, no requirements."""
        result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["anything"]), None)
        assert ("anything", "validated") == (result.value, result.stop_reason)

    def test_history_is_read_only_and_can_be_sliced(self, run):
        """S7: a strategy gets a read-only view, not the list of the engine."""
        seen = []

        class Looks(BaseSamplingStrategy):
            def repair(self, history):
                seen.append((len(history), [one.attempt for one in history[-2:]], history[0].attempt, repr(history)))
                with pytest.raises(IndexError):
                    history[len(history)]
                assert not hasattr(history, "append")
                return super().repair(history)

        run(sample, Looks(loop_budget=4))
        assert [(1, [0], 0), (2, [0, 1], 0), (3, [1, 2], 0)] == [one[:3] for one in seen]

    def test_a_prefix_does_not_grow(self, run):
        """The slices that `done` received do not change later in the call."""
        kept = []

        class Keeps(BaseSamplingStrategy):
            def done(self, slices):
                kept.append(slices)
                return False

        run(sample, Keeps(loop_budget=3))
        assert [1, 2, 3] == [len(slices) for slices in kept]
        assert [0, 1, 2] == [slices[-1].attempt for slices in kept]

    def test_a_backend_that_is_not_async_says_so(self, run):
        """A synchronous function is not a backend."""
        with pytest.raises(TypeError, match="backend must be async"):
            run(sample, RejectionSamplingStrategy(), lambda request: "no")

    @pytest.mark.parametrize("answer", [None, 3, b"bytes", ["text"]], ids=repr)
    def test_a_backend_that_answers_something_else_says_so(self, run, answer):
        """A generation or its text."""

        async def backend(request):
            return answer

        with pytest.raises(TypeError, match="the return value of the backend must be a Generation or a str"):
            run(sample, RejectionSamplingStrategy(), backend)

    def test_events_end_even_when_a_check_gives_a_bad_verdict(self, run):
        """I8: every start event has a finish event on this path too."""
        watch = Watch(ScriptedBackend(lambda _: After(1.0, "no")))
        with pytest.raises(BadVerdict):
            run(
                watch.sample,
                RejectionSamplingStrategy(concurrency_budget=3),
                "q",
                Context([Message("user", "x")]),
                [lambda t: None],
            )
        watch.check()
        assert 3 == len(watch.events.of(IterationFinished))
