"""F15: every outcome can be recorded."""

import enum
import math
import re
from contextlib import asynccontextmanager
from decimal import Decimal

import attrs
import pytest

from sampling import Action, Budget, Generation, Journal, RateLimited, RejectionSamplingStrategy, Usage, fan_out
from sampling._serialization.errors import load_error
from sampling._serialization.values import MAX_NUMBER
from sampling.errors import ErrorFromJournal
from sampling.fanout.engines import LocalEngine
from sampling.fanout.journal import _records, export
from sampling.testing import After
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
        (lambda text: {(1, 2): 3}, "^keys of value are stored as text$"),
        (lambda text: [{Decimal(1): 3, True: 4, None: 5}], r"^keys of value\[0\] are stored as text$"),
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


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_reason_that_is_no_json_can_be_read_back(run, path, attempts):
    """F15: an engine of a user may return any text, for an ordinary call and for another."""

    def change(result):
        return attrs.evolve(result, stop_reason='a "quoted" \\ reason', attempts=result.attempts * attempts)

    _, again = twice(run, path, numbers(2), answering(), engine=Changing(change))
    assert ['a "quoted" \\ reason'] * 2 == [one.result.stop_reason for one in again.outcomes]


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


class Broken(list):
    """A container that fails when it is read."""

    def __iter__(self):
        raise RuntimeError("no")


def family_tree(text):
    root = {"children": []}
    root["children"] += [{"parent": root, "name": name} for name in range(30)]
    return root


@attrs.define(eq=False)
class Person:
    """An object that refers to itself through its children."""

    parent: object = None
    children: list = attrs.field(factory=list)


def family_of_objects(text):
    root = Person()
    root.children += [Person(root) for _ in range(30)]
    return root


def shared_lists(text):
    """Return what a hostile YAML answer gives: each list has the next one ten times."""
    value = ["x"]
    for _ in range(40):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("parser", "note"),
    [
        (family_tree, "value.children[0].parent contains itself, and is not stored again"),
        (family_of_objects, "value.children[0].parent contains itself, and is not stored again"),
        (shared_lists, "value has more than 200,000 parts, and is not stored"),
        (lambda text: Broken([1]), "value raises RuntimeError, and is not stored"),
        (lambda text: {"a": [Broken([1]), 2]}, "value.a[0] raises RuntimeError, and is not stored"),
        (lambda text: {Hostile(), 2}, "value is stored as a list"),
    ],
    ids=["tree", "objects", "shared", "broken", "broken part", "set"],
)
def test_an_answer_is_kept_whatever_its_value_is(run, path, parser, note):
    """F15: a value that is endless or fails does not take the answer with it, which was paid for."""
    items = ["0", ("odd", Action("1", parser))]
    first, again = twice(run, path, items, answering())
    assert note in first.outcomes[1].notes
    assert "yes" == again.outcomes[1].result.text
    assert '"text": "yes"' in path.with_name("out.jsonl").read_text().splitlines()[1]


@pytest.mark.parametrize("key", ["a", 1, 1.5, True, None])
def test_a_key_that_json_has_as_text_needs_no_note(run, path, key):
    """F15: it is text in every JSON."""
    first, _ = twice(run, path, [Action("0", lambda text: {key: 1})], answering())
    assert () == first.outcomes[0].notes


def test_a_value_has_few_notes(run, path):
    """F15: an array of numbers that are not finite does not fill the journal with notes."""
    first, _ = twice(run, path, [Action("0", lambda text: [math.nan] * 1_000)], answering())
    assert 21 == len(first.outcomes[0].notes)
    assert "980 more parts of value are not stored exactly" == first.outcomes[0].notes[-1]


class Colour(str, enum.Enum):  # noqa: UP042 - such a member is shown in another way
    """An enum whose members are texts."""

    RED = "red"


def test_a_member_of_a_text_enum_is_stored_as_its_text(run, path):
    """F15: as in every other JSON, and not as the name of the member in Python."""
    twice(run, path, [Action("0", lambda text: {Colour.RED: [Colour.RED]})], answering())
    assert '"value": {"red": ["red"]}' in path.with_name("out.jsonl").read_text()


DETAILS = {"token": "a", "top": [{"token": "b"}] * 6}


@pytest.mark.parametrize(
    "details",
    [{"logprobs": (DETAILS,) * 20_000}, {"raw": [[number] for number in range(110_000)]}],
    ids=["logprobs", "raw"],
)
def test_an_answer_is_kept_without_details_that_are_too_many(run, path, details):
    """F15: the text, the usage and the verdicts of an answer do not depend on the size of its details."""
    backend = answering(default=Generation("yes", Usage(1, 2), **details))
    first, again = twice(run, path, numbers(2), backend, reqs=[YES])
    assert "logprobs, turns and raw answers are not stored: there are too many of them" in first.outcomes[0].notes
    best = again.outcomes[0].result.best
    assert ("yes", Usage(1, 2), [True]) == (best.text, best.usage, [one.passed for one in best.validations])


