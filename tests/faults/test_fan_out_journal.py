"""Journals that can't be written, are damaged, or are interrupted during a write."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from sampling import Budget, Journal, RejectionSamplingStrategy, Requirement, fan_out, open_fan_out
from sampling.errors import JournalDamaged, JournalError, JournalWriteFailed
from sampling.fanout import FanOut
from sampling.fanout._delivery import OutcomeBuffer
from sampling.fanout.journal import _store as store
from sampling.fanout.journal._journal import Session
from sampling.fanout.journal._records import Recorder
from sampling.testing import After, ScriptedBackend, cancel_at_every_step, explore, run_virtual
from tests.faults.journals import InlineJournal, answering, asked, is_whole, numbers, rows, stored

ONCE = RejectionSamplingStrategy()

WRITES = ("BEGIN", "COMMIT", "INSERT", "CREATE", "PRAGMA JOURNAL_MODE")

FAULTS = {
    "disk full": sqlite3.OperationalError("database or disk is full"),
    "read-only": sqlite3.OperationalError("attempt to write a readonly database"),
    "I/O error": sqlite3.OperationalError("disk I/O error"),
    "no space for the lock": OSError(errno.ENOSPC, "No space left on device"),
}


@pytest.fixture
def tmp_path():
    """Use memory where possible: the tests are about the order of writes, not the speed of a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:  # noqa: S108
        yield Path(folder)


class Failing(sqlite3.Connection):
    """A connection whose k-th and all later writes fail, as on a full disk."""

    left = float("inf")
    fault: Exception
    statements = WRITES

    def _count(self, sql):
        if sql.lstrip().upper().startswith(Failing.statements):
            Failing.left -= 1
            if Failing.left < 0:
                raise Failing.fault

    def execute(self, sql, *args):
        self._count(sql)
        return super().execute(sql, *args)

    def executemany(self, sql, *args):
        self._count(sql)
        return super().executemany(sql, *args)

    def executescript(self, sql):
        self._count(sql)
        return super().executescript(sql)


@contextlib.contextmanager
def failing_after(count, fault, statements=WRITES):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
        Failing.left, Failing.fault, Failing.statements = count, fault, statements
        yield


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_write_claims_nothing_that_was_not_stored(tmp_path, fault, loop):
    """Row 61: the k-th write fails, for every k of a small run."""
    k, failures = 0, 0
    while True:
        path = tmp_path / f"run-{k}.db"
        handed_out, error, backend = run_virtual(_run_with_a_bad_disk, path, k, FAULTS[fault], loop=loop)
        on_disk = stored(path) if path.exists() else {}
        assert handed_out <= set(on_disk), "an outcome was handed out that is not on disk"
        if error is None:
            break
        failures += 1
        unsaved = {one.index for one in error.unsaved}
        paid = {int(asked(request)) for request in backend.returned}
        assert paid == unsaved | set(on_disk), "an answer that was paid for is neither on disk nor on the error"
        assert not unsaved & set(on_disk)
        assert all("yes" == one.result.text for one in error.unsaved)
        assert "make the same call again" in error.hint
        assert not path.exists() or is_whole(path)
        again = answering()
        result = run_virtual(partial(fan_out, journal=InlineJournal(path)), ONCE, numbers(6), None, again, loop=loop)
        assert 6 == len(result.outcomes)
        assert not {int(asked(request)) for request in again.requests} & set(on_disk)
        assert on_disk.items() <= stored(path).items(), "an outcome that was stored has changed"
        k += 1
    assert failures > 12, "a run of six items writes more often than that"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("on_change", ["refuse", "continue"])
def test_a_failing_statement_of_a_resume_is_an_error_of_the_journal(tmp_path, on_change, loop):
    """Row 61: the k-th statement fails, reads too, for every k of a resume. What was stored stays."""
    path, k, done = tmp_path / "run.db", 0, False
    call = partial(fan_out, ONCE, numbers(6), None, answering(), journal=InlineJournal(path, on_change=on_change))
    run_virtual(partial(call, budget=Budget(requests=2)), loop=loop)
    while not done:
        before = stored(path)
        # Any other error would end the test.
        with failing_after(k, FAULTS["I/O error"], statements=("",)), contextlib.suppress(JournalError):
            done = 6 == len(run_virtual(call, loop=loop).outcomes)
        assert before.items() <= stored(path).items()
        assert is_whole(path)
        k += 1
    assert k > 12, "a resume makes more statements than that"


