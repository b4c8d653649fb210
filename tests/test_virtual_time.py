"""Virtual time: exact, the same on both loops, in seeded order, and always ending."""

import asyncio  # noqa: TID251 - what asyncio alone has is tested here too
import contextlib
import gc
import itertools
import logging
import re
import socket
import sys
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
import trio._core._run as trio_scheduler
import trio.testing

from sampling import _virtual_time as virtual
from sampling._virtual_time import Deadlocked, LoopName, Spinning, run_virtual

LOOPS: tuple[LoopName, ...] = ("asyncio", "trio")
SEEDS = range(500)

both_loops = pytest.mark.parametrize("loop", LOOPS)


async def trace_of_steps(tasks: int = 5, steps: int = 10) -> tuple[tuple[int, int], ...]:
    """Return the order in which tasks took their steps: what trio's own test of determinism looks at."""
    trace: list[tuple[int, int]] = []

    async def tracer(name: int) -> None:
        for step in range(steps):
            trace.append((name, step))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for name in range(tasks):
            group.start_soon(tracer, name)
    return tuple(trace)


class TestTime:
    @both_loops
    def test_an_hour_passes_at_once(self, loop: LoopName) -> None:
        """Time starts at 0 and is exactly the sum of what was slept."""

        async def sleeps() -> list[float]:
            times = [anyio.current_time()]
            for delay_s in (3600, 0.25, 0.5):
                await anyio.sleep(delay_s)
                times.append(anyio.current_time())
            return times

        assert run_virtual(sleeps, loop=loop) == [0.0, 3600.0, 3600.25, 3600.75]

    @both_loops
    def test_timers_fire_in_the_order_of_time(self, loop: LoopName) -> None:
        """Tasks that sleep wake at their own instants, whatever order they started in and whatever the seed."""

        async def sleepers() -> list[tuple[float, float]]:
            woken: list[tuple[float, float]] = []

            async def sleeper(delay_s: float) -> None:
                await anyio.sleep(delay_s)
                woken.append((delay_s, anyio.current_time()))

            async with anyio.create_task_group() as group:
                for delay_s in (4, 0.5, 2, 1e5):
                    group.start_soon(sleeper, delay_s)
            return woken

        expected = [(0.5, 0.5), (2, 2.0), (4, 4.0), (1e5, 1e5)]
        assert all(expected == run_virtual(sleepers, loop=loop, seed=seed) for seed in range(20))

    @both_loops
    def test_a_deadline_comes_at_its_instant(self, loop: LoopName) -> None:
        """A scope's deadline ends it at exactly that time."""

        async def times_out() -> float:
            with pytest.raises(TimeoutError), anyio.fail_after(0.75):
                await anyio.sleep_forever()
            return anyio.current_time()

        assert run_virtual(times_out, loop=loop) == 0.75

    def test_far_away_instants_are_exact_too(self) -> None:
        """A timer fires at a time whose neighbours are further apart than the resolution of the real clock."""

        async def sleeps(far_s: float) -> float:
            await anyio.sleep(far_s)
            await anyio.sleep(1)
            return anyio.current_time()

        assert run_virtual(sleeps, 1e12, horizon_s=1e13) == 1e12 + 1

    def test_what_was_cancelled_does_not_run(self, caplog: pytest.LogCaptureFixture) -> None:
        """A cancelled timer does not fire, and a cancelled callback that was ready is not called."""

        async def cancels() -> float:
            loop = asyncio.get_running_loop()
            loop.call_later(5, pytest.fail, "it was cancelled").cancel()
            loop.call_soon(pytest.fail, "it was cancelled").cancel()
            await anyio.sleep(10)
            return anyio.current_time()

        assert run_virtual(cancels) == 10.0
        assert caplog.records == []

    @both_loops
    def test_a_socket_that_is_ready_needs_no_timer(self, loop: LoopName) -> None:
        """Received data is handled before time moves."""

        async def reads() -> float:
            with anyio.move_on_after(5):
                await anyio.wait_readable(here)
            return anyio.current_time()

        here, there = socket.socketpair()
        with here, there:
            there.send(b"x")
            assert run_virtual(reads, loop=loop) == 0.0


