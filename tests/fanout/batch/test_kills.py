"""Kill a real process at every step of a run over batches, and compare with the account of the server."""

import json
import os
import signal
import subprocess
import sys

import pytest

from sampling import Journal
from sampling.testing.batch_servers import BatchServer

ITEMS = 4
ROUNDS = 2

RUNNER = """
# Everything is imported once. Each run is a process that is forked from here, which is cheap.
import json, os, signal, sys
import anyio
import anyio._backends._asyncio
import anyio._backends._trio
import sqlite3
from sampling import MultiTurnStrategy, Requirement
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.openai import OpenAIBackend
from sampling.fanout import BatchEngine, fan_out
from sampling.fanout.journal._notes import NoteStore

# Imports the HTTP client.
OpenAIBackend("http://127.0.0.1:9/v1", "key", "model")

def die_at(step):
    # Die before the given write to the notes. After the one before it, the server is called: see the other test.
    written, put = [], NoteStore.put
    def counted(self, *args):
        written.append(1)
        if step == len(written):
            os.kill(os.getpid(), signal.SIGKILL)
        put(self, *args)
    NoteStore.put = counted
    return written

async def main(job):
    written = die_at(job.get("die"))
    if job["api"] == "openai":
        backend = OpenAIBackend(job["url"], "key", "model")
    else:
        backend = AnthropicBackend("model", "key", base_url=job["url"])
    engine = BatchEngine(linger_s=0.05, poll_interval_s=0.02, max_poll_interval_s=0.05)
    items = [(f"key {n}", f"question {n}") for n in range(job["items"])]
    async with backend:
        result = await fan_out(
            MultiTurnStrategy(loop_budget=2), items, None, backend, [Requirement("yes", lambda text: text == "yes")],
            journal=job["journal"], engine=engine,
        )
    with open(job["journal"] + ".json", "w") as file:
        json.dump({"values": [one.result.value for one in result.outcomes], "writes": len(written),
                   "twice": result.maybe_billed_twice, "tokens": result.usage.total_tokens}, file)

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        # Log lines must not be mistaken for answers.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(job["journal"] + ".err", os.O_WRONLY | os.O_CREAT), 2)
        anyio.run(main, job, backend=job["loop"])
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def answer(request):
    asked = sum(message["role"] == "user" for message in request.body["messages"])
    return "yes" if asked == 2 else "no"


class Runner:
    """Runs jobs in processes that may die."""

    def __init__(self, api):
        self.api = api
        command = [sys.executable, "-c", RUNNER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, server, journal, *, die=None, loop="asyncio", began=lambda _pid: None):
        """Run to the end or to death, and return the result or None."""
        job = {"url": server.url, "journal": str(journal), "api": self.api, "items": ITEMS, "die": die, "loop": loop}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        began(int(self._process.stdout.readline()))
        status = int(self._process.stdout.readline())
        if status == signal.SIGKILL:
            return None
        assert 0 == status, journal.with_name(f"{journal.name}.err").read_text()
        return json.loads(journal.with_name(f"{journal.name}.json").read_text())


@pytest.fixture(params=["openai", "anthropic"])
def runner(request):
    with Runner(request.param) as runner:
        yield runner


def check(server, result, journal):
    """Every item is answered, and every answer was paid for once."""
    assert ["yes"] * ITEMS == result["values"]
    assert [1] == sorted(set(server.billed.values()))
    assert ITEMS * ROUNDS == server.billed.total()
    summary = Journal(journal).summary()
    assert ITEMS == summary.succeeded
    assert sorted(result["twice"]) == sorted(summary.maybe_billed_twice)
    assert result["tokens"] == summary.usage.total_tokens == expected_tokens(server)


def expected_tokens(server):
    """The tokens that the server has billed, as it counts them."""
    total = 0
    for batch in server.batches:
        for request in batch.requests:
            if request.custom_id in server.billed:
                total += len(request.prompt.split()) + 1
    return total


@pytest.mark.timeout(600)
def test_a_kill_before_any_write_costs_nothing(runner, tmp_path):
    """F21: whatever was recorded, a resume finds the batches at the provider, and pays for nothing twice."""
    with BatchServer(answer) as server:
        whole = runner.run(server, tmp_path / "whole.db")
        check(server, whole, tmp_path / "whole.db")
        assert not whole["twice"]
    for step in range(1, whole["writes"] + 1):
        journal = tmp_path / f"{step}.db"
        with BatchServer(answer) as server:
            if runner.run(server, journal, die=step) is not None:
                # There was a batch less this time.
                continue
            result = runner.run(server, journal, loop="trio" if step % 2 else "asyncio")
            check(server, result, journal)


@pytest.mark.timeout(600)
def test_a_kill_at_any_call_costs_nothing(runner, tmp_path):
    """F21: when the server has worked on the call, and the client does not know yet."""
    with BatchServer(answer) as server:
        runner.run(server, tmp_path / "whole.db")
        calls = len(server.calls)
    for step in range(1, calls + 1):
        journal = tmp_path / f"{step}.db"
        with BatchServer(answer) as server:
            pids = []
            kill_after(server, step, pids)
            if runner.run(server, journal, began=pids.append) is not None:
                # There was a poll less this time.
                continue
            result = runner.run(server, journal)
            check(server, result, journal)


def kill_after(server, step, pids):
    done = []

    def drop(method, path):
        done.append(path)
        if len(done) == step:
            os.kill(pids[0], signal.SIGKILL)
        return len(done) == step

    server.drop = drop


def test_a_creation_that_nobody_can_look_up_is_reported(runner, tmp_path):
    """F21: if the server has no list of batches, the items may be billed twice, and the run says so."""
    journal, pids = tmp_path / "run.db", []
    with BatchServer(answer) as server:

        def drop(method, path):
            if method == "POST" and path.endswith("/batches") and len(server.batches) == 1:
                os.kill(pids[0], signal.SIGKILL)
                return True
            return False

        server.drop = drop
        assert runner.run(server, journal, began=pids.append) is None
        listed = {"/v1/batches", "/v1/messages/batches"}
        server.drop = lambda _method, _path: False
        server.intercept = lambda method, path: (404, {}) if method == "GET" and path in listed else None
        result = runner.run(server, journal)
    assert ["yes"] * ITEMS == result["values"]
    # The first batch was worked on, and so was the one that replaced it.
    lost = server.batches[0].requests
    assert ITEMS * ROUNDS + len(lost) == sum(len(batch.requests) for batch in server.batches)
    in_doubt = sorted(int(request.prompt.split()[-1]) for request in lost)
    assert in_doubt == sorted(result["twice"]) == sorted(Journal(journal).summary().maybe_billed_twice)
