"""F15: every outcome can be recorded."""

import math
import re
from contextlib import asynccontextmanager
from decimal import Decimal

import attrs
import pytest

from sampling import Action, Budget, Generation, RateLimited, RejectionSamplingStrategy, Usage, fan_out
from sampling._serialization.errors import load_error
from sampling.errors import ErrorFromJournal
from sampling.fanout.engines import LocalEngine
from sampling.fanout.journal import export
from tests.faults.journals import YES, InlineJournal, answering, asked, is_whole, numbers, rows

ONCE = RejectionSamplingStrategy()


class Unshowable(Exception):
    """An error that fails when it is printed."""

    def __str__(self):
        raise RuntimeError("not even that")


class Hostile:
    """A value whose every method raises."""

    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    def __hash__(self):
        return 1

    def tolist(self):
        raise RuntimeError("no")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def twice(run, path, items, backend, **settings):
    """Run, and resume with a backend that must not be asked."""
    call = {"journal": InlineJournal(path), "on_error": "continue", "outage_grace_s": 0, **settings}
    first = run(fan_out, ONCE, items, None, backend, **call)
    again = run(fan_out, ONCE, items, None, answering(default=AssertionError("asked again")), **call)
    assert [one.status for one in first.outcomes] == [one.status for one in again.outcomes]
    for outcome in again.outcomes:
        assert outcome.result is not None or outcome.error is not None
    assert [one.notes for one in first.outcomes] == [one.notes for one in again.outcomes]
    assert is_whole(path)
    assert len(items) == export(path, path.with_name("out.jsonl"))
    assert len(items) == export(path, path.with_name("out.csv"))
    return first, again


def numpy_numbers(text):
    numpy = pytest.importorskip("numpy")
    return numpy.float32(1.5)


def numpy_array(text):
    numpy = pytest.importorskip("numpy")
    return {"scores": numpy.array([1, 2, 3]), ("a", 1): numpy.int64(7)}


@pytest.mark.parametrize(
    ("parser", "note"),
    [
        (numpy_numbers, "value of type float32 is stored as plain numbers"),
        (numpy_array, "value.scores of type ndarray is stored as plain numbers"),
        (lambda text: math.inf, "value is inf, and is not stored"),
        (lambda text: {"a": math.nan}, "value.a is nan, and is not stored"),
        (lambda text: {1, 2}, "value is stored as a list"),
        (lambda text: Decimal("1.5"), "value of type Decimal is stored as text"),
        (lambda text: 10**5000, "value is too large, and is not stored"),
        (lambda text: {1: "a", "1": "b"}, "value has several keys with the same text"),
        (lambda text: nested(100), "value.*is stored as text"),
        (lambda text: Hostile(), "summary|stored as text"),
    ],
)
def test_a_value_that_json_cannot_hold_is_stored_degraded(run, path, parser, note):
    """F15: one odd value neither ends the run nor damages the journal, and the outcome has a note."""
    items = ["0", ("odd", Action("1", parser)), "2"]
    first, again = twice(run, path, items, answering())
    assert ["succeeded"] * 3 == [one.status for one in first.outcomes]
    assert () == first.outcomes[0].notes == first.outcomes[2].notes
    assert re.search(note, " ".join(first.outcomes[1].notes))
    assert "yes" == again.outcomes[0].result.text


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RateLimited("slow", retry_after_s=math.inf), RateLimited),
        (RateLimited("slow", retry_after_s=math.nan), RateLimited),
        (RateLimited("slow", retry_after_s="3"), RateLimited),
        (Unshowable(), ErrorFromJournal),
    ],
    ids=["inf", "nan", "text", "unshowable"],
)
def test_an_error_with_odd_details_is_stored_without_them(run, path, error, kept):
    """F15: the type and the message of an error are kept, whatever its attributes are."""
    _, again = twice(run, path, numbers(9), answering({"4": error}))
    assert ["errored" if index == 4 else "succeeded" for index in range(9)] == [one.status for one in again.outcomes]
    assert kept is type(again.outcomes[4].error)
    assert None is getattr(again.outcomes[4].error, "retry_after_s", None)


def test_a_journal_that_holds_a_detail_of_the_wrong_type_is_read():
    """F15: earlier versions stored what the backend gave, and called the journal damaged."""
    error = load_error({"type": "RateLimited", "message": "slow", "retry_after_s": "3"})
    assert (RateLimited, None) == (type(error), error.retry_after_s)


