"""F1 to F12: bounded, in order, halted where it would be one after another, and resumable."""

import contextvars
import gc
import math
import re
import warnings
import weakref
from contextlib import aclosing

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from sampling import (
    Action,
    Budget,
    Context,
    Event,
    FanOutResult,
    Generation,
    Hooks,
    IterationFinished,
    Journal,
    LoopStarted,
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Usage,
    current,
    fan_out,
    open_fan_out,
)
from sampling.errors import JournalMismatch
from sampling.fanout import FanOutFinished, FanOutStarted, ItemFinished, LocalEngine
from sampling.testing import After, ScriptedBackend
from tests.faults.journals import InlineJournal

ONCE = RejectionSamplingStrategy()
YES = Requirement("says yes", lambda text: text.startswith("yes"))


def asked(request):
    return request.messages[-1].content


def answering(replies, default="yes"):
    """A backend that answers by the question, and keeps count."""
    return ScriptedBackend(lambda request: replies.get(asked(request), default))


def numbers(count):
    return [str(number) for number in range(count)]


def seen(result):
    """Return the parts of a result that must be equal for every schedule."""
    return result.status, result.halted_by, [(one.index, one.key, one.status) for one in result.outcomes]


async def take_all(run, taken):
    async with run as outcomes:
        async for outcome in outcomes:
            taken.append(outcome.index)


async def raise_inside(run):
    async with run:
        await anyio.sleep(1)
        raise LookupError("mine")


