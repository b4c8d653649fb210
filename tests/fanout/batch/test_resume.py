"""Runs over batches that are cancelled, halted or changed, and go on later."""

import anyio
import pytest

from sampling import Budget, Fallback, Journal, MultiTurnStrategy, Options, Priced, RejectionSamplingStrategy, fan_out
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.openai import OpenAIBackend
from sampling.errors import AuthenticationFailed, JournalMismatch
from sampling.fanout import BatchEngine
from sampling.strategies import Diverse
from sampling.testing.batch_servers import Verdict
from sampling.usage import Price
from tests.fanout.batch.batch_kit import (
    HOUR,
    ONCE,
    PROVIDERS,
    YES,
    batched,
    losing_creations,
    paid_twice,
    questions,
    server_of,
    sizes,
)
from tests.faults.journals import InlineJournal, rows

TWO_TURNS = MultiTurnStrategy(loop_budget=2)


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return PROVIDERS[request.param]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def second_turn(request):
    return "yes" if sum(message["role"] == "user" for message in request.body["messages"]) == 2 else "no"


async def cut_off(seconds, backend, items, **settings):
    """Cancel a run from outside after some time."""
    with anyio.move_on_after(seconds):
        await batched(backend, items, **settings)


def restart(server):
    """Begin another event loop, whose clock starts at 0 again."""
    for batch in server.batches:
        batch.ready -= HOUR


def notes(path, kind):
    return rows(path, f"SELECT name, value FROM notes WHERE kind = '{kind}'")  # noqa: S608


def test_cancelling_a_run_cancels_its_batches_and_keeps_what_is_finished(run, provider, path):
    """F21: the provider stops, a resume uses what was finished, and only the rest is asked again."""
    server = server_of()
    run(cut_off, HOUR / 2, provider(server), questions(10), journal=InlineJournal(path))
    assert ["cancelled"] == [batch.status for batch in server.batches]
    finished = server.billed.total()
    assert 4 <= finished <= 5
    assert finished == len(notes(path, "answer"))
    result = run(batched, provider(server), questions(10), journal=InlineJournal(path))
    assert 10 == result.counts()["succeeded"]
    assert [10, 10 - finished] == sizes(server)
    assert not paid_twice(server)
    assert () == result.maybe_billed_twice == Journal(path).summary().maybe_billed_twice
    # Two words of the question and one of the answer, each paid for once.
    assert 30 == result.usage.total_tokens == Journal(path).summary().usage.total_tokens
    assert not notes(path, "answer")
    assert not notes(path, "request")
    assert not notes(path, "batch")


def test_a_batch_can_be_left_running(run, provider, path):
    """F21: with `cancel_on_exit=False`, a later run waits for the same batch."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, provider(server), questions(10), journal=InlineJournal(path), engine=engine)
    assert ["in_progress"] == [batch.status for batch in server.batches]
    restart(server)
    seen = []
    engine = BatchEngine(on_progress=seen.append)
    result = run(batched, provider(server), questions(10), journal=InlineJournal(path), engine=engine)
    assert 10 == result.counts()["succeeded"]
    assert [10] == sizes(server)
    assert all(one.resumed for one in seen)
    assert () == result.maybe_billed_twice


def test_a_cancellation_that_takes_long_ends_after_a_resume(run, provider, path):
    """F21: the run does not wait for it for ever, and the next one uses what was finished and sends the rest."""
    server = server_of()
    server.cancel_s = HOUR
    run(cut_off, HOUR / 2, provider(server), questions(10), journal=InlineJournal(path))
    assert ["cancelling"] == [batch.status for batch in server.batches]
    restart(server)
    result = run(batched, provider(server), questions(10), journal=InlineJournal(path))
    assert 10 == result.counts()["succeeded"]
    assert 10 == server.billed.total()
    assert not paid_twice(server)


def test_a_batch_that_the_provider_has_lost_is_sent_again(run, provider, path):
    """F21: and the items are reported, because the lost batch may have been billed."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, provider(server), questions(3), journal=InlineJournal(path), engine=engine)
    server.batches.clear()
    result = run(batched, provider(server), questions(3), journal=InlineJournal(path))
    assert 3 == result.counts()["succeeded"]
    assert (0, 1, 2) == result.maybe_billed_twice


