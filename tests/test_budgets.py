"""Budgets: reserved before a request, settled after it, shared between calls."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sampling import (
    Budget,
    BudgetExceeded,
    EscalationStrategy,
    Generation,
    MultiTurnStrategy,
    Options,
    Price,
    RejectionSamplingStrategy,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Cached, Fallback, Priced, Retrying
from sampling.budgets import Reservation
from sampling.errors import UnknownPrice
from sampling.testing import After, ScriptedBackend, run_virtual


def costing(tokens, text="no", delay_s=1.0, cost=0.0):
    return ScriptedBackend(lambda _: After(delay_s, Generation(text, Usage(0, tokens, cost))))


async def sample(strategy, backend, budget, reqs=(lambda text: text == "yes",), **arguments):
    return await strategy.sample("q", None, backend, reqs, budget=budget, **arguments)


def test_attempts_are_limited_across_subsamples(run):
    """I10: the call stops at the limit and returns the best answer so far."""
    budget = Budget(attempts=5)
    result = run(sample, RejectionSamplingStrategy(loop_budget=4, concurrency_budget=3), costing(1), budget)
    assert 5 == len(result.attempts) == budget.attempts_made
    assert "budget" == result.stop_reason
    assert result.best in result.slices
    assert "attempts" in result.stop_detail
    assert "budget of 5 attempts" in result.explain()


def test_tokens_are_limited(run):
    """I10: the limit is not exceeded once the size of an answer is known."""
    budget = Budget(tokens=1000)
    result = run(sample, RejectionSamplingStrategy(loop_budget=50), costing(300), budget)
    assert "budget" == result.stop_reason
    assert 3 == len(result.attempts)
    assert 900 == result.usage.total_tokens == budget.spent.total_tokens


def test_max_tokens_is_reserved_where_it_is_known(run):
    """I10: then even the first requests in flight can't exceed the limit."""
    budget = Budget(tokens=1000)
    strategy = RejectionSamplingStrategy(concurrency_budget=8)
    result = run(sample, strategy, costing(300), budget, options=Options(max_tokens=300))
    assert 3 == len(result.attempts)
    assert budget.spent.total_tokens <= 1000


def test_what_is_in_flight_may_pass_the_limit_by_the_declared_rule(run):
    """I10: spent <= limit + what requests in flight use beyond their estimates."""
    budget = Budget(tokens=100)
    result = run(sample, RejectionSamplingStrategy(loop_budget=9, concurrency_budget=4), costing(300), budget)
    assert 4 == len(result.attempts)
    assert 1200 == budget.tokens_charged


def test_cost_is_limited(run):
    """I10: the same holds for the cost."""
    budget = Budget(cost=1.0)
    result = run(sample, RejectionSamplingStrategy(loop_budget=50), costing(1, cost=0.3), budget)
    assert 3 == len(result.attempts)
    assert pytest.approx(0.9) == result.usage.cost


@pytest.mark.parametrize("answer", ["no", Generation("no", Usage(10, 5))], ids=["no usage", "no cost"])
def test_a_limit_on_the_cost_needs_a_backend_that_reports_one(run, answer):
    """Semantics 9: the first answer without a cost ends the call, and the next one is not sent."""
    budget = Budget(cost=1.0)
    backend = ScriptedBackend(lambda _: answer)
    for _ in range(2):
        with pytest.raises(UnknownPrice, match=r"budget of 1 cost: .*reports? no cost|has no cost") as caught:
            run(sample, RejectionSamplingStrategy(loop_budget=5), backend, budget)
    assert "Priced(" in caught.value.hint
    assert 1 == len(backend.requests)


