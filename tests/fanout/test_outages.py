"""F18: an outage of the backend does not become permanent."""

import anyio
import pytest

from sampling import (
    Budget,
    Generation,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    TransientError,
    fan_out,
    open_fan_out,
)
from sampling.backends.layers import Cached
from sampling.errors import ConnectFailed, JournalWriteFailed, RateLimited, ServerError
from tests.faults.journals import InlineJournal, answering, asked, numbers, stored

ONCE = RejectionSamplingStrategy()


class Server:
    """Answers after a second, and fails at once while it is down or for questions it can't bear."""

    def __init__(self, *outages, poison=(), error=None):
        self.outages = outages
        self.poison = poison
        self.error = error or TransientError("503")
        self.requests = []

    async def __call__(self, request):
        now = anyio.current_time() - self.began_at
        self.requests.append((round(now, 3), asked(request)))
        if asked(request) in self.poison or any(start <= now < end for start, end in self.outages):
            await self.refuse()
        await anyio.sleep(1)
        return "yes"

    async def refuse(self):
        raise self.error

    def open(self):
        self.began_at = anyio.current_time()
        return self


async def run_all(server, count=20, **settings):
    settings = {"max_concurrency": 4, "on_error": "raise", **settings}
    return await fan_out(ONCE, numbers(count), None, server.open(), **settings)


@pytest.mark.parametrize("on_error", ["raise", "halt", "continue"])
def test_twelve_seconds_of_errors_cost_no_item(run, on_error):
    """F18: the run pauses and probes, whatever `on_error` says, and every item is answered."""
    server = Server((2.5, 14.5))
    result = run(run_all, server, on_error=on_error)
    assert {"succeeded": 20, "failed": 0, "errored": 0} == result.counts()
    during = [when for when, _ in server.requests if 2.5 <= when < 14.5]
    assert [3, 3, 3, 3, 4, 6, 10] == during  # four items fail, and then one at a time probes


@pytest.mark.parametrize(("asked_for_s", "probes"), [(5, [8, 13, 18, 26]), (3600, [63])])
@pytest.mark.parametrize("kind", [RateLimited, ServerError])
def test_a_server_is_not_probed_before_it_wants_to(run, kind, asked_for_s, probes):
    """F18: the wait that it asked for is kept, but a minute is the longest interval."""
    server = Server((2.5, 20), error=kind("later", retry_after_s=asked_for_s))
    assert 20 == run(run_all, server).counts()["succeeded"]
    assert [3.0, 3.0, 3.0, 3.0, *probes] == [when for when, _ in server.requests if 2.5 <= when][: 4 + len(probes)]


def test_an_outage_counts_after_its_grace(run):
    """F18: the errors that were held are raised after `outage_grace_s`."""
    server = Server((2.5, 10_000))
    with pytest.raises(TransientError, match="503"):
        run(run_all, server, outage_grace_s=60)
    assert [4, 6, 10, 18, 34, 63] == [when for when, _ in server.requests if when > 3]


@pytest.mark.parametrize(("lasts_s", "grace_s"), [(590, 600), (19, 20), (0.9, 1), (0.4, 0.5)])
@pytest.mark.parametrize("asked_for_s", [None, 3600])
def test_an_outage_that_is_shorter_than_its_grace_costs_no_item(run, lasts_s, grace_s, asked_for_s):
    """F18: however long the intervals are, and the wait that the server asked for, errors count after a last probe."""
    server = Server((2.5, 3 + lasts_s), error=ServerError("later", retry_after_s=asked_for_s))
    assert 20 == run(run_all, server, outage_grace_s=grace_s).counts()["succeeded"]


def test_a_call_that_hung_beyond_the_grace_is_not_the_last_probe(run):
    """F18: a call that started in an outage of seconds shows nothing about the time after it."""

    class Hanging(Server):
        async def refuse(self):
            await anyio.sleep(100 if self.requests[-1][0] > 3 else 0)
            await super().refuse()

    server = Hanging((2.5, 14.5), error=ConnectFailed("timed out"))
    assert 20 == run(run_all, server, outage_grace_s=60, max_concurrency=1).counts()["succeeded"]