def test_a_resume_between_rounds_uses_the_first_answers(run, provider, path):
    """F21: the first round is replayed from the journal, and its usage is counted once."""
    server = server_of(second_turn)
    settings = {"strategy": TWO_TURNS, "journal": InlineJournal(path)}
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, 1.5 * HOUR, provider(server), questions(6), engine=engine, **settings)
    assert [6, 6] == sizes(server)
    assert 6 == len(notes(path, "answer"))
    restart(server)
    result = run(batched, provider(server), questions(6), **settings)
    assert 6 == result.counts()["succeeded"]
    assert [6, 6] == sizes(server)
    whole = run(batched, provider(server_of(second_turn)), questions(6), strategy=TWO_TURNS)
    assert whole.usage == result.usage


@pytest.mark.parametrize("deterministic", [True, False])
def test_losers_are_counted_although_they_were_in_the_journal(run, provider, path, deterministic):
    """F21: breadth is paid for, won or lost, also if the winner is read first."""
    server = server_of()
    strategy = RejectionSamplingStrategy(concurrency_budget=3, deterministic=deterministic)
    settings = {"strategy": strategy, "journal": InlineJournal(path)}
    run(cut_off, HOUR / 2, provider(server), questions(4), **settings)
    result = run(batched, provider(server), questions(4), **settings)
    assert 4 == result.counts()["succeeded"]
    # Two words of the question and one of the answer.
    assert 3 * server.billed.total() == result.usage.total_tokens == Journal(path).summary().usage.total_tokens


@pytest.mark.parametrize("left_running", [True, False])
def test_answers_before_a_deadline_are_counted_once(run, provider, path, left_running):
    """F19, F21: a resume gets the same answers from the journal, and counts them."""
    server = server_of(second_turn)
    settings = {"strategy": TWO_TURNS, "engine": BatchEngine(cancel_on_exit=not left_running)}
    budget = Budget(deadline_s=1.5 * HOUR)
    halted = run(batched, provider(server), questions(4), journal=InlineJournal(path), budget=budget, **settings)
    assert "deadline" == halted.stop_reason
    restart(server)
    result = run(batched, provider(server), questions(4), journal=InlineJournal(path), **settings)
    expected = run(batched, provider(server_of(second_turn)), questions(4), **settings)
    assert 4 == result.counts()["succeeded"]
    assert expected.usage == result.usage == Journal(path).summary().usage


def test_answers_before_a_spent_budget_are_counted_once(run, provider, path):
    """F19, F21: the item that the budget cut off had an answer already."""
    server = server_of(second_turn)
    settings = {"strategy": TWO_TURNS, "options": Options(max_tokens=20)}
    journal, budget = InlineJournal(path), Budget(tokens=100)
    halted = run(batched, provider(server), questions(4), journal=journal, budget=budget, **settings)
    assert "budget" == halted.stop_reason
    restart(server)
    result = run(batched, provider(server), questions(4), journal=InlineJournal(path), **settings)
    expected = run(batched, provider(server_of(second_turn)), questions(4), **settings)
    assert 4 == result.counts()["succeeded"]
    assert expected.usage == result.usage == Journal(path).summary().usage


def failing_once(server):
    """Answer the first turn, and fail once with each second one."""
    failed = set()

    def answer(request):
        if second_turn(request) == "no":
            return "no"
        if request.custom_id in failed:
            return "yes"
        failed.add(request.custom_id)
        return Verdict(status=500)

    server.answer = answer
    return server