def test_a_backend_that_is_known_to_report_no_cost_is_refused_before_it_is_asked(run):
    """Semantics 9: also behind layers, and not if it has a price."""

    class Local(ScriptedBackend):
        reports_cost = False

    backend = Local(["yes"] * 9)
    for layered in (backend, Retrying(backend), Fallback(Retrying(backend), backend)):
        with pytest.raises(UnknownPrice):
            run(sample, RejectionSamplingStrategy(), layered, Budget(cost=1.0))
    assert [] == backend.requests
    assert run(sample, RejectionSamplingStrategy(), Priced(backend, Price(0, 0)), Budget(cost=1.0)).slices
    assert run(sample, RejectionSamplingStrategy(), backend, Budget(tokens=1_000)).slices


def test_an_answer_without_cost_is_fine_after_others_with_one(run):
    """A free answer, such as from a cache, does not make the price unknown."""
    backend = ScriptedBackend([Generation("no", Usage(1, 1, 0.1)), Generation("no", Usage(1, 1))])
    result = run(sample, RejectionSamplingStrategy(loop_budget=2), backend, Budget(cost=1.0))
    assert 2 == len(result.slices)
    cached = Cached(ScriptedBackend([Generation("no", Usage(1, 1, 0.1))]))
    run(sample, RejectionSamplingStrategy(), cached, None)
    assert run(sample, RejectionSamplingStrategy(), cached, Budget(cost=1.0)).slices


def test_a_deadline_returns_the_best_so_far(run):
    """I12: the call returns exactly at the deadline, in virtual time."""
    budget = Budget(deadline_s=2.5)
    result = run(sample, RejectionSamplingStrategy(loop_budget=9, concurrency_budget=2), costing(1), budget)
    assert "deadline" == result.stop_reason
    assert 2.5 == result.elapsed_s
    assert 4 == len(result.slices)
    assert ["cancelled", "cancelled"] == [one.outcome for one in result.attempts if one.finished_s == 2.5]


@pytest.mark.parametrize("breadth", [1, 3])
def test_a_deadline_with_nothing_to_show_returns_too(run, breadth):
    """I12: with a backend that hangs, the result has no answer and no error, and all attempts."""
    result = run(
        sample, RejectionSamplingStrategy(concurrency_budget=breadth), costing(1, delay_s=99.0), Budget(deadline_s=1.0)
    )
    assert (False, None, None, "deadline") == (result.success, result.best, result.value, result.stop_reason)
    assert ["cancelled"] * breadth == [one.outcome for one in result.attempts]
    assert 1.0 == result.elapsed_s


def test_a_budget_that_is_used_up_sends_nothing(run):
    """Row 79: a limit is enforced before a request is sent."""
    backend = costing(1)
    result = run(sample, RejectionSamplingStrategy(), backend, Budget(requests=0))
    assert not backend.requests
    assert ("budget", (), None) == (result.stop_reason, result.attempts, result.best)
    assert "after 0 of 1 attempts" in str(result)


def test_a_budget_is_shared_between_calls(run):
    """One budget limits several calls, sequential and concurrent."""
    budget = Budget(attempts=7)
    strategy = RejectionSamplingStrategy(loop_budget=2)

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(sample, strategy, costing(1), budget)

    run(main)
    assert 7 == budget.attempts_made


def test_the_deadline_of_a_shared_budget_starts_at_its_first_use(run):
    """A later call has only the remaining time."""

    async def main():
        budget = Budget(deadline_s=5.0)
        await sample(RejectionSamplingStrategy(loop_budget=3), costing(1), budget)
        result = await sample(RejectionSamplingStrategy(loop_budget=9), costing(1), budget)
        return result, anyio.current_time()

    result, now = run(main)
    assert "deadline" == result.stop_reason
    assert 5.0 == now


def test_the_deadline_is_carried_over_to_another_event_loop(monkeypatch):
    """Every event loop has its own clock, and `sample_sync` creates a new loop for each call."""
    budget = Budget(deadline_s=5.0)
    now = 1000.0
    monkeypatch.setattr("sampling.budgets.time.monotonic", lambda: now)
    assert 15.0 == budget.deadline("one loop", 10.0)
    assert 15.0 == budget.deadline("one loop", 12.0)
    now = 1002.0
    assert 503.0 == budget.deadline("another loop", 500.0)