class TestResult:
    @both_loops
    def test_arguments_go_in_and_the_result_comes_out(self, loop: LoopName) -> None:
        """Positional arguments are passed on."""

        async def add(left: int, right: int) -> int:
            return left + right

        assert run_virtual(add, 2, 3, loop=loop) == 5

    @both_loops
    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_exception_comes_out_bare(self, loop: LoopName, kind: type[BaseException]) -> None:
        """An exception of the function is raised as it is, not in a group."""
        error = kind("as it is")

        async def fails() -> None:
            await anyio.sleep(1)
            raise error

        with pytest.raises(kind) as caught:
            run_virtual(fails, loop=loop)
        assert error is caught.value

    @both_loops
    def test_the_main_task_is_called_after_the_function(self, loop: LoopName) -> None:
        """Reports name the user's function, not the harness."""

        async def scenario() -> str:
            return str(anyio.get_current_task().name)

        assert run_virtual(scenario, loop=loop).endswith("scenario")

    def test_the_loop_is_closed(self) -> None:
        """Nothing of a run is left open, also when it fails."""
        loops: list[asyncio.AbstractEventLoop] = []

        async def hangs() -> None:
            loops.append(asyncio.get_running_loop())
            await anyio.sleep_forever()

        with pytest.raises(Deadlocked):
            run_virtual(hangs)
        assert loops[0].is_closed()

    @both_loops
    def test_async_generators_are_shut_down(self, loop: LoopName) -> None:
        """The cleanup of a generator that is still suspended at the end runs in the loop."""
        closed: list[float] = []

        async def numbers():
            try:
                yield 1
            finally:
                closed.append(anyio.current_time())

        async def leaves_one_open() -> object:
            generator = numbers()
            await anext(generator)
            kept.append(generator)

        kept: list[object] = []
        run_virtual(leaves_one_open, loop=loop)
        assert closed == [0.0]

    @pytest.mark.parametrize(
        "options", [{"loop": "curio"}, {"horizon_s": 0}, {"horizon_s": float("inf")}, {"step_limit": 0}]
    )
    def test_bad_options_are_refused(self, options: dict[str, object]) -> None:
        """The message has the name of the option."""
        with pytest.raises(ValueError, match=next(iter(options))):
            run_virtual(anyio.sleep, 1, **options)

    def test_without_trio_its_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """asyncio works without trio, and the error for trio says what to install."""
        monkeypatch.setattr(virtual, "_HAS_TRIO", False)
        run_virtual(anyio.sleep, 1)
        with pytest.raises(ModuleNotFoundError, match=r"sampling\[trio\]"):
            run_virtual(anyio.sleep, 1, loop="trio")


