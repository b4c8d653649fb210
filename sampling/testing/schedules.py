"""Run a scenario under many schedules, and cancel it at every step.

A scenario is an `async def scenario(world)` that builds the code under test, makes its assertions, and returns plain
data. It takes its latencies from the world, never from a clock or the global random numbers, so that a seed replays
it exactly.

    explore(scenario, seeds=range(2_000), must_reach=["two winners in one tick"])
    cancel_at_every_step(scenario, check=lambda world, outcome: ...)
"""

import asyncio  # noqa: TID251 - only asyncio has a native `Task.cancel`
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Literal, TypeVar, cast

import anyio
import attrs

from sampling._arguments import check_int, wrong_type
from sampling._picklable import Picklable
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
"""A coarse grid. Races hide in exact ties, and random floats never tie. All values are exact in binary."""

T = TypeVar("T")


class NeverReached(Picklable, AssertionError):
    """No run of a campaign reached a required state."""

    def __init__(self, missing: Sequence[str], exploration: "Exploration") -> None:
        names = ", ".join(map(repr, missing))
        super().__init__(f"{exploration.runs} runs never reached {names}; they reached {dict(exploration.reached)!r}")


class Nondeterministic(Picklable, AssertionError):
    """The same seed gave two different runs."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"the same seed gave\n  {first}\nand then\n  {second}\nLook for a real clock, a global random, a thread, "
            "the order of a set, or an object whose repr has its address."
        )


def _scenario_rng(world: "World") -> random.Random:
    return random.Random(f"world {world.seed}")  # noqa: S311 - a latency is no secret


@attrs.frozen
class World:
    """The seeded environment of a scenario."""

    seed: int
    loop: LoopName

    rng: random.Random = attrs.field(
        init=False, repr=False, eq=False, default=attrs.Factory(_scenario_rng, takes_self=True)
    )
    """Random numbers for the scenario. They are not the scheduler's: an extra draw does not change the task order."""
    states: set[str] = attrs.field(init=False, factory=set[str], eq=False)
    """The states that this run reached."""

    def __attrs_post_init__(self) -> None:
        check_int("seed", self.seed)
        if self.loop not in BOTH_LOOPS:
            raise ValueError(f"loop must be 'asyncio' or 'trio', got {self.loop!r}")

    def latency(self, grid_s: Sequence[float] = LATENCIES_S) -> float:
        """Draw a latency in seconds from a coarse grid."""
        return self.rng.choice(grid_s)

    def reached(self, name: str) -> None:
        """Record that this run reached a state of interest."""
        self.states.add(name)


@attrs.frozen
class Exploration:
    """The summary of a campaign without failures."""

    runs: int
    """The number of runs, without replays."""
    replays: int
    """The number of runs that were repeated and compared."""
    reached: Mapping[str, int]
    """The number of runs that reached each state."""


def explore(
    scenario: Callable[[World], Awaitable[object]],
    *,
    seeds: Iterable[int],
    loops: Sequence[LoopName] = BOTH_LOOPS,
    must_reach: Iterable[str] = (),
    replay: float = 0.0,
) -> Exploration:
    """Run the scenario with every seed on every loop.

    The first failure is raised, with a note on how to replay it. `must_reach` names states that at least one run must
    report with `world.reached`. `replay` is the share of seeds that are run twice, spread evenly and beginning with the
    first. Both runs must return values with the same `repr`.

    Raises:
        NeverReached: No run reached one of the states of `must_reach`.
        Nondeterministic: A seed did not give the same run twice.
    """
    if isinstance(must_reach, str):
        raise wrong_type("must_reach", must_reach, "an iterable of names")
    must_reach, runs, replays = tuple(must_reach), 0, 0
    reached: Counter[str] = Counter()
    for seed, twice in _with_replays(seeds, replay):
        for loop in loops:
            with _add_note(f"replay with seed={seed!r}, loop={loop!r}"):
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
    """Yield each seed, and whether to run it twice."""
    if not 0 <= share <= 1:
        raise ValueError(f"replay is a share from 0 to 1, not {share!r}")
    due = 1.0 if share else 0.0
    for seed in seeds:
        yield seed, due >= 1
        due += share - (due >= 1)


