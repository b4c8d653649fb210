"""F17: going on after a change."""

import itertools
import json

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from sampling import (
    Action,
    Journal,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Requirement,
    fan_out,
)
from sampling.errors import JournalMismatch
from sampling.fanout.journal import export
from tests.faults.journals import InlineJournal, answering, asked, is_whole, rows

ONCE = RejectionSamplingStrategy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def keyed(*keys):
    return [(key, f"question {key}") for key in keys]


def go_on(run, path, items, reqs=(), strategy=ONCE, **settings):
    """Run over items, and return the keys that were asked, and the answers by key."""
    questions = []

    async def echo(request):
        questions.append(asked(request))
        return f"answer to {asked(request)}"

    journal = InlineJournal(path, on_change="continue")
    result = run(fan_out, strategy, items, None, echo, reqs, journal=journal, **settings)
    assert is_whole(path)
    return questions, result


def exported(path):
    target = path.with_name("out.jsonl")
    export(path, target)
    return [(row["index"], row["key"], row["text"]) for row in map(json.loads, target.read_text().splitlines())]


def answers(items):
    return [(index, key, f"answer to {text}") for index, (key, text) in enumerate(items)]


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        (keyed("a", "new", "b", "c", "d"), ["question new"]),
        (keyed("new", "a", "b", "c", "d"), ["question new"]),
        (keyed("d", "c", "b", "a"), []),
        (keyed("b", "d"), []),
        ([("a", "question a"), ("b", "another question"), *keyed("c", "d")], ["another question"]),
        (keyed("x", "a", "y", "d", "z"), ["question x", "question y", "question z"]),
    ],
    ids=["inserted", "at the front", "reversed", "fewer", "changed", "mixed"],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_items_are_matched_by_key(run, path, changed, new, lazy):
    """F17: new items and those whose question changed are asked, and every other outcome is kept."""
    first = keyed("a", "b", "c", "d")
    go_on(run, path, first)
    questions, result = go_on(run, path, iter(changed) if lazy else changed)
    assert new == sorted(questions)
    assert answers(changed) == [(one.index, one.key, one.result.text) for one in result.outcomes]
    assert answers(changed) == exported(path)
    assert len(changed) == Journal(path).summary().succeeded
    again, _ = go_on(run, path, changed)
    assert [] == again
    back, _ = go_on(run, path, first)
    assert set(back) <= {"question b"}
    assert answers(first) == exported(path)


@pytest.mark.parametrize(
    "changed",
    [[("a", "another question"), *keyed("b")], keyed("b", "a"), keyed("a", "c")],
    ids=["changed", "reversed", "replaced"],
)
def test_other_items_are_logged_once(run, path, changed):
    """F17: also if there are as many as before. Items that are the same as last time are no change."""
    go_on(run, path, keyed("a", "b"))
    for expected in (1, 0):
        with capture_logs() as logs:
            go_on(run, path, changed)
        assert expected == sum("journal_items_changed" == log["event"] for log in logs), logs


def test_every_order_of_items_ends_with_each_asked_once(run, path):
    """F17: for all permutations of four items over what three of them left."""
    go_on(run, path, keyed("a", "b", "c"))
    asked_so_far = []
    for order in itertools.permutations("abcd"):
        questions, _ = go_on(run, path, keyed(*order))
        asked_so_far += questions
        assert answers(keyed(*order)) == exported(path)
    assert ["question d"] == asked_so_far


def interrupt(run, path, items):
    """Leave a run while all of its items are in flight."""

    async def leave():
        async def never(request):
            await anyio.sleep_forever()

        with anyio.move_on_after(5):
            await fan_out(ONCE, items, None, never, journal=InlineJournal(path, on_change="continue"))

    run(leave)


def test_interrupted_items_with_the_same_question_are_each_known(run, path):
    """F11: each of them may be billed twice, and none is left over in the file."""
    same = [("same", "question")] * 3
    interrupt(run, path, same)
    _, result = go_on(run, path, same)
    summary = Journal(path).summary()
    assert (0, 1, 2) == result.maybe_billed_twice == summary.maybe_billed_twice
    assert (3, 0) == (summary.succeeded, summary.interrupted)