async def _run_with_a_bad_disk(path, k, fault):
    backend = ScriptedBackend(lambda request: After(0.5 * (1 + int(asked(request)) % 3), "yes"))
    handed_out = set()
    with failing_after(k, fault):
        try:
            async with open_fan_out(
                ONCE, numbers(6), None, backend, max_concurrency=2, journal=InlineJournal(path)
            ) as run:
                async for outcome in run:
                    handed_out.add(outcome.index)
        except JournalWriteFailed as error:
            assert 0 == backend.in_flight
            return handed_out, error, backend
    return handed_out, None, backend


async def _leave_with_a_bad_disk(path, leave):
    """Leave a run early when the disk is full, and return whether it was cancelled."""
    with failing_after(10**9, FAULTS["disk full"]), anyio.CancelScope() as scope:
        async with open_fan_out(ONCE, numbers(6), None, answering(), journal=InlineJournal(path)) as run:
            async for _ in run:
                Failing.left = 0
                leave(scope)
                await checkpoint()
    return scope.cancelled_caught


def _raise(error, scope):
    raise error


@pytest.mark.parametrize("error", [LookupError("mine"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_full_disk_does_not_hide_the_error_of_the_caller(run, tmp_path, error):
    """F7, row 43: what the block was left with is raised, also if the end of the run can't be recorded."""
    with pytest.raises(type(error)) as caught, capture_logs() as lines:
        run(_leave_with_a_bad_disk, tmp_path / "run.db", partial(_raise, error))
    assert error is caught.value
    assert {"journal_end_not_written", "journal_not_written"} & {line["event"] for line in lines}


def test_a_full_disk_does_not_hide_a_cancellation(run, tmp_path):
    """I11: the caller's own cancellation always propagates."""
    assert run(_leave_with_a_bad_disk, tmp_path / "run.db", lambda scope: scope.cancel())


def test_what_is_in_flight_is_finished_and_nothing_new_is_started(run, tmp_path):
    """Row 61: no new item starts. Running items are paid for, so they finish and are on the error."""

    def reply(request):
        if asked(request) == "0":
            Failing.left = 0
        return After(1.0 if asked(request) == "0" else 50.0, "yes")

    async def main():
        backend = ScriptedBackend(reply)
        journal = InlineJournal(tmp_path / "run.db")
        with (
            failing_after(float("inf"), FAULTS["disk full"]),
            pytest.raises(JournalWriteFailed) as raised,
        ):
            await fan_out(ONCE, numbers(50), None, backend, max_concurrency=4, journal=journal)
        return raised.value, len(backend.requests), anyio.current_time()

    error, requests, now = run(main)
    assert ([0, 1, 2, 3], 4, 50.0) == ([one.index for one in error.unsaved], requests, now)


def test_a_disk_that_is_really_full(run, tmp_path, monkeypatch):
    """Row 61: an error of SQLite, from a limit on the pages of the file."""
    path = tmp_path / "run.db"
    real = store.connect

    def small(path, **how):
        database = real(path, **how)
        database.execute("PRAGMA max_page_count = 14")
        return database

    monkeypatch.setattr(store, "connect", small)
    backend = answering()
    with pytest.raises(JournalWriteFailed, match="full") as failed:
        run(fan_out, ONCE, numbers(500), None, backend, journal=InlineJournal(path), max_concurrency=4)
    monkeypatch.undo()
    on_disk = stored(path)
    assert {int(asked(r)) for r in backend.returned} == set(on_disk) | {one.index for one in failed.value.unsaved}
    result = run(fan_out, ONCE, numbers(500), None, answering(), journal=InlineJournal(path))
    assert 500 == len(result.outcomes)
    assert on_disk.items() <= stored(path).items()


LIMITED = """
import resource, signal, sys, anyio
from sampling import RejectionSamplingStrategy, fan_out
from sampling.errors import JournalWriteFailed
from functools import partial
async def backend(request):
    return "yes"
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    anyio.run(partial(fan_out, journal=sys.argv[1]), RejectionSamplingStrategy(), map(str, range(1500)), None, backend)
except JournalWriteFailed as error:
    print(len(error.unsaved), error)
"""


def test_a_file_that_the_system_does_not_let_grow(tmp_path):
    """Row 61: a real write() that fails, in a subprocess, with a real thread."""
    path = tmp_path / "run.db"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", LIMITED, str(path), "200000"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "could not be written" in done.stdout, done.stderr
    assert is_whole(path)
    on_disk = stored(path)
    assert on_disk
    backend = answering()
    result = anyio.run(partial(fan_out, journal=path), ONCE, map(str, range(1500)), None, backend)
    assert 1500 - len(on_disk) == len(backend.requests)
    assert 1500 == len(result.outcomes)


def test_every_damaged_byte_is_detected_or_harmless(tmp_path):
    """Row 62: a flipped bit anywhere in the file is refused or harmless. No item is silently asked again."""
    path, seen = tmp_path / "run.db", 0
    run_virtual(partial(fan_out, journal=InlineJournal(path)), ONCE, numbers(20), None, answering())
    whole, before = path.read_bytes(), stored(path)
    for offset in range(0, len(whole), 67):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(damaged)
        for leftover in tmp_path.glob("run.db?*"):
            leftover.unlink()
        backend = answering()
        try:
            result = run_virtual(partial(fan_out, journal=InlineJournal(path)), ONCE, numbers(20), None, backend)
        except JournalError:
            seen += 1
            assert not backend.requests
            continue
        assert not backend.requests, f"a bit flipped at {offset}, and items were asked again"
        assert [(o.index, o.status) for o in result.outcomes] == [(n, "succeeded") for n in range(20)]
        assert before == stored(path)
    assert seen > 50


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, 5000, 8192, 12288])
def test_a_truncated_file_is_refused(run, tmp_path, keep):
    """Row 62: and left as it is."""
    path = tmp_path / "run.db"
    run(fan_out, ONCE, numbers(200), None, answering(), journal=InlineJournal(path))
    cut = path.read_bytes()[:keep]
    path.write_bytes(cut)
    backend = answering()
    with pytest.raises(JournalDamaged):
        run(fan_out, ONCE, numbers(200), None, backend, journal=InlineJournal(path))
    assert not backend.requests
    assert cut == path.read_bytes()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_cancellation_at_any_step_leaves_rows_old_or_new(tmp_path, loop):
    """Row 39: the write is shielded. Exactly the answered items are on disk, and the lock is free."""
    seen = {}

    async def scenario(world):
        path = seen["path"] = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        backend = seen["backend"] = ScriptedBackend(lambda request: After(0.25 * (int(asked(request)) % 3), "yes"))
        taken = seen["taken"] = set()
        async with open_fan_out(ONCE, numbers(4), None, backend, max_concurrency=2, journal=InlineJournal(path)) as run:
            async for outcome in run:
                taken.add(outcome.index)
        return len(taken)

    def check(world, outcome):
        assert not outcome.left_running
        assert outcome.kind in {"returned", "cancelled"}
        path, backend = seen["path"], seen["backend"]
        assert 0 == backend.in_flight
        if path.exists():
            assert is_whole(path)
            on_disk = set(stored(path))
            assert seen["taken"] <= on_disk
            assert on_disk == {int(asked(request)) for request in backend.returned}
            [(status,)] = rows(path, "SELECT status FROM lives") or [("none",)]
            assert status != "completed" or len(on_disk) == 4
            assert not path.with_name(f"{path.name}.lock").exists()

    outcomes = cancel_at_every_step(scenario, check=check, loops=[loop], seed=1)
    assert {"returned", "cancelled"} == {outcome.kind for outcome in outcomes}


def test_the_journal_is_right_in_every_schedule(tmp_path):
    """F10, F11, I13: after interrupted and resumed runs, each item has one outcome, which never changes."""

    async def scenario(world):
        path = tmp_path / f"{world.loop}-{world.seed}-{len(list(tmp_path.iterdir()))}.db"
        fates = [world.rng.choices(["yes", "no", "raise"], [6, 2, 1])[0] for _ in range(8)]
        raised, calls, known = 0, [], {}

        async def backend(request):
            calls.append(int(asked(request)))
            await anyio.sleep(world.latency())
            if fates[calls[-1]] == "raise":
                fates[calls[-1]] = "yes"
                raise RuntimeError("broken")
            return fates[calls[-1]]

        yes = Requirement("says yes", "yes".__eq__)
        for _ in range(10):
            try:
                with anyio.move_on_after(world.rng.choice([0.25, 0.75, 100.0])):
                    result = await fan_out(
                        ONCE, numbers(8), None, backend, [yes], max_concurrency=3, journal=InlineJournal(path)
                    )
                    break
                world.reached("cancelled")
            except RuntimeError:
                raised += 1
                world.reached("raised")
            now = stored(path) if path.exists() else {}
            assert known.items() <= now.items()
            known = now
        else:
            return "never done"
        assert list(range(8)) == [one.index for one in result.outcomes]
        assert known.items() <= stored(path).items()
        assert 8 == len(stored(path))
        return sorted(calls), raised

    explore(scenario, seeds=range(40), must_reach=["cancelled", "raised"])


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()], ids=["memory", "interrupt"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Recorder, "dump"),
        (store.Store, "write"),
        (Session, "intend"),
        (Session, "record"),
        (FanOut, "_start"),
        (OutcomeBuffer, "put"),
    ],
    ids=lambda place: place if isinstance(place, str) else place.__name__,
)
def test_a_crash_anywhere_in_a_run_fails_it(tmp_path, monkeypatch, owner, name, error):
    """F7, rows 43 and 44: wherever memory runs out, the run ends with that error, and its journal says so."""
    path, taken, calls, real = tmp_path / "run.db", set(), [], getattr(owner, name)
    backend = answering()

    def crash_once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 4:
            raise error
        return real(*args, **kwargs)

    async def main():
        journal = InlineJournal(path)
        async with open_fan_out(ONCE, numbers(50), None, backend, journal=journal, max_concurrency=3) as run:
            async for outcome in run:
                taken.add(outcome.index)

    monkeypatch.setattr(owner, name, crash_once)
    with pytest.raises(type(error)) as caught:
        run_virtual(main)
    monkeypatch.undo()
    assert error is caught.value
    assert taken <= set(stored(path))
    assert len(backend.requests) < 20, "items were started after the crash"
    assert [("failed", type(error).__name__)] == rows(path, "SELECT status, error FROM lives")
    assert not path.with_name("run.db.lock").exists()
    result = run_virtual(partial(fan_out, journal=InlineJournal(path)), ONCE, numbers(50), None, answering())
    assert 50 == len(result.outcomes)


