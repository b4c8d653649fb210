"""Seeds find planted races, and a scenario is cancelled at every step."""

import asyncio  # noqa: TID251 - native cancellation is asyncio's
import itertools

import anyio
import anyio.lowlevel
import pytest

from sampling import _virtual_time as virtual
from sampling._virtual_time import Deadlocked, LoopName
from sampling.testing.schedules import (
    LATENCIES_S,
    Exploration,
    NeverReached,
    Nondeterministic,
    Outcome,
    World,
    cancel_at_every_step,
    explore,
)

LOOPS: tuple[LoopName, ...] = ("asyncio", "trio")

each_loop = pytest.mark.parametrize("loop", LOOPS)


async def race(world: World, *, hook_awaits: bool) -> int:
    """Let four lanes race for one win, and return how many won.

    With `hook_awaits` it has the bug that FAULTS.md calls `double`: check-then-act on the winner across an await.
    """
    winners: list[int] = []

    async def lane(name: int) -> None:
        await anyio.sleep(world.latency())
        if not winners:
            if hook_awaits:
                await anyio.lowlevel.checkpoint()
            winners.append(name)
        else:
            world.reached("a second finisher")

    async with anyio.create_task_group() as group:
        for name in range(4):
            group.start_soon(lane, name)
    assert len(winners) == 1
    return winners[0]


async def correct(world: World) -> int:
    """Race without the bug."""
    return await race(world, hook_awaits=False)


async def double(world: World) -> int:
    """Race with the bug."""
    return await race(world, hook_awaits=True)


async def lost_slice(world: World) -> None:
    """Lose a paid-for slice, because an awaited send on a full stream is cancelled with its scope."""
    sender, receiver = anyio.create_memory_object_stream[int](0)
    made: list[int] = []
    kept: list[int] = []

    async def lane(name: int) -> None:
        await anyio.sleep(world.latency())
        made.append(name)
        await sender.send(name)

    with sender, receiver:
        async with anyio.create_task_group() as group:
            for name in range(4):
                group.start_soon(lane, name)
            kept.append(await receiver.receive())
            group.cancel_scope.cancel()
    assert made == kept


async def three_steps(world: World) -> list[int]:
    """Do three things with a checkpoint before each, and record them in the world."""
    done: list[int] = []
    for item in range(3):
        await anyio.lowlevel.checkpoint()
        world.reached(f"step {item}")
        done.append(item)
    return done


class TestWorld:
    def test_it_is_a_function_of_its_seed(self) -> None:
        """The draws depend on the seed, and not on the loop."""
        worlds = World(1, "asyncio"), World(1, "trio"), World(2, "asyncio")
        first, same, other = ([world.rng.random() for _ in range(5)] for world in worlds)
        assert first == same
        assert first != other

    def test_latencies_tie(self) -> None:
        """All values of the grid are drawn, or those of another grid."""
        world = World(0, "asyncio")
        assert {world.latency() for _ in range(100)} == set(LATENCIES_S)
        assert {world.latency((7.0, 8.0)) for _ in range(100)} == {7.0, 8.0}

    @each_loop
    def test_its_random_numbers_are_not_the_schedulers(self, loop: LoopName) -> None:
        """Drawing more from the world does not change the order of tasks."""

        def order(draws: int) -> list[int]:
            trace: list[int] = []

            async def scenario(world: World) -> None:
                async def step(name: int) -> None:
                    trace.append(name)

                async with anyio.create_task_group() as group:
                    for name in range(6):
                        for _ in range(draws):
                            world.latency()
                        group.start_soon(step, name)

            explore(scenario, seeds=[5], loops=[loop])
            return trace

        assert order(0) == order(3)
        assert World(5, loop).rng.random() != virtual._scheduler_rng(5).random()