def test_a_last_probe_that_hangs_does_not_hold_up_the_errors(run):
    """F18: it has a minute, in which no other item probes."""

    class Vanishing(Server):
        async def refuse(self):
            if self.requests[-1][0] == 63:
                await anyio.sleep_forever()
            await super().refuse()

    server = Vanishing((2.5, 10_000))
    result = run(run_all, server, on_error="continue", outage_grace_s=60, item_timeout_s=1_000)
    assert {"succeeded": 12, "failed": 0, "errored": 8} == result.counts()
    assert [4, 6, 10, 18, 34, 63, 123, 123, 123, 123] == [when for when, _ in server.requests if when > 3]


def test_a_last_probe_may_be_answered_slowly(run):
    """F18: an answer that takes longer than the grace still ends the outage."""

    class Slow(Server):
        async def __call__(self, request):
            answer = await super().__call__(request)
            await anyio.sleep(29)
            return answer

    assert 20 == run(run_all, Slow((100, 124)), outage_grace_s=5).counts()["succeeded"]


def test_after_the_grace_errors_count_until_the_next_answer(run):
    """F18: with `on_error="continue"`, items of a long outage are errored, and later ones answered."""
    server = Server((2.5, 100))

    async def slow_items():
        for number in range(40):
            if number >= 16:
                await anyio.sleep(10)
            yield str(number)

    async def main():
        settings = {"max_concurrency": 4, "on_error": "continue", "outage_grace_s": 60}
        return await fan_out(ONCE, slow_items(), None, server.open(), **settings)

    result = run(main)
    assert 40 == len(result.outcomes)
    assert result.counts()["errored"]
    assert "succeeded" == result.outcomes[-1].status


def test_before_the_first_answer_errors_count(run):
    """F18: a backend that never answered is misconfigured, and waiting would not help."""
    server = Server((0, 10_000))
    with pytest.raises(TransientError):
        run(run_all, server)
    assert {0.0} == {when for when, _ in server.requests}


def test_a_recorded_answer_counts_as_one(run, tmp_path):
    """F18: a run that is resumed in an outage waits for its end, too."""
    path = tmp_path / "run.db"
    run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(path, on_change="continue"))

    async def resume():
        journal = InlineJournal(path, on_change="continue")
        return await run_all(Server((0, 30)), journal=journal)

    assert 20 == run(resume).counts()["succeeded"]


def test_a_recorded_error_is_no_answer(run, tmp_path):
    """F18: a resume with the same mistake in the settings says so at once, and not after ten minutes."""
    path = tmp_path / "run.db"
    for retry in [(), {"errored"}]:
        server = Server((0, 10_000))
        result = run(run_all, server, on_error="continue", journal=InlineJournal(path), retry=retry)
        assert 20 == result.counts()["errored"]
        assert {0.0} == {when for when, _ in server.requests}


@pytest.mark.parametrize("max_concurrency", [1, 4])
def test_an_item_that_always_fails_is_found_out(run, max_concurrency):
    """F18: if others are answered meanwhile, the item's own error counts, within seconds."""
    server = Server(poison=["7"])
    result = run(run_all, server, on_error="continue", max_concurrency=max_concurrency)
    assert {"succeeded": 19, "failed": 0, "errored": 1} == result.counts()
    assert "errored" == result.outcomes[7].status
    assert server.requests[-1][0] < 40


def test_the_last_item_that_always_fails_costs_a_minute_at_most(run):
    """F18: with no other item left to compare with, the item's own error counts long before the grace ends."""
    server = Server(poison=["5"])
    result = run(run_all, server, 6, on_error="continue", max_concurrency=1)
    assert {"succeeded": 5, "failed": 0, "errored": 1} == result.counts()
    assert [5, 6, 8, 12, 20, 36, 65] == [when for when, question in server.requests if question == "5"]


def test_an_outage_at_the_last_item_is_waited_out(run):
    """F18: half a minute without the server does not cost the last item."""
    server = Server((4.5, 30))
    assert {"succeeded": 6, "failed": 0, "errored": 0} == run(run_all, server, 6, max_concurrency=1).counts()


def overloaded(status):
    error = ServerError(f"the server answered {status}: try again later")
    error.status = status
    return error