def test_answers_before_an_outage_are_counted_once(run, provider, path):
    """F18, F21: after the outage, the item gets the same answers from the journal again."""
    server = failing_once(server_of())
    settings = {"strategy": TWO_TURNS, "engine": BatchEngine(max_tries=1)}
    result = run(batched, provider(server), questions(1), journal=InlineJournal(path), **settings)
    expected = run(batched, provider(server_of(second_turn)), questions(1), strategy=TWO_TURNS)
    assert (1, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([1, 1, 1], {}) == (sizes(server), paid_twice(server))
    assert expected.usage == result.usage == Journal(path).summary().usage


@pytest.mark.parametrize("ending", ["halt", "raise"])
def test_halting_cancels_the_batches(run, provider, path, ending):
    """F5, F7, F21: items above the one that ends the run are not paid for any longer."""
    server = server_of(lambda request: "no" if request.prompt.endswith(" 3") else "yes")
    strategy = RejectionSamplingStrategy(loop_budget=1)
    engine = BatchEngine(max_batch_requests=5, window=10)
    settings = {"strategy": strategy, "engine": engine, "journal": InlineJournal(path)}
    if ending == "halt":
        result = run(batched, provider(server), questions(30), on_failure="halt", **settings)
        assert 3 == result.halted_by
        assert [0, 1, 2, 3] == [one.index for one in result.outcomes]
    else:
        server.intercept = lambda _, path: (401, {"error": {}}) if path.endswith(("content", "results")) else None
        with pytest.raises(AuthenticationFailed):
            run(batched, provider(server), questions(30), **settings)
    assert all(batch.ended for batch in server.batches)


def test_a_deadline_cancels_the_batches(run, provider, path):
    """F19, F21: the rest stays open."""
    server = server_of()
    budget = Budget(deadline_s=HOUR / 2)
    result = run(batched, provider(server), questions(10), journal=InlineJournal(path), budget=budget)
    assert "deadline" == result.stop_reason
    assert ["cancelled"] == [batch.status for batch in server.batches]
    again = run(batched, provider(server), questions(10), journal=InlineJournal(path))
    assert 10 == again.counts()["succeeded"]
    assert not paid_twice(server)


def test_without_a_journal_the_batches_are_cancelled_too(run, provider):
    """F21: without a journal, no later run could use the answers."""
    server = server_of()
    run(cut_off, HOUR / 2, provider(server), questions(10))
    assert ["cancelled"] == [batch.status for batch in server.batches]


def test_failed_items_are_asked_afresh(run, provider, path):
    """F18, F21: a retry gets new answers, not those of the journal."""
    server = server_of(lambda _: "no")
    first = run(batched, provider(server), questions(3), journal=InlineJournal(path))
    assert 3 == first.counts()["failed"]
    server.answer = lambda _: "yes"
    second = run(batched, provider(server), questions(3), journal=InlineJournal(path), retry={"failed"})
    assert 3 == second.counts()["succeeded"]
    assert [3, 3] == sizes(server)


def test_a_journal_with_batches_is_not_resumed_without_the_engine(run, provider, path):
    """F21: the batches would be paid for and not used."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, provider(server), questions(3), journal=InlineJournal(path), engine=engine)
    with pytest.raises(JournalMismatch, match="in progress at the provider"):
        run(fan_out, ONCE, questions(3), None, provider(server), [YES], journal=InlineJournal(path))
    restart(server)
    assert 3 == run(batched, provider(server), questions(3), journal=InlineJournal(path)).counts()["succeeded"]


def test_an_item_that_moved_still_gets_its_answer(run, provider, path):
    """F17, F21: items are matched by key, also those in a batch."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=False)
    items = [(f"key {number}", f"question {number}") for number in range(3)]
    run(cut_off, HOUR / 2, provider(server), items, journal=InlineJournal(path), engine=engine)
    restart(server)
    journal = InlineJournal(path, on_change="continue")
    result = run(batched, provider(server), [("new", "another question"), *items], journal=journal)
    assert 4 == result.counts()["succeeded"]
    assert [3, 1] == sizes(server)


def test_a_budget_counts_what_earlier_processes_spent_once(run, provider, path):
    """F21: answers that were paid for before the resume are not paid for again."""
    server = server_of(second_turn)
    backend = Priced(provider(server), Price(10.0, 100.0))
    settings = {"strategy": TWO_TURNS, "options": Options(max_tokens=10)}
    engine = BatchEngine(cancel_on_exit=False)
    journal = InlineJournal(path)
    run(cut_off, 1.5 * HOUR, backend, questions(6), engine=engine, journal=journal, budget=Budget(cost=1.0), **settings)
    restart(server)
    budget = Budget(cost=1.0)
    result = run(batched, backend, questions(6), journal=InlineJournal(path), budget=budget, **settings)
    assert 6 == result.counts()["succeeded"]
    assert result.usage.cost == pytest.approx(budget.spent.cost)
    whole = run(batched, Priced(provider(server_of(second_turn)), Price(10.0, 100.0)), questions(6), **settings)
    assert whole.usage.cost == pytest.approx(result.usage.cost)


def test_a_batch_that_somebody_else_cancelled_ends_the_run(run, provider, path):
    """F21: a batch that was cancelled at the provider ends the run."""
    server = server_of()

    def cancel_elsewhere(method, path):
        if anyio.current_time() > HOUR / 2 and not server.batches[0].ended:
            server._cancel(server.batches[0])

    server.intercept = cancel_elsewhere
    with pytest.raises(Exception, match="cancelled at the provider"):
        run(batched, provider(server), questions(4), journal=InlineJournal(path))
    assert [4] == sizes(server)


def test_another_batch_of_the_same_size_is_not_taken_for_ours(run, path):
    """F21: Anthropic keeps no names of batches, so the results have to show whose they are."""
    server = server_of(lambda request: f"yes to {request.prompt}")
    provider = PROVIDERS["anthropic"]
    settings = {"journal": InlineJournal(path), "engine": BatchEngine(cancel_on_exit=False)}
    run(cut_off, HOUR / 2, provider(server), questions(3), **settings)
    # A run of somebody else, of the same size and at the same time, and a journal that lacks the id of our batch.
    run(cut_off, HOUR / 2, provider(server), questions(3), engine=BatchEngine(cancel_on_exit=False))
    forget_id(path)
    restart(server)
    result = run(batched, provider(server), questions(3), journal=InlineJournal(path))
    assert [f"yes to question {number}" for number in range(3)] == [one.result.value for one in result.outcomes]
    assert [3, 3] == sizes(server)
    assert not paid_twice(server)


def in_doubt_beside_a_stranger(run, path):
    """A journal that lacks the id of its batch, and a batch of somebody else, of the same size and at the same time."""
    server = server_of(lambda request: f"yes to {request.prompt}")
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, PROVIDERS["anthropic"](server), questions(3), journal=InlineJournal(path), engine=engine)
    run(cut_off, HOUR / 2, PROVIDERS["anthropic"](server), questions(3), engine=engine)
    forget_id(path)
    return server


