"""A concurrent fan-out gives the sequential result in every seeded schedule."""

import asyncio  # noqa: TID251 - only its tasks can be cancelled natively
import itertools
import threading
from functools import partial

import anyio
import pytest

from sampling import BaseSamplingStrategy, Journal, Requirement, TransientError, fan_out, open_fan_out
from sampling.testing import After, ScriptedBackend, cancel_at_every_step, explore, run_virtual
from tests.faults.journals import InlineJournal, answering, numbers

SEEDS = {"concurrent_equals_sequential": 2_000, "a_stream_equals_the_prefix": 500}
YES = Requirement("says yes", lambda text: text == "yes")


class Told:
    """Seeded items of which some fail and some raise, with seeded latencies."""

    def __init__(self, world, count):
        rng = world.rng
        self.fates = [rng.choices(["yes", "no", "raise"], [8, 1, 1])[0] for _ in range(count)]
        self.latencies = [[world.latency() for _ in range(rng.randint(1, 3))] for _ in range(count)]
        self.on_failure = rng.choice(["continue", "halt"])
        self.on_error = rng.choice(["raise", "halt", "continue"])
        self.at_once = rng.choice([2, 3, 5, 64])
        self.source_raises = rng.random() < 0.1
        self.in_flight = 0
        self.most_in_flight = 0

    async def backend(self, request):
        number = int(request.messages[-1].content)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            for latency in self.latencies[number]:
                await anyio.sleep(latency)
        finally:
            self.in_flight -= 1
        if self.fates[number] == "raise":
            raise TransientError(f"item {number}")
        return self.fates[number]

    def items(self):
        for number in range(len(self.fates)):
            yield str(number)
        if self.source_raises:
            raise LookupError("the source broke")

    def arguments(self):
        return {"on_failure": self.on_failure, "on_error": self.on_error}

    def sequentially(self):
        """Return the result of a sequential run, computed without the library."""
        outcomes = []
        for number, fate in enumerate(self.fates):
            if fate == "raise" and self.on_error == "raise":
                return "raised", None, f"item {number}", outcomes
            outcomes.append((number, {"yes": "succeeded", "no": "failed", "raise": "errored"}[fate]))
            halts = (fate == "raise" and self.on_error == "halt") or (fate == "no" and self.on_failure == "halt")
            if halts:
                return "halted", number, None, outcomes
        if self.source_raises:
            return "raised", None, "the source broke", outcomes
        return "completed", None, None, outcomes


def reach(world, told):
    world.reached(told.sequentially()[0])
    ends = [n for n, fate in enumerate(told.fates) if fate != "yes"]
    if len(ends) > 1 and told.latencies[ends[1]] < told.latencies[ends[0]]:
        world.reached("a later end came first")


async def concurrent_equals_sequential(world):
    """F1, F2, F5, F6, F7: status, prefix, halted_by and error do not depend on the order of completion."""
    told = Told(world, world.rng.randint(0, 12))
    reach(world, told)
    status, halted_by, error, outcomes = told.sequentially()
    try:
        result = await fan_out(
            BaseSamplingStrategy(),
            told.items(),
            None,
            told.backend,
            [YES],
            max_concurrency=told.at_once,
            **told.arguments(),
        )
    except (TransientError, LookupError) as raised:
        assert (status, error) == ("raised", str(raised))  # noqa: PT017 - whether it raises is part of the outcome
    else:
        assert (status, halted_by) == (result.status, result.halted_by)
        assert outcomes == [(one.index, one.status) for one in result.outcomes]
    assert 0 == told.in_flight
    assert told.most_in_flight <= told.at_once
    return status, halted_by, error


