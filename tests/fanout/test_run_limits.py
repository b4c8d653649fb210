"""F19: limits of a run on requests, on the time of an item, and on its budget."""

import itertools

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sampling import (
    Budget,
    EscalationStrategy,
    Generation,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Tier,
    Timeout,
    TransientError,
    Usage,
    fan_out,
    open_fan_out,
)
from sampling.backends.layers import Retrying
from sampling.checks import judge
from sampling.testing import After, ScriptedBackend
from tests.faults.journals import InlineJournal, answering, asked, numbers, stored

ONCE = RejectionSamplingStrategy()


class Counting:
    """Answers after a second, and counts the requests in flight."""

    def __init__(self):
        self.in_flight = self.most = 0

    async def __call__(self, request):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await anyio.sleep(1)
        finally:
            self.in_flight -= 1
        return "yes"


def test_requests_in_flight_are_limited_over_all_items(run):
    """F19: five items of breadth four have at most `max_requests` in flight, and all succeed."""
    backend, wide = Counting(), RejectionSamplingStrategy(concurrency_budget=4)
    assert 20 == run(fan_out, wide, numbers(20), None, backend, max_concurrency=5, max_requests=3).counts()["succeeded"]
    assert 3 == backend.most


def test_requests_to_the_backends_of_tiers_and_judges_are_limited_too(run):
    """F19: `max_requests` is about all requests of the run, whichever backend gets them."""
    backend = Counting()
    strategy = EscalationStrategy([Tier(backend), Tier(backend), Tier()])
    reqs = [judge("is polite", backend=backend), Requirement("never", lambda _: False)]
    result = run(fan_out, strategy, numbers(12), None, backend, reqs, max_concurrency=6, max_requests=3)
    assert 12 == result.counts()["failed"]
    assert 3 == backend.most


def test_a_request_that_waits_to_be_retried_counts_as_one_in_flight(run):
    """F19: as docs/how-to/fan-out.md says. The next item's request is sent when the first has its answer."""
    sent = []

    async def backend(request):
        sent.append((anyio.current_time(), asked(request)))
        if len(sent) == 1:
            raise RateLimited("later", retry_after_s=30)
        return "yes"

    result = run(fan_out, ONCE, numbers(2), None, Retrying(backend), max_concurrency=2, max_requests=1)
    assert 2 == result.counts()["succeeded"]
    (first, _), (second, _), (third, _) = sent
    assert ["0", "0", "1"] == [question for _, question in sent]
    assert (True, 0) == (second - first >= 30, third - second)


def test_an_item_that_hangs_is_errored_and_holds_up_nothing(run):
    """F19: an item ends after `item_timeout_s` with a `Timeout`, and the rest of the ordered run goes on."""

    async def backend(request):
        await anyio.sleep(10_000 if asked(request) == "2" else 1)
        return "yes"

    async def main():
        began_at = anyio.current_time()
        result = await fan_out(
            ONCE, numbers(6), None, backend, on_error="continue", item_timeout_s=5, max_concurrency=2
        )
        return result, anyio.current_time() - began_at

    result, took_s = run(main)
    assert {"succeeded": 5, "failed": 0, "errored": 1} == result.counts()
    error = result.outcomes[2].error
    assert isinstance(error, Timeout)
    assert "item 2 had no result after 5 s" in str(error)
    assert 6 == pytest.approx(took_s, abs=1.1)


def test_a_cancelled_run_hands_out_what_finished_after_an_item_that_hangs(run):
    """An ordered run does not keep outcomes back for one that will not come."""

    async def backend(request):
        await anyio.sleep(10_000 if asked(request) == "1" else 1)
        return "yes"

    async def main():
        async with open_fan_out(ONCE, numbers(4), None, backend, max_concurrency=4) as outcomes:
            await anyio.sleep(2)
            outcomes.cancel()
            return [outcome.index async for outcome in outcomes]

    assert [0, 2, 3] == run(main)


