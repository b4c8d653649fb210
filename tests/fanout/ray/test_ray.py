"""The calls of a fan-out on a real Ray: what the backends, in other processes, write to a file is the witness."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from functools import partial
from pathlib import Path

import anyio
import attrs
import pytest

from sampling import (
    Budget,
    Generation,
    Hooks,
    LoopStarted,
    MultiTurnStrategy,
    RateLimited,
    RejectionSamplingStrategy,
    Usage,
    current,
    fan_out,
)
from sampling.errors import NotSendable, WorkerLost

pytest.importorskip("ray")

from sampling.fanout.ray import RayEngine

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(240)]


def note(witness: Path, what: str) -> None:
    """Write a line that is whole, whoever else writes."""
    with witness.open("ab", buffering=0) as file:
        file.write(f"{what}\n".encode())


def noted(witness: Path) -> Counter:
    """Count the lines."""
    return Counter(witness.read_text().split("\n")[:-1]) if witness.exists() else Counter()


def number_in(request) -> int:
    """Find out which item is asked."""
    return int(request.messages[0].content.split()[-1])


async def moody(request):
    """Answer some, fail at some, and be told to do better by some."""
    number = number_in(request)
    if number % 97 == 13:
        raise RateLimited(f"no {number}", retry_after_s=2.5)
    if number % 97 == 14:
        raise ZeroDivisionError(number)
    good = number % 3 == 0 or (number % 3 == 1 and len(request.messages) > 1)
    return Generation(f"{'good' if good else 'bad'} {number}", Usage(number, 2, 0.25), model="moody")


def is_good(text: str) -> tuple[bool, str]:
    """Accept only what is good."""
    return text.startswith("good"), f"not good: {text}"


def told(outcome) -> dict:
    """Everything of an outcome but its ids and its times."""
    result, error = outcome.result, outcome.error
    attempts = () if result is None else result.attempts
    return {
        "item": (outcome.index, outcome.key, outcome.status, outcome.usage),
        "error": (type(error), str(error), getattr(error, "retry_after_s", None), getattr(error, "hint", None)),
        "result": None if result is None else (result.success, result.value, result.stop_reason, result.max_attempts),
        "attempts": [
            (one.iteration, one.outcome, one.generation, one.validations, one.context, one.requests, one.tried.action)
            for one in attempts
        ],
    }


def questions(count: int) -> list:
    """Make items."""
    return [(f"key {number}", f"item {number}") for number in range(count)]


def test_the_same_outcomes_as_locally(run_for_real):
    """F13: 500 items on two actors give what they give here: statuses, answers, attempts, errors, usage, order."""
    strategy = MultiTurnStrategy(loop_budget=2, requirements=[is_good])
    call = partial(
        fan_out, strategy, questions(500), None, moody, max_concurrency=50, on_error="continue", outage_grace_s=0
    )

    here = run_for_real(call)
    there = run_for_real(partial(call, engine=RayEngine(actors=2)))

    assert [told(outcome) for outcome in here.outcomes] == [told(outcome) for outcome in there.outcomes]
    assert (here.status, here.counts(), here.usage) == (there.status, there.counts(), there.usage)
    # The very requirement of the caller's, not a copy of it.
    assert strategy.requirements[0] is there.outcomes[0].result.best.validations[0].requirement
    assert f"{there.run_id}:key 3:3" == there.outcomes[3].result.parent_id


async def one_bad_others_wait(witness: Path, request):
    """Answer items before 37 at once, fail at 37, and go on for ever with all after it."""
    number = number_in(request)
    note(witness, f"started {number}")
    try:
        if number > 37:
            await anyio.sleep_forever()
    finally:
        note(witness, f"ended {number}")
    return f"{'bad' if number == 37 else 'good'} {number}"


def test_a_halt_returns_the_prefix_and_stops_all_remote_calls(run_for_real, tmp_path):
    """F5, F13: a halt at item 37 of 200 with K=50 returns exactly 38, and nothing runs on any worker when it does."""
    witness = tmp_path / "witness"
    call = partial(
        fan_out,
        RejectionSamplingStrategy(),
        questions(200),
        None,
        partial(one_bad_others_wait, witness),
        [is_good],
        max_concurrency=50,
        on_failure="halt",
        engine=RayEngine(actors=2),
    )

    result = run_for_real(call)

    seen = noted(witness)
    started = {line.split()[1] for line in seen if line.startswith("started")}
    assert (38, "halted", 37) == (len(result.outcomes), result.status, result.halted_by)
    assert started == {line.split()[1] for line in seen if line.startswith("ended")}
    assert set(range(38)) <= {int(number) for number in started}


def test_the_callers_cancellation_stops_remote_calls(tmp_path):
    """F13, S11: when the caller cancels, every remote call has ended before the cancellation goes on."""
    witness = tmp_path / "witness"

    async def cancel_when_all_wait() -> Counter:
        async with anyio.create_task_group() as group:
            group.start_soon(
                partial(fan_out, max_concurrency=4, engine=RayEngine(actors=1)),
                RejectionSamplingStrategy(),
                [f"item {number}" for number in range(38, 46)],
                None,
                partial(one_bad_others_wait, witness),
            )
            while noted(witness).total() < 4:  # noqa: ASYNC110 - it is other processes that are waited for
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        return noted(witness)

    seen = anyio.run(cancel_when_all_wait, backend="trio")

    assert {f"{what} {number}" for what in ("started", "ended") for number in range(38, 42)} == set(seen)


async def killed_once(witness: Path, request):
    """Kill the process when item 20 is asked for the first time."""
    number = number_in(request)
    note(witness, f"asked {number}")
    if number == 20 and noted(witness)["asked 20"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(0.05)
    return f"good {number}"


def test_a_killed_worker_loses_nothing(tmp_path):
    """F13: SIGKILL of a worker: every item has its outcome, none is asked more than twice, stored ones only once."""
    witness, journal = tmp_path / "witness", tmp_path / "journal.db"
    call = partial(
        fan_out,
        RejectionSamplingStrategy(),
        questions(60),
        None,
        partial(killed_once, witness),
        [is_good],
        max_concurrency=8,
        journal=journal,
        engine=RayEngine(actors=2),
    )

    result = anyio.run(call, backend="asyncio")

    asked = noted(witness)
    assert ["succeeded"] * 60 == [outcome.status for outcome in result.outcomes]
    assert [f"good {number}" for number in range(60)] == [outcome.result.value for outcome in result.outcomes]
    assert set(asked.values()) == {1, 2}
    # Those that run again were in flight on the worker that died: at most all that were.
    assert 1 <= sum(count == 2 for count in asked.values()) <= 8
    with sqlite3.connect(journal) as stored:
        assert ("ok",) == stored.execute("PRAGMA integrity_check").fetchone()
    stored.close()


async def poisoned(witness: Path, request):
    """Kill every process that is asked item 5."""
    number = number_in(request)
    note(witness, f"asked {number}")
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(0.05)
    return f"good {number}"


def test_an_item_that_kills_its_workers_takes_nobody_with_it(tmp_path):
    """F13, row 67: an item that kills its worker twice ends with `WorkerLost`, and all others are answered."""
    witness = tmp_path / "witness"
    call = partial(
        fan_out,
        RejectionSamplingStrategy(),
        questions(16),
        None,
        partial(poisoned, witness),
        max_concurrency=6,
        on_error="continue",
        outage_grace_s=0,
        engine=RayEngine(actors=2),
    )

    result = anyio.run(call, backend="trio")

    assert [5] == [outcome.index for outcome in result.outcomes if outcome.status != "succeeded"]
    assert WorkerLost is type(result.outcomes[5].error)
    assert 2 == noted(witness)["asked 5"] == max(noted(witness).values())


async def counted(witness: Path, request):
    """Answer, never well, and count."""
    note(witness, "asked")
    await anyio.sleep(0.01)
    return Generation("bad", Usage(10, 10))


def test_the_budget_stays_with_the_driver(tmp_path):
    """I10, F13: all items together send no more than the shared budget allows, wherever they run."""
    witness = tmp_path / "witness"
    budget = Budget(requests=23)
    call = partial(
        fan_out,
        RejectionSamplingStrategy(loop_budget=3),
        questions(30),
        None,
        partial(counted, witness),
        [is_good],
        max_concurrency=8,
        budget=budget,
        on_error="continue",
        engine=RayEngine(actors=2),
    )

    result = anyio.run(call, backend="asyncio")

    assert 23 == noted(witness)["asked"] == budget.requests_made
    assert (0, 0) == (budget.reserved.requests, budget.reserved.tokens)
    assert Usage(230, 230) == budget.spent == result.usage
    attempts = [(len(outcome.result.attempts), outcome.result.stop_reason) for outcome in result.outcomes]
    assert ("halted", "budget") == (result.status, result.stop_reason)
    reasons = Counter(reason for _, reason in attempts)
    # The spent budget ends the run: only items that were in flight by then are cut off.
    assert (7, {"exhausted", "budget"}) == (reasons["exhausted"], set(reasons))
    assert 1 <= reasons["budget"] <= 8
    assert {3} == {count for count, reason in attempts if reason == "exhausted"}


@attrs.define
class Opened:
    """A backend that must be opened, and can't be sent."""

    witness: Path
    is_open: bool = False

    async def __aenter__(self):
        note(self.witness, "opened")
        self.is_open = True
        return self

    async def __aexit__(self, *_):
        note(self.witness, "closed")

    async def generate(self, request):
        return Generation(f"open: {self.is_open}, {current().parent_id is not None}")

    def __reduce__(self):
        raise TypeError("holds a key")


