"""Readers of a journal: they endanger neither the run nor the file."""

import csv
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from sampling import (
    Journal,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Usage,
    fan_out,
    open_fan_out,
)
from sampling.checks import one_of
from sampling.errors import JournalDamaged, JournalError, JournalLocked, JournalWriteFailed
from sampling.fanout.journal import _store as store
from sampling.fanout.journal import export
from sampling.fanout.journal._lock import FileLock
from tests.faults.journals import InlineJournal, answering, numbers, stored

ONCE = RejectionSamplingStrategy()

RUN_THAT_IS_KILLED = """
import os, sys
import anyio
from sampling import RejectionSamplingStrategy, open_fan_out

async def backend(request):
    return "yes"

async def main(path):
    items = [str(number) for number in range(20)]
    async with open_fan_out(RejectionSamplingStrategy(), items, None, backend, journal=path, max_concurrency=1) as run:
        async for outcome in run:
            if outcome.index == 9:
                # Closing any descriptor of the file drops all POSIX locks that SQLite holds in this process.
                for file in (path, path + "-shm", path + "-wal"):
                    open(file, "rb").close()
                print("copied", flush=True)
                sys.stdin.readline()
            print(outcome.index, flush=True)
            if outcome.index == 15:
                os._exit(9)

anyio.run(main, sys.argv[1])
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


@pytest.fixture
def journal(run, path):
    """A journal of five items, whose run is over."""
    run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(path))
    return path


def names(path):
    return sorted(file.name for file in path.parent.iterdir())


@pytest.mark.parametrize("reader", ["ours", "sqlite3"])
def test_a_reader_never_deletes_the_log_of_a_run_that_lost_its_locks(path, tmp_path, reader):
    """F20: outcomes handed out after a copy of the file and a read of it, by any program, survive a kill."""
    program = subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-c", textwrap.dedent(RUN_THAT_IS_KILLED), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program:
        while "copied" not in program.stdout.readline():
            pass
        if reader == "ours":
            assert Journal(path).summary().succeeded >= 10
            assert export(path, tmp_path / "out.jsonl") >= 10
        else:
            # It may write, so it deletes the log if it takes itself for the last one.
            with closing(sqlite3.connect(path)) as database:
                assert database.execute("SELECT count(*) FROM outcomes").fetchone() >= (10,)
        program.stdin.write("\n")
        program.stdin.flush()
        handed_out = [int(line) for line in program.stdout]
    assert 9 == program.returncode
    assert set(handed_out) <= stored(path).keys()


@pytest.mark.parametrize("reads", [lambda path, _: Journal(path).summary(), export], ids=["summary", "export"])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE outcomes SET status = 'failed' WHERE item = 3",
        "UPDATE outcomes SET input_tokens = 1000 WHERE item = 3",
        "UPDATE outcomes SET reasoning_tokens = x'' WHERE item = 3",
        "UPDATE lives SET other_cost = 9.0",
        "UPDATE lives SET other_attempts = x''",
        "UPDATE intents SET digest = digest + 1 WHERE item = 3",
        "UPDATE intents SET item = 30 WHERE item = 3",
    ],
)
def test_no_reader_counts_what_is_damaged(journal, tmp_path, reads, damage):
    """F20, row 62: a figure that differs from what was recorded is refused by a summary as well as by an export."""
    with closing(sqlite3.connect(journal)) as database:
        triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(damage)
        for _, sql in triggers:
            database.execute(sql)
        database.commit()
    with pytest.raises(JournalDamaged, match="damaged"):
        reads(journal, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_read_leaves_nothing_behind(journal, tmp_path):
    """F20: the summary and an export of a finished run make no file beside it."""
    before = journal.stat().st_mtime_ns
    assert 5 == Journal(journal).summary().succeeded
    assert 5 == export(journal, tmp_path / "out.csv")
    assert ["out.csv", "run.db"] == names(journal)
    assert before == journal.stat().st_mtime_ns


def test_a_symlink_is_the_same_journal(journal, tmp_path, run):
    """F20: a symlink reads the file, and shares its lock."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(journal)
    assert 5 == Journal(link).summary().succeeded

    async def twice():
        async with open_fan_out(ONCE, numbers(5), None, answering(), journal=InlineJournal(journal)):
            await fan_out(ONCE, numbers(5), None, answering(), journal=InlineJournal(link))

    with pytest.raises(JournalLocked):
        run(twice)