class TestExplore:
    def test_every_seed_runs_on_every_loop(self) -> None:
        """The record has the number of runs, and of those that reached each state."""
        ran: list[tuple[int, str]] = []

        async def scenario(world: World) -> None:
            ran.append((world.seed, world.loop))
            if world.seed:
                world.reached("not the first")
                world.reached("not the first")

        record = explore(scenario, seeds=[0, 1, 2])
        assert ran == [(seed, loop) for seed in (0, 1, 2) for loop in LOOPS]
        assert record == Exploration(runs=6, replays=0, reached={"not the first": 4})

    @each_loop
    @pytest.mark.parametrize("mutant", [double, lost_slice])
    def test_planted_races_are_found(self, loop: LoopName, mutant) -> None:
        """S9: fifty seeds are enough to find each."""
        with pytest.raises(AssertionError):
            explore(mutant, seeds=range(50), loops=[loop])

    def test_correct_code_is_not_reported(self) -> None:
        """Without the bug, all seeds pass."""
        explore(correct, seeds=range(500), must_reach=["a second finisher"])

    @each_loop
    def test_a_failure_says_how_to_replay_it(self, loop: LoopName) -> None:
        """The note has the seed and the loop, and that seed alone fails again, on the same line."""
        failures = []
        seeds: list[int] = list(range(50))
        for _ in range(2):
            with pytest.raises(AssertionError) as caught:
                explore(double, seeds=seeds, loops=[loop])
            failures.append(caught.value)
            seeds = [seed for seed in seeds if f"seed={seed}, loop={loop!r}" in caught.value.__notes__[0]]
            assert len(seeds) == 1
        assert str(failures[0]) == str(failures[1])
        assert failures[0].__notes__ == failures[1].__notes__

    def test_a_state_that_must_be_reached(self) -> None:
        """I19: a campaign that misses a required state fails, and names the state."""

        async def scenario(world: World) -> None:
            world.reached("here")

        explore(scenario, seeds=[1], must_reach=["here"])
        with pytest.raises(NeverReached, match=r"2 runs never reached 'there'; they reached \{'here': 2\}"):
            explore(scenario, seeds=[1], must_reach=["here", "there"])

    def test_nondeterminism_is_found(self) -> None:
        """A value that does not depend on the seed differs in the replay."""
        calls = itertools.count()

        async def scenario(world: World) -> int:
            return next(calls)

        explore(scenario, seeds=[1, 2])
        with pytest.raises(Nondeterministic, match=r"(?s)  4\n.*  5\n") as caught:
            explore(scenario, seeds=[1, 2], replay=0.01)
        assert "seed=1, loop='asyncio'" in caught.value.__notes__[0]

    @pytest.mark.parametrize(("share", "replays"), [(0.0, 0), (0.01, 1), (0.25, 5), (1.0, 20)])
    def test_a_share_of_the_seeds_is_replayed(self, share: float, replays: int) -> None:
        """At least one seed is replayed if any, and they are spread evenly."""
        assert explore(correct, seeds=range(20), loops=["trio"], replay=share) == Exploration(
            runs=20, replays=replays, reached={"a second finisher": 20}
        )

    def test_what_is_deterministic_replays(self) -> None:
        """Every seed gives the same winner twice, on both loops."""
        assert explore(correct, seeds=range(100), replay=1.0).replays == 200

    def test_a_share_is_from_0_to_1(self) -> None:
        """The argument is a share, not a number of seeds."""
        with pytest.raises(ValueError, match="replay is a share"):
            explore(correct, seeds=[1], replay=2)


