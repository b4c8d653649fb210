"""Row 66: items from dicts, arrays and generators, and sources that fail or need closing."""

import asyncio  # noqa: TID251 - a source may use it

import anyio
import pytest

from sampling import Action, Journal, RejectionSamplingStrategy, fan_out
from sampling.errors import UnexpectedCancellation
from tests.faults.journals import InlineJournal, answering, asked, numbers, stored

ONCE = RejectionSamplingStrategy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def test_a_dict_is_its_items_by_key(run, path):
    """F4: the keys are keys and the values are questions, also on resume."""
    items = {"first": "one", "second": Action("two"), 3: "three"}
    backend = answering()
    for _ in range(2):
        result = run(fan_out, ONCE, items, None, backend, journal=InlineJournal(path))
        assert ["first", "second", "3"] == [outcome.key for outcome in result.outcomes]
    assert ["one", "three", "two"] == sorted(map(asked, backend.requests))


def test_arrays_and_their_numbers_are_items(run, path):
    """F4: texts and keys of NumPy are as good as Python's, and make the same run."""
    numpy = pytest.importorskip("numpy")
    texts = numpy.array(["one", "two"])
    pairs = list(zip(numpy.array([7, 8]), texts, strict=True))
    backend = answering()
    result = run(fan_out, ONCE, pairs, None, backend, journal=InlineJournal(path))
    assert ["7", "8"] == [outcome.key for outcome in result.outcomes]
    run(fan_out, ONCE, [(7, "one"), (8, "two")], None, backend, journal=InlineJournal(path))
    assert ["one", "two"] == sorted(map(asked, backend.requests))
    assert {str} == {type(asked(request)) for request in backend.requests}
    assert 2 == run(fan_out, ONCE, texts, None, backend).counts()["succeeded"]


@pytest.mark.parametrize("kind", ["int64", "uint8", "float64", "float32"])
def test_a_number_of_numpy_is_a_concurrency(run, kind):
    """F1: a whole number of any type is honoured."""
    number = getattr(pytest.importorskip("numpy"), kind)(2)
    assert 2 == run(fan_out, ONCE, ["one", "two"], None, answering(), max_concurrency=number).counts()["succeeded"]


def test_a_table_is_refused_with_the_column_to_pass(run):
    """A data frame iterates over the names of its columns, and these would be sent as questions."""

    class DataFrame(dict):
        def itertuples(self, index=True):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r'names of its columns: pass table\["prompt"\]'):
        run(fan_out, ONCE, DataFrame(prompt=["one"]), None, answering())


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_source_that_raises_loses_nothing(run, path, kind):
    """Row 66: items read before it finish and are recorded, its error is raised, and it is closed."""
    closed = []

    def plain():
        try:
            yield from numbers(3)
            raise LookupError("the input is gone")
        finally:
            closed.append(True)

    async def asynchronous():
        for item in plain():
            yield item

    async def slow(request):
        await anyio.sleep(1)
        return "yes"

    source = plain() if kind == "plain" else asynchronous()
    with pytest.raises(LookupError, match="the input is gone"):
        run(fan_out, ONCE, source, None, slow, journal=InlineJournal(path), max_concurrency=8)
    assert {0, 1, 2} == stored(path).keys()
    assert [True] == closed


def test_a_generator_is_closed_when_the_run_ends_early(run):
    """Row 66: its cleanup does not wait for the garbage collector, and can't undo outcomes."""
    closed = []

    def endless():
        try:
            while True:
                yield "question"
        finally:
            closed.append(True)
            raise RuntimeError("the cleanup failed")

    source = endless()
    replies = iter(["yes", "no", "no", "no", "no"])

    async def backend(request):
        return next(replies)

    result = run(
        fan_out, ONCE, source, None, backend, [lambda text: text == "yes"], on_failure="halt", max_concurrency=1
    )
    assert ("halted", 1) == (result.status, result.halted_by)
    assert [True] == closed


def test_a_run_that_is_cancelled_while_it_opens_leaves_no_lock(run, path):
    """Row 35: at every step of opening, and the next run begins."""

    async def cancelled_at(step):
        class Stopped(InlineJournal):
            steps = 0

            async def in_thread(self, work, limiter):
                Stopped.steps += 1
                if Stopped.steps == step:
                    scope.cancel()
                return await super().in_thread(work, limiter)

        with anyio.CancelScope() as scope:
            await fan_out(ONCE, numbers(3), None, answering(), journal=Stopped(path))

    for step in range(1, 6):
        run(cancelled_at, step)
        assert not path.with_name("run.db.lock").exists()
    assert 3 == run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path)).counts()["succeeded"]
    assert 3 == Journal(path).summary().succeeded


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_cancellation_by_the_source_itself_loses_nothing(run, path, kind):
    """Row 66: a source that awaited a cancelled task cancels neither the items in flight nor the caller."""

    def plain():
        yield from numbers(3)
        raise asyncio.CancelledError

    async def asynchronous():
        for item in plain():
            yield item

    async def slow(request):
        await anyio.sleep(1)
        return "yes"

    source = plain() if kind == "plain" else asynchronous()
    with pytest.raises(UnexpectedCancellation, match="reading the items"):
        run(fan_out, ONCE, source, None, slow, journal=InlineJournal(path), max_concurrency=8)
    assert {0, 1, 2} == stored(path).keys()
