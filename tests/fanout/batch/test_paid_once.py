"""What was paid for is used, and what may be paid for twice is reported, also with layers and after changes."""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable
from email.utils import formatdate
from types import SimpleNamespace

import anyio
import attrs
import pytest

from sampling import Journal, MultiTurnStrategy, Options, Requirement, Retrying
from sampling.backends.anthropic import AnthropicBackend
from sampling.errors import MalformedResponse
from sampling.fanout import BatchEngine
from sampling.fanout.journal._schema import checksum
from sampling.testing import batch_servers
from sampling.testing.batch_servers import BatchServer, Verdict
from tests.fanout.batch.batch_kit import (
    HOUR,
    PROVIDERS,
    batched,
    losing_creations,
    paid_twice,
    questions,
    server_of,
    sizes,
)
from tests.faults.journals import InlineJournal, rows

LEFT_RUNNING = {"cancel_on_exit": False}


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return PROVIDERS[request.param]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


async def cut_off(seconds, backend, items, **settings):
    """Cancel a run from outside after some time."""
    with anyio.move_on_after(seconds):
        await batched(backend, items, **settings)


def restart(server, seconds=HOUR):
    """Begin another event loop, whose clock starts at 0 again."""
    for batch in server.batches:
        batch.ready -= seconds


def torn(server):
    """Cut off the last line of the first batch's results."""
    server.mangle = lambda lines: [*lines[:-1], lines[-1][:-20]] if len(server.batches) == 1 else lines


def without_text(lines):
    """Remove the text of all answers, so that they can't be read."""
    changed = [json.loads(line) for line in lines]
    for line in changed:
        message = line["result"]["message"] if "result" in line else line["response"]["body"]
        for name in ("choices", "content", "type"):
            message.pop(name, None)
    return [json.dumps(line).encode() for line in changed]


def test_a_retry_of_a_lost_answer_is_reported(run, provider, path):
    """F21: also if it is a layer around the backend that sends the request again."""
    server = server_of()
    torn(server)
    result = run(batched, Retrying(provider(server)), questions(5), journal=InlineJournal(path))
    assert (5, 1) == (result.counts()["succeeded"], len(result.maybe_billed_twice))
    assert [5, 1] == sizes(server)


def test_a_lost_answer_is_reported_by_a_later_process(run, provider, path):
    """F21: the process that lost it may not be the one that asks again."""
    server = server_of()
    torn(server)
    with pytest.raises(MalformedResponse):
        run(batched, provider(server), questions(5), journal=InlineJournal(path), outage_grace_s=0)
    restart(server, 2 * HOUR)
    result = run(batched, provider(server), questions(5), journal=InlineJournal(path))
    assert (5, 1) == (result.counts()["succeeded"], len(result.maybe_billed_twice))
    assert [5, 1] == sizes(server)
    assert not rows(path, "SELECT name FROM notes WHERE kind = 'doubt'")


def test_an_answer_that_can_not_be_used_is_asked_for_again(run, provider, path):
    """F21: a resume asks the prompt again that raised, and does not raise the same error for ever."""
    server = server_of()
    server.mangle = lambda lines: without_text(lines) if len(server.batches) == 1 else lines
    with pytest.raises(MalformedResponse):
        run(batched, provider(server), questions(1), journal=InlineJournal(path), outage_grace_s=0)
    restart(server, 2 * HOUR)
    result = run(batched, provider(server), questions(1), journal=InlineJournal(path))
    assert (1, (0,)) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert [1, 1] == sizes(server)


