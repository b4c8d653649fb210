"""F12: readers of the outcomes of a run."""

import anyio
import pytest

from sampling import RejectionSamplingStrategy, open_fan_out
from sampling.testing import After, ScriptedBackend
from tests.faults.journals import numbers

ONCE = RejectionSamplingStrategy()


@pytest.mark.parametrize("ordered", [True, False])
def test_several_tasks_may_read_the_outcomes(run, ordered):
    """F12: each outcome goes to one of the workers, and all of them end with the run."""
    taken = []

    async def work(outcomes):
        async for outcome in outcomes:
            taken.append(outcome.index)
            await anyio.sleep(0.5)

    async def main():
        backend = ScriptedBackend(lambda _: After(1.0, "yes"))
        opened = open_fan_out(ONCE, numbers(20), None, backend, max_concurrency=4, max_buffered=1, ordered=ordered)
        async with opened as outcomes, anyio.create_task_group() as workers:
            for _ in range(3):
                workers.start_soon(work, outcomes)

    run(main)
    assert list(range(20)) == sorted(taken)


def test_a_reader_that_gives_up_loses_nothing(run):
    """F12: a reader may wait for the next outcome with a time limit, again and again."""

    async def main():
        backend, taken = ScriptedBackend(lambda _: After(1.0, "yes")), []
        async with open_fan_out(ONCE, numbers(5), None, backend, max_concurrency=2) as outcomes:
            while len(taken) < 5:
                with anyio.move_on_after(0.3):
                    taken.append((await anext(outcomes)).index)
        return taken

    assert list(range(5)) == run(main)