class TestCancelAtEveryStep:
    @each_loop
    def test_each_step_is_reached(self, loop: LoopName) -> None:
        """The run is cancelled before its start and before each step, so each run gets one step further."""
        progress: list[int] = []

        def check(world: World, outcome: Outcome[list[int]]) -> None:
            progress.append(len(world.states))

        outcomes = cancel_at_every_step(three_steps, check=check, loops=[loop])
        assert [outcome.step for outcome in outcomes] == [None, 0, 1, 2, 3]
        assert [outcome.kind for outcome in outcomes] == ["returned"] + ["cancelled"] * 4
        assert progress == [3, 0, 0, 1, 2]
        assert outcomes[0].value == [0, 1, 2]

    def test_both_loops_are_the_default(self) -> None:
        """Outcomes of asyncio come first, then those of trio."""
        outcomes = cancel_at_every_step(three_steps)
        assert [outcome.loop for outcome in outcomes] == ["asyncio"] * 5 + ["trio"] * 5

    @each_loop
    def test_steps_of_other_tasks_count(self, loop: LoopName) -> None:
        """Steps of all tasks count, also after sleeps, and every run has an outcome."""

        async def scenario(world: World) -> tuple[int, ...]:
            order: list[int] = []

            async def sleeps(name: int) -> None:
                await anyio.sleep(world.latency((0.5, 1.0)))
                order.append(name)

            async with anyio.create_task_group() as group:
                for name in range(3):
                    group.start_soon(sleeps, name)
            return tuple(order)

        outcomes = cancel_at_every_step(scenario, loops=[loop], seed=4)
        assert len(outcomes) >= 1 + 1 + 6
        assert outcomes == cancel_at_every_step(scenario, loops=[loop], seed=4)
        assert {outcome.kind for outcome in outcomes[1:-1]} == {"cancelled"}
        tied = [cancel_at_every_step(scenario, loops=[loop], seed=seed)[0].value for seed in range(20)]
        assert len(set(tied)) > 3
        assert tied == [cancel_at_every_step(scenario, loops=[loop], seed=seed)[0].value for seed in range(20)]

    @each_loop
    def test_swallowing_is_seen(self, loop: LoopName) -> None:
        """A scenario that swallows its cancellation has the outcome `returned`."""

        async def swallows(world: World) -> str:
            try:
                await anyio.sleep(1)
            except anyio.get_cancelled_exc_class():
                return "swallowed"
            return "slept"

        outcomes = cancel_at_every_step(swallows, loops=[loop])
        assert ("returned", "swallowed") in {(outcome.kind, outcome.value) for outcome in outcomes}

    @each_loop
    def test_an_error_is_an_outcome(self, loop: LoopName) -> None:
        """The check gets the exception of the scenario, also from a group with cancellations."""

        async def child() -> None:
            try:
                await anyio.sleep(1)
            finally:
                raise ValueError("in the cleanup")

        async def scenario(world: World) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.start_soon(anyio.sleep, 2)

        outcomes = cancel_at_every_step(scenario, loops=[loop])
        assert outcomes[0].kind == "raised"
        assert outcomes[-1].kind == "raised"
        assert isinstance(outcomes[-1].error, ExceptionGroup)
        assert outcomes[-1].error.subgroup(ValueError) is not None

    @each_loop
    def test_a_failed_check_says_where(self, loop: LoopName) -> None:
        """The note has the step, the seed and the loop."""

        def check(world: World, outcome: Outcome[list[int]]) -> None:
            assert outcome.step != 2

        with pytest.raises(AssertionError) as caught:
            cancel_at_every_step(three_steps, check=check, loops=[loop], seed=9)
        assert caught.value.__notes__ == [f"cancelled before step 2, with seed=9, loop={loop!r}"]
        with pytest.raises(ZeroDivisionError) as caught_first:
            cancel_at_every_step(three_steps, check=lambda *_: 1 / 0, loops=[loop])
        assert caught_first.value.__notes__ == [f"not cancelled, with seed=0, loop={loop!r}"]

    @each_loop
    def test_a_run_that_hangs_says_where(self, loop: LoopName) -> None:
        """A cleanup that waits forever raises, and is not an outcome."""

        async def hangs_when_cancelled(world: World) -> None:
            try:
                await anyio.sleep(1)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await anyio.sleep_forever()

        with pytest.raises(Deadlocked) as caught:
            cancel_at_every_step(hangs_when_cancelled, loops=[loop])
        assert "cancelled before step 0" in caught.value.__notes__[0]

    def test_a_scenario_whose_steps_vary_is_refused(self) -> None:
        """A run that ends before its step was never cancelled, so it must not pass."""
        calls = itertools.count()

        async def scenario(world: World) -> None:
            for _ in range(5 if next(calls) == 0 else 1):
                await anyio.lowlevel.checkpoint()

        with pytest.raises(Nondeterministic, match="5 task steps"):
            cancel_at_every_step(scenario, loops=["asyncio"])

    def test_tasks_that_outlive_the_scenario_are_named(self) -> None:
        """I6: a task that outlives the scenario is in every outcome."""
        kept: list[object] = []

        async def leaks(world: World) -> None:
            kept.append(asyncio.create_task(asyncio.sleep(100), name="the leak"))
            await anyio.lowlevel.checkpoint()

        outcomes = cancel_at_every_step(leaks, loops=["asyncio"])
        assert {outcome.kind for outcome in outcomes} == {"returned", "cancelled"}
        assert {outcome.left_running for outcome in outcomes} == {("the leak",)}
        assert {outcome.left_running for outcome in cancel_at_every_step(three_steps)} == {()}


class TestNativeCancel:
    def test_it_is_the_tasks_own(self) -> None:
        """A native cancellation ignores shields, unlike that of a scope."""

        async def shielded(world: World) -> str:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            return "unharmed"

        scoped = cancel_at_every_step(shielded, loops=["asyncio"])
        assert {outcome.value for outcome in scoped} == {"unharmed"}
        native = cancel_at_every_step(shielded, native=True)
        assert {outcome.loop for outcome in native} == {"asyncio"}
        assert [outcome.kind for outcome in native] == ["returned", "cancelled", "cancelled"]

    def test_a_cancel_that_comes_too_late_does_not_hide_the_result(self) -> None:
        """A scenario without a further await has returned, although its task ends as cancelled."""

        async def awaits_nothing(world: World) -> str:
            return "done"

        outcomes = cancel_at_every_step(awaits_nothing, native=True)
        assert [(outcome.kind, outcome.value) for outcome in outcomes] == [("returned", "done")] * 2

    def test_twice_cuts_the_cleanup(self) -> None:
        """Row 36: the second one comes a step later and ends a shielded cleanup."""

        async def cleans_up(world: World) -> None:
            try:
                await anyio.sleep(1)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
                    world.reached("clean")

        def cleaned(times: int) -> list[bool]:
            seen: list[bool] = []
            outcomes = cancel_at_every_step(
                cleans_up, native=True, times=times, check=lambda world, _: seen.append("clean" in world.states)
            )
            assert all(not outcome.left_running for outcome in outcomes)
            return seen

        assert cleaned(1) == [True, True, True, False]
        assert cleaned(2) == [True, True, False, False]  # before step 1 the first is still on its way: the two are one

    @pytest.mark.parametrize("options", [{"times": 0}, {"times": 2}, {"native": True, "loops": ["trio"]}])
    def test_options_that_make_no_sense_are_refused(self, options: dict[str, object]) -> None:
        """A scope is cancelled once, and only asyncio cancels a task."""
        with pytest.raises(ValueError, match=r"times|native"):
            cancel_at_every_step(three_steps, **options)
