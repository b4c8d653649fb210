"""Cancel a call at every step, by scope and natively."""

import gc
import weakref

import anyio
import pytest

from sampling import Budget, HedgedSamplingStrategy, Hooks, LoopFinished, MultiTurnStrategy
from sampling.testing import After, ScriptedBackend, cancel_at_every_step
from tests.faults.watched_calls import call_with_everything


def multi_turn(breadth, *, deterministic=False):
    """Return a conversation whose second iteration raises and whose fourth is right."""

    def make(hooks):
        return MultiTurnStrategy(loop_budget=2, concurrency_budget=breadth, hooks=hooks, deterministic=deterministic)

    return call_with_everything(make, lambda request, _: request.iteration)


def checker(seen):
    """Return a check of the invariants after each run."""
    kinds = set()

    def check(world, outcome):
        kinds.add(outcome.kind)
        assert not outcome.left_running
        watch, budget = seen["watch"], seen["budget"]
        watch.check()
        assert 0 == budget.reserved.attempts == budget.reserved.requests == budget.reserved.tokens
        if outcome.kind == "cancelled":
            assert outcome.step is not None
            if watch.events.events:
                [finished] = watch.events.of(LoopFinished)
                if watch.result is None:
                    assert isinstance(finished.error, BaseException)
        elif outcome.kind == "raised":
            assert isinstance(outcome.error, RuntimeError), "only the backend's own failure may come through"

    return check, kinds


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("breadth", [1, 2])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_scope_that_is_cancelled_at_any_step(breadth, loop, seed, deterministic):
    """Row 35: I1 to I12 hold for every step at which the caller's scope is cancelled."""
    scenario, seen = multi_turn(breadth, deterministic=deterministic)
    check, kinds = checker(seen)
    outcomes = cancel_at_every_step(scenario, check=check, loops=[loop], seed=seed)
    assert "cancelled" in kinds
    assert len(outcomes) > 5


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("breadth", [1, 2])
def test_a_native_cancellation_at_any_step(breadth, times):
    """Row 36: one or two native cancellations propagate, and no task is left."""
    scenario, seen = multi_turn(breadth)

    def check(world, outcome):
        assert not outcome.left_running
        if outcome.step is not None and seen["watch"].result is None:
            assert outcome.kind in {"cancelled", "raised"}
        if times == 1:
            seen["watch"].check()

    outcomes = cancel_at_every_step(scenario, check=check, native=True, times=times)
    assert "cancelled" in {outcome.kind for outcome in outcomes}


def test_a_cancelled_call_never_returns_normally_without_a_winner(run):
    """I11: the caller's scope is cancelled and there is no winner: Cancelled propagates."""

    async def main():
        with anyio.CancelScope() as scope:
            backend = ScriptedBackend(lambda _: After(10.0, "no"))

            async def cancel_later():
                await anyio.sleep(1.0)
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(cancel_later)
                await MultiTurnStrategy(concurrency_budget=3).sample("q", None, backend)
                raise AssertionError("sample() returned")
        return scope.cancelled_caught, anyio.current_time()

    assert (True, 1.0) == run(main)


def test_a_cancelled_call_that_only_waits_for_its_last_subsample_does_not_return_either(run):
    """I11, if the task of the caller has no attempt left that would notice the cancellation."""

    async def main():
        async def backend(request):
            await anyio.sleep(1.0 if request.subsample == 0 else 100.0)
            return "no"

        with anyio.move_on_after(2.0) as scope:
            await MultiTurnStrategy(concurrency_budget=2).sample("q", None, backend, [lambda text: text == "yes"])
            raise AssertionError("sample() returned")
        return scope.cancelled_caught, anyio.current_time()

    assert (True, 2.0) == run(main)


def test_a_call_that_is_cancelled_in_the_step_of_its_winner_ends_in_the_same_way_on_both_loops(run):
    """I11: with a winner, either outcome is fine, but it must be the same on both loops."""

    async def main():
        async def backend(request):
            await anyio.sleep(1.0 + request.subsample)
            return "no" if request.subsample == 0 else "yes"

        with anyio.CancelScope() as scope:

            def check(text):
                if text == "yes":
                    scope.cancel()
                return text == "yes"

            await MultiTurnStrategy(concurrency_budget=2).sample("q", None, backend, [check])
        return scope.cancelled_caught, anyio.current_time()

    assert (True, 2.0) == run(main)


@pytest.mark.parametrize(
    ("strategy", "winner"),
    [
        (MultiTurnStrategy(concurrency_budget=3), 0),
        (MultiTurnStrategy(concurrency_budget=3), 2),
        (MultiTurnStrategy(concurrency_budget=3, deterministic=True), 0),
        (HedgedSamplingStrategy(concurrency_budget=3, typical_s=0.1), 2),
    ],
)
def test_what_cancelled_losers_held_is_freed_without_the_garbage_collector(run, strategy, winner):
    """A finished call is freed without a garbage collection, so that many wide calls do not pile up."""

    async def main():
        backend = ScriptedBackend(lambda request: After(1.0 if request.subsample == winner else 9.0, "yes"))
        result = await strategy.sample("q", None, backend)
        assert ["cancelled", "cancelled", "valid"] == sorted(attempt.outcome for attempt in result.attempts)
        return [weakref.ref(attempt) for attempt in result.attempts]

    gc.collect()
    gc.disable()
    try:
        attempts = run(main)
        assert [None] * 3 == [attempt() for attempt in attempts]
    finally:
        gc.enable()


def test_a_cancellation_during_the_last_hook_changes_nothing(run):
    """Row 40: the hook is cancelled after its grace period, and the outcome does not change."""
    seen = []

    async def main():
        hooks = Hooks(timeout_s=3.0)

        @hooks.on(LoopFinished)
        async def lingers(event):
            seen.append(event.success)
            await anyio.sleep(100)

        with anyio.move_on_after(2.0):
            backend = ScriptedBackend([After(1.0, "yes")])
            result = await MultiTurnStrategy(hooks=hooks).sample("q", None, backend)
            seen.append(result)
        return anyio.current_time()

    assert 4.0 == run(main)
    success, result = seen
    assert success
    assert result.success
    assert ["HookTimeout"] == [type(failure.error).__name__ for failure in result.hook_failures]


def test_a_cancelled_wait_gives_its_reservation_back(run):
    """Row 38: no reservation is left after a cancellation at any await."""

    async def main():
        budget = Budget(tokens=1000)
        with anyio.move_on_after(1.0):
            await MultiTurnStrategy(concurrency_budget=4).sample(
                "q", None, ScriptedBackend(lambda _: After(5.0, "no")), budget=budget
            )
        return budget

    budget = run(main)
    assert (0, 0, 0) == (budget.reserved.attempts, budget.reserved.requests, budget.reserved.tokens)
    assert 4 == budget.attempts_made