@pytest.mark.parametrize("limit", ["attempts", "requests"])
def test_attempts_of_items_without_an_outcome_count_after_a_resume(run, tmp_path, limit):
    """F19: what a budget cut off was paid for, so three runs with a limit of 2, 3 and 4 send 4 requests in all."""
    calls = 0

    async def backend(request):
        nonlocal calls
        calls += 1
        return "no"

    thrice = RejectionSamplingStrategy(loop_budget=3)
    never = Requirement("is never good enough", lambda text: False)
    journal = InlineJournal(tmp_path / "run.db")
    for allowed in (2, 3, 4):
        budget = Budget(**{limit: allowed})
        result = run(fan_out, thrice, numbers(2), None, backend, [never], journal=journal, budget=budget)
        assert ("halted", "budget") == (result.status, result.stop_reason)
        assert allowed == calls


def test_a_spent_budget_ends_an_endless_run(run, tmp_path):
    """F19: nothing more is started, and the rest stays open in the journal."""
    path = tmp_path / "run.db"
    backend = ScriptedBackend(lambda _: After(1.0, Generation("yes", Usage(3, 2, 0.5))))
    endless = (str(number) for number in itertools.count())
    result = run(
        fan_out,
        ONCE,
        endless,
        None,
        backend,
        budget=Budget(requests=10),
        max_concurrency=4,
        journal=InlineJournal(path),
    )
    assert ("halted", "budget", None) == (result.status, result.stop_reason, result.halted_by)
    assert 10 == result.counts()["succeeded"] == len(backend.requests)
    assert 10 == len(stored(path))
    assert "halted by the budget" in str(result)


def test_a_deadline_ends_a_run(run):
    """F19: a deadline of the budget is a limit like the others."""
    backend = ScriptedBackend(lambda _: After(1.0, "yes"))
    endless = (str(number) for number in itertools.count())
    result = run(fan_out, ONCE, endless, None, backend, budget=Budget(deadline_s=4.5), max_concurrency=2)
    assert ("halted", "deadline") == (result.status, result.stop_reason)
    assert 8 == result.counts()["succeeded"]


def test_items_that_found_no_room_were_not_billed(run, tmp_path):
    """F19: a resume does not list items as maybe billed twice for which nothing was sent."""
    path = tmp_path / "run.db"
    run(fan_out, ONCE, numbers(9), None, answering(), budget=Budget(requests=4), journal=InlineJournal(path))
    result = run(fan_out, ONCE, numbers(9), None, answering(), journal=InlineJournal(path))
    assert 9 == result.counts()["succeeded"]
    assert () == result.maybe_billed_twice


def test_items_that_a_resume_had_no_room_for_are_not_billed_again(run, tmp_path):
    """F19: items that the budget cut off half way are sampled again only once there is room for them."""
    deep = RejectionSamplingStrategy(loop_budget=3)

    def call(requests):
        journal, budget = InlineJournal(tmp_path / "run.db"), Budget(requests=requests)
        return run(fan_out, deep, numbers(4), None, answering(), [str.isdigit], journal=journal, budget=budget)

    assert () == call(6).maybe_billed_twice
    assert () == call(6).maybe_billed_twice
    assert (0, 1, 2, 3) == call(60).maybe_billed_twice


def test_requests_that_waited_for_their_turn_and_were_never_sent_cost_nothing(run):
    """F19: losers that `max_requests` held up don't count, so a budget of 40 requests is one of 40 that are sent."""
    backend = ScriptedBackend(lambda request: After(1 + request.subsample / 10, "yes"))
    wide, budget = RejectionSamplingStrategy(concurrency_budget=4), Budget(requests=40)
    result = run(fan_out, wide, numbers(100), None, backend, max_concurrency=2, max_requests=2, budget=budget)
    assert ("budget", 40) == (result.stop_reason, len(backend.requests))
    assert 0 == budget.reserved.requests
    assert 40 >= sum(outcome.requests for outcome in result.outcomes)