class TestDeadlock:
    @both_loops
    def test_waiting_for_nothing_is_a_deadlock(self, loop: LoopName) -> None:
        """I18: the message says who waits, and where in the user's code."""

        async def waits_forever() -> None:
            await anyio.Event().wait()

        async def parent() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(waits_forever, name="the waiter")

        with pytest.raises(Deadlocked) as caught:
            run_virtual(parent, loop=loop)
        waiting = str(caught.value).splitlines()[1:]
        assert len(waiting) == 2  # the parent and the waiter, and nothing of the loop's own
        assert re.search(rf"the waiter: {__file__}:\d+ in .*waits_forever", str(caught.value))
        assert re.match(r"nothing to run at 0\.0 s and nothing due before 1000000\.0 s", str(caught.value))

    @both_loops
    def test_a_timer_that_was_cancelled_is_none(self, loop: LoopName) -> None:
        """Time does not move for the deadline of a scope that is left already."""

        async def hangs() -> None:
            with anyio.move_on_after(5):
                await anyio.lowlevel.checkpoint()
            await anyio.sleep_forever()

        with pytest.raises(Deadlocked, match=r"at 0\.0 s"):
            run_virtual(hangs, loop=loop)

    @both_loops
    def test_a_shield_does_not_hide_it(self, loop: LoopName) -> None:
        """A wait that no scope could cancel is cancelled as well."""
        cancelled: list[bool] = []

        async def waits_behind_a_shield() -> None:
            with anyio.CancelScope(shield=True):
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():
                    cancelled.append(True)
                    raise

        with pytest.raises(Deadlocked):
            run_virtual(waits_behind_a_shield, loop=loop)
        assert cancelled == [True]

    @both_loops
    def test_time_ends_at_the_horizon(self, loop: LoopName) -> None:
        """A run that only ever sleeps again is ended, after the last timer that was due before the horizon."""

        async def sleeps_again_and_again() -> None:
            for _ in itertools.count():
                await anyio.sleep(3)

        with pytest.raises(Deadlocked, match=r"at 9\.0 s and nothing due before 10 s"):
            run_virtual(sleeps_again_and_again, loop=loop, horizon_s=10)

    @both_loops
    @pytest.mark.parametrize("hang_s", [float("inf"), 1e9])
    def test_cleanup_still_runs(self, loop: LoopName, hang_s: float) -> None:
        """A function that hangs is cancelled, and has as much time again to clean up."""
        cleaned: list[bool] = []

        async def hangs() -> None:
            try:
                await anyio.sleep(hang_s)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(5)
                    cleaned.append(True)

        with pytest.raises(Deadlocked, match=r"at 0\.0 s"):
            run_virtual(hangs, loop=loop)
        assert cleaned == [True]

    @both_loops
    def test_cleanup_that_hangs_too_is_abandoned(self, loop: LoopName, caplog: pytest.LogCaptureFixture) -> None:
        """The run ends, and nothing of it is heard of later: no log, no warning, no unraisable."""

        async def hangs_again() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep_forever()

        async def hang_again() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(hangs_again)
                group.start_soon(hangs_again)

        with caplog.at_level(logging.WARNING), pytest.raises(Deadlocked):
            run_virtual(hang_again, loop=loop)
        gc.collect()
        assert caplog.records == []

    @both_loops
    def test_an_error_during_the_teardown_does_not_mask_it(self, loop: LoopName) -> None:
        """The verdict is what is raised, also if the function returns or fails when it is cancelled."""

        async def fails_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("in the cleanup")

        async def returns_when_cancelled() -> str:
            with contextlib.suppress(BaseException):
                await anyio.sleep_forever()
            return "fine"

        for function in (fails_when_cancelled, returns_when_cancelled):
            with pytest.raises(Deadlocked):
                run_virtual(function, loop=loop)

    def test_a_lost_task_adds_nothing_to_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """Exceptions of tasks that asyncio cancels after a failed run are not logged."""
        kept: list[object] = []

        async def fails_when_cancelled() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("in the cleanup")

        async def loses_a_task() -> None:
            kept.append(asyncio.create_task(fails_when_cancelled()))
            await anyio.sleep_forever()

        with pytest.raises(Deadlocked):
            run_virtual(loses_a_task)
        assert caplog.records == []

    @both_loops
    def test_a_deadline_that_wakes_nobody_is_none(self, loop: LoopName) -> None:
        """Passing the deadline of a shielded task is no deadlock, though nothing runs at that instant."""

        async def outlives_deadlines() -> float:
            with anyio.move_on_after(1), anyio.move_on_after(2), anyio.CancelScope(shield=True):
                await anyio.sleep(3)
            return anyio.current_time()

        assert run_virtual(outlives_deadlines, loop=loop) == 3.0

    @both_loops
    def test_waiting_until_all_others_block_is_none(self, loop: LoopName) -> None:
        """A task in `wait_all_tasks_blocked` has no timer and still goes on."""

        async def waits_for_idle() -> float:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 5)
                await (trio.testing if loop == "trio" else anyio).wait_all_tasks_blocked()
                return anyio.current_time()

        assert run_virtual(waits_for_idle, loop=loop) < 5

    @both_loops
    def test_a_thread_can_wake_the_loop(self, loop: LoopName) -> None:
        """With no timer pending, a run waits for the thread that it asked something of."""
        released = threading.Event()
        waker = threading.Timer(0.05, released.set)

        async def asks_a_thread() -> bool:
            waker.start()
            return await anyio.to_thread.run_sync(released.wait)

        assert run_virtual(asks_a_thread, loop=loop)
        waker.join()

    @both_loops
    def test_a_thread_that_never_answers_is_not_waited_for_forever(
        self, loop: LoopName, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Threads get a grace period, then it is a deadlock."""
        monkeypatch.setattr(virtual, "THREAD_GRACE_S", 0.01)
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            with pytest.raises(Deadlocked):
                run_virtual(anyio.sleep_forever, loop=loop)
        finally:
            done.set()
            thread.join()


class TestSpinning:
    @both_loops
    def test_a_busy_wait_is_found(self, loop: LoopName) -> None:
        """I18: too many steps at one instant end the run, and the message says when and where."""

        async def polls() -> None:
            await anyio.sleep(2)
            while True:
                await anyio.lowlevel.checkpoint()

        with pytest.raises(Spinning, match=rf"(?s)more than 100 steps at 2\.0 s.*{__file__}:\d+ in .*polls"):
            run_virtual(polls, loop=loop, step_limit=100)

    @both_loops
    def test_steps_are_counted_per_instant(self, loop: LoopName) -> None:
        """When time moves, counting starts again."""

        async def works_and_sleeps() -> float:
            for _ in range(10):
                for _ in range(15):
                    await anyio.lowlevel.checkpoint()
                await anyio.sleep(1)
            return anyio.current_time()

        assert run_virtual(works_and_sleeps, loop=loop, step_limit=25) == 10.0

    @both_loops
    def test_swallowed_cancellations_are_found(self, loop: LoopName, caplog: pytest.LogCaptureFixture) -> None:
        """A run whose task ignores every cancellation is abandoned, without log lines."""

        async def swallows() -> None:
            while True:
                try:
                    await anyio.lowlevel.checkpoint()
                except anyio.get_cancelled_exc_class():
                    pass

        async def cancels() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(swallows)
                group.start_soon(swallows)
                group.cancel_scope.cancel()

        with caplog.at_level(logging.WARNING), pytest.raises(Spinning, match="swallows"):
            run_virtual(cancels, loop=loop, step_limit=100)
        gc.collect()
        assert caplog.records == []

    def test_callbacks_can_spin_too(self) -> None:
        """A callback that schedules itself again takes no task step, and is found all the same."""

        async def starts_a_callback() -> None:
            loop = asyncio.get_running_loop()

            def again() -> None:
                loop.call_soon(again)

            again()
            await anyio.sleep(1)

        with pytest.raises(Spinning, match="callbacks"):
            run_virtual(starts_a_callback, step_limit=100)


class TestOrder:
    @both_loops
    def test_every_order_of_tasks_is_tried(self, loop: LoopName) -> None:
        """Seeds shuffle the tasks. Seeding trio's scheduler alone would only reverse them."""
        orders = {run_virtual(trace_of_steps, 3, 1, loop=loop, seed=seed) for seed in range(200)}
        expected = {tuple((name, 0) for name in order) for order in itertools.permutations(range(3))}
        assert expected == orders

    @both_loops
    def test_the_same_seed_gives_the_same_order(self, loop: LoopName) -> None:
        """This is trio's own test of determinism: if an upgrade changes the private names we use, it fails."""
        traces = [run_virtual(trace_of_steps, loop=loop, seed=7) for _ in range(10)]
        assert len(set(traces)) == 1
        assert traces[0] != run_virtual(trace_of_steps, loop=loop, seed=8)

    @both_loops
    def test_the_order_of_a_cancellation_repeats(self, loop: LoopName) -> None:
        """Tasks that are cancelled together are kept in a set, and their memory addresses must not matter."""

        async def cancel_many() -> tuple[int, ...]:
            ended: list[int] = []

            async def waits(name: int) -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.append(name)

            async with anyio.create_task_group() as group:
                for name in range(8):
                    group.start_soon(waits, name)
                await anyio.sleep(1)
                group.cancel_scope.cancel()
            return tuple(ended)

        ballast: list[object] = []
        orders: set[tuple[int, ...]] = set()
        for size in range(30):
            orders.add(run_virtual(cancel_many, loop=loop, seed=3))
            ballast.append([bytearray(100 * size) for _ in range(size)])  # moves the next run's tasks
        assert len(orders) == 1
        assert len({run_virtual(cancel_many, loop=loop, seed=seed) for seed in range(10)}) > 1

    def test_without_a_seed_asyncio_is_first_in_first_out(self) -> None:
        """No seed, no shuffle."""
        expected = tuple((name, step) for step in range(10) for name in range(5))
        assert expected == run_virtual(trace_of_steps)

    def test_trio_is_left_as_it_was(self) -> None:
        """The two globals of trio's scheduler are put back, also after a failure."""
        before = trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING, trio_scheduler._r
        run_virtual(trace_of_steps, loop="trio", seed=1)
        with pytest.raises(Deadlocked):
            run_virtual(anyio.sleep_forever, loop="trio", seed=1)
        assert before == (trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING, trio_scheduler._r)

    @pytest.mark.parametrize("name", ["_ALLOW_DETERMINISTIC_SCHEDULING", "_r"])
    def test_a_trio_that_cannot_be_seeded_says_so(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a private name is gone, the error names it and says what to do."""
        monkeypatch.delattr(trio_scheduler, name)
        with pytest.raises(RuntimeError, match=rf"{name}.*loop='asyncio'"):
            run_virtual(anyio.sleep, 1, loop="trio", seed=1)

    def test_callbacks_are_barriers(self) -> None:
        """Task steps change places, but not with a callback, and callbacks not with each other."""

        async def mixed() -> str:
            trace: list[str] = []
            loop = asyncio.get_running_loop()

            async def step(name: str) -> None:
                trace.append(name)

            tasks: list[asyncio.Task[None]] = []
            for name in "aBcdEF":
                if name.isupper():
                    loop.call_soon(trace.append, name)
                else:
                    tasks.append(loop.create_task(step(name)))
            await asyncio.wait(tasks)
            return "".join(trace)

        assert {"aBcdEF", "aBdcEF"} == {run_virtual(mixed, seed=seed) for seed in SEEDS}

    def test_a_scheduled_cancel_is_a_barrier(self) -> None:
        """`loop.call_soon(task.cancel)` is a callback, although its object is a task."""

        async def cancels() -> str:
            trace: list[str] = []

            async def step(name: str) -> None:
                trace.append(name)

            loop = asyncio.get_running_loop()
            victim = loop.create_task(anyio.sleep_forever())
            await anyio.lowlevel.checkpoint()
            first = loop.create_task(step("a"))
            loop.call_soon(victim.cancel)
            second = loop.create_task(step("b"))
            await asyncio.wait({first, second, victim})
            return "".join(trace)

        assert {"ab"} == {run_virtual(cancels, seed=seed) for seed in range(50)}

    def test_timers_that_tie_fire_in_any_order(self) -> None:
        """When a deadline is the instant of completion, both outcomes are seen: asyncio leaves it undefined."""

        async def tie() -> bool:
            with anyio.move_on_after(1) as scope:
                await asyncio.sleep(1)
            return scope.cancelled_caught

        assert {True, False} == {run_virtual(tie, seed=seed) for seed in range(50)}

    def test_timers_that_do_not_tie_keep_their_order(self) -> None:
        """Overdue timers with different times fire in the order of time, whatever the seed."""

        async def overdue() -> str:
            await anyio.sleep(10)
            trace: list[str] = []
            for when_s, name in ((3, "c"), (1, "a"), (2, "b")):
                asyncio.get_running_loop().call_at(when_s, trace.append, name)
            await anyio.sleep(1)
            return "".join(trace)

        assert {"abc"} == {run_virtual(overdue, seed=seed) for seed in range(50)}


class TestCorrectCodeStaysCorrect:
    """The guarantees of anyio hold under every order of tasks, so there are no false findings."""

    @staticmethod
    def holds(loop: LoopName, scenario: Callable[[], object]) -> None:
        for seed in SEEDS:
            run_virtual(scenario, loop=loop, seed=seed)

    @both_loops
    def test_memory_streams(self, loop: LoopName) -> None:
        """Items of one sender arrive in order and exactly once, and the stream ends when the last clone is closed."""

        async def scenario() -> None:
            sender, receiver = anyio.create_memory_object_stream[tuple[int, int]](2)

            async def send(name: int, clone) -> None:
                async with clone:
                    for item in range(4):
                        await clone.send((name, item))

            async with anyio.create_task_group() as group:
                for name in range(3):
                    group.start_soon(send, name, sender.clone())
                sender.close()
                async with receiver:
                    received = [item async for item in receiver]
            for name in range(3):
                assert [(name, item) for item in range(4)] == [item for item in received if item[0] == name]

        self.holds(loop, scenario)

    @both_loops
    def test_events(self, loop: LoopName) -> None:
        """No task passes an event before it is set, and every task does after."""

        async def scenario() -> None:
            event, passed = anyio.Event(), []

            async def waits(name: int) -> None:
                await event.wait()
                assert event.is_set()
                passed.append(name)

            async with anyio.create_task_group() as group:
                for name in range(4):
                    group.start_soon(waits, name)
                await anyio.sleep(0.25)
                assert passed == []
                event.set()
            assert sorted(passed) == [0, 1, 2, 3]

        self.holds(loop, scenario)

    @both_loops
    def test_task_groups(self, loop: LoopName) -> None:
        """A group ends after all of its tasks, `start` returns the reported value, and one error cancels the rest."""

        async def scenario() -> None:
            ended: list[str] = []

            async def child(*, task_status) -> None:
                task_status.started("ready")
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.append("child")

            async def fails() -> None:
                await anyio.sleep(0.25)
                ended.append("fails")
                raise ValueError

            async def parent() -> None:
                async with anyio.create_task_group() as group:
                    assert await group.start(child) == "ready"
                    group.start_soon(fails)

            with pytest.raises(ExceptionGroup) as caught:
                await parent()
            assert [ValueError] == [type(error) for error in caught.value.exceptions]
            assert ended == ["fails", "child"]

        self.holds(loop, scenario)

    @both_loops
    def test_cancel_scopes(self, loop: LoopName) -> None:
        """A scope that is cancelled catches its own cancellation, a shield holds it off, and the task goes on after."""

        async def scenario() -> None:
            shielded: list[float] = []
            scope = anyio.CancelScope()

            async def cancels() -> None:
                await anyio.sleep(0.25)
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(cancels)
                with scope:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(1)
                        shielded.append(anyio.current_time())
                    await anyio.sleep_forever()
                await anyio.sleep(0.5)
            assert scope.cancelled_caught
            assert shielded == [1.0]
            assert anyio.current_time() == 1.5

        self.holds(loop, scenario)

    @both_loops
    def test_locks(self, loop: LoopName) -> None:
        """One holder at a time, and a waiter that is cancelled does not take the lock with it."""

        async def scenario() -> None:
            lock, holders, done = anyio.Lock(), 0, 0

            async def holds_it() -> None:
                nonlocal holders, done
                async with lock:
                    holders += 1
                    assert holders == 1
                    await anyio.lowlevel.checkpoint()
                    holders -= 1
                done += 1

            async def gives_up() -> None:
                with anyio.move_on_after(0):
                    await holds_it()

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(holds_it)
                    group.start_soon(gives_up)
            assert done >= 4
            assert not lock.locked()

        self.holds(loop, scenario)


class TestOnStep:
    @both_loops
    def test_it_comes_before_every_step_but_the_first(self, loop: LoopName) -> None:
        """Three checkpoints are three steps after the first, and none of them is inside a task."""
        seen: list[int] = []
        progress = 0

        async def scenario() -> None:
            nonlocal progress
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                progress += 1

        run_virtual(scenario, loop=loop, on_step=lambda: seen.append(progress))
        assert seen == [0, 1, 2]

    @both_loops
    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
    def test_what_it_raises_ends_the_run(self, loop: LoopName, kind: type[BaseException]) -> None:
        """The function is cancelled and can clean up, and the exception is raised without a group."""
        calls: list[str] = []

        def on_step() -> None:
            calls.append("step")
            raise kind("injected")

        async def scenario() -> None:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep_forever)  # not started yet when the run ends
            finally:
                calls.append("cleanup")

        with pytest.raises(kind, match="injected"):
            run_virtual(scenario, loop=loop, seed=1, on_step=on_step)
        assert calls.count("step") == 1
        assert calls[-1] == "cleanup"


def test_no_unraisable_hook_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abandoning a run silences its remains only, not what comes after."""
    heard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    async def swallows() -> None:
        while True:
            with contextlib.suppress(trio.Cancelled):
                await anyio.lowlevel.checkpoint()

    with pytest.raises(Spinning):
        run_virtual(swallows, loop="trio", step_limit=50)
    assert heard == []
    sys.unraisablehook("still heard")
    assert heard == ["still heard"]