class TestHowMany:
    @pytest.mark.parametrize("at_once", [1, 0, -5])
    def test_one_or_less_runs_one_after_another(self, run, at_once):
        """F1: with the same results as concurrently."""
        backend = ScriptedBackend(lambda request: After(1.0, f"yes {asked(request)}"))
        result = run(fan_out, ONCE, numbers(5), None, backend, [YES], max_concurrency=at_once)
        assert 1 == backend.max_in_flight
        assert ("completed", None, [(n, str(n), "succeeded") for n in range(5)]) == seen(result)
        assert [f"yes {n}" for n in range(5)] == [one.result.text for one in result.outcomes]

    @pytest.mark.parametrize("given", ["3", " 3 ", "3.0", 3.0])
    def test_a_whole_number_is_honoured_however_it_is_written(self, run, given):
        """F1: a numeric string, and an integral float."""
        backend = ScriptedBackend(lambda _: After(1.0, "yes"))
        run(fan_out, ONCE, numbers(9), None, backend, max_concurrency=given)
        assert 3 == backend.max_in_flight

    @pytest.mark.parametrize("given", [None, "many", "", math.nan, math.inf, -math.inf, 2.5, "2.5", "nan", True])
    def test_what_is_no_whole_number_runs_one_after_another_and_says_so(self, run, given):
        """F1: None, other strings, NaN and infinity run one by one, with a warning at the caller's line."""
        backend = ScriptedBackend(lambda _: After(1.0, "yes"))
        with pytest.warns(UserWarning, match=r"max_concurrency must be a whole number, got .*one after another"):
            result = run(fan_out, ONCE, numbers(3), None, backend, max_concurrency=given)
        assert 1 == backend.max_in_flight
        assert "completed" == result.status

    def test_the_warning_points_to_the_caller(self):
        """F1: to the line that calls open_fan_out, not into the library."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            open_fan_out(ONCE, [], None, answering({}), max_concurrency=None)
        assert __file__ == caught[0].filename

    def test_there_are_never_more_workers_than_items(self, run):
        """F1: a huge concurrency starts no more tasks than there are items."""

        async def main():
            most = 0

            async def backend(request):
                nonlocal most
                await anyio.sleep(1)
                most = max(most, len(anyio.get_running_tasks()))
                return "yes"

            before = len(anyio.get_running_tasks())
            await fan_out(ONCE, numbers(3), None, backend, max_concurrency=10**9)
            return most - before

        # The three items, and the task that reads them while it does.
        assert run(main) in {3, 4}

    def test_concurrency_is_real(self, run):
        """F8: all of them have to be in flight at once to get past the barrier."""

        async def main():
            waiting, opened = 0, anyio.Event()

            async def barrier(request):
                nonlocal waiting
                waiting += 1
                if waiting == 5:
                    opened.set()
                await opened.wait()
                return "yes"

            return await fan_out(ONCE, numbers(5), None, barrier, max_concurrency=5)

        assert "completed" == run(main).status

    def test_no_items_are_an_empty_completed_result(self, run):
        """F9: without items, no request is sent."""
        backend = answering({})
        result = run(fan_out, ONCE, [], None, backend)
        assert ("completed", (), None, Usage()) == (result.status, result.outcomes, result.halted_by, result.usage)
        assert isinstance(result, FanOutResult)
        assert not backend.requests


class TestOrder:
    @pytest.mark.parametrize("at_once", [2, 3, 10, 100])
    def test_outcomes_are_in_the_order_of_the_items(self, run, at_once):
        """F2: under forced reverse completion too."""
        finished = []

        async def backend(request):
            await anyio.sleep(100 - int(asked(request)))
            finished.append(int(asked(request)))
            return f"yes {asked(request)}"

        result = run(fan_out, ONCE, numbers(10), None, backend, max_concurrency=at_once)
        assert [f"yes {n}" for n in range(10)] == [one.result.text for one in result.outcomes]
        assert finished != sorted(finished)

    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_stream_is_in_order_or_as_they_finish(self, run, ordered):
        """F2: as `ordered` says."""

        async def main():
            backend = ScriptedBackend(lambda request: After(10.0 - int(asked(request)), "yes"))
            async with open_fan_out(ONCE, numbers(5), None, backend, ordered=ordered) as outcomes:
                return [one.index async for one in outcomes]

        assert [0, 1, 2, 3, 4] if ordered else [4, 3, 2, 1, 0] == run(main)

    def test_at_most_max_concurrency_are_in_flight(self, run):
        """F3: and that many really are."""
        backend = ScriptedBackend(lambda request: After(1.0 + int(asked(request)) % 3, "yes"))
        run(fan_out, ONCE, numbers(40), None, backend, max_concurrency=7)
        assert 7 == backend.max_in_flight

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_source_is_read_no_further_ahead_than_the_window(self, run, is_async):
        """F3: an item is read when there is a slot for it."""
        most_ahead, read, done = 0, 0, 0

        def source():
            nonlocal read, most_ahead
            for number in range(50):
                read += 1
                most_ahead = max(most_ahead, read - done)
                yield str(number)

        async def async_source():
            for item in source():
                await checkpoint()
                yield item

        async def backend(request):
            nonlocal done
            await anyio.sleep(1)
            done += 1
            return "yes"

        items = async_source() if is_async else source()
        result = run(fan_out, ONCE, items, None, backend, max_concurrency=4)
        assert 50 == len(result.outcomes)
        assert 4 == most_ahead

    def test_a_slow_first_item_keeps_no_slot_empty(self, run):
        """F5: K=4, and the first takes a second: the fifth starts when the first free slot does."""

        async def main():
            started = {}

            async def backend(request):
                started[asked(request)] = anyio.current_time()
                await anyio.sleep(1.0 if asked(request) == "0" else 0.25)
                return "yes"

            await fan_out(ONCE, numbers(12), None, backend, max_concurrency=4)
            return started

        started = run(main)
        assert [0.0] * 4 + [0.25] * 3 + [0.5] * 3 + [0.75] * 2 == [started[str(n)] for n in range(12)]


class TestApart:
    def test_each_item_has_ids_of_its_own(self, run):
        """F4: `run_id:key:index`, as the parent of its call, and in log lines."""
        places = []

        async def backend(request):
            await anyio.sleep(1)
            places.append((asked(request), current().parent_id, structlog.contextvars.get_contextvars()["item_id"]))
            return "yes"

        items = [("a", "x"), ("b", "y"), (7, Action("z"))]
        result = run(fan_out, ONCE, items, None, backend)
        ids = [f"{result.run_id}:{key}:{index}" for index, key in enumerate(["a", "b", "7"])]
        assert sorted(zip("xyz", ids, ids, strict=True)) == sorted(places)
        assert ids == [one.result.parent_id for one in result.outcomes]
        assert ["a", "b", "7"] == [one.key for one in result.outcomes]

    def test_nothing_of_one_item_is_seen_by_another(self, run):
        """F4: each runs in its own context copy, and the caller's is untouched."""
        whose = contextvars.ContextVar("whose", default="nobody")

        async def backend(request):
            before = whose.get()
            whose.set(asked(request))
            await anyio.sleep(1)
            return f"yes {before} {whose.get()}"

        async def main():
            whose.set("caller")
            result = await fan_out(ONCE, numbers(6), None, backend, max_concurrency=2)
            assert "caller" == whose.get()
            return [one.result.text for one in result.outcomes]

        assert [f"yes caller {n}" for n in range(6)] == run(main)

    @pytest.mark.parametrize("is_journaled", [False, True])
    def test_an_item_sees_what_its_source_set_for_it(self, run, tmp_path, is_journaled):
        """F4: the context copy is made when the item is read, though a journal starts it later."""
        tenant = contextvars.ContextVar("tenant", default="nobody")

        def source():
            for number in range(6):
                tenant.set(f"tenant {number}")
                yield str(number)

        async def backend(request):
            await anyio.sleep(1)
            return f"yes {asked(request)} {tenant.get()}"

        journal = InlineJournal(tmp_path / "run.db") if is_journaled else None
        result = run(fan_out, ONCE, source(), None, backend, max_concurrency=2, journal=journal)
        assert [f"yes {n} tenant {n}" for n in range(6)] == [one.result.text for one in result.outcomes]

    def test_every_item_starts_from_the_same_conversation(self, run):
        """F4: what a multi-turn item adds is its own."""
        backend = ScriptedBackend(lambda request: "yes" if len(request.messages) > 3 else "no")
        ctx = Context([Message("system", "Be brief.")])
        result = run(fan_out, MultiTurnStrategy(loop_budget=3), numbers(4), ctx, backend, [YES])
        assert {"succeeded"} == {one.status for one in result.outcomes}
        assert {2} == {len(one.result.slices) for one in result.outcomes}


