"""Search the schedules of a scenario: many seeds, both event loops, a cancellation at every step.

A scenario is an `async def scenario(world)` that builds what it tests, asserts what must hold, and returns plain data.
It takes its latencies from the world, never from a clock or a global random: then its seed replays it exactly.

    explore(scenario, seeds=range(2_000), must_reach=["two winners in one tick"])
    cancel_at_every_step(scenario, check=lambda world, outcome: ...)
"""

import asyncio  # noqa: TID251 - a native `Task.cancel` is something that only asyncio has
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Literal, TypeVar, cast

import anyio
import attrs

from sampling._arguments import check_int, wrong_type
from sampling._virtual_time import Deadlocked, LoopName, Spinning, run_virtual

__all__ = [
    "BOTH_LOOPS",
    "LATENCIES_S",
    "Exploration",
    "NeverReached",
    "Nondeterministic",
    "Outcome",
    "World",
    "cancel_at_every_step",
    "explore",
]

BOTH_LOOPS: tuple[LoopName, ...] = ("asyncio", "trio")

LATENCIES_S = (0.0, 0.25, 0.5, 1.0)
"""A coarse grid, since races hide in exact ties and random floats never tie. All are exact in binary."""

T = TypeVar("T")


class NeverReached(AssertionError):
    """A campaign passed, but never saw what it was made to see: its success proves nothing."""

    def __init__(self, missing: Sequence[str], exploration: "Exploration") -> None:
        names = ", ".join(map(repr, missing))
        super().__init__(f"{exploration.runs} runs never reached {names}; they reached {dict(exploration.reached)!r}")


class Nondeterministic(AssertionError):
    """The same seed gave two different runs: something in the scenario is not controlled by it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"the same seed gave\n  {first}\nand then\n  {second}\nLook for a real clock, a global random, a thread, "
            "the order of a set, or an object whose repr has its address."
        )


def _own_stream(world: "World") -> random.Random:
    return random.Random(f"world {world.seed}")  # noqa: S311 - a latency is no secret


@attrs.frozen
class World:
    """What a scenario may know of the world it runs in: everything in it comes from the seed."""

    seed: int
    loop: LoopName

    rng: random.Random = attrs.field(
        init=False, repr=False, eq=False, default=attrs.Factory(_own_stream, takes_self=True)
    )
    """The world's own random numbers, apart from the scheduler's: a draw more does not change the order of tasks."""
    states: set[str] = attrs.field(init=False, factory=set[str], eq=False)
    """The names that `reached` was called with."""

    def __attrs_post_init__(self) -> None:
        check_int("seed", self.seed)
        if self.loop not in BOTH_LOOPS:
            raise ValueError(f"loop must be 'asyncio' or 'trio', got {self.loop!r}")

    def latency(self, grid_s: Sequence[float] = LATENCIES_S) -> float:
        """Draw a latency in seconds from a coarse grid."""
        return self.rng.choice(grid_s)

    def reached(self, name: str) -> None:
        """Say that this run got into a state that is worth having been in."""
        self.states.add(name)


@attrs.frozen
class Exploration:
    """What a campaign did, if nothing failed."""

    runs: int
    """Schedules that were run, replays not counted."""
    replays: int
    """Schedules that were run a second time and compared."""
    reached: Mapping[str, int]
    """For every name that a scenario said it `reached`: in how many runs."""


def explore(
    scenario: Callable[[World], Awaitable[object]],
    *,
    seeds: Iterable[int],
    loops: Sequence[LoopName] = BOTH_LOOPS,
    must_reach: Iterable[str] = (),
    replay: float = 0.0,
) -> Exploration:
    """Run the scenario with every seed on every loop, and raise the first failure with a note on how to replay it.

    `must_reach` names states that at least one run has to call `world.reached` with. `replay` is the share of seeds
    that are run twice, spread evenly and beginning with the first; what the scenario returns must have the same `repr`.

    Raises:
        NeverReached: no run got into one of the states of `must_reach`.
        Nondeterministic: a seed did not give the same run twice.
    """
    if isinstance(must_reach, str):
        raise wrong_type("must_reach", must_reach, "an iterable of names")
    must_reach, runs, replays = tuple(must_reach), 0, 0
    reached: Counter[str] = Counter()
    for seed, twice in _with_replays(seeds, replay):
        for loop in loops:
            with _noted(f"replay with seed={seed!r}, loop={loop!r}"):
                reached.update(_run_seed(scenario, seed, loop, twice=twice))
            runs += 1
            replays += twice
    if not runs:
        raise ValueError("seeds and loops must not be empty: a campaign without a run proves nothing")
    exploration = Exploration(runs, replays, dict(reached))
    missing = [name for name in must_reach if name not in reached]
    if missing:
        raise NeverReached(missing, exploration)
    return exploration


def _with_replays(seeds: Iterable[int], share: float) -> Iterator[tuple[int, bool]]:
    """Go through the seeds and say which to run twice."""
    if not 0 <= share <= 1:
        raise ValueError(f"replay is a share from 0 to 1, not {share!r}")
    owed = 1.0 if share else 0.0
    for seed in seeds:
        yield seed, owed >= 1
        owed += share - (owed >= 1)


def _run_seed(scenario: Callable[[World], Awaitable[object]], seed: int, loop: LoopName, *, twice: bool) -> set[str]:
    """Run one schedule, or run it and compare it with itself, and return the states it reached."""
    world = World(seed, loop)
    first = run_virtual(scenario, world, loop=loop, seed=seed)
    if twice:
        second = run_virtual(scenario, World(seed, loop), loop=loop, seed=seed)
        if repr(first) != repr(second):
            raise Nondeterministic(repr(first), repr(second))
    return world.states


@contextmanager
def _noted(note: str) -> Generator[None]:
    """Add a note to whatever is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