def deeper(event):
    """Give every call one more attempt."""
    return attrs.evolve(event, loop_budget=2)


def test_a_backend_factory_makes_one_backend_a_worker(tmp_path):
    """F13: what can't be sent is made on each worker, opened there, and closed when the run is over."""
    witness = tmp_path / "witness"
    engine = RayEngine(actors=2, backend_factory=partial(Opened, witness))

    hooks = Hooks()
    hooks.on(LoopStarted)(deeper)
    call = partial(fan_out, RejectionSamplingStrategy(), questions(4), None, Opened(witness), [is_good])
    result = anyio.run(partial(call, hooks=hooks, engine=engine), backend="trio")

    assert {"open: True, True"} == {outcome.result.value for outcome in result.outcomes}
    # S8: a hook of a call runs where the call runs, and what it changes is changed there.
    assert [2, 2, 2, 2] == [len(outcome.result.attempts) for outcome in result.outcomes]
    assert {"opened": 2, "closed": 2} == noted(witness)


def break_down():
    """Fail to make a backend."""
    raise LookupError("no such key on this machine")


def test_a_factory_that_fails_is_raised_as_it_is():
    """F13: a worker that can't start says why, with the error's own type, before any item is read."""
    items = iter(questions(3))
    engine = RayEngine(actors=1, backend_factory=break_down)

    with pytest.raises(LookupError, match="no such key on this machine") as caught:
        anyio.run(partial(fan_out, RejectionSamplingStrategy(), items, None, moody, engine=engine))

    assert "raised on a worker" in caught.value.__notes__[0]
    assert 3 == len(list(items))


