"""Hooks: the events they receive, the changes they may make, and how their failures are handled."""

from contextlib import suppress

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from sampling import (
    Event,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Repaired,
    TextGrown,
    Usage,
)
from sampling.errors import HookTimeout
from sampling.messages import Generation
from sampling.testing import After, CapturedEvents, ScriptedBackend

ALL_EVENTS = [LoopStarted, IterationStarted, TextGrown, IterationFinished, Repaired, LoopFinished]


def two_turns():
    return ScriptedBackend([After(1.0, Generation("no", Usage(3, 1))), After(1.0, Generation("yes", Usage(5, 1)))])


async def sample(strategy, backend, **arguments):
    return await strategy.sample("q", None, backend, [lambda text: text == "yes"], **arguments)


def test_all_six_events_come_in_order(run):
    """I9: loop_start < iteration(i) < text(i) < repair(i) < iteration(i+1) < loop_end."""
    captured = CapturedEvents(text=True)
    result = run(sample, MultiTurnStrategy(loop_budget=3), two_turns(), hooks=captured)
    assert [
        "LoopStarted",
        "IterationStarted",
        "TextGrown",
        "IterationFinished",
        "Repaired",
        "IterationStarted",
        "TextGrown",
        "IterationFinished",
        "LoopFinished",
    ] == captured.names
    [repaired] = captured.of(Repaired)
    assert result.slices[0] is repaired.failed
    assert result.slices[0].iteration_id == repaired.iteration_id
    assert captured.of(IterationStarted)[1].action is repaired.next.action
    [finished] = captured.of(LoopFinished)
    assert (True, 2, 2, "validated") == (finished.success, finished.iterations, finished.attempts, finished.stop_reason)
    assert Usage(8, 2) == finished.usage == result.usage
    assert finished.result.best is result.best
    assert {result.sampling_id} == {event.sampling_id for event in captured.events}


def test_hooks_of_the_strategy_come_before_those_of_the_call(run):
    """Within each group, hooks are called in the order of registration."""
    order = []
    own, given = Hooks(), Hooks()
    for hooks, names in ((own, "ab"), (given, "cd")):
        for name in names:
            hooks.on(IterationStarted)(lambda event, name=name: order.append(name))
    run(sample, RejectionSamplingStrategy(hooks=own), ScriptedBackend(["yes"]), hooks=given)
    assert list("abcd") == order


def test_a_hook_on_event_gets_them_all(run):
    """Event is the base class of all six events."""
    seen = []
    hooks = Hooks()
    hooks.on(Event)(lambda event: seen.append(type(event)))
    run(sample, MultiTurnStrategy(loop_budget=2), two_turns(), hooks=hooks)
    assert set(ALL_EVENTS) == set(seen)


@pytest.mark.parametrize("event_type", ALL_EVENTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_observer_that_raises_changes_nothing(run, event_type, is_async):
    """Row 46: the failure is logged and on the result, and the call continues."""
    hooks = Hooks()

    def raises(event):
        raise RuntimeError("a hook's own")

    async def raises_later(event):
        await anyio.sleep(0.25)
        raise RuntimeError("a hook's own")

    hooks.on(event_type)(raises_later if is_async else raises)
    with capture_logs() as logs:
        result = run(sample, MultiTurnStrategy(loop_budget=2, hooks=hooks), two_turns())
    assert result.success
    assert {event_type.__name__} == {failure.event for failure in result.hook_failures}
    assert {"a hook's own"} == {str(failure.error) for failure in result.hook_failures}
    assert all("raises" in failure.hook for failure in result.hook_failures)
    assert len(result.hook_failures) == len([line for line in logs if line["event"] == "hook_failed"])


@pytest.mark.parametrize("event_type", ALL_EVENTS)
@pytest.mark.parametrize("breadth", [1, 3])
def test_a_critical_hooks_exception_ends_the_call(run, event_type, breadth):
    """Row 46: the exception keeps its type, a note names the hook, and LoopFinished is sent once."""
    hooks, captured = Hooks(), CapturedEvents()

    class Veto(Exception):
        pass

    @hooks.on(event_type, critical=True)
    async def guard(event):
        await anyio.sleep(0.25)
        raise Veto("not with me")

    backend = ScriptedBackend(lambda request: After(1.0, "no" if request.attempt == 0 else "yes"))
    strategy = MultiTurnStrategy(loop_budget=2, concurrency_budget=breadth, hooks=hooks)
    with pytest.raises(Veto) as caught:
        run(sample, strategy, backend, hooks=captured)
    assert any("guard" in note for note in caught.value.__notes__)
    assert 1 == len(captured.of(LoopFinished))
    assert 0 == backend.in_flight
    started = [event.iteration_id for event in captured.of(IterationStarted)]
    finished = [event.iteration_id for event in captured.of(IterationFinished)]
    assert sorted(started) == sorted(finished)


@pytest.mark.parametrize("event_type", ALL_EVENTS)
def test_a_hook_that_hangs_is_cut_off(run, event_type):
    """Row 47: a hook is cancelled and recorded after its timeout, and the call continues."""
    hooks = Hooks(timeout_s=2.0)
    hooks.on(event_type)(lambda event: anyio.sleep_forever())
    result = run(sample, MultiTurnStrategy(loop_budget=2, hooks=hooks), two_turns())
    assert result.success
    assert {HookTimeout} == {type(failure.error) for failure in result.hook_failures}
    assert "took longer than 2 s" in str(result.hook_failures[0].error)


def test_a_hanging_hook_does_not_hold_up_a_sibling(run):
    """Row 47: other subsamples are not affected."""
    hooks = Hooks()
    hooks.on(IterationStarted, timeout_s=100.0)(lambda event: anyio.sleep_forever() if event.subsample == 0 else None)
    captured = CapturedEvents()
    strategy = RejectionSamplingStrategy(concurrency_budget=2, hooks=hooks)
    run(sample, strategy, ScriptedBackend(lambda request: After(1.0, "yes")), hooks=captured)
    [other] = [event.slice for event in captured.of(IterationFinished) if event.subsample == 1]
    assert "valid" == other.outcome
    assert 1.0 == other.finished_s


def test_events_are_frozen(run):
    """Row 48: a hook can't change the event that other hooks receive."""
    hooks, captured = Hooks(), CapturedEvents()

    @hooks.on(IterationFinished)
    def meddles(event):
        event.slice.outcome = "valid"

    result = run(sample, RejectionSamplingStrategy(hooks=hooks), ScriptedBackend(["no"]), hooks=captured)
    assert "invalid" == result.slices[0].outcome == captured.of(IterationFinished)[0].slice.outcome
    assert isinstance(result.hook_failures[0].error, attrs.exceptions.FrozenInstanceError)


def test_a_hook_that_swallows_a_cancellation_does_not_keep_the_call_alive(run):
    """Row 48: the cancellation takes effect after the hook."""
    backend = ScriptedBackend(lambda _: After(1.0, "no"))

    async def main():
        hooks = Hooks(timeout_s=10.0)

        @hooks.on(IterationStarted)
        async def swallows(event):
            with suppress(BaseException):
                await anyio.sleep(2.0)

        with anyio.move_on_after(1.0) as scope:
            await sample(RejectionSamplingStrategy(loop_budget=5, hooks=hooks), backend)
        return scope.cancelled_caught

    assert run(main)
    assert not backend.requests


def test_a_hook_that_starts_tasks_of_its_own_is_left_alone(run):
    """Row 48: a hook may use its own task group."""
    ran = []

    async def main():
        hooks = Hooks()

        @hooks.on(IterationFinished)
        async def spawns(event):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.5)
            ran.append(event.iteration)

        return await sample(MultiTurnStrategy(loop_budget=2, hooks=hooks), two_turns())

    assert run(main).success
    assert [1, 2] == ran