class TestHalting:
    def test_an_item_that_continues_truncates_nothing(self, run):
        """F6: a failure and an error in the middle, and all outcomes are there."""
        backend = answering({"3": "no", "5": RuntimeError("broken")})
        result = run(fan_out, ONCE, numbers(9), None, backend, [YES], on_error="continue")
        statuses = ["succeeded"] * 9
        statuses[3], statuses[5] = "failed", "errored"
        assert statuses == [one.status for one in result.outcomes]
        assert ("completed", None) == (result.status, result.halted_by)
        assert "broken" == str(result.outcomes[5].error)
        assert result.outcomes[5].result is None
        assert result.outcomes[3].error is None

    @pytest.mark.parametrize("at_once", [1, 2, 5, 50])
    @pytest.mark.parametrize("what", ["failure", "error"])
    def test_a_halt_returns_the_prefix_with_the_item_that_halted(self, run, at_once, what):
        """F5: contiguous, the same for every concurrency."""
        backend = answering({"7": "no" if what == "failure" else RuntimeError("broken")})
        policy = {"on_failure": "halt"} if what == "failure" else {"on_error": "halt"}
        result = run(fan_out, ONCE, numbers(20), None, backend, [YES], max_concurrency=at_once, **policy)
        last = "failed" if what == "failure" else "errored"
        assert ("halted", 7, [(n, str(n), "succeeded" if n < 7 else last) for n in range(8)]) == seen(result)
        assert 0 == backend.in_flight

    def test_the_lowest_index_wins_whatever_comes_first(self, run):
        """F5: item 6 halts first, item 2 raises later, and it is item 2 that counts."""
        replies = {"6": After(1.0, "no"), "2": After(5.0, ValueError("two")), "4": After(3.0, "no")}
        backend = ScriptedBackend(lambda request: replies.get(asked(request), After(2.0, "yes")))
        with pytest.raises(ValueError, match="two"):
            run(fan_out, ONCE, numbers(20), None, backend, [YES], max_concurrency=10, on_failure="halt")

    def test_items_above_are_cancelled_at_once_and_items_below_finish(self, run):
        """F5: in virtual time: 0 to 4 take ten seconds, 5 halts after one, 6 to 9 would take a hundred."""

        async def main():
            def reply(request):
                number = int(asked(request))
                return After(1.0, "no") if number == 5 else After(10.0 if number < 5 else 100.0, "yes")

            backend = ScriptedBackend(reply)
            result = await fan_out(ONCE, numbers(30), None, backend, [YES], max_concurrency=10, on_failure="halt")
            return result, backend, anyio.current_time()

        result, backend, now = run(main)
        assert ("halted", 5) == seen(result)[:2]
        assert 10.0 == now
        assert ["6", "7", "8", "9"] == sorted(map(asked, backend.cancelled))
        assert 10 == len(backend.requests), "nothing new starts once the run is halting"

    def test_an_item_that_was_admitted_but_had_no_turn_yet_never_begins(self, run):
        """F3: nothing new starts once the run is halting, not even what was about to."""
        begun = []

        async def backend(request):
            begun.append(asked(request))
            if asked(request) == "0":
                return "no"
            await anyio.sleep(1)
            return "yes"

        for _ in range(20):
            begun.clear()
            result = run(fan_out, ONCE, numbers(10), None, backend, [YES], max_concurrency=10, on_failure="halt")
            assert ("halted", 0) == seen(result)[:2]
            assert "0" == begun[-1], "something began after the run was halted"

    def test_an_error_is_raised_bare_and_cancels_the_rest(self, run):
        """F7: with its own type, no group, without waiting for what was cancelled to run on."""

        async def main():
            replies = {"3": After(1.0, RateLimited())}
            backend = ScriptedBackend(
                lambda request: replies.get(asked(request), After(2.0 if asked(request) < "3" else 100.0, "yes"))
            )
            with pytest.raises(RateLimited) as raised:
                await fan_out(ONCE, numbers(20), None, backend, max_concurrency=8)
            assert raised.value.__cause__ is None
            return backend, anyio.current_time()

        backend, now = run(main)
        assert 2.0 == now
        assert 8 == len(backend.requests)
        assert 0 == backend.in_flight

    def test_an_exception_that_is_none_passes_through_at_once(self, run):
        """F7: KeyboardInterrupt and SystemExit are never outcomes, and cancel all items."""

        async def main():
            replies = {"3": After(1.0, KeyboardInterrupt())}
            backend = ScriptedBackend(lambda request: replies.get(asked(request), After(100.0, "yes")))
            try:
                await fan_out(ONCE, numbers(20), None, backend, max_concurrency=8, on_error="continue")
            except KeyboardInterrupt as error:
                return error.__cause__, backend.in_flight, anyio.current_time()

        assert (None, 0, 1.0) == run(main)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_source_that_raises_lets_what_it_gave_finish(self, run, is_async):
        """Row 66: n items finish, then its error is raised, bare."""

        def source():
            yield from numbers(5)
            raise OSError("the disk is gone")

        async def async_source():
            for item in source():
                yield item

        async def main():
            backend = ScriptedBackend(lambda _: After(1.0, "yes"))
            taken = []
            items = async_source() if is_async else source()
            with pytest.raises(OSError, match="the disk is gone"):
                await take_all(open_fan_out(ONCE, items, None, backend, on_error="continue"), taken)
            return taken, len(backend.returned)

        assert ([0, 1, 2, 3, 4], 5) == run(main)

    def test_an_item_of_the_wrong_kind_is_named(self, run):
        """Row 66: it is an error of the source, at its place."""
        backend = answering({})
        with pytest.raises(TypeError, match=r"item 2 must be an action, a text, a list of parts, or a pair .*got 5"):
            run(fan_out, ONCE, ["a", "b", 5, "c"], None, backend, on_error="continue")
        assert 2 == len(backend.returned)

    def test_a_source_that_never_gives_the_next_item_does_not_hold_up_a_halt(self, run):
        """Row 66: a halt does not wait for a source that never yields the next item."""

        async def source():
            yield "0"
            await anyio.sleep(math.inf)
            yield "1"

        backend = ScriptedBackend([After(1.0, "no")])
        result = run(fan_out, ONCE, source(), None, backend, [YES], on_failure="halt")
        assert ("halted", 0) == seen(result)[:2]

    def test_an_endless_source_ends_with_a_halt(self, run):
        """Row 66: a halt stops reading an infinite source."""

        def source():
            number = 0
            while True:
                yield str(number)
                number += 1

        result = run(fan_out, ONCE, source(), None, answering({"300": "no"}), [YES], on_failure="halt")
        assert 301 == len(result.outcomes)

    def test_a_poison_item_costs_its_attempts_and_no_more(self, run):
        """Row 67: attempts are capped, it is marked failed, the others complete."""
        backend = answering({"2": "no"})
        result = run(fan_out, RejectionSamplingStrategy(loop_budget=3), numbers(5), None, backend, [YES])
        assert ["succeeded", "succeeded", "failed", "succeeded", "succeeded"] == [o.status for o in result.outcomes]
        assert 3 == sum(asked(request) == "2" for request in backend.requests)