ON_ITS_OWN = """
    import os, sys
    import anyio
    from pathlib import Path
    from sampling import RejectionSamplingStrategy, fan_out
    from sampling.fanout.ray import RayEngine

    async def shout(request):
        return request.messages[0].content.upper() + os.environ["RAY_USAGE_STATS_ENABLED"]

    async def main():
        result = await fan_out(RejectionSamplingStrategy(), ["a", "b"], None, shout, engine=RayEngine(actors=1))
        print(*[outcome.result.value for outcome in result.outcomes])

    anyio.run(main)
"""


def test_a_ray_of_its_own_leaves_nothing_behind(tmp_path):
    """F13: a local Ray is started and stopped, and leaves no process and no file in the home directory."""
    home = tmp_path / "home"
    home.mkdir()
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ON_ITS_OWN))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    environment = {**clean, "HOME": str(home), "SAMPLING_TEST_MARK": str(home)}
    done = run_script(script, environment)
    if "timed out during startup" in done.stderr:
        pytest.skip("this machine is so busy that Ray gives up on itself: it allows 30 s, whatever one says")

    assert (0, "A0 B0\n") == (done.returncode, done.stdout), done.stderr
    assert [] == list(home.iterdir())
    assert [] == processes_marked(str(home))


TWO_AT_ONCE = """
    import os, signal, sys
    from pathlib import Path
    import anyio
    from sampling import RejectionSamplingStrategy, fan_out
    from sampling.fanout.ray import RayEngine

    directory = Path(sys.argv[1])

    async def answer(request):
        text = request.messages[0].content
        if text == "kill":
            first = not (directory / "killed").exists()
            (directory / "killed").touch()
            while not (directory / "first run is over").exists():
                await anyio.sleep(0.05)
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
        while text == "a" and not (directory / "killed").exists():
            await anyio.sleep(0.05)
        return text.upper()

    async def run(items):
        result = await fan_out(RejectionSamplingStrategy(), items, None, answer, engine=RayEngine(actors=1))
        print(*[outcome.result.value for outcome in result.outcomes], flush=True)
        (directory / "first run is over").touch()

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(run, ["a"])
            group.start_soon(run, ["kill", "b"])

    anyio.run(main)
"""