def test_an_interrupted_item_that_is_gone_is_not_waited_for(run, path):
    """F17: a run that completed has no open items, whatever was removed or changed before."""
    interrupt(run, path, keyed("a", "b", "c"))
    assert 3 == Journal(path).summary().interrupted
    go_on(run, path, [("a", "another question"), *keyed("c")])
    summary = Journal(path).summary()
    assert ("completed", 2, 0) == (summary.status, summary.succeeded, summary.interrupted)
    assert "have no outcome yet" not in Journal(path).to_html()
    interrupt(run, path, keyed("d"))
    assert 1 == Journal(path).summary().interrupted


def test_items_that_may_be_billed_twice_are_named_by_their_index(run, path):
    """F17: the index that they have now, as on the result."""
    interrupt(run, path, keyed("a", "b"))
    _, result = go_on(run, path, keyed("new", "b", "a"))
    assert (1, 2) == result.maybe_billed_twice == Journal(path).summary().maybe_billed_twice
    go_on(run, path, keyed("b", "new"))
    assert (0,) == Journal(path).summary().maybe_billed_twice


def test_items_with_the_same_key_are_matched_in_their_order(run, path):
    """F17: a key need not be unique."""
    items = [("k", "one"), ("k", "two"), ("k", "one")]
    assert 3 == len(go_on(run, path, items)[0])
    questions, _ = go_on(run, path, [("k", "two"), *items])
    assert ["two"] == questions
    assert answers([("k", "two"), *items]) == exported(path)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_requirements_do_not_damage_a_journal(run, path, count):
    """F17: records name the requirements of the call that wrote them, whatever the call has now."""
    reqs = [Requirement(f"has {letter}", lambda text, letter=letter: letter in text) for letter in "anz"]
    _, first = go_on(run, path, keyed("a", "b"), reqs, MultiTurnStrategy(loop_budget=2))
    described = [[v.requirement.description for v in one.result.best.validations] for one in first.outcomes]
    _, again = go_on(run, path, keyed("a", "b", "c"), reqs[3 - count :])
    names = [[v.requirement.description for v in one.result.best.validations] for one in again.outcomes]
    assert described == names[:2]
    assert [requirement.description for requirement in reqs[3 - count :]] == names[2]
    assert 3 == len(exported(path))


def test_a_type_that_gains_a_field_is_asked_for_again(run, path):
    """F17: an answer of the old type is neither refused as damaged nor handed out as a dict."""

    def items(*fields):
        kind = attrs.make_class("Answer", list(fields))
        return [("k", Action("q", lambda text: kind(*fields)))], kind

    old, _ = items("a")
    new, kind = items("a", "b")
    go_on(run, path, old)
    with pytest.raises(JournalMismatch, match="item 0"):
        run(fan_out, ONCE, new, None, answering(), journal=InlineJournal(path))
    questions, result = go_on(run, path, new)
    assert ["q"] == questions
    assert isinstance(result.outcomes[0].result.value, kind)


def test_a_value_that_cannot_be_parsed_any_more_has_a_note(run, path):
    """F17: the value as it was recorded, and the outcome says so."""
    broken = False

    @attrs.frozen
    class Parser:
        fingerprint: str = "the same"

        def __call__(self, text):
            if broken:
                raise ValueError("no longer")
            return {"text": text}

    items = [("k", Action("q", Parser()))]
    go_on(run, path, items)
    broken = True
    questions, result = go_on(run, path, items)
    assert [] == questions
    assert {"text": "answer to q"} == result.outcomes[0].result.value
    assert "can't be parsed any more: ValueError" in result.outcomes[0].notes[0]


def test_the_outcome_that_is_replaced_is_kept_apart(run, path):
    """F17, I13: nothing that was paid for is deleted, and its usage still counts."""
    go_on(run, path, keyed("a", "b"))
    go_on(run, path, [("a", "another"), ("b", "question b")])
    assert [(0, "a")] == rows(path, "SELECT item, key FROM replaced")
    assert () == Journal(path).summary().maybe_billed_twice