def test_an_answer_that_is_too_large_for_sqlite_is_cut(run, path, monkeypatch):
    """F15: SQLite takes no text of more than a billion bytes, and the run goes on."""
    monkeypatch.setattr(_records, "_MAX_LENGTH", 120_000)
    long = Generation("x" * 200_000)
    first, again = twice(run, path, numbers(3), answering({"1": long}))
    assert ["succeeded"] * 3 == [one.status for one in first.outcomes]
    assert "only a summary is stored" in first.outcomes[1].notes[0]
    assert "x" * 10_000 == again.outcomes[1].result.text


def test_a_logprob_of_nothing_leaves_the_others(run, path):
    """F15: a token that can't be has a logprob of -inf, and JSON has no infinity."""
    logprobs = ({"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -math.inf})
    first, again = twice(run, path, ["0"], answering(default=Generation("yes", logprobs=logprobs)))
    assert ("logprobs[1].logprob is -inf, and is not stored",) == first.outcomes[0].notes
    kept = ({"token": "a", "logprob": -0.5}, {"token": "b", "logprob": None})
    assert kept == again.outcomes[0].result.best.generation.logprobs


def test_a_raw_answer_that_is_no_json_is_noted(run, path):
    """F15: what is left out is said, and an array is no reason to lose the answer."""
    numpy = pytest.importorskip("numpy")
    first, again = twice(run, path, ["0"], answering(default=Generation("yes", raw=numpy.zeros(3))))
    assert ("raw of an answer is not made of JSON values, and is not stored",) == first.outcomes[0].notes
    assert "yes" == again.outcomes[0].result.text


class Evasive(RateLimited):
    """An error with an attribute that fails."""

    @property
    def status(self):
        raise RuntimeError("no")

    @status.setter
    def status(self, value):
        pass


def with_hint(hint):
    error = RateLimited("slow")
    error.hint = hint
    return error


@pytest.mark.parametrize(
    "error",
    [RateLimited("slow", retry_after_s=10**400), with_hint(Unshowable()), Evasive("slow")],
    ids=["huge", "hint", "attribute"],
)
def test_a_detail_that_fails_leaves_the_message(run, path, error):
    """F15: an attribute that can't be stored or read does not cost the message of the error."""
    _, again = twice(run, path, numbers(2), answering({"1": error}))
    assert "slow" in str(again.outcomes[1].error)


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError("no", ("file.py", 1, 2, "text")),
        b"\xff".decode,
        ImportError("no", name="it"),
        OSError(2, "no", "file"),
    ],
    ids=["syntax", "unicode", "import", "os"],
)
def test_a_message_that_is_made_from_attributes_is_kept(run, path, error):
    """F15: some builtin errors don't take their message from their arguments, and JSON has no attributes of theirs."""
    if callable(error):
        with pytest.raises(UnicodeDecodeError) as raised:
            error("utf-8")
        error = raised.value
    first, again = twice(run, path, numbers(2), answering({"1": error}))
    assert str(first.outcomes[1].error) == str(again.outcomes[1].error).removeprefix("UnicodeDecodeError: ")


def test_counts_that_add_up_to_more_than_sqlite_can_hold_do_not_end_a_journal(run, path):
    """F15: thousands of absurd counts are read, shown and resumed like any others."""
    items = numbers(9_300)
    assert 9_300 * MAX_NUMBER > 2**63
    backend = answering(default=After(1.0, Generation("yes", Usage(2**70, 3))))
    call = {"journal": InlineJournal(path), "max_concurrency": 100}
    run(fan_out, ONCE, items, None, backend, **call)
    resumed = run(fan_out, ONCE, items, None, answering(default=AssertionError("asked again")), **call)
    assert 9_300 == resumed.counts()["succeeded"]
    assert resumed.usage == Journal(path).summary().usage
    assert (2**63 - 1, 27_900) == (resumed.usage.input_tokens, resumed.usage.output_tokens)
    assert "9,300 of 9,300 items have a valid answer" in Journal(path).to_html()


def test_the_errors_in_a_group_are_kept(run, path):
    """F15: a group that a backend raised is stored with the errors in it."""
    group = ExceptionGroup("both", [ValueError("left"), ExceptionGroup("more", [KeyError("right")])])
    twice(run, path, numbers(2), answering({"1": group}))
    exported = path.with_name("out.jsonl").read_text().splitlines()[1]
    assert '{"error_type": "ValueError", "error": "left"}, {"error_type": "KeyError", "error": "right"}' in exported


def test_costs_that_add_up_to_infinity_do_not_end_the_run(run, path):
    """F15: a backend may report any finite cost."""
    backend = answering(default=Generation("yes", Usage(1, 1, 1e308)))
    first, again = twice(run, path, numbers(20), backend)
    assert first.usage.cost == pytest.approx(1.797e308, rel=1e-3)
    assert "cost is 1e+308, and is stored as 1,000,000,000,000,000" == first.outcomes[0].notes[0]
    assert 2e16 == again.usage.cost == Journal(path).summary().usage.cost