def test_a_lock_that_is_removed_is_taken_again(path, run):
    """Row 63: whoever takes it for a stale one does not let a second run in."""
    lock = path.with_name("run.db.lock")

    async def main():
        journal = InlineJournal(path)
        async with open_fan_out(ONCE, numbers(20), None, answering(), journal=journal, max_concurrency=1) as outcomes:
            async for outcome in outcomes:
                if outcome.index == 5:
                    lock.unlink()
                elif outcome.index == 10:
                    with pytest.raises(JournalLocked, match=f"process {os.getpid()}"):
                        await fan_out(ONCE, numbers(20), None, answering(), journal=InlineJournal(path))

    run(main)
    assert (20, ["run.db"]) == (len(stored(path)), names(path))


def test_a_run_ends_if_another_one_has_taken_its_lock(path, run):
    """Row 63: two runs must not write to one file. The lock of the other one stays."""
    lock, other = path.with_name("run.db.lock"), FileLock(path.with_name("run.db.lock"))

    async def main():
        journal = InlineJournal(path)
        async with open_fan_out(ONCE, numbers(20), None, answering(), journal=journal, max_concurrency=1) as outcomes:
            async for outcome in outcomes:
                if outcome.index == 5:
                    lock.unlink()
                    other.acquire()

    with pytest.raises(
        JournalWriteFailed, match=r"its lock was removed, and run\.db\.lock is held by process \d+"
    ) as caught:
        run(main)
    assert lock.exists()
    other.release()
    backend = answering()
    assert 20 == run(fan_out, ONCE, numbers(20), None, backend, journal=path).counts()["succeeded"]
    assert len(caught.value.unsaved) <= len(backend.requests) < 15
    # Nothing is open any more.
    assert ["run.db"] == names(path)


@pytest.mark.parametrize("change", ["moved", "deleted", "replaced"])
def test_a_file_that_disappears_ends_the_run(path, run, change):
    """F11: nothing is acknowledged that a resume would not find. A file that is moved back has everything."""
    away, seen = path.with_name("away.db"), []

    def disappear():
        path.replace(away)
        if change == "deleted":
            away.unlink()
        elif change == "replaced":
            path.write_text("something else")

    async def main():
        journal = InlineJournal(path)
        async with open_fan_out(ONCE, numbers(50), None, answering(), journal=journal, max_concurrency=1) as outcomes:
            async for outcome in outcomes:
                seen.append(outcome.index)
                if outcome.index == 5:
                    disappear()

    with pytest.raises(JournalWriteFailed, match="was moved, deleted or replaced during the run") as caught:
        run(main)
    unsaved = caught.value.unsaved
    assert len(seen) + len(unsaved) < 20
    if change == "moved":
        away.replace(path)
        assert set(seen) <= stored(path).keys()
        backend = answering()
        assert 50 == run(fan_out, ONCE, numbers(50), None, backend, journal=InlineJournal(path)).counts()["succeeded"]
        assert len(backend.requests) <= 50 - len(seen)


def test_a_directory_is_refused(tmp_path, run):
    """An empty path is one, too."""
    with pytest.raises(JournalError, match="is a directory: give the path of a file"):
        run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(tmp_path))


def test_a_second_hard_link_is_refused(journal, tmp_path, run):
    """F20: SQLite would keep one log for each name."""
    os.link(journal, tmp_path / "second.db")
    with pytest.raises(JournalError, match="several hard links"):
        run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(journal))


def test_a_hard_link_of_a_killed_run_is_not_to_be_copied_without_its_log(path, tmp_path, run):
    """F20: the log has outcomes that were handed out, and the file alone lacks them."""
    own = tmp_path / "own"
    own.mkdir()

    async def killed():
        async with open_fan_out(ONCE, numbers(5), None, answering(), journal=InlineJournal(path)) as outcomes:
            assert 5 == len([outcome async for outcome in outcomes])
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{path}{suffix}", own / f"run.db{suffix}")

    run(killed)
    os.link(own / "run.db", tmp_path / "second.db")
    with pytest.raises(JournalError, match=r"copy it, together with run\.db-wal, to a directory of its own"):
        run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(own / "run.db"))