class TestStreaming:
    def test_outcomes_are_handed_out_as_they_come_and_not_kept(self, run):
        """F12: a reader that lets go of them is the only one who had them."""

        async def main():
            most, alive = 0, weakref.WeakSet()

            async def backend(request):
                await checkpoint()
                return "yes"

            async with open_fan_out(ONCE, (str(n) for n in range(600)), None, backend, max_concurrency=4) as outcomes:
                async for outcome in outcomes:
                    alive.add(outcome.result)
                    if not outcome.index % 200:
                        gc.collect()
                        most = max(most, len(alive))
            return most

        assert run(main) < 100

    def test_a_reader_that_is_slow_is_waited_for(self, run):
        """F12: no more outcomes wait for it than it allows."""
        ahead = []

        async def main():
            started = 0

            async def backend(request):
                nonlocal started
                started += 1
                await checkpoint()
                return "yes"

            taken = 0
            items = (str(n) for n in range(200))
            async with open_fan_out(ONCE, items, None, backend, max_concurrency=3, max_buffered=10) as outcomes:
                async for _ in outcomes:
                    taken += 1
                    await anyio.sleep(1)
                    ahead.append(started - taken)
            return taken

        assert 200 == run(main)
        assert max(ahead) <= 13

    def test_a_slow_first_item_holds_only_so_many(self, run):
        """F12, F5: in order, up to max_buffered others finish while it runs, and then no more are started."""

        async def main():
            backend = ScriptedBackend(lambda request: After(1000.0 if asked(request) == "0" else 1.0, "yes"))
            async with open_fan_out(ONCE, numbers(100), None, backend, max_concurrency=2, max_buffered=20) as outcomes:
                first = await anext(outcomes)
                return first.index, len(backend.requests)

        assert (0, 22) == run(main)

    def test_who_leaves_the_block_cancels_what_runs(self, run):
        """F12, row 42: and nothing is left behind."""

        async def main():
            backend = ScriptedBackend(lambda request: After(float(asked(request)), "yes"))
            async with open_fan_out(ONCE, numbers(100), None, backend, max_concurrency=5) as outcomes:
                async for outcome in outcomes:
                    if outcome.index == 2:
                        break
            return backend.in_flight, outcomes.status, anyio.current_time()

        assert (0, "stopped", 2.0) == run(main)

    def test_closing_a_generator_around_it_is_no_failure(self, run):
        """F12, row 42: the reader of a generator that yields the outcomes has had enough."""

        async def main():
            backend = ScriptedBackend(lambda request: After(float(asked(request)), "yes"))
            run = open_fan_out(ONCE, numbers(100), None, backend, max_concurrency=5)

            async def outcomes():
                async with run:
                    async for outcome in run:
                        yield outcome

            async with aclosing(outcomes()) as generator:
                async for outcome in generator:
                    if outcome.index == 2:
                        break
            return backend.in_flight, run.status, anyio.current_time()

        assert (0, "stopped", 2.0) == run(main)

    def test_what_the_block_raises_comes_out_bare(self, run):
        """F7: the caller's own error is not wrapped into a group."""

        async def main():
            backend = ScriptedBackend(lambda request: After(5.0, "yes"))
            with pytest.raises(LookupError, match="mine"):
                await raise_inside(open_fan_out(ONCE, numbers(100), None, backend))
            return backend.in_flight

        assert 0 == run(main)

    def test_draining_starts_nothing_more_and_hands_out_what_is_in_flight(self, run):
        """Row 60: stop admitting, and drain."""

        async def main():
            backend = ScriptedBackend(lambda request: After(1.0, "yes"))
            taken = []
            async with open_fan_out(ONCE, numbers(100), None, backend, max_concurrency=5) as outcomes:
                async for outcome in outcomes:
                    taken.append(outcome.index)
                    if outcome.index == 7:
                        outcomes.drain()
            return taken, outcomes.status, len(backend.cancelled)

        taken, status, cancelled = run(main)
        assert list(range(len(taken))) == taken
        assert 10 <= len(taken) <= 15
        assert ("stopped", 0) == (status, cancelled)

    def test_cancelling_ends_it_with_what_had_finished(self, run):
        """Row 60: `cancel()` ends the run and keeps finished outcomes, as a second signal does."""

        async def main():
            backend = ScriptedBackend(lambda request: After(1.0 + int(asked(request)), "yes"))
            taken = []
            async with open_fan_out(ONCE, numbers(100), None, backend, max_concurrency=5) as outcomes:
                async for outcome in outcomes:
                    taken.append(outcome.index)
                    if outcome.index == 1:
                        outcomes.cancel()
            return taken, outcomes.status, backend.in_flight, anyio.current_time()

        assert ([0, 1], "stopped", 0, 2.0) == run(main)

    def test_it_is_entered_once(self, run):
        """A run is one run."""

        async def main():
            outcomes = open_fan_out(ONCE, numbers(2), None, answering({}))
            async with outcomes:
                pass
            with pytest.raises(RuntimeError, match="entered before"):
                await outcomes.__aenter__()

        run(main)

    def test_a_run_that_was_not_entered_can_not_be_read(self, run):
        """Nothing would ever come."""

        async def main():
            with pytest.raises(RuntimeError, match="has not begun: enter it with `async with"):
                async for _ in open_fan_out(ONCE, numbers(2), None, answering({})):
                    pass

        run(main)

    def test_an_async_generator_is_closed(self, run):
        """The item source is closed when the run ends early."""
        closed = []

        async def source():
            try:
                for number in range(100):
                    yield str(number)
            finally:
                closed.append(True)

        run(fan_out, ONCE, source(), None, answering({"3": "no"}), [YES], on_failure="halt")
        assert [True] == closed