@attrs.frozen
class Outcome(Generic[T]):
    """How one run of a cancelled scenario ended."""

    kind: Literal["returned", "cancelled", "raised"]
    loop: LoopName
    step: int | None
    """The step before which it was cancelled, 0 being its start; `None` for the run that was left alone."""
    value: T | None = None
    """What it returned."""
    error: Exception | None = None
    """What it raised."""
    left_running: tuple[str, ...] = ()
    """Names of tasks that the scenario started and that outlived it."""


def cancel_at_every_step(
    scenario: Callable[[World], Awaitable[T]],
    *,
    check: Callable[[World, Outcome[T]], object] | None = None,
    loops: Sequence[LoopName] | None = None,
    seed: int = 0,
    native: bool = False,
    times: int = 1,
) -> tuple[Outcome[T], ...]:
    """Run the scenario once to count its task steps, then once for each, with the caller's cancellation just before it.

    The caller's scope around the scenario is cancelled. With `native`, on asyncio, its task is cancelled with
    `Task.cancel` instead: the edge-triggered kind that frameworks without anyio send and that no shield stops; `times`
    sends it again, one step later each.

    `check` sees every run as soon as it has ended, the uncancelled one first, and should raise if an invariant does not
    hold. Its failures, like those of a run that hangs, carry a note with the step, the seed and the loop.

    Raises:
        Nondeterministic: a run ended before the step that the first run reached, so its steps don't repeat.
    """
    if times < 1 or (times > 1 and not native):
        raise ValueError(f"times={times!r}: at least 1, and more only with native=True, as a scope cancels once")
    if native and loops is not None and set(loops) != {"asyncio"}:
        raise ValueError(f"native=True cancels a task of asyncio, so loops can't be {loops!r}")
    outcomes: list[Outcome[T]] = []
    for loop in loops or (("asyncio",) if native else BOTH_LOOPS):
        alone = _Caller(scenario, World(seed, loop), native=native)
        outcomes.append(alone.run(check))
        for step in range(alone.steps + 1):
            caller = _Caller(scenario, World(seed, loop), native=native, cancel_before=range(step, step + times))
            outcomes.append(caller.run(check))
            if caller.steps < step:
                raise Nondeterministic(f"{alone.steps} task steps", f"{caller.steps}, with nothing cancelled yet")
    return tuple(outcomes)


class _Caller(Generic[T]):
    """The one who awaits the scenario, counts its steps, and is cancelled before some of them."""

    def __init__(
        self,
        scenario: Callable[[World], Awaitable[T]],
        world: World,
        *,
        native: bool,
        cancel_before: range = range(0),
    ) -> None:
        self.steps = 0
        self._scenario = scenario
        self._world = world
        self._native = native
        self._cancel_before = cancel_before
        self._outcome: Outcome[T] = Outcome("cancelled", world.loop, cancel_before[0] if cancel_before else None)
        self._cancel: Callable[[], object] | None = None

    def run(self, check: Callable[[World, Outcome[T]], object] | None) -> Outcome[T]:
        """Run the scenario to whatever end it comes to, and have it checked."""
        world, step = self._world, self._outcome.step
        fate = "not cancelled" if step is None else f"cancelled before step {step}"
        with _noted(f"{fate}, with seed={world.seed!r}, loop={world.loop!r}"):
            self._run()
            if check is not None:
                check(world, self._outcome)
        return self._outcome

    def _run(self) -> None:
        world = self._world
        try:
            # A native cancellation may come after the scenario's last await: it has returned, and still this is raised.
            with suppress(asyncio.CancelledError):
                run_virtual(self._call, loop=world.loop, seed=world.seed, on_step=self._on_step)
        except (Deadlocked, Spinning):
            raise
        except Exception as error:  # noqa: BLE001 - any other is an outcome, and the check's to judge
            self._outcome = attrs.evolve(self._outcome, kind="raised", error=error)

    def _on_step(self) -> None:
        if self._cancel is not None:
            self.steps += 1
            if self.steps in self._cancel_before:
                self._cancel()

    async def _call(self) -> None:
        before = {task.id for task in anyio.get_running_tasks()}
        try:
            with anyio.CancelScope() as scope:
                value = await self._await_scenario(scope)
                self._outcome = attrs.evolve(self._outcome, kind="returned", value=value)
        finally:
            left = sorted(str(task.name) for task in anyio.get_running_tasks() if task.id not in before)
            self._outcome = attrs.evolve(self._outcome, left_running=tuple(left))

    async def _await_scenario(self, scope: anyio.CancelScope) -> T:
        self._cancel = cast("asyncio.Task[object]", asyncio.current_task()).cancel if self._native else scope.cancel
        if 0 in self._cancel_before:
            self._cancel()
        return await self._scenario(self._world)