def test_a_log_without_an_index_is_read_from_a_copy(path, run):
    """F20: an index that SQLite makes would stay behind, and may belong to another user than the run."""

    async def killed():
        async with open_fan_out(ONCE, numbers(5), None, answering(), journal=InlineJournal(path)) as outcomes:
            async for _ in outcomes:
                pass
            return [(file, file.read_bytes()) for file in path.parent.iterdir() if not file.name.endswith("-shm")]

    for file, content in run(killed):
        file.write_bytes(content)
    assert "run.db-wal" in names(path)
    before = names(path)
    assert 5 == Journal(path).summary().succeeded
    assert before == names(path)


def test_a_file_of_another_user_is_refused_and_nothing_is_left_beside_it(journal, run, monkeypatch):
    """F20: SQLite would leave a log behind that the owner of the journal can't write."""
    before = names(journal)
    monkeypatch.setattr(store.os, "access", lambda where, mode: mode != os.W_OK)  # root may write everywhere
    with pytest.raises(JournalWriteFailed, match="Permission denied"):
        run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(journal))
    assert before == names(journal)
    monkeypatch.setattr(store.os, "access", lambda where, mode: False)
    with pytest.raises(JournalError, match=r"could not be read: .*Permission denied") as caught:
        Journal(journal).summary()
    assert not isinstance(caught.value, JournalWriteFailed)


def test_a_run_that_begins_during_a_read_is_noticed(journal, run):
    """F20: such a read might mix old and new pages, so it fails and says what to do."""

    def read():
        with store.connect_to_read(journal) as database:
            journal.with_name("run.db-wal").touch()
            database.execute("SELECT * FROM outcomes").fetchall()

    with pytest.raises(JournalError, match="read it again"):
        read()


@pytest.mark.parametrize("name", ["run.db", "run.db-wal", "run.db.lock", "link.db"])
def test_an_export_never_overwrites_the_journal(journal, name):
    """F20: neither the file itself nor one that belongs to it, under any name."""
    journal.with_name("link.db").symlink_to(journal)
    before = journal.read_bytes()
    with pytest.raises(ValueError, match="must not overwrite the journal"):
        export(journal, journal.with_name(name), format="jsonl")
    assert before == journal.read_bytes()


def test_a_spreadsheet_evaluates_nothing(run, path, tmp_path):
    """A text that begins like a formula is preceded by an apostrophe, and a number is not."""
    answers = ["=1+1", "+cmd", "-5", "@SUM(A1)", "\t=1", "plain", "\n=1", "＝1", "\nplain"]

    async def backend(request):
        return answers[int(request.messages[-1].content)]

    run(fan_out, ONCE, numbers(9), None, backend, journal=InlineJournal(path))
    export(path, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert ["'=1+1", "'+cmd", "-5", "'@SUM(A1)", "'\t=1", "plain", "'\n=1", "'＝1", "\nplain"] == texts


def test_an_export_replaces_the_file_behind_a_link_and_nothing_else(journal, tmp_path):
    """F20: the link stays one, and a file that only looks like an unfinished export is left alone."""
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "real.jsonl")
    (tmp_path / "out.jsonl.part").write_text("mine")
    count = export(journal, tmp_path / "out.jsonl")
    assert (True, "mine") == ((tmp_path / "out.jsonl").is_symlink(), (tmp_path / "out.jsonl.part").read_text())
    assert count == len((tmp_path / "real.jsonl").read_text().splitlines())


