"""Kill a real process repeatedly during a run, and compare its journal with the log of a real server."""

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.journals import is_whole, rows, stored

ITEMS = 6_000
"""More than the processes reach before the last kill, even if a busy machine lets each of them run on for a while."""

KILLS = 200
AT_ONCE = 8

SERVER = """
import json, os, sys
import anyio
from sampling.testing.servers import OpenAIServer, Reply

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def reply(request):
    # Logged before the answer begins, in one write, so that a kill at any time leaves the request in the log.
    question = json.loads(request.body)["messages"][-1]["content"]
    line = json.dumps([question, request.headers.get("idempotency-key")]) + "\\n"
    os.write(log, line.encode())
    return Reply([f"answer to {question}"])

async def main():
    async with OpenAIServer(reply) as server:
        print(server.url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""

RUNNER = """
# Everything is imported once. Each run is a process that is forked from here, which is cheap.
import os, sys
import anyio
import anyio._backends._asyncio
import sqlite3
from sampling import RejectionSamplingStrategy, open_fan_out
from sampling.backends.openai import OpenAIBackend

url, journal, log, items, at_once = sys.argv[1:]

async def main():
    acknowledged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with OpenAIBackend(url, model="any") as backend, open_fan_out(
        RejectionSamplingStrategy(), (f"question {n}" for n in range(int(items))), None, backend,
        max_concurrency=int(at_once), journal=journal, ordered=False,
    ) as outcomes:
        async for outcome in outcomes:
            os.write(acknowledged, f"{outcome.index}\\t{outcome.status}\\n".encode())

for line in sys.stdin:
    child = os.fork()
    if not child:
        # Log lines must not be mistaken for answers.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        anyio.run(main)
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def start(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_to_200_kills(tmp_path):
    """I13, rows 58 and 59, F11: each item has one outcome, which never changes, and few are asked twice."""
    journal, asked_log, acknowledged_log = tmp_path / "run.db", tmp_path / "asked.log", tmp_path / "acknowledged.log"
    rng, known, killed, cut_off = random.Random(5), {}, 0, 0
    with start(SERVER, asked_log) as server:
        url = server.stdout.readline().strip()
        with start(RUNNER, url, journal, acknowledged_log, ITEMS, AT_ONCE) as runner:
            try:
                while killed < KILLS:
                    status = live(runner, lambda: wait_for_a_random_instant(rng, asked_log))
                    killed += status == signal.SIGKILL
                    if journal.exists():
                        assert is_whole(journal)
                        now = stored(journal)
                        assert known.items() <= now.items(), "an outcome has changed, or is gone"
                        assert acknowledged(acknowledged_log) <= set(now), "an outcome was acknowledged, and is gone"
                        cut_off += bool(
                            rows(journal, "SELECT 1 FROM intents WHERE item NOT IN (SELECT item FROM outcomes)")
                        )
                        known = now
                    assert status == signal.SIGKILL, (
                        f"a life ended by itself after {killed} kills, with {len(known)} items"
                    )
                reached = len(known)
                assert 0 == live(runner, None)
            finally:
                runner.stdin.close()
                server.kill()
    now = stored(journal)
    assert known.items() <= now.items()
    assert list(range(ITEMS)) == sorted(now) == sorted(acknowledged(acknowledged_log))
    assert ITEMS == rows(journal, "SELECT count(*) FROM outcomes WHERE status = 'succeeded'")[0][0]
    assert is_whole(journal)
    check_what_the_server_saw(asked_log, journal)
    assert cut_off > KILLS / 4, "I19: few kills came between an intent and its outcome"
    assert 0 < reached < ITEMS, f"the kills were to be spread over the run: {reached} items were done at the last one"


def wait_for_a_random_instant(rng, asked_log):
    """Wait for some milliseconds or for some calls, so that a busy machine makes progress too."""
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 0.06))
        return
    calls, jitter_s, give_up_at = rng.randint(1, 24), rng.uniform(0.0, 0.005), time.monotonic() + 20
    enough = calls_in(asked_log) + calls
    while calls_in(asked_log) < enough and time.monotonic() < give_up_at:
        time.sleep(0.001)
    time.sleep(jitter_s)


def calls_in(log):
    return log.read_bytes().count(b"\n")


def live(runner, wait_before_kill):
    """Run one process until it ends or is killed, and return its exit code or signal."""
    runner.stdin.write("go\n")
    runner.stdin.flush()
    child = int(runner.stdout.readline())
    if wait_before_kill is not None:
        wait_before_kill()
        # It may have ended by itself, which its exit code tells.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return int(runner.stdout.readline())


def acknowledged(log):
    # The last line may be incomplete, because the process was killed while writing it.
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return {int(line.split("\t")[0]) for line in lines}


def check_what_the_server_saw(log, journal):
    calls = collections.defaultdict(list)
    for line in log.read_text().splitlines():
        question, key = json.loads(line)
        calls[question].append(key)
    assert {f"question {n}" for n in range(ITEMS)} == set(calls)
    duplicates = sum(map(len, calls.values())) - ITEMS
    assert duplicates <= KILLS * AT_ONCE, f"{duplicates} calls were made again"
    for keys in calls.values():
        assert [keys[0]] * len(keys) == keys, "a question was asked again with another idempotency key"
    assert ITEMS == len({keys[0] for keys in calls.values()})
    twice = {item for (item,) in rows(journal, "SELECT item FROM intents GROUP BY item HAVING count(*) > 1")}
    assert {n for n in range(ITEMS) if len(calls[f"question {n}"]) > 1} <= twice, (
        "what may be billed twice is not reported"
    )
