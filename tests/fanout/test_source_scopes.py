"""Row 66: generators that hold scopes and tasks of their own between two items, and sources that keep a run waiting."""

import asyncio  # noqa: TID251 - a native cancellation

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from sampling import Budget, RejectionSamplingStrategy, fan_out, open_fan_out
from sampling.errors import UnexpectedCancellation
from sampling.testing import After, ScriptedBackend, cancel_at_every_step
from tests.faults.journals import InlineJournal, answering, asked, numbers, stored

ONCE = RejectionSamplingStrategy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def slow(reply="yes"):
    return ScriptedBackend(lambda _: After(1.0, reply))


async def answers(backend, count=4, **settings):
    """Yield the answers of a first run, which are the questions of a second one."""
    async with open_fan_out(ONCE, numbers(count), None, backend, **settings) as first:
        async for outcome in first:
            yield outcome.key, f"{outcome.key} {outcome.result.text}"


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_the_answers_of_a_run_are_the_items_of_another(run, path, at_once):
    """F12: two runs in a row stream through each other, and resume."""
    backend, again = slow(), answering()
    call = {"max_concurrency": at_once, "journal": InlineJournal(path)}
    result = run(fan_out, ONCE, answers(slow("Rhine")), None, backend, **call)
    assert ["0 Rhine", "1 Rhine", "2 Rhine", "3 Rhine"] == sorted(map(asked, backend.requests))
    assert ["0", "1", "2", "3"] == [outcome.key for outcome in result.outcomes]
    assert 4 == run(fan_out, ONCE, answers(slow("Rhine")), None, again, **call).counts()["succeeded"]
    assert not again.requests


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_halt_ends_the_run_that_the_items_come_from(run, at_once):
    """F5: the first run is left in the task that entered it, and its items in flight are cancelled."""
    first = slow("Rhine")
    call = {"on_failure": "halt", "max_concurrency": at_once}
    result = run(fan_out, ONCE, answers(first, 100, max_concurrency=2), None, slow("no"), [str.istitle], **call)
    assert ("halted", 0) == (result.status, result.halted_by)
    assert (0, True) == (first.in_flight, len(first.requests) < 10)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("at", range(1, 9))
def test_two_recorded_runs_in_a_row_can_be_cancelled_at_any_request(tmp_path, backend, at):
    """Row 36: several task groups raise one cancellation then. anyio follows its contexts to their end."""

    async def main():
        seen = []

        async def model(request):
            seen.append(asked(request))
            if len(seen) == at:
                cancel()
            await checkpoint()
            return "yes"

        async def call():
            items = answers(model, 20, journal=tmp_path / "first.db")
            await fan_out(ONCE, items, None, model, journal=tmp_path / "second.db")

        if backend == "asyncio":
            task = asyncio.get_running_loop().create_task(call())
            cancel = task.cancel
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with anyio.CancelScope() as scope:
                cancel = scope.cancel
                await call()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("native", [False, True])
def test_two_runs_in_a_row_can_be_cancelled_at_any_step(native):
    """Row 35: neither of them leaves anything behind."""

    async def scenario(world):
        return await fan_out(ONCE, answers(slow(), 3), None, slow(), max_concurrency=2)

    def check(world, outcome):
        assert not outcome.left_running
        assert outcome.kind in {"returned", "cancelled"}

    outcomes = cancel_at_every_step(scenario, check=check, native=native)
    assert {"returned", "cancelled"} == {outcome.kind for outcome in outcomes}


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_the_error_of_a_task_of_the_source_ends_the_run(run, path, at_once):
    """Row 66: it cancels the task that reads, whatever that waits for, and is raised after the items before it."""

    async def fail():
        await anyio.sleep(3.75)
        raise OSError("the line is dead")

    async def items():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            for number in range(100):
                await anyio.sleep(0.5)
                yield str(number)

    with pytest.raises(ExceptionGroup) as raised:
        run(fan_out, ONCE, items(), None, slow(), journal=InlineJournal(path), max_concurrency=at_once)
    assert ["the line is dead"] == [str(error) for error in raised.value.exceptions]
    assert {0, 1, 2} <= stored(path).keys()


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_a_source_with_tasks_is_closed_when_the_run_ends_early(run, at_once):
    """Row 66: the group in which a task group wraps the end of its generator is no failure."""

    async def items():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            for number in range(100):
                yield str(number)

    call = {"on_failure": "halt", "max_concurrency": at_once}
    with capture_logs() as logs:
        result = run(fan_out, ONCE, items(), None, slow("no"), [str.istitle], **call)
    assert ("halted", 0) == (result.status, result.halted_by)
    assert not logs


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_timeout_of_the_source_around_its_items_does_not_pass_for_their_end(run, at_once):
    """Row 66: a scope that expires between two items cancels the run's reading, and the result must not look whole."""

    async def items():
        with anyio.move_on_after(3.2):
            for number in range(100):
                yield str(number)

    with pytest.raises(UnexpectedCancellation, match="reading the items"):
        run(fan_out, ONCE, items(), None, slow(), max_concurrency=at_once)


@pytest.mark.parametrize("with_journal", [False, True])
def test_the_deadline_ends_a_run_whose_source_waits(run, path, with_journal):
    """F19: no further item could be sampled, so the run does not wait for one."""
    closed = []

    async def items():
        try:
            yield "one"
            yield "two"
            await anyio.sleep_forever()
        finally:
            closed.append(anyio.current_time())

    async def main():
        began_at = anyio.current_time()
        journal = InlineJournal(path) if with_journal else None
        result = await fan_out(ONCE, items(), None, slow(), budget=Budget(deadline_s=60), journal=journal)
        assert [began_at + 60] == closed
        return result

    result = run(main)
    assert ("halted", "deadline", 2) == (result.status, result.stop_reason, len(result.outcomes))


def test_the_clock_of_the_budget_waits_for_the_first_item(run):
    """F19: the deadline counts from the first use of the budget, which is the first item and not the wait for it."""

    async def items():
        await anyio.sleep(3600)
        yield "one"

    assert "completed" == run(fan_out, ONCE, items(), None, slow(), budget=Budget(deadline_s=60)).status


def test_closing_a_source_takes_a_few_seconds_at_most(run):
    """Row 66: a cleanup that hangs is cancelled, and does not hide why the run ended."""

    async def items():
        try:
            for number in range(100):
                yield str(number)
        finally:
            await anyio.sleep_forever()

    async def main():
        began_at = anyio.current_time()
        with pytest.raises(LookupError):
            await fan_out(ONCE, items(), None, ScriptedBackend([LookupError("no")]), max_concurrency=1)
        return anyio.current_time() - began_at

    assert run(main) == 5