def test_an_export_is_written_to_a_pipe(journal, tmp_path):
    """F20: a pipe or a device, such as /dev/stdout, is not replaced by a file."""
    program = "import sys; from sampling.fanout.journal import export; export(sys.argv[1], sys.argv[2], format='jsonl')"
    exported = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, str(journal), "/dev/stdout"], capture_output=True, text=True, check=True
    )
    export(journal, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == exported.stdout
    export(journal, "/dev/null", format="csv")
    assert Path("/dev/null").is_char_device()


def test_an_export_has_as_long_a_name_as_the_system_allows(journal, tmp_path):
    """F20: its temporary file has no longer one."""
    assert export(journal, tmp_path / f"{'x' * 249}.jsonl")


def test_a_reader_refuses_a_directory(tmp_path):
    """F20: with words that say what to do."""
    for read in (Journal(tmp_path).summary, Journal(tmp_path).to_html):
        with pytest.raises(JournalError, match="is a directory: give the path of a file"):
            read()


class TestOlderVersion:
    """A journal that version 2 of its format wrote: five items, of which one failed and one raised."""

    @pytest.fixture
    def old(self, path):
        shutil.copyfile(Path(__file__).with_name("fixtures") / "version-2.db", path)
        return path

    def test_it_is_read_without_being_changed(self, old, tmp_path):
        """F20: a reader migrates a copy."""
        before = old.read_bytes()
        summary = Journal(old).summary()
        assert (3, 1, 1) == (summary.succeeded, summary.failed, summary.errored)
        assert 5 == export(old, tmp_path / "out.jsonl")
        assert before == old.read_bytes()
        assert ["out.jsonl", "run.db"] == names(old)

    def test_it_is_resumed(self, old, run):
        """Every outcome of the older version comes back, and nothing is asked."""
        backend = answering()
        result = run(
            fan_out,
            MultiTurnStrategy(loop_budget=2),
            [(f"k{index}", str(index)) for index in range(5)],
            None,
            backend,
            [one_of("yes", "maybe")],
            journal=InlineJournal(old),
            on_error="continue",
            options=Options(temperature=0.5),
        )
        assert not backend.requests
        assert ["yes", "no", None, "yes", "yes"] == [one.result and one.result.text for one in result.outcomes]
        assert "broken" == str(result.outcomes[2].error)
        assert Usage(31, 12, 1.25) == result.usage


class TestVersion4:
    """A journal that version 4 of its format wrote, in two processes: the second asked the failed item again."""

    @pytest.fixture
    def old(self, path):
        shutil.copyfile(Path(__file__).with_name("fixtures") / "version-4.db", path)
        return path

    def test_it_is_read_without_being_changed(self, old, tmp_path):
        """F20: a summary, an export and a page are made of a copy."""
        before = old.read_bytes()
        summary = Journal(old).summary()
        assert (3, 1, 1, 2, ()) == (
            summary.succeeded,
            summary.failed,
            summary.errored,
            summary.processes,
            summary.maybe_billed_twice,
        )
        assert Usage(28, 14, 1.25, 6, 2) == summary.usage
        assert 5 == export(old, tmp_path / "out.jsonl")
        assert "3 of 5 items have a valid answer" in Journal(old).to_html()
        assert before == old.read_bytes()
        assert ["out.jsonl", "run.db"] == names(old)

    def test_it_is_resumed(self, old, run):
        """F17: every outcome comes back, and failed items can be asked again."""
        result = run(_resume, old, answering())
        assert ["yes", "no", None, "yes", "yes"] == [one.result and one.result.text for one in result.outcomes]
        assert "broken" == str(result.outcomes[2].error)
        assert Usage(28, 14, 1.25, 6, 2) == result.usage
        again = answering(default="maybe")
        result = run(_resume, old, again, retry={"failed", "errored"})
        assert {"succeeded": 5, "failed": 0, "errored": 0} == result.counts()
        assert 2 == len(again.requests)


async def _resume(old, backend, **settings):
    return await fan_out(
        MultiTurnStrategy(loop_budget=2),
        [(f"k{index}", str(index)) for index in range(5)],
        None,
        backend,
        [one_of("yes", "maybe")],
        journal=InlineJournal(old),
        on_error="continue",
        options=Options(temperature=0.5),
        **settings,
    )


def test_a_log_that_disappears_ends_the_run(path, run):
    """F11: what is written to a deleted log is gone after a kill. The run ends, and everything in it is kept."""
    seen = []

    async def main():
        journal = InlineJournal(path)
        async with open_fan_out(ONCE, numbers(50), None, answering(), journal=journal, max_concurrency=1) as outcomes:
            async for outcome in outcomes:
                seen.append(outcome.index)
                if outcome.index == 5:
                    path.with_name("run.db-wal").unlink()

    with pytest.raises(JournalWriteFailed, match=r"run\.db-wal was moved, deleted or replaced during the run"):
        run(main)
    assert len(seen) < 20
    assert set(seen) <= stored(path).keys()
    assert 50 == run(fan_out, ONCE, numbers(50), None, answering(), journal=InlineJournal(path)).counts()["succeeded"]
