"""Limits that a run can't know: the queue of an account that others fill, and the size that a proxy accepts."""

import anyio
import pytest

from sampling.errors import RateLimited
from sampling.fanout import BatchEngine
from sampling.testing.batch_servers import Verdict
from tests.fanout.batch.batch_kit import HOUR, PROVIDERS, batched, openai, paid_twice, questions, server_of, sizes
from tests.faults.journals import InlineJournal


def full_until(seconds):
    """A server whose queue is filled by somebody else until then."""
    server = server_of()
    create = server._openai_create

    def create_if_there_is_room(fields):
        server.max_enqueued = 0 if anyio.current_time() < seconds else None
        return create(fields)

    server._openai_create = create_if_there_is_room
    return server


def accepted(server):
    return [size for size in sizes(server) if size]


@pytest.mark.parametrize("items", [1, 25])
def test_room_is_waited_for_while_others_fill_the_queue(run, items):
    """F18, F21: for hours if need be, although no batch of this run is in progress."""
    server = full_until(10 * HOUR)
    result = run(batched, openai(server), questions(items))
    assert items == result.counts()["succeeded"]
    assert ({}, items) == (paid_twice(server), sum(sizes(server)))


def test_a_queue_without_room_is_not_waited_for_longer_than_a_batch(run):
    """F21: after `max_wait_s` the error of the provider is raised."""
    server = full_until(100 * HOUR)

    async def timed():
        with pytest.raises(RateLimited):
            await batched(openai(server), questions(3), engine=BatchEngine(max_wait_s=5 * HOUR))
        return anyio.current_time()

    assert 5 * HOUR <= run(timed) < 6 * HOUR


def test_a_full_queue_is_not_asked_more_often_than_the_state_of_a_batch(run):
    """F21: each time a file is uploaded, so one batch at a time asks, however many requests wait."""
    server = full_until(10 * HOUR)
    run(batched, openai(server), questions(200))
    refused = sizes(server).count(0)
    assert refused <= 10 * HOUR / 120
    # Most of the refused batches were small.
    assert sum(file.count(b"\n") for file in server.files.values()) < 2 * 200 + 2 * refused


def test_batches_grow_again_when_there_is_room(run):
    """F21: without waiting for one of them to end."""
    server = full_until(2 * HOUR)

    async def timed():
        await batched(openai(server), questions(1000))
        return anyio.current_time()

    # One hour for the refusals that come after the room, and one for the batches.
    assert run(timed) < 4 * HOUR
    assert len(accepted(server)) <= 11


def test_a_refusal_is_not_a_try(run):
    """F21: requests that expire later are still sent `max_tries` times."""
    server = full_until(HOUR)
    seen = []

    def answer(request):
        seen.append(request.prompt)
        return Verdict("expired") if len(seen) < 3 else "yes"

    server.answer = answer
    result = run(batched, openai(server), questions(1), engine=BatchEngine(max_tries=3))
    assert (1, 3) == (result.counts()["succeeded"], len(seen))


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
@pytest.mark.parametrize(("limit", "errored"), [(4000, 0), (1000, 1)], ids=["the file", "a request"])
def test_a_batch_that_is_too_large_for_a_proxy_is_split(run, provider, tmp_path, limit, errored):
    """F21: only a request that is too large by itself is an error."""
    server = server_of()
    handle = server.handle

    def limited(method, target, headers, body):
        return (413, b"<html>Too large</html>") if len(body) > limit else handle(method, target, headers, body)

    server.handle = limited
    items = [*questions(20), "x" * 2000]
    settings = {"on_error": "continue", "journal": InlineJournal(tmp_path / "run.db")}
    result = run(batched, provider(server), items, outage_grace_s=0, **settings)
    assert (21 - errored, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ["RequestTooLarge"] * errored == [type(one.error).__name__ for one in result.outcomes if one.error]
    assert not paid_twice(server)