@pytest.mark.parametrize("cancel_on_exit", [True, False])
def test_a_batch_in_doubt_is_looked_for_again_after_a_second_stop(run, path, cancel_on_exit):
    """F21: another batch may have been mistaken for it, so the id is recorded when the results have shown it."""
    server = in_doubt_beside_a_stranger(run, path)
    engine = BatchEngine(cancel_on_exit=cancel_on_exit)
    run(cut_off, 60, PROVIDERS["anthropic"](server), questions(3), journal=InlineJournal(path), engine=engine)
    # A batch that may be somebody else's is not cancelled.
    assert ["in_progress", "in_progress"] == [batch.status for batch in server.batches]
    restart(server)
    result = run(batched, PROVIDERS["anthropic"](server), questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3, 3], {}) == (sizes(server), paid_twice(server))


def test_a_batch_in_doubt_is_found_although_another_candidate_is_deleted(run, path):
    """F21: the provider does not know the first candidate any more."""
    server = in_doubt_beside_a_stranger(run, path)
    deleted = server.batches[1].id
    server.intercept = lambda _, path: (404, {"error": {"message": "gone"}}) if path.endswith(deleted) else None
    restart(server)
    result = run(batched, PROVIDERS["anthropic"](server), questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3, 3], {}) == (sizes(server), paid_twice(server))


def test_two_batches_in_doubt_are_told_apart(run, path):
    """F21: neither is taken for known because the other was mistaken for it."""
    server = losing_creations(server_of(), 2)
    strategy = RejectionSamplingStrategy(concurrency_budget=2, variation=Diverse(models=("one", "another")))
    result = run(batched, PROVIDERS["anthropic"](server), questions(3), strategy=strategy, journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3, 3], {}) == (sizes(server), paid_twice(server))


def test_a_batch_that_can_not_be_looked_for_now_is_looked_for_later(run, provider, path):
    """F21: the batch exists, but its id was lost, and the key may not list batches."""
    server = losing_creations(server_of())
    is_list = lambda method, path: method == "GET" and path.endswith("/batches")  # noqa: E731
    server.intercept = lambda *call: (403, {"error": {"message": "no"}}) if is_list(*call) else None
    settings = {"journal": InlineJournal(path), "on_error": "continue"}
    assert 3 == run(batched, provider(server), questions(3), **settings).counts()["errored"]
    server.intercept = None
    restart(server)
    result = run(batched, provider(server), questions(3), retry={"errored"}, **settings)
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


def test_a_cancellation_at_the_end_is_tried_again(run, provider):
    """F21: one error of the server does not leave a batch running."""
    server, refused = server_of(), []

    def intercept(method, path):
        if path.endswith("/cancel") and len(refused) < 2:
            refused.append(path)
            return 503, {"error": {"message": "down"}}
        return None

    server.intercept = intercept
    run(cut_off, HOUR / 2, provider(server), questions(4))
    assert ["cancelled"] == [batch.status for batch in server.batches]


def test_what_ended_before_it_was_cancelled_is_kept(run, provider, path):
    """F21: the provider refuses to cancel a batch that has ended, and its answers are used."""
    server = server_of()

    def end_instead(method, path):
        if not path.endswith("/cancel"):
            return None
        server._end(server.batches[0], 4, "completed")
        return 409, {"error": {"message": "it has ended"}}

    server.intercept = end_instead
    run(cut_off, HOUR / 2, provider(server), questions(4), journal=InlineJournal(path))
    assert 4 == len(notes(path, "answer"))