class TestTogether:
    def test_a_budget_governs_the_whole_run(self, run):
        """A request budget covers all items together, and an item without room says so."""
        budget = Budget(requests=10)
        backend = ScriptedBackend(lambda _: After(1.0, Generation("yes", Usage(3, 2, 0.5))))
        result = run(fan_out, ONCE, numbers(25), None, backend, budget=budget, max_concurrency=4)
        assert 10 == len(backend.requests)
        assert ("halted", "budget") == (result.status, result.stop_reason)
        assert 10 == result.counts()["succeeded"]
        assert {"budget"} == {one.result.stop_reason for one in result.outcomes if one.status == "failed"}
        assert Usage(30, 20, 5.0) == result.usage

    def test_usage_is_everything_that_was_spent(self, run):
        """By items that failed, that raised, and that were cancelled."""

        async def backend(request):
            from sampling import report_usage

            report_usage(Usage(1, 0))
            await anyio.sleep(100 if asked(request) == "3" else 1)
            if asked(request) == "1":
                raise RuntimeError("broken")
            return Generation("no" if asked(request) == "2" else "yes", Usage(1, 0))

        result = run(
            fan_out, ONCE, numbers(10), None, backend, [YES], max_concurrency=4, on_error="continue", on_failure="halt"
        )
        assert ("halted", 2) == (result.status, result.halted_by)
        assert Usage(1, 0) == result.outcomes[1].usage
        assert Usage(4, 0) == result.usage

    def test_options_requirements_and_hooks_reach_every_call(self, run):
        """Point 1: hooks get the events of the run, and of its calls."""
        hooks, events = Hooks(), []

        @hooks.on(FanOutStarted, ItemFinished, FanOutFinished, LoopStarted, IterationFinished)
        async def watch(event):
            await checkpoint()
            events.append(event)

        backend = answering({})
        result = run(
            fan_out, ONCE, numbers(3), None, backend, [YES], options=Options(seed=7), hooks=hooks, max_concurrency=1
        )
        assert {7} == {request.options.seed for request in backend.requests}
        kinds = [type(event).__name__ for event in events]
        item = ["LoopStarted", "IterationFinished", "ItemFinished"]
        assert ["FanOutStarted", *item * 3, "FanOutFinished"] == kinds
        assert (3, 1, 0) == (events[0].total, events[0].max_concurrency, events[0].recorded)
        assert list(result.outcomes) == [event.outcome for event in events if isinstance(event, ItemFinished)]
        assert {result.run_id} == {event.run_id for event in events if hasattr(event, "run_id")}
        assert ("completed", None) == (events[-1].status, events[-1].error)

    def test_a_critical_hook_of_the_run_ends_it(self, run):
        """An error of a critical hook leaves `fan_out`."""
        hooks = Hooks()

        @hooks.on(ItemFinished, critical=True)
        def veto(event):
            if event.outcome.index == 2:
                raise LookupError("enough")

        with pytest.raises(LookupError, match="enough"):
            run(fan_out, ONCE, numbers(9), None, answering({}), hooks=hooks)

    def test_a_hook_that_fails_is_on_the_result(self, run):
        """A hook that raises does not affect the run, and is on the result."""
        hooks = Hooks()

        @hooks.on(FanOutStarted)
        def broken(event):
            raise LookupError("no")

        result = run(fan_out, ONCE, numbers(2), None, answering({}), hooks=hooks)
        assert 2 == len(result.outcomes)
        assert ["FanOutStarted"] == [failure.event for failure in result.hook_failures]

    def test_a_result_can_be_read_in_one_line(self, run):
        """The repr of a result shows status, counts and usage."""
        backend = answering({"1": "no"}, Generation("yes", Usage(3, 2, 0.25)))
        result = run(fan_out, ONCE, numbers(3), None, backend, [YES], on_failure="halt", max_concurrency=1)
        assert "halted by item 1: 2 items (1 succeeded, 1 failed) · 5 tokens · cost 0.25" == str(result)
        assert re.fullmatch(r"<ItemOutcome 1 '1': failed>", repr(result.outcomes[1]))


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "error", "says"),
        [
            ({"strategy": "multi-turn"}, TypeError, "strategy must be a strategy, got 'multi-turn'"),
            ({"items": "one"}, TypeError, "items must be .* put a single one in brackets, got 'one'"),
            ({"items": Action("one")}, TypeError, "items must be .* put a single one in brackets"),
            ({"items": 5}, TypeError, "items must be an iterable or async iterable of actions.*got 5"),
            ({"ctx": "hello"}, TypeError, "ctx must be a Context or None, got 'hello'"),
            ({"backend": 5}, TypeError, "backend must be a Backend.*got 5"),
            ({"reqs": "is polite"}, TypeError, "reqs must be a list of requirements"),
            ({"max_concurrency": [8]}, TypeError, r"max_concurrency must be a whole number, got \[8\]"),
            ({"on_failure": "stop"}, ValueError, "on_failure must be one of 'continue', 'halt', got 'stop'"),
            ({"on_error": "ignore"}, ValueError, "on_error must be one of 'raise', 'halt', 'continue', got 'ignore'"),
            ({"journal": 5}, TypeError, "journal must be a path, a Journal, or None, got 5"),
            ({"options": {}}, TypeError, "options must be Options or None"),
            ({"budget": 10}, TypeError, "budget must be a Budget or None, got 10"),
            ({"hooks": []}, TypeError, "hooks must be Hooks or None"),
            ({"engine": 5}, TypeError, "engine must be a FanOutEngine.*got 5"),
            ({"engine": LocalEngine}, TypeError, "engine must be an instance, got the class LocalEngine"),
            ({"ordered": 1}, TypeError, "ordered must be True or False, got 1"),
            ({"max_buffered": -1}, ValueError, "max_buffered must be >= 0, got -1"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_what_is_wrong_is_refused_where_it_is_passed_in(self, change, error, says):
        """An error names the argument, the value and what is allowed, before anything runs."""
        call = {"strategy": ONCE, "items": [], "ctx": None, "backend": answering({}), **change}
        with pytest.raises(error, match=says):
            open_fan_out(**call)

    @pytest.mark.parametrize(
        ("item", "says"),
        [
            (("a", "b", "c"), "item 0 must be an action, a text, a list of parts, or a pair"),
            ((1.5, "b"), "the key of item 0 must be a str or an int, got 1.5"),
            ((True, "b"), "the key of item 0 must be a str or an int, got True"),
            (("a", 5), "item 0 must be an action, a text, a list of parts, or a pair .* got 5"),
            (("\ud800", "b"), "the key of item 0 must be text that can be encoded"),
        ],
    )
    def test_a_bad_item_is_named(self, run, item, says):
        """The error has the position of the item."""
        with pytest.raises((TypeError, ValueError), match=says):
            run(fan_out, ONCE, [item], None, answering({}))

    @pytest.mark.parametrize(
        ("given", "says"), [((5,), "path must be the path of a file, got 5"), (("x", "no"), "on_change")]
    )
    def test_a_bad_journal_is_refused(self, given, says):
        """An invalid argument of `Journal` is refused when it is created."""
        path, *rest = given
        with pytest.raises((TypeError, ValueError), match=says):
            Journal(path, **({"on_change": rest[0]} if rest else {}))


class TestResuming:
    def test_only_what_has_no_outcome_yet_is_asked(self, run, tmp_path):
        """F11: the same call with the same journal."""
        journal = tmp_path / "run.db"
        broken = answering({"6": RuntimeError("broken")})
        with pytest.raises(RuntimeError, match="broken"):
            run(fan_out, ONCE, numbers(20), None, broken, [YES], journal=journal, max_concurrency=3)
        backend = answering({})
        result = run(fan_out, ONCE, numbers(20), None, backend, [YES], journal=journal, max_concurrency=3)
        assert "completed" == result.status
        assert not {asked(r) for r in broken.returned} & {asked(r) for r in backend.requests}
        assert set(numbers(20)) == {asked(r) for r in broken.returned} | {asked(r) for r in backend.requests}
        again = answering({})
        same = run(fan_out, ONCE, numbers(20), None, again, [YES], journal=journal)
        assert not again.requests
        assert [one.result for one in result.outcomes] == [one.result for one in same.outcomes]
        assert result.run_id == same.run_id

    def test_a_halted_run_stays_halted_and_can_be_told_to_go_on(self, run, tmp_path):
        """F11: resuming a halted run sends nothing, and continuing asks only for the rest."""
        journal = tmp_path / "run.db"
        call = (ONCE, numbers(12))
        first = run(fan_out, *call, None, answering({"4": "no"}), [YES], journal=journal, on_failure="halt")
        backend = answering({})
        again = run(fan_out, *call, None, backend, [YES], journal=journal, on_failure="halt")
        assert seen(first) == seen(again)
        assert not backend.requests
        on = run(fan_out, *call, None, backend, [YES], journal=journal)
        assert ("completed", None) == (on.status, on.halted_by)
        assert "failed" == on.outcomes[4].status

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"strategy": RejectionSamplingStrategy(loop_budget=2)}, 'strategy.loop_budget: was "1", is "2"'),
            ({"reqs": [YES, Requirement("is short", lambda text: len(text) < 9)]}, "requirements[1]: was not there"),
            ({"reqs": [Requirement("says yes", lambda text: text.startswith("no"))]}, "requirements[0].check"),
            ({"reqs": []}, "requirements[0]: was"),
            ({"options": Options(temperature=1)}, 'options.temperature: was not there, is "1"'),
            ({"ctx": Context([Message("system", "x")])}, "context[0]: was not there"),
            ({"items": numbers(4)}, 'items: was "5", is "4"'),
            (
                {"items": ["0", "1", "changed", "3", "4"]},
                "item 2 ('2'): differs from the recorded item, is now 'changed'",
            ),
            ({"items": [("k", "0"), "1", "2", "3", "4"]}, "item 0 ('k'): differs from the recorded item"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_changed_call_is_refused_with_the_difference(self, run, tmp_path, change, difference):
        """F11, row 64: a changed strategy, requirement, option, context or item is refused before any request."""
        journal = tmp_path / "run.db"
        run(fan_out, ONCE, numbers(5), None, answering({}), [YES], journal=journal)
        backend = answering({})
        call = {"strategy": ONCE, "items": numbers(5), "ctx": None, "reqs": [YES], **change}
        with pytest.raises(JournalMismatch) as refused:
            run(fan_out, backend=backend, journal=journal, **call)
        assert difference in str(refused.value)
        assert "on_change" in refused.value.hint
        assert not backend.requests


class TestHooksOfARun:
    def test_failures_of_a_hook_do_not_pile_up(self, run):
        """A hook that fails for every item of a long run keeps only its first failures in memory."""
        hooks = Hooks()

        @hooks.on(ItemFinished)
        def fails(event):
            raise RuntimeError("a hook's own")

        async def backend(request):
            return "yes"

        with capture_logs() as logs:
            result = run(fan_out, RejectionSamplingStrategy(), ["q"] * 300, None, backend, hooks=hooks)
        assert 300 == len(result.outcomes)
        assert 100 == len(result.hook_failures)
        assert 300 == sum(line["event"] == "hook_failed" for line in logs)

    def test_slow_observers_do_not_pile_up(self, run):
        """At most `max_concurrency` hooks on `ItemFinished` run at once, however fast the items are."""
        hooks = Hooks(timeout_s=100)
        running = most = 0

        @hooks.on(ItemFinished)
        async def slow(event):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(1)
            running -= 1

        async def backend(request):
            return "yes"

        result = run(fan_out, RejectionSamplingStrategy(), ["q"] * 60, None, backend, hooks=hooks, max_concurrency=4)
        assert 60 == len(result.outcomes)
        assert 4 == most

    def test_the_order_of_hooks_is_kept(self, run):
        """A run splits its hooks between itself and its calls, with all of their settings."""
        called = []
        hooks = Hooks()
        hooks.on(Event, order=1)(lambda event: called.append(("late", type(event).__name__)))
        hooks.on(Event)(lambda event: called.append(("early", type(event).__name__)))

        async def backend(request):
            return "yes"

        run(fan_out, RejectionSamplingStrategy(), ["q"], None, backend, hooks=hooks)
        assert ["early", "late"] * (len(called) // 2) == [when for when, _ in called]
        assert {"FanOutStarted", "LoopStarted", "ItemFinished"} <= {name for _, name in called}