def _run_seed(scenario: Callable[[World], Awaitable[object]], seed: int, loop: LoopName, *, twice: bool) -> set[str]:
    """Run one seed and return the states that it reached."""
    world = World(seed, loop)
    first = run_virtual(scenario, world, loop=loop, seed=seed)
    if twice:
        second = run_virtual(scenario, World(seed, loop), loop=loop, seed=seed)
        if repr(first) != repr(second):
            raise Nondeterministic(repr(first), repr(second))
    return world.states


@contextmanager
def _add_note(note: str) -> Generator[None]:
    """Add a note to any exception that is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


@attrs.frozen
class Outcome(Generic[T]):
    """The outcome of one run of `cancel_at_every_step`."""

    kind: Literal["returned", "cancelled", "raised"]
    loop: LoopName
    step: int | None
    """The step before which it was cancelled. 0 is its start, `None` means: not cancelled."""
    value: T | None = None
    """The return value."""
    error: Exception | None = None
    """The exception."""
    left_running: tuple[str, ...] = ()
    """Names of tasks that outlived the scenario."""


def cancel_at_every_step(
    scenario: Callable[[World], Awaitable[T]],
    *,
    check: Callable[[World, Outcome[T]], object] | None = None,
    loops: Sequence[LoopName] | None = None,
    seed: int = 0,
    native: bool = False,
    times: int = 1,
) -> tuple[Outcome[T], ...]:
    """Run the scenario once for each step, cancelled before that step.

    A first run, not cancelled, counts the steps. The others are cancelled with a cancel scope around the scenario. With
    `native`, on asyncio, its task is cancelled with `Task.cancel` instead. Frameworks without anyio do that: it is
    edge-triggered, and no shield stops it. `times` repeats it, each time one step later.

    `check` is called after every run and should raise if an invariant does not hold. Its failures, and those of a run
    that hangs, have a note with the step, the seed and the loop.

    Raises:
        Nondeterministic: A run ended before its step, so the steps do not repeat.
    """
    if times < 1 or (times > 1 and not native):
        raise ValueError(f"times={times!r}: at least 1, and more only with native=True, as a scope cancels once")
    if native and loops is not None and set(loops) != {"asyncio"}:
        raise ValueError(f"native=True cancels a task of asyncio, so loops can't be {loops!r}")
    outcomes: list[Outcome[T]] = []
    for loop in loops or (("asyncio",) if native else BOTH_LOOPS):
        uncancelled = _CancelledRun(scenario, World(seed, loop), native=native)
        outcomes.append(uncancelled.run(check))
        for step in range(uncancelled.steps + 1):
            run = _CancelledRun(scenario, World(seed, loop), native=native, cancel_before=range(step, step + times))
            outcomes.append(run.run(check))
            if run.steps < step:
                raise Nondeterministic(f"{uncancelled.steps} task steps", f"{run.steps}, with nothing cancelled yet")
    return tuple(outcomes)


class _CancelledRun(Generic[T]):
    """A run of a scenario that is cancelled before some steps."""

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
        """Run the scenario, check its outcome and return it."""
        world, step = self._world, self._outcome.step
        fate = "not cancelled" if step is None else f"cancelled before step {step}"
        with _add_note(f"{fate}, with seed={world.seed!r}, loop={world.loop!r}"):
            self._run()
            if check is not None:
                check(world, self._outcome)
        return self._outcome

    def _run(self) -> None:
        world = self._world
        try:
            # A native cancellation can come after the last await: it is raised although the scenario has returned.
            with suppress(asyncio.CancelledError):
                run_virtual(self._call, loop=world.loop, seed=world.seed, on_step=self._on_step)
        except (Deadlocked, Spinning):
            raise
        except Exception as error:  # noqa: BLE001 - an outcome, which `check` judges
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