INTERRUPTED = """
import contextlib, os, signal, sqlite3, sys
from functools import partial
import anyio
from anyio.lowlevel import checkpoint
from sampling import *
from sampling.testing import run_virtual

class Inline(Journal):
    async def in_thread(self, work, limiter):
        await checkpoint()
        return work()

# The children of a background shell ignore SIGINT by default.
signal.signal(signal.SIGINT, signal.default_int_handler)
loop, folder = sys.argv[1:]
kinds, k = [], 0
while True:
    path, left, returned = f"{folder}/{k}.db", k, []

    def step():
        global left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)

    async def backend(request):
        await anyio.sleep(0.25)
        returned.append(int(request.messages[-1].content))
        return "yes"

    taken = []
    async def main():
        async with open_fan_out(BaseSamplingStrategy(), map(str, range(4)), None, backend, max_concurrency=2,
                                journal=Inline(path)) as run:
            async for outcome in run:
                taken.append(outcome.index)
    try:
        run_virtual(main, loop=loop, seed=k, on_step=step)
    except KeyboardInterrupt as error:
        kinds.append("interrupted")
    except BaseException as error:
        raise SystemExit(f"step {k}: {error!r}")
    else:
        if left > 0:
            break
        kinds.append("returned")
    if os.path.exists(path):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",), k
            on_disk = {item for (item,) in database.execute("SELECT item FROM outcomes")}
            assert set(taken) <= on_disk <= set(returned), (k, taken, on_disk, returned)
            statuses = [status for (status,) in database.execute("SELECT status FROM lives")]
            assert statuses[-1:] != ["completed"] or len(on_disk) == 4, (k, statuses)
    k += 1
print(kinds.count("interrupted"), "of", k)
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_interrupt_at_any_step(tmp_path, loop):
    """Row 43: a real SIGINT before every step. The journal is consistent, and KeyboardInterrupt is not wrapped."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", INTERRUPTED, loop, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert int(done.stdout.split()[0]) > 20


def test_a_store_that_is_not_open_says_so(tmp_path):
    """A store that is not open raises a clear error."""
    with pytest.raises(JournalError, match="is not open"):
        store.Store(tmp_path / "run.db").write([], [])
    assert isinstance(Journal(tmp_path / "x"), Journal)