@pytest.mark.parametrize("error", [ConnectFailed("no route"), RateLimited("429"), overloaded(503), overloaded(529)])
def test_a_server_that_is_known_to_be_away_gets_the_whole_grace_for_the_last_item(run, error):
    """F18: an error that is not about the item can't be the item's own."""
    began_at = None

    async def backend(request):
        nonlocal began_at
        began_at = anyio.current_time() if began_at is None else began_at
        if asked(request) == "3" and anyio.current_time() - began_at < 500:
            raise error
        await anyio.sleep(1)
        return "yes"

    result = run(fan_out, ONCE, numbers(4), None, backend, max_concurrency=1)
    assert 4 == result.counts()["succeeded"]


def test_items_that_fail_together_at_the_end_are_an_outage(run):
    """F18: two items that fail are no coincidence, so they get the whole grace."""
    server = Server((4.5, 300))
    assert {"succeeded": 20, "failed": 0, "errored": 0} == run(run_all, server).counts()


def test_every_request_of_a_held_item_is_accounted(run, tmp_path):
    """F18: the calls that failed are in the counts of the item."""
    path, server = tmp_path / "run.db", Server((2.5, 9))
    run(run_all, server, journal=InlineJournal(path))
    assert len(server.requests) == sum(row[9] for row in stored(path).values())


class Storm(Server):
    """Refuses the first requests of one item, and answers the others."""

    def __init__(self, refusals, error=None):
        super().__init__(error=error or RateLimited("429"))
        self.left = refusals

    async def __call__(self, request):
        if asked(request) == "7" and self.left:
            self.left -= 1
            await self.refuse()
        return await super().__call__(request)


@pytest.mark.parametrize("error", [RateLimited("429"), overloaded(503), overloaded(529)])
@pytest.mark.parametrize("max_concurrency", [1, 4])
def test_an_item_that_is_refused_again_and_again_is_answered_in_the_end(run, max_concurrency, error):
    """F18: in a storm that refuses some requests, the same item may be unlucky several times."""
    result = run(run_all, Storm(5, error), max_concurrency=max_concurrency)
    assert {"succeeded": 20, "failed": 0, "errored": 0} == result.counts()


def test_an_item_that_is_always_refused_counts_after_the_grace(run):
    """F18: the rest of the run does not wait for it."""
    server = Storm(refusals=10**6)
    result = run(run_all, server, 300, on_error="continue", outage_grace_s=60)
    assert {"succeeded": 299, "failed": 0, "errored": 1} == result.counts()
    assert server.requests[-1][0] < 299


def test_an_error_of_the_server_that_one_item_causes_counts_within_seconds(run):
    """F18: a 500 is no refusal because of the load."""
    server = Storm(10**6, overloaded(500))
    result = run(run_all, server, on_error="continue")
    assert {"succeeded": 19, "failed": 0, "errored": 1} == result.counts()
    assert 10**6 - server.left < 4


class Cacheable(Server):
    """A server whose answers can be cached, whatever its outages."""

    fingerprint = "the same model"
    __call__ = None

    async def generate(self, request):
        return Generation(await Server.__call__(self, request))


def test_cached_answers_do_not_end_an_outage(run):
    """F18: an answer from a cache shows nothing about the server, so no item that was not cached is lost."""
    server, known = Cacheable((100, 130)), ["a", "b", "c", "d"]

    async def main():
        cached = Cached(server.open())
        await fan_out(ONCE, [*known, *numbers(40)[::2]], None, cached)
        await anyio.sleep(100 - (anyio.current_time() - server.began_at))
        # The first four are known, so the run has had an answer before the first error.
        return await fan_out(ONCE, [*known, *numbers(40)], None, cached, max_concurrency=4)

    assert {"succeeded": 44, "failed": 0, "errored": 0} == run(main).counts()