@pytest.mark.parametrize("failure", ["refused", "too slow"])
def test_a_retry_gets_the_answers_of_a_batch_that_goes_on(run, provider, path, failure):
    """F18, F21: the batch was paid for, and goes on at the provider."""
    server = server_of(second_turn)
    settings = {"strategy": TWO_TURNS, "journal": InlineJournal(path), "on_error": "continue"}
    engine = BatchEngine(cancel_on_exit=False)
    limit = {"item_timeout_s": 1.5 * HOUR} if failure == "too slow" else {}
    if failure == "refused":
        # The key is blocked for a while, when the second batch is in progress.
        server.intercept = lambda *_: (403, {"error": {"message": "no"}}) if len(server.batches) == 2 else None
    first = run(batched, provider(server), questions(3), engine=engine, **limit, **settings)
    assert 0 == first.counts()["succeeded"]
    server.intercept = None
    restart(server)
    result = run(batched, provider(server), questions(3), retry={"failed", "errored"}, **settings)
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3, 3], {}) == (sizes(server), paid_twice(server))
    assert not notes(path, "answer")
    assert not notes(path, "request")
    assert not notes(path, "batch")


def moved(provider, server):
    backend = provider(server)
    address = "http://localhost:9/v1"
    if isinstance(backend, OpenAIBackend):
        return OpenAIBackend(address, "key", "model", transport=server.transport)
    return AnthropicBackend("model", "key", base_url=address, transport=server.transport)


def test_batches_at_another_address_are_not_paid_again_unasked(run, provider, path):
    """F16, F21: the address does not decide an answer, but batches can be found only where they were created."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, provider(server), questions(3), journal=InlineJournal(path), engine=engine)
    with pytest.raises(JournalMismatch, match=r"1 batch.*127\.0\.0\.1:9.*resume with that backend"):
        run(batched, moved(provider, server), questions(3), journal=InlineJournal(path))
    assert [3] == sizes(server)
    going_on = InlineJournal(path, on_change="continue")
    result = run(batched, moved(provider, server), questions(3), journal=going_on)
    assert (3, (0, 1, 2)) == (result.counts()["succeeded"], result.maybe_billed_twice)


def shown_to_owners(server):
    """Show each batch only to the key that created it."""
    handle, owners = server.handle, {}

    def handle_own(method, target, headers, body):
        key = headers.get("authorization") or headers["x-api-key"]
        if any(f"/{batch_id}" in target and owner != key for batch_id, owner in owners.items()):
            return 404, b"{}"
        answer = handle(method, target, headers, body)
        for batch in server.batches:
            owners.setdefault(batch.id, key)
        return answer

    server.handle = handle_own
    return server


def test_batches_of_two_accounts_at_one_address_are_found(run, provider, path):
    """F21: a backend and its fallback may differ in the key only, and each sees its own batches."""
    server = shown_to_owners(server_of())
    backend = Fallback(provider(server, "one"), provider(server, "another"))
    engine = BatchEngine(cancel_on_exit=False)
    run(cut_off, HOUR / 2, backend, questions(3), journal=InlineJournal(path), engine=engine)
    restart(server)
    result = run(batched, backend, questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


def forget_id(path):
    """Write the note of the batch as it was before the batch was created."""
    import json
    import sqlite3

    from sampling.fanout.journal._schema import checksum

    database = sqlite3.connect(path, isolation_level=None)
    name, value = database.execute("SELECT name, value FROM notes WHERE kind = 'batch'").fetchone()
    value = json.dumps({**json.loads(value), "batch_id": None, "state": "sending"})
    new = ("batch", name, None, value)
    database.execute("UPDATE notes SET value = ?, checksum = ? WHERE kind = 'batch'", (value, checksum(*new)))
    database.close()


def test_memory_does_not_grow_with_the_number_of_items(run, provider, path):
    """F12, F21: after an item has its outcome, the engine and the journal keep nothing of it."""
    import sampling.fanout.batch._run as module

    runs = []

    class Watched(module.BatchRun):
        def __init__(self, *args):
            super().__init__(*args)
            runs.append(self)

    server = server_of()
    engine = BatchEngine(window=20)
    engine.open = lambda work: Watched(work, engine._settings)
    run(batched, provider(server), questions(100), engine=engine, journal=InlineJournal(path))
    (batch_run,) = runs
    assert not batch_run._batch_of
    assert not batch_run._running
    assert not batch_run._ledger.answered
    assert [(0,)] == rows(path, "SELECT count(*) FROM notes WHERE item IS NOT NULL")