def test_an_answer_to_a_retry_is_used_by_a_resume(run, provider, path):
    """F21: the first try failed for free, and the second one was paid for."""
    server = server_of(lambda _: Verdict(status=500) if len(server.batches) == 1 else "yes")
    settings = {"journal": InlineJournal(path), "engine": BatchEngine(max_tries=1, **LEFT_RUNNING)}
    run(cut_off, 1.5 * HOUR, Retrying(provider(server)), questions(4), **settings)
    assert [4, 4] == sizes(server)
    restart(server, 2 * HOUR)
    result = run(batched, Retrying(provider(server)), questions(4), journal=InlineJournal(path))
    assert (4, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert [4, 4] == sizes(server)


@pytest.mark.parametrize("left_running", [True, False])
def test_a_changed_question_that_was_paid_for_before_is_reported(run, provider, path, left_running):
    """F17, F21: the answers to the old questions are in a batch or in the journal, and are not used."""
    server = server_of()
    engine = BatchEngine(cancel_on_exit=not left_running)
    run(cut_off, HOUR / 2, provider(server), questions(4), journal=InlineJournal(path), engine=engine)
    finished = server.billed.total()
    restart(server)
    journal = InlineJournal(path, on_change="continue")
    result = run(batched, provider(server), questions(4), journal=journal, options=Options(max_tokens=7))
    assert 4 == result.counts()["succeeded"]
    assert (4 if left_running else finished) == len(result.maybe_billed_twice) > 0
    assert [4, 4] == sizes(server)


def test_an_unchanged_question_is_not_reported(run, provider, path):
    """F21: nothing was paid for twice, whatever a change of other questions made necessary."""
    server = server_of()
    run(cut_off, HOUR / 2, provider(server), questions(4), journal=InlineJournal(path))
    restart(server)
    journal = InlineJournal(path, on_change="continue")
    result = run(batched, provider(server), [*questions(4), "another"], journal=journal)
    assert (5, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert () == Journal(path).summary().maybe_billed_twice
    assert not paid_twice(server)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_creation_whose_answer_is_lost_is_not_sent_again(provider, path, loop, count):
    """F21: not even by the transport, which sends a request again if an idle connection breaks."""
    with losing_creations(BatchServer(lambda _: "yes"), count) as server:

        async def main():
            # Repairs are sent over a connection that was idle.
            engine = BatchEngine(linger_s=0.01, poll_interval_s=0.01)
            strategy = MultiTurnStrategy(loop_budget=2)
            settings = {"strategy": strategy, "engine": engine, "journal": InlineJournal(path)}
            backend = provider(server, transport=None)
            return await batched(backend, questions(3), [Requirement("is never true", lambda _: False)], **settings)

        result = anyio.run(main, backend=loop)
        assert 3 == result.counts()["failed"]
        assert ([3, 3], {}) == (sizes(server), paid_twice(server))


@pytest.mark.parametrize(("status", "reported"), [(502, 3), (503, 0), (504, 3), (520, 3), (524, 3)])
def test_a_creation_that_a_gateway_gave_up_on_is_reported(run, provider, path, status, reported):
    """F21: the server may still create the batch when it is looked for. A server that is overloaded does not."""
    server = server_of()
    handle, created = server.handle, []

    def slow(method, target, headers, body):
        listed = target.partition("?")[0].endswith("/batches")
        if not listed or len(created) > 1:
            return handle(method, target, headers, body)
        created.append(method)
        return (status, b"<html>Too slow</html>") if method == "POST" else (200, b'{"data": []}')

    server.handle = slow
    result = run(batched, provider(server), questions(3), journal=InlineJournal(path))
    assert ["POST", "GET"] == created
    assert (3, reported) == (result.counts()["succeeded"], len(result.maybe_billed_twice))


@attrs.define
class Dated:
    """A transport whose responses have the date of a server."""

    transport: object
    now: Callable[[], float]

    async def open(self, request):
        return attrs.evolve(await self.transport.open(request), headers={"date": formatdate(self.now(), usegmt=True)})

    async def aclose(self):
        await self.transport.aclose()


@pytest.mark.parametrize("lead_s", [-5 * HOUR, -600.0, 600.0, 5 * HOUR])
def test_a_lost_batch_is_found_although_the_clock_is_wrong(run, provider, path, monkeypatch, lead_s):
    """F21: the provider says by its own clock when a batch was created."""
    now = time.time
    monkeypatch.setattr(batch_servers, "time", SimpleNamespace(time=lambda: now() - lead_s, monotonic=time.monotonic))
    server = losing_creations(server_of())
    direct = server.transport
    server.transport = lambda: Dated(direct(), lambda: now() - lead_s)
    result = run(batched, provider(server), questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


def test_a_lost_batch_is_found_although_the_server_tells_no_times(run, path):
    """F21: the name shows whose it is."""
    server = losing_creations(server_of())
    handle = server.handle

    def without_times(method, target, headers, body):
        status, answer = handle(method, target, headers, body)
        return status, re.sub(rb'"created_at": \d+, ', b"", answer)

    server.handle = without_times
    result = run(batched, PROVIDERS["openai"](server), questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


def rewrite_address(path):
    """Write the address of a batch as older versions did: as the backend was given it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        name, value = database.execute("SELECT name, value FROM notes WHERE kind = 'batch'").fetchone()
        value = value.replace("127.0.0.1:9", "127.0.0.1:9/v1")
        new = ("batch", name, None, value)
        database.execute("UPDATE notes SET value = ?, checksum = ? WHERE kind = 'batch'", (value, checksum(*new)))


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize(("before", "after"), [("/v1", ""), ("", "/v1")])
def test_the_address_of_anthropic_may_end_in_v1_or_not(run, path, before, after, is_old):
    """F21: it is the same place, so the batch is waited for, also if an older version has recorded the address."""
    server = server_of()

    def backend(ending):
        base_url = server.url.removesuffix("/v1") + ending
        return AnthropicBackend("model", "key", base_url=base_url, transport=server.transport)

    engine = BatchEngine(**LEFT_RUNNING)
    run(cut_off, HOUR / 2, backend(before), questions(3), journal=InlineJournal(path), engine=engine)
    if is_old:
        rewrite_address(path)
    restart(server)
    result = run(batched, backend(after), questions(3), journal=InlineJournal(path))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))