def test_two_runs_at_once_share_a_ray_of_their_own(tmp_path):
    """F13, semantics 14: the one that ends first leaves it to the other, and Ray's own messages are not on stdout."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TWO_AT_ONCE))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    done = run_script(script, {**clean, "SAMPLING_TEST_MARK": str(tmp_path)}, str(tmp_path))
    if "timed out during startup" in done.stderr:
        pytest.skip("this machine is so busy that Ray gives up on itself: it allows 30 s, whatever one says")

    assert (0, "A\nKILL B\n") == (done.returncode, done.stdout), done.stderr
    assert [] == processes_marked(str(tmp_path))


TERMINATED = """
    import os
    import signal
    import sys

    import anyio
    from sampling.fanout.ray import RayEngine

    async def main():
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with RayEngine(sys.argv[1], actors=1):
                os.kill(os.getpid(), signal.SIGTERM)
                print((await anext(signals)).name)

    anyio.run(main)
"""


def test_a_signal_is_handled_as_without_ray(ray_cluster, tmp_path):
    """F13: Ray handles SIGTERM with a stack trace. A program that handles it itself gets its own handler back."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TERMINATED))

    done = run_script(script, dict(os.environ), ray_cluster)

    assert (0, "SIGTERM\n") == (done.returncode, done.stdout), done.stderr
    assert "SIGTERM received" not in done.stderr


def run_script(script: Path, environment: dict[str, str], *args: str) -> subprocess.CompletedProcess:
    """Run a program of its own."""
    return subprocess.run(  # noqa: S603
        [sys.executable, str(script), *args], env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def processes_marked(mark: str) -> list[str]:
    """List what still runs of those who inherited this environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"SAMPLING_TEST_MARK={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_what_cannot_be_sent_is_named(run_for_real, tmp_path):
    """F13: a backend that can't be sent is refused before anything is started, and the error says what to do."""
    with pytest.raises(NotSendable, match=r"the backend .*Opened.* holds a key") as caught:
        run_for_real(
            partial(fan_out, RejectionSamplingStrategy(), questions(1), None, Opened(tmp_path), engine=RayEngine())
        )

    assert "backend_factory" in caught.value.hint


def test_the_command_line_asks_from_a_cluster(ray_cluster, tmp_path):
    """F13: `sampling map --actors`: each worker makes its own backend, and the answers are the same."""
    (tmp_path / "prompts.txt").write_text("".join(f"What is {number} + 1?\n" for number in range(1, 5)))
    command = [
        sys.executable,
        "-m",
        "sampling",
        "map",
        str(tmp_path / "prompts.txt"),
        "--text",
        "--backend",
        "simulated",
    ]

    here, there = (
        subprocess.run([*command, *flags], capture_output=True, text=True, timeout=200, check=False)  # noqa: S603
        for flags in ([], ["--actors", "1", "--ray-address", ray_cluster])
    )

    assert (0, 0) == (here.returncode, there.returncode), there.stderr
    assert answers_in(here.stdout) == answers_in(there.stdout)
    assert 4 == len(answers_in(there.stdout))


def answers_in(printed: str) -> list[tuple]:
    """Return the answer of each item."""
    rows = [json.loads(line) for line in printed.splitlines()]
    return [(row["key"], row["status"], row["text"]) for row in rows]