@pytest.mark.parametrize("deadline_s", [2.5, None])
def test_items_that_waited_for_their_turn_were_not_billed(run, tmp_path, deadline_s):
    """F19: of twenty items that a deadline or the caller cut off, only the two that were sent are in doubt."""
    backend = ScriptedBackend(lambda _: After(1.0, "yes"))

    def call(**settings):
        settings = {"max_requests": 2, "max_concurrency": 20, "journal": InlineJournal(tmp_path / "run.db"), **settings}
        return fan_out(ONCE, numbers(30), None, backend, **settings)

    async def main():
        with anyio.move_on_after(2.5 if deadline_s is None else 100):
            await call(budget=Budget(deadline_s=deadline_s))
        return await call()

    result = run(main)
    assert 30 == result.counts()["succeeded"]
    assert 32 == len(backend.requests)
    assert 2 == len(result.maybe_billed_twice)


def test_an_item_that_the_budget_cut_off_is_no_failure(run, tmp_path):
    """F19: the budget ends the run, also with `on_failure="halt"`, and no item is blamed for it."""

    def call(requests):
        journal, budget = InlineJournal(tmp_path / "run.db"), Budget(requests=requests)
        return run(fan_out, ONCE, numbers(9), None, answering(), journal=journal, budget=budget, on_failure="halt")

    result = call(4)
    assert ("halted", "budget", None) == (result.status, result.stop_reason, result.halted_by)
    assert ("completed", 9) == (call(9).status, len(stored(tmp_path / "run.db")))


@pytest.mark.parametrize("on_error", ["raise", "halt", "continue"])
def test_a_budget_that_is_spent_by_a_retry_ends_the_run(run, tmp_path, on_error):
    """F19: an item without an answer stays open, whatever `on_error` says, and a larger budget answers it."""
    failures = iter([False, False, True, True])

    async def backend(request):
        if next(failures, False):
            raise TransientError("503")
        return "yes"

    def call(requests):
        settings = {"journal": InlineJournal(tmp_path / "run.db"), "budget": Budget(requests=requests)}
        retrying = Retrying(backend, seed=1)
        return run(fan_out, ONCE, numbers(5), None, retrying, max_concurrency=1, on_error=on_error, **settings)

    result = call(4)
    assert ("halted", "budget", None) == (result.status, result.stop_reason, result.halted_by)
    assert [0, 1] == list(stored(tmp_path / "run.db"))
    assert {"succeeded": 5, "failed": 0, "errored": 0} == call(40).counts()


def test_a_run_inside_an_attempt_does_not_wait_for_its_budget(run):
    """Semantics 9: the reservation of the attempt around a run is returned only after the run."""
    budget, inner = Budget(requests=1), []

    async def backend(request):
        inner.append(await fan_out(ONCE, numbers(3), None, answering(), budget=budget))
        return "yes"

    result = run(fan_out, ONCE, ["all of them"], None, backend, budget=budget)
    assert ("completed", 1) == (result.status, result.counts()["succeeded"])
    assert ["budget"] == [one.stop_reason for one in inner]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_requests": 0}, "max_requests must be >= 1, got 0"),
        ({"item_timeout_s": 0}, "item_timeout_s must be"),
        ({"outage_grace_s": -1}, "outage_grace_s must be"),
    ],
)
def test_limits_are_checked_before_anything_runs(run, settings, message):
    """F19: a limit that makes no sense is named."""
    backend = answering()
    with pytest.raises(ValueError, match=message):
        run(fan_out, ONCE, numbers(3), None, backend, **settings)
    assert not backend.requests


@pytest.mark.parametrize("with_journal", [False, True])
def test_starting_many_items_leaves_turns_to_other_tasks(run, tmp_path, with_journal):
    """F3: an application that embeds a wide run is not blocked until thousands of items have started."""
    backend, at_turns = Counting(), [0]

    async def take_turns():
        while backend.most < 1_000:
            at_turns.append(backend.most)
            await checkpoint()

    async def main():
        async with anyio.create_task_group() as others:
            others.start_soon(take_turns)
            journal = InlineJournal(tmp_path / "run.db") if with_journal else None
            await fan_out(ONCE, numbers(1_000), None, backend, max_concurrency=1_000, journal=journal)

    run(main)
    at_turns.append(backend.most)
    # Trio may call this task first in one turn and last in the next, so that two groups start in between.
    assert max(after - before for before, after in itertools.pairwise(at_turns)) <= 256