def test_a_rate_limit_in_a_repair_turn_is_no_failure(run):
    """F18: an item whose last attempt failed transiently is asked again."""

    async def backend(request):
        await anyio.sleep(1)
        if asked(request) != "3":
            if len(request.messages) > 1 and anyio.current_time() - began_at < 20:
                raise TransientError("429")
            return "yes" if len(request.messages) > 1 else "no"
        return "yes"

    async def main():
        nonlocal began_at
        began_at = anyio.current_time()
        strategy = MultiTurnStrategy(loop_budget=2)
        return await fan_out(strategy, numbers(5), None, backend, [yes], max_concurrency=2)

    began_at = 0.0
    yes = Requirement("says yes", lambda text: text == "yes")
    assert 5 == run(main).counts()["succeeded"]


def test_a_deadline_in_an_outage_ends_the_run(run, tmp_path):
    """F19: items that wait for the backend wait no longer than the budget allows, and stay open in the journal."""
    path, server = tmp_path / "run.db", Server((2.5, 10_000))

    async def main():
        budget = Budget(deadline_s=40)
        result = await run_all(server, journal=InlineJournal(path), budget=budget, max_concurrency=3)
        return result, anyio.current_time() - server.began_at

    result, took_s = run(main)
    assert ("halted", "deadline") == (result.status, result.stop_reason)
    assert 40 == pytest.approx(took_s)
    assert set(range(9)) == stored(path).keys()
    assert 20 == run(run_all, Server(), journal=InlineJournal(path)).counts()["succeeded"]


@pytest.mark.parametrize("on_error", ["raise", "halt", "continue"])
def test_a_budget_that_is_spent_in_an_outage_ends_the_run(run, tmp_path, on_error):
    """F19: the last item that waits stays open in the journal as the others do, and its error does not count."""
    path, server = tmp_path / "run.db", Server((2.5, 10_000))
    settings = {"journal": InlineJournal(path), "on_error": on_error, "outage_grace_s": 6_000}
    result = run(run_all, server, budget=Budget(requests=20), **settings)
    assert ("halted", "budget") == (result.status, result.stop_reason)
    assert set(range(12)) == stored(path).keys()
    assert 20 == run(run_all, Server(), **settings).counts()["succeeded"]


@pytest.mark.parametrize("on_error", ["raise", "halt", "continue"])
def test_a_budget_that_is_spent_in_an_outage_ends_it_for_all_items_at_once(run, tmp_path, on_error):
    """F19: of many items that wait, none waits until its error counts, and what they used is charged to a resume."""
    path, server = tmp_path / "run.db", Server((2.5, 10_000))
    settings = {"journal": InlineJournal(path), "on_error": on_error, "max_concurrency": 30}

    async def main():
        result = await run_all(server, 200, budget=Budget(requests=124), **settings)
        return result, anyio.current_time() - server.began_at

    result, took_s = run(main)
    assert ("halted", "budget") == (result.status, result.stop_reason)
    assert set(range(90)) == stored(path).keys()
    # 30 items fail, and then one at a time probes, until the budget has no room for the fifth probe.
    assert (124, 34) == (len(server.requests), took_s)
    budget = Budget(requests=10**6)
    assert 200 == run(run_all, Server(), 200, budget=budget, **settings).counts()["succeeded"]
    assert 124 + 110 == budget.requests_made


def test_draining_in_an_outage_ends_at_once(run, tmp_path):
    """F18: items that wait for the backend stay open in the journal."""
    path, server = tmp_path / "run.db", Server((2.5, 10_000))

    async def drain(outcomes):
        await anyio.sleep(20)
        outcomes.drain()

    async def main():
        opened = open_fan_out(ONCE, numbers(20), None, server.open(), journal=InlineJournal(path), max_concurrency=4)
        async with opened as outcomes, anyio.create_task_group() as group:
            group.start_soon(drain, outcomes)
            indexes = [outcome.index async for outcome in outcomes]
        return indexes, opened.status, anyio.current_time() - server.began_at

    indexes, status, took_s = run(main)
    assert list(range(12)) == indexes
    assert "stopped" == status
    assert 20 == pytest.approx(took_s)
    assert set(range(12)) == stored(path).keys()


