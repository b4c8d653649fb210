"""F18: failed and errored items of a journal can be asked again."""

import anyio
import pytest

from sampling import Budget, Generation, Journal, RejectionSamplingStrategy, Usage, fan_out
from sampling.errors import FatalError
from sampling.fanout.journal import export
from tests.faults.journals import YES, InlineJournal, answering, asked, is_whole, numbers, rows

ONCE = RejectionSamplingStrategy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


@pytest.fixture
def mixed(run, path):
    """A journal of six items, of which one failed and two raised."""
    replies = {"1": "no", "3": FatalError("broken"), "4": FatalError("broken")}
    used = {number: Generation("yes", Usage(1, 1, 0.5)) for number in numbers(6)}
    backend = answering({**used, **replies})
    run(fan_out, ONCE, numbers(6), None, backend, [YES], journal=InlineJournal(path), on_error="continue")
    return path


def resume(run, path, backend, **settings):
    settings = {"on_error": "continue", **settings}
    return run(fan_out, ONCE, numbers(6), None, backend, [YES], journal=InlineJournal(path), **settings)


@pytest.mark.parametrize(
    ("retry", "questions"),
    [({"failed"}, ["1"]), ({"errored"}, ["3", "4"]), ({"failed", "errored"}, ["1", "3", "4"]), ((), [])],
)
@pytest.mark.parametrize("on_change", ["refuse", "continue"])
def test_only_what_is_named_is_asked_again(run, mixed, retry, questions, on_change):
    """F18: failed or errored items, or both, and the new outcomes are the ones that count."""
    backend = answering(default=Generation("yes", Usage(1, 1, 0.5)))
    journal = InlineJournal(mixed, on_change=on_change)
    result = run(fan_out, ONCE, numbers(6), None, backend, [YES], journal=journal, retry=retry, on_error="continue")
    assert questions == sorted(map(asked, backend.requests))
    assert 3 + len(questions) == result.counts()["succeeded"]
    summary = Journal(mixed).summary()
    assert 3 + len(questions) == summary.succeeded
    assert () == summary.maybe_billed_twice
    assert is_whole(mixed)
    assert 6 == export(mixed, mixed.with_name("out.jsonl"))
    assert questions == sorted(key for (key,) in rows(mixed, "SELECT key FROM replaced"))
    # What the earlier outcomes cost still counts.
    assert 0.5 * (3 + len(questions)) == pytest.approx(result.usage.cost)


def test_an_item_that_fails_again_may_be_asked_once_more(run, mixed):
    """F18: every earlier outcome stays in the file."""
    for _ in range(3):
        result = resume(run, mixed, answering({"1": "no"}), retry={"failed"})
        assert "failed" == result.outcomes[1].status
    assert 3 == len(rows(mixed, "SELECT * FROM replaced"))
    assert "succeeded" == resume(run, mixed, answering(), retry={"failed"}).outcomes[1].status


def test_the_old_outcome_stays_until_there_is_a_new_one(run, mixed):
    """F18: a retry that a budget cuts off changes nothing."""
    resume(run, mixed, answering(), retry={"failed", "errored"}, budget=Budget(requests=6))
    summary = Journal(mixed).summary()
    assert (3, 1, 2) == (summary.succeeded, summary.failed, summary.errored)


@pytest.mark.parametrize("on_change", ["refuse", "continue"])
def test_a_retry_that_was_not_finished_may_be_billed_twice(run, mixed, on_change):
    """F11: the earlier outcome of the item says nothing about the call that was in flight."""

    async def leave():
        async def never(request):
            await anyio.sleep_forever()

        with anyio.move_on_after(5):
            await fan_out(ONCE, numbers(6), None, never, [YES], journal=InlineJournal(mixed), retry={"failed"})

    run(leave)
    assert () == resume(run, mixed, answering()).maybe_billed_twice
    journal = InlineJournal(mixed, on_change=on_change)
    call = {"journal": journal, "retry": {"failed", "errored"}, "on_error": "continue"}
    result = run(fan_out, ONCE, numbers(6), None, answering(), [YES], **call)
    assert (1,) == result.maybe_billed_twice == Journal(mixed).summary().maybe_billed_twice
    assert {"succeeded": 6, "failed": 0, "errored": 0} == result.counts()
    assert () == resume(run, mixed, answering()).maybe_billed_twice


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"retry": {"succeeded"}}, ValueError, "retry must be a collection of 'failed' and 'errored'"),
        ({"retry": "failed"}, TypeError, "retry must be a collection"),
        ({"retry": {"failed"}}, ValueError, "retry needs a journal"),
    ],
)
def test_wrong_values_are_named(run, settings, error, message):
    """F18: before anything is asked."""
    with pytest.raises(error, match=message):
        run(fan_out, ONCE, numbers(2), None, answering(), **settings)


def test_a_token_budget_counts_what_earlier_processes_were_charged(run, path):
    """Semantics 9: a backend that reports no usage is charged by estimate, and a resume remembers it."""
    asked_in_all = 0
    for _ in range(4):
        backend = answering(default="yes")
        budget = Budget(tokens=100)
        items = ["x" * 40 for _ in range(50)]
        run(fan_out, ONCE, items, None, backend, journal=InlineJournal(path), budget=budget, max_concurrency=1)
        asked_in_all += len(backend.requests)
    assert 1 <= asked_in_all <= 10


def test_a_cost_budget_counts_what_earlier_processes_were_charged(run, path):
    """Semantics 9: a request that failed is charged by estimate, and a resume does not get that back."""
    backend = answering({"0" * 40: Generation("yes", Usage(10, 10, 0.5))}, default=FatalError("broken"))
    items = [str(number % 10) * 40 for number in range(50)]
    settings = {"max_concurrency": 1, "on_error": "continue", "retry": {"errored"}}
    for _ in range(4):
        budget = Budget(cost=5)
        result = run(fan_out, ONCE, items, None, backend, journal=InlineJournal(path), budget=budget, **settings)
        assert ("halted", "budget") == (result.status, result.stop_reason)
        assert 5 == pytest.approx(budget.charged.cost)
    assert 10 == len(backend.requests)