def test_judges_repairs_and_losers_are_covered(run):
    """Semantics 9: every request to the backend counts."""

    def reply(request):
        if request.messages[0].role == "system":
            return Generation("no", Usage(10, 1))
        return After(request.subsample * 10, Generation("text", Usage(5, 2)))

    budget = Budget(requests=100)
    backend = ScriptedBackend(reply)
    strategy = MultiTurnStrategy(loop_budget=2)
    result = run(sample, strategy, backend, budget, ["is polite"])
    assert 4 == budget.requests_made == len(backend.requests)
    assert 2 == budget.attempts_made
    assert Usage(30, 6) == result.usage == budget.spent
    assert [Usage(15, 3)] * 2 == [one.usage for one in result.slices]


def test_a_judge_that_the_budget_does_not_allow_fails_the_attempt(run):
    """Semantics 9: an answer that was not judged is not valid."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["text"]), Budget(requests=1), ["is polite"])
    assert "budget" == result.stop_reason
    assert isinstance(result.slices[0].validations[0].error, BudgetExceeded)


def test_a_check_that_asks_with_what_is_no_message_holds_nothing_of_the_budget(run):
    """A request that could not be built leaves no reservation behind."""

    async def asks(text, view):
        return (await view.ask([SimpleNamespace(role="user", content="good?")])).text == "yes"

    budget = Budget(requests=5)
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["text"]), budget, [asks])
    assert isinstance(result.slices[0].validations[0].error, TypeError)
    assert (0, 0, 0) == (budget.reserved.attempts, budget.reserved.requests, budget.reserved.tokens)
    assert 1 == budget.requests_made


def test_what_a_cancelled_loser_had_used_is_on_the_result(run):
    """Semantics 2: usage reported before a cancellation or an error is on the result."""

    async def backend(request):
        for tokens in range(1, 5):
            report_usage(Usage(10, tokens))
            await anyio.sleep(0.75 if request.subsample == 1 else 1.0)
            if request.subsample == 1 and tokens == 2:
                return Generation("yes", Usage(10, 2))
            if request.subsample == 2:
                raise RuntimeError("broken")
        return "no"

    budget = Budget(tokens=1000)
    result = run(sample, RejectionSamplingStrategy(concurrency_budget=3), backend, budget)
    assert ["cancelled", "valid", "errored"] == [one.outcome for one in result.attempts]
    assert [Usage(10, 2), Usage(10, 2), Usage(10, 1)] == [one.usage for one in result.attempts]
    assert Usage(30, 5) == result.usage == budget.spent


def test_a_backend_that_reports_nothing_is_charged_the_estimate(run):
    """Row 21: without a reported usage, the budget charges the estimate."""
    budget = Budget(tokens=100)
    result = run(
        sample,
        RejectionSamplingStrategy(loop_budget=20),
        ScriptedBackend(lambda _: "no"),
        budget,
        options=Options(max_tokens=30),
    )
    assert 3 == len(result.attempts)
    assert 90 == budget.tokens_charged
    assert Usage() == result.usage == budget.spent


def test_report_usage_outside_of_a_call_does_nothing():
    """A backend that reports usage can be used without a strategy."""
    report_usage(Usage(1, 1))


def test_a_message_says_which_limit_it_was():
    """The message names the limit, what is spent and what was needed."""
    budget = Budget(tokens=10)
    with pytest.raises(BudgetExceeded, match=r"budget of 10 tokens: 0 spent, 0 reserved, 25 more needed"):
        budget.reserve(prompt_chars=100)


def test_several_threads_can_share_a_budget():
    """Concurrent updates from several threads are not lost."""
    budget = Budget()

    def work():
        for _ in range(500):
            budget.settle(budget.reserve(attempts=1), Usage(1, 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (2000, 2000, 4000) == (budget.attempts_made, budget.requests_made, budget.spent.total_tokens)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(["settle", "release", "unknown"]))))
def test_a_budget_agrees_with_its_model(operations):
    """S4 of the harness: reservations return to zero, and never exceed a limit."""
    budget = Budget(requests=10, tokens=200)
    held, charged = [], 0
    for prompt_tokens, used, operation in operations:
        with suppress(BudgetExceeded):
            held.append(budget.reserve(attempts=1, prompt_chars=prompt_tokens * 4, max_tokens=0))
        assert budget.requests_made <= 10
        assert budget.reserved.tokens == sum(one.tokens for one in held)
        if held and used % 2:
            reservation = held.pop()
            if operation == "release":
                budget.release(reservation)
            else:
                budget.settle(reservation, Usage(used, 0) if operation == "settle" else None)
                charged += used if operation == "settle" else reservation.tokens
    for reservation in held:
        budget.release(reservation)
    assert (0, 0, 0, 0.0) == tuple(getattr(budget.reserved, n) for n in ("attempts", "requests", "tokens", "cost"))
    assert charged == budget.tokens_charged


def test_the_repr_is_worth_reading():
    """The repr shows the limits and what is used."""
    assert "Budget(attempts=3, deadline_s=2.0) with 0 requests and 0 tokens used" == repr(
        Budget(attempts=3, deadline_s=2.0)
    )


def test_virtual_time_is_what_a_deadline_runs_on():
    """In virtual time, a deadline of a day passes at once."""
    result = run_virtual(
        sample, RejectionSamplingStrategy(), costing(1, delay_s=200_000.0), Budget(deadline_s=86_400.0)
    )
    assert 86_400.0 == result.elapsed_s


def test_a_layer_that_may_not_ask_again_ends_with_the_best_so_far(run):
    """Semantics 9: a retry that does not fit the budget ends the call like any other request."""
    replies = iter(["no", TransientError("hiccup"), "never sent"])
    backend = Retrying(ScriptedBackend(lambda _: next(replies)), attempts=5, backoff_s=0.0)
    result = run(sample, RejectionSamplingStrategy(loop_budget=5), backend, Budget(requests=2))
    assert ("budget", "no") == (result.stop_reason, result.text)
    assert ["invalid", "errored"] == [one.outcome for one in result.attempts]
    assert [BudgetExceeded] == [type(error) for error in result.errors]


class TestSharedBudgets:
    """Semantics 9: a call waits for what is only reserved, and only what is spent ends it."""

    @pytest.mark.parametrize("limit", ["tokens", "cost", "requests"])
    def test_items_wait_for_reservations_that_will_be_released(self, run, limit):
        """Each answer uses a small part of its estimate, so all items fit, though never all at once."""

        async def backend(request):
            await anyio.sleep(1)
            return Generation("yes", Usage(1, 1, 0.01))

        budget = Budget(**{"tokens": {"tokens": 1_000}, "cost": {"cost": 1.0}, "requests": {"requests": 20}}[limit])
        if limit == "cost":
            budget.charge(Usage(1, 1, 0.4), requests=1)

        async def main():
            results = []

            async def one():
                strategy = RejectionSamplingStrategy()
                results.append(
                    await strategy.sample("q", None, backend, budget=budget, options=Options(max_tokens=300))
                )

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(one)
            return results

        results = run(main)
        assert 20 == sum(result.success for result in results)
        assert Reservation(0, 0, 0, 0.0) == budget.reserved

    def test_what_is_spent_ends_a_call(self, run):
        """It waits for the request in flight, finds its tokens spent, and stops."""

        async def backend(request):
            await anyio.sleep(1)
            return Generation("yes", Usage(50, 50))

        budget = Budget(tokens=100)

        async def main():
            results = []

            async def one():
                strategy = RejectionSamplingStrategy()
                results.append(await strategy.sample("q", None, backend, budget=budget, options=Options(max_tokens=90)))

            async with anyio.create_task_group() as group:
                group.start_soon(one)
                group.start_soon(one)
            return results

        assert ["budget", "validated"] == sorted(result.stop_reason for result in run(main))

    def test_a_large_request_is_not_starved_by_small_ones(self, run):
        """First come, first served: later requests wait, too, although they would fit."""

        async def backend(request):
            await anyio.sleep(1)
            return Generation("yes", Usage(1, 1))

        budget = Budget(tokens=200)
        order = []

        async def main():
            async def one(name, max_tokens, delay_s):
                await anyio.sleep(delay_s)
                options = Options(max_tokens=max_tokens)
                await RejectionSamplingStrategy().sample("q", None, backend, budget=budget, options=options)
                order.append(name)

            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(one, "small", 80, number * 0.4)
                group.start_soon(one, "large", 190, 0.5)

        run(main)
        assert 11 == len(order)
        assert order.index("large") < 5

    @pytest.mark.parametrize("calls", [1, 2])
    def test_a_call_inside_an_attempt_does_not_wait_for_that_attempt(self, run, calls):
        """Such a wait would never end, and nor would that of two calls for each other."""

        async def inner(request):
            return Generation("yes", Usage(1, 1))

        async def outer(request):
            await anyio.sleep(1)
            options = Options(max_tokens=60)
            nested = await RejectionSamplingStrategy().sample("q", None, inner, budget=budget, options=options)
            return nested.stop_reason

        budget = Budget(tokens=50 * calls + 50)
        reasons = []

        async def main():
            async def one():
                options = Options(max_tokens=50)
                result = await RejectionSamplingStrategy().sample("q", None, outer, budget=budget, options=options)
                reasons.append(result.text)

            async with anyio.create_task_group() as group:
                for _ in range(calls):
                    group.start_soon(one)

        run(main)
        assert "budget" in reasons
        assert calls == len(reasons)
        assert 0 == budget.reserved.requests

    def test_a_stage_inside_an_attempt_does_not_wait_for_that_attempt(self, run):
        """Semantics 9: a strategy with stages knows what the attempts around it hold. Otherwise it waited for ever."""
        budget = Budget(tokens=60)
        nested = []

        async def inner(request):
            return Generation("yes", Usage(0, 10))

        async def outer(request):
            options = Options(max_tokens=40)
            nested.append(
                await EscalationStrategy([inner]).sample("inner", None, inner, (), budget=budget, options=options)
            )
            return Generation("yes", Usage(0, 10))

        result = run(sample, RejectionSamplingStrategy(), outer, budget, options=Options(max_tokens=40))
        assert ("budget", "validated") == (nested[0].stop_reason, result.stop_reason)

    def test_a_request_that_holds_something_comes_before_one_that_does_not(self, run):
        """Semantics 9: a waiting call is not refused for what a later one holds, which goes on and gives it back."""
        budget = Budget(tokens=20)
        order = []

        async def new():
            order.append(("new", await budget.acquire(max_tokens=18)))

        async def further(held):
            reservation = await budget.acquire(max_tokens=2, holding=[held])
            order.append(("further", reservation))
            await anyio.sleep(1)
            budget.settle(reservation, Usage(0, 1))
            budget.settle(held, Usage(0, 1))

        async def main():
            held = await budget.acquire(max_tokens=5)
            async with anyio.create_task_group() as group:
                group.start_soon(new)
                await anyio.sleep(1)
                group.start_soon(further, held)

        run(main)
        assert ["further", "new"] == [name for name, _ in order]

    def test_a_further_request_that_needs_no_more_than_is_held_is_never_refused(self, run):
        """Semantics 9: its tokens were reserved with those of its attempt, whatever others used beyond theirs."""
        budget = Budget(tokens=20)

        async def main():
            held = await budget.acquire(max_tokens=8)
            other = await budget.acquire(max_tokens=2)
            budget.settle(other, Usage(0, 15))
            return await budget.acquire(max_tokens=3, used=Usage(0, 5), held=held, holding=[held])

        assert 0 == run(main).tokens

    def test_of_requests_that_wait_for_each_other_one_that_holds_something_is_refused(self, run):
        """Semantics 9: it can't go on, and gives back what the others wait for. All of those are served."""
        budget = Budget(tokens=20)
        ends = {}

        async def new():
            ends["new"] = await budget.acquire(max_tokens=12)

        async def further(name, held):
            try:
                reservation = await budget.acquire(max_tokens=8, holding=[held])
                budget.settle(reservation, Usage(0, 1))
                ends[name] = "served"
            except BudgetExceeded:
                ends[name] = "refused"
            await anyio.sleep(1)
            budget.settle(held, Usage(0, 1))

        async def main():
            one, other = await budget.acquire(max_tokens=8), await budget.acquire(max_tokens=8)
            async with anyio.create_task_group() as group:
                group.start_soon(new)
                await anyio.sleep(1)
                group.start_soon(further, "one", one)
                await anyio.sleep(1)
                group.start_soon(further, "other", other)

        run(main)
        assert "refused" == ends.pop("one")
        assert "served" == ends.pop("other")
        assert isinstance(ends["new"], Reservation)

    def test_a_waiting_call_can_be_cancelled(self, run):
        """It leaves the queue, and those behind it are served."""

        async def backend(request):
            await anyio.sleep(2)
            return Generation("yes", Usage(1, 1))

        budget = Budget(tokens=100)
        ended = []

        async def main():
            async def one(name, max_tokens, limit_s):
                with anyio.move_on_after(limit_s):
                    options = Options(max_tokens=max_tokens)
                    await RejectionSamplingStrategy().sample("q", None, backend, budget=budget, options=options)
                    ended.append((name, anyio.current_time()))

            async with anyio.create_task_group() as group:
                group.start_soon(one, "first", 60, 10)
                await anyio.sleep(0.1)
                group.start_soon(one, "gives up", 90, 0.5)
                await anyio.sleep(0.1)
                group.start_soon(one, "last", 30, 10)

        run(main)
        assert ["first", "last"] == [name for name, _ in ended]
        # The last one fits beside the first as soon as the one before it is gone.
        assert ended[1][1] - ended[0][1] < 1
        assert Reservation(0, 0, 0, 0.0) == budget.reserved

    def test_calls_in_other_threads_are_woken(self):
        """A budget may be shared by event loops of several threads."""

        async def backend(request):
            await anyio.sleep(0.01)
            return Generation("yes", Usage(1, 1))

        budget = Budget(tokens=1_000)

        def call(number):
            name = ("asyncio", "trio")[number % 2]

            async def main():
                options = Options(max_tokens=600)
                return await RejectionSamplingStrategy().sample("q", None, backend, budget=budget, options=options)

            return anyio.run(main, backend=name)

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(call, range(40), timeout=60))
        assert all(result.success for result in results)

    def test_the_largest_answer_of_other_processes_counts(self):
        """An estimate without `max_tokens` is the largest answer so far, wherever it was generated."""
        budget = Budget(tokens=10_000)
        budget.charge(Usage(10, 400, 0.8), requests=4)
        assert Reservation(0, 1, 100, 0.2) == budget.reserve()
        held = Reservation(1, 2, 10, 0.0)
        budget.hold(held)
        budget.settle_held(held, Reservation(1, 2, 610, 0.9), Usage(10, 600, 0.9))
        assert 300 == budget.reserve().tokens


def test_a_budget_of_requests_bounds_retries_times_depth(run):
    """Retries of a layer multiply with the depth of a call, and a budget of requests bounds both."""
    backend = ScriptedBackend(lambda request: TransientError("down"))
    strategy = RejectionSamplingStrategy(loop_budget=3)
    with pytest.raises(TransientError), capture_logs():
        run(sample_with, strategy, Retrying(backend, attempts=4, backoff_s=0))
    assert 12 == len(backend.requests)
    backend.requests.clear()
    with capture_logs(), suppress(TransientError, BudgetExceeded):
        run(sample_with, strategy, Retrying(backend, attempts=4, backoff_s=0), budget=Budget(requests=6))
    assert 6 == len(backend.requests)


async def sample_with(strategy, backend, **arguments):
    return await strategy.sample("q", None, backend, **arguments)