def test_an_answer_full_of_brackets_can_be_read_back(run, path):
    """F15: the limits of our own JSON reader hold for what a model answers, too."""
    hostile = '[{"\\' * 60_000

    async def backend(request):
        return hostile if asked(request) == "1" else "yes"

    first, again = twice(run, path, numbers(3), backend)
    assert hostile == again.outcomes[1].result.text
    assert () == first.outcomes[1].notes


def test_counts_beyond_what_sqlite_can_add_are_capped(run, path):
    """F15: a backend may report any usage."""
    backend = answering(default=Generation("yes", Usage(2**70, 3)))
    first, _ = twice(run, path, numbers(20), backend)
    assert "is stored as 1,000,000,000,000,000" in first.outcomes[0].notes[0]
    assert 20 == rows(path, "SELECT count(*) FROM outcomes")[0][0]


def test_a_count_that_our_own_reader_refuses_is_stored_as_the_largest_that_it_accepts(run, path):
    """F15: a journal that can't be read back would lose the answer, too."""
    backend = answering(default=Generation("yes", Usage(10**400, 3), logprobs=[10**400]))
    first, again = twice(run, path, numbers(2), backend)
    assert "input_tokens" in first.outcomes[0].notes[0]
    for outcome in again.outcomes:
        assert ("yes", 2**900 - 1) == (outcome.result.text, outcome.result.usage.input_tokens)


def test_a_text_of_many_digits_is_stored_as_it_is(run, path):
    """F15: only numbers have a limit."""
    digits = "7" * 1_000
    backend = answering(default=Generation(digits, reasoning=digits, finish_reason=digits))
    first, again = twice(run, path, numbers(2), backend)
    for outcome in (*first.outcomes, *again.outcomes):
        generation = outcome.result.attempts[0].generation
        assert ((), digits, digits) == (outcome.notes, generation.text, generation.reasoning)


def test_unrecorded_counts_beyond_what_sqlite_can_hold_do_not_end_the_run(run, path):
    """F15: they are those of an item that a budget cut off, and are stored with the process."""
    backend = answering(default=Generation("no", Usage(2**70, 3)))
    call = {"journal": InlineJournal(path), "max_concurrency": 1}
    twice_each = RejectionSamplingStrategy(loop_budget=2)
    result = run(fan_out, twice_each, numbers(3), None, backend, [YES], budget=Budget(requests=3), **call)
    assert ("halted", "budget") == (result.status, result.stop_reason)
    assert [(10**15,)] == rows(path, "SELECT other_input_tokens FROM lives")
    resumed = run(fan_out, twice_each, numbers(3), None, backend, [YES], **call)
    assert ["failed"] * 3 == [one.status for one in resumed.outcomes]


class Changing(LocalEngine):
    """An engine that changes its results, as one of a user might."""

    def __init__(self, change):
        self.change = change

    @asynccontextmanager
    async def open(self, work):
        async with super().open(work) as sample:

            async def changed(item):
                return self.change(await sample(item))

            yield changed


class MyFloat(float):
    """A number that is not shown as JSON, as those of NumPy."""

    def __repr__(self):
        return f"MyFloat({float(self)})"


@pytest.mark.parametrize(
    ("number", "kept"),
    [(2, 2), (True, True), (None, None), (math.inf, None), (10**400, None), (-(10**400), None), (MyFloat(3), 3)],
)
def test_a_count_that_is_no_plain_number_can_be_read_back(run, path, number, kept):
    """F15: an engine of a user may return anything."""
    engine = Changing(lambda result: attrs.evolve(result, max_attempts=number))
    _, again = twice(run, path, numbers(2), answering(), engine=engine)
    assert [("yes", kept)] * 2 == [(one.result.text, one.result.max_attempts) for one in again.outcomes]


@pytest.mark.parametrize(
    ("number", "kept"),
    [(2, 2), (MyFloat(1.5), 1.5), (math.inf, None), (math.nan, None), (Decimal("0.5"), "Decimal('0.5')")],
)
def test_a_time_that_is_no_plain_number_can_be_read_back(run, path, number, kept):
    """F15: an engine of a user may return any number."""

    def change(result):
        attempts = tuple(attrs.evolve(one, finished_s=number) for one in result.attempts)
        return attrs.evolve(result, attempts=attempts, elapsed_s=number)

    _, again = twice(run, path, numbers(2), answering(), engine=Changing(change))
    for outcome in again.outcomes:
        assert (kept, kept) == (outcome.result.elapsed_s, outcome.result.attempts[0].finished_s)