async def a_stream_equals_the_prefix(world):
    """F2, F5, F12: in order, with a small buffer and a slow reader."""
    told = Told(world, world.rng.randint(0, 12))
    reach(world, told)
    status, halted_by, error, outcomes = told.sequentially()
    taken = []
    try:
        async with open_fan_out(
            BaseSamplingStrategy(),
            told.items(),
            None,
            told.backend,
            [YES],
            max_concurrency=told.at_once,
            max_buffered=world.rng.choice([0, 1, 3, 100]),
            **told.arguments(),
        ) as run:
            async for outcome in run:
                taken.append((outcome.index, outcome.status))
                if world.rng.random() < 0.3:
                    await anyio.sleep(world.latency())
    except (TransientError, LookupError) as raised:
        assert (status, error, "failed") == ("raised", str(raised), run.status)  # noqa: PT017
    else:
        assert (status, halted_by) == (run.status, run.halted_by)
    assert outcomes == taken
    assert 0 == told.in_flight
    return status, taken


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "scenario", [concurrent_equals_sequential, a_stream_equals_the_prefix], ids=lambda s: s.__name__
)
def test_every_schedule_gives_what_one_after_another_gives(scenario, loop):
    """F1, F5: 2,000 random schedules with halts and exceptions, on each loop."""
    seeds = SEEDS[scenario.__name__]
    reach = ["completed", "halted", "raised", "a later end came first"]
    exploration = explore(scenario, seeds=range(seeds), loops=[loop], must_reach=reach, replay=0.01)
    assert seeds == exploration.runs


def test_a_cancellation_at_any_step_leaves_nothing_behind():
    """Row 35: the caller's scope is cancelled before each step of a run, and nothing outlives it."""
    seen = {}

    async def scenario(world):
        told = seen["told"] = Told(world, 6)
        told.on_error = "continue"
        told.at_once = 3
        return await fan_out(
            BaseSamplingStrategy(), told.items(), None, told.backend, [YES], max_concurrency=3, on_error="continue"
        )

    def check(world, outcome):
        assert not outcome.left_running
        assert 0 == seen["told"].in_flight
        assert outcome.kind in {"returned", "cancelled", "raised"}
        if outcome.kind == "raised":
            assert isinstance(outcome.error, LookupError)

    outcomes = cancel_at_every_step(scenario, check=check, seed=3)
    assert {"returned", "cancelled"} <= {outcome.kind for outcome in outcomes}


@pytest.mark.parametrize("times", [1, 2])
def test_a_native_cancellation_at_any_step(times):
    """Row 36: the cancellation propagates, and no task is left."""
    seen = {}

    async def scenario(world):
        told = seen["told"] = Told(world, 5)
        told.source_raises = False
        return await fan_out(
            BaseSamplingStrategy(), told.items(), None, told.backend, [YES], max_concurrency=3, on_error="continue"
        )

    def check(world, outcome):
        assert not outcome.left_running
        assert 0 == seen["told"].in_flight

    outcomes = cancel_at_every_step(scenario, check=check, native=True, times=times)
    assert "cancelled" in {outcome.kind for outcome in outcomes}


@pytest.mark.parametrize("times", [1, 2])
def test_a_native_cancellation_leaves_no_lock_on_the_journal(tmp_path, times):
    """Row 36: `Task.cancel` at any step closes the journal, and the next run samples the rest."""
    paths = (tmp_path / f"{number}.db" for number in itertools.count())
    strategy, seen = BaseSamplingStrategy(), {}

    async def scenario(world):
        journal = seen["journal"] = InlineJournal(next(paths))
        backend = ScriptedBackend(lambda _: After(1.0, "yes"))
        return await fan_out(strategy, numbers(3), None, backend, journal=journal, max_concurrency=2)

    def check(world, outcome):
        assert not outcome.left_running
        resume = partial(fan_out, strategy, numbers(3), None, answering(), journal=seen["journal"])
        assert 3 == run_virtual(resume).counts()["succeeded"]

    outcomes = cancel_at_every_step(scenario, check=check, native=True, times=times)
    assert "cancelled" in {outcome.kind for outcome in outcomes}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_waits_for_the_thread_of_the_journal(tmp_path, anyio_backend):
    """Row 36: two threads that use one connection of SQLite may crash the process."""
    entered, released = threading.Event(), threading.Event()

    class Slow(Journal):
        async def in_thread(self, work, limiter):
            def slow():
                entered.set()
                released.wait(30)
                return work()

            return await super().in_thread(slow, limiter)

    path, strategy = tmp_path / "run.db", BaseSamplingStrategy()
    task = asyncio.ensure_future(fan_out(strategy, numbers(3), None, answering(), journal=Slow(path)))
    await asyncio.to_thread(entered.wait, 30)
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 3 == (await fan_out(strategy, numbers(3), None, answering(), journal=path)).counts()["succeeded"]