@pytest.mark.parametrize("drained_at", [2.5, 7.5], ids=["before the first error", "during a probe"])
def test_an_item_whose_call_fails_after_draining_does_not_wait(run, tmp_path, drained_at):
    """F18: it stays open in the journal, as those that waited already."""
    path = tmp_path / "run.db"

    async def main():
        began_at = anyio.current_time()

        async def backend(request):
            await anyio.sleep(1)
            if anyio.current_time() - began_at > 2:
                await anyio.sleep(2)
                raise ConnectFailed("down")
            return "yes"

        async def drain(outcomes):
            await anyio.sleep_until(began_at + drained_at)
            outcomes.drain()

        opened = open_fan_out(ONCE, numbers(20), None, backend, journal=InlineJournal(path), max_concurrency=4)
        async with opened as outcomes, anyio.create_task_group() as group:
            group.start_soon(drain, outcomes)
            indexes = [outcome.index async for outcome in outcomes]
        return indexes, opened.status, anyio.current_time() - began_at

    indexes, status, took_s = run(main)
    assert ([*range(8)], "stopped") == (indexes, status)
    assert took_s < drained_at + 3
    assert set(range(8)) == stored(path).keys()


class FailingJournal(InlineJournal):
    """Fails to write from a moment on."""

    broken = False

    async def in_thread(self, work, limiter):
        if self.broken:
            raise JournalWriteFailed("disk full")
        return await super().in_thread(work, limiter)


def test_no_item_waits_for_the_end_of_an_outage_if_nothing_can_be_saved(run, tmp_path):
    """Row 64: the run ends when the journal can't be written, and not ten minutes later."""
    server, journal = Server((2.5, 10_000)), FailingJournal(tmp_path / "run.db")

    async def break_disk():
        # The pause is recorded with the first probe.
        await anyio.sleep(3.5)
        journal.broken = True

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(break_disk)
            with pytest.raises(JournalWriteFailed):
                await run_all(server, journal=journal)
        return anyio.current_time() - server.began_at

    assert run(main) < 10


class Writer:
    """Answers with the question, at once, and counts requests."""

    def __init__(self):
        self.asked = []

    async def __call__(self, request):
        self.asked.append(asked(request))
        return asked(request)


def judged(server, *more):
    """A requirement that asks a server, which fails as `Server` does."""

    async def polite(text):
        return await server(Request([Message("user", text)])) == "yes"

    return [*more, Requirement("it is polite", polite, judged=True)]


@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_an_outage_of_the_judge_costs_no_item(run, on_error):
    """F18: an answer that could not be judged is no failure. The item is held, and sampled again."""
    judge, writer = Server((2.5, 14.5)), Writer()

    async def main():
        settings = {"max_concurrency": 4, "on_error": on_error}
        return await fan_out(ONCE, numbers(20), None, writer, judged(judge.open()), **settings)

    assert {"succeeded": 20, "failed": 0, "errored": 0} == run(main).counts()
    assert 20 + 7 == len(writer.asked)  # four items fail, and then one at a time probes


def test_answers_that_no_judge_saw_do_not_end_an_outage_of_the_judge(run):
    """F18: an item that fails a check of code is answered, but says nothing about the judge."""
    judge = Server((2.5, 14.5))

    async def main():
        reqs = judged(judge.open(), Requirement("it is even", lambda text: not int(text) % 2))
        return await fan_out(ONCE, numbers(40), None, Writer(), reqs, max_concurrency=4)

    assert {"succeeded": 20, "failed": 20, "errored": 0} == run(main).counts()


def test_an_item_whose_judge_always_fails_is_found_out(run):
    """F18: if others are judged meanwhile, the item fails, after few requests."""
    judge, writer = Server(poison=["7"]), Writer()

    async def main():
        return await fan_out(ONCE, numbers(20), None, writer, judged(judge.open()), max_concurrency=4)

    assert {"succeeded": 19, "failed": 1, "errored": 0} == run(main).counts()
    assert writer.asked.count("7") <= 3


def test_a_judge_that_never_answered_is_not_waited_for(run):
    """F18: before the first judgement, the error is more likely a mistake in the settings."""
    judge, writer = Server((0, 10_000)), Writer()

    async def main():
        return await fan_out(ONCE, numbers(20), None, writer, judged(judge.open()), max_concurrency=4)

    assert {"succeeded": 0, "failed": 20, "errored": 0} == run(main).counts()
    assert 20 == len(writer.asked)