def test_a_wrong_answer_of_an_observer_is_recorded(run):
    """A hook on LoopStarted that returns anything but a LoopStarted or None has failed."""
    hooks = Hooks()
    hooks.on(LoopStarted)(lambda event: 3)
    result = run(sample, RejectionSamplingStrategy(hooks=hooks), ScriptedBackend(["yes"]))
    assert "must be a LoopStarted or None, got 3" in str(result.hook_failures[0].error)


def test_only_the_budgets_of_a_changed_event_are_read(run):
    """A hook can't change the ids of an event."""
    hooks, captured = Hooks(), CapturedEvents()
    hooks.on(LoopStarted)(lambda event: attrs.evolve(event, sampling_id="mine", loop_budget=1))
    result = run(sample, RejectionSamplingStrategy(loop_budget=3), ScriptedBackend(["no"]), hooks=hooks)
    run(sample, RejectionSamplingStrategy(hooks=hooks), ScriptedBackend(["no"]), hooks=captured)
    assert "mine" not in {result.sampling_id, *(event.sampling_id for event in captured.events)}
    assert 1 == len(result.attempts)


def test_hooks_can_be_put_together():
    """include() copies the hooks that are registered at that moment."""
    a, b = Hooks(), Hooks()
    a.on(LoopStarted)(print)
    b.on(LoopFinished)(print)
    a.include(b)
    assert [LoopStarted, LoopFinished] == [hook.event for hook in a]
    assert "LoopStarted: builtins.print" in repr(a)


def test_hooks_are_called_by_order_then_by_registration(run):
    """Across the hooks of the strategy and of the call."""
    called = []
    on_strategy, on_call = Hooks(), Hooks()
    on_strategy.on(LoopStarted, order=1)(lambda event: called.append("late"))
    on_strategy.on(LoopStarted)(lambda event: called.append("first"))
    on_call.on(Event, order=-1)(lambda event: called.append("early") if isinstance(event, LoopStarted) else None)
    on_call.on(LoopStarted)(lambda event: called.append("second"))
    run(sample, RejectionSamplingStrategy(hooks=on_strategy), ScriptedBackend(["yes"]), hooks=on_call)
    assert ["early", "first", "second", "late"] == called


@pytest.mark.parametrize("order", ["first", None, float("nan"), True])
def test_an_order_is_a_number(order):
    """Anything else is an error at once."""
    with pytest.raises((TypeError, ValueError), match="order"):
        Hooks().on(Event, order=order)


def test_a_function_can_be_unregistered(run):
    """From all of its events, also a bound method."""

    class Counter:
        calls = 0

        def count(self, event):
            self.calls += 1

    counter, hooks = Counter(), Hooks()
    hooks.on(LoopStarted, LoopFinished)(counter.count)
    kept = hooks.on(LoopStarted)(lambda event: None)
    hooks.off(counter.count)
    run(sample, RejectionSamplingStrategy(hooks=hooks), ScriptedBackend(["yes"]))
    assert 0 == counter.calls
    assert [kept] == [hook.function for hook in hooks]
    with pytest.raises(ValueError, match="needs a registered function"):
        hooks.off(counter.count)


def test_every_event_has_the_name_of_its_strategy(run):
    """A hook that several strategies share can tell them apart."""
    captured = CapturedEvents(text=True)
    run(sample, MultiTurnStrategy(loop_budget=3), two_turns(), hooks=captured)
    assert set(ALL_EVENTS) == {type(event) for event in captured.events}
    assert {"MultiTurnStrategy"} == {event.strategy for event in captured.events}
