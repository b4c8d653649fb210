"""
The SQLite file of a journal.

One run writes it at a time, and others may read it meanwhile.
All of this blocks, so a run calls it in a thread. When `write` returns, its transaction is on disk. If it raises,
nothing was written. The tables call a process that worked on the run a "life".
"""

import os
import sqlite3
import struct
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import attrs

from sampling._engine.scope import new_sampling_id
from sampling._json import bounded as bounded_json
from sampling._message_json import canonical
from sampling.errors import JournalDamaged, JournalError, JournalMismatch, JournalTooNew, JournalWriteFailed
from sampling.fanout.items import ItemStatus
from sampling.fanout.journal._fingerprint import differences
from sampling.fanout.journal._lock import FileLock, owner_now
from sampling.fanout.journal._schema import APPLICATION_ID, VERSION, checksum, create_or_migrate, outcome_checksum
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "Intent",
    "JournalState",
    "JournalStatus",
    "OnChange",
    "OutcomeRow",
    "RawRow",
    "Spent",
    "Store",
    "all_outcomes",
    "connect_to_read",
    "run_of",
]

OnChange: TypeAlias = Literal["refuse", "continue"]
"""The reaction to a journal that was begun by a different call."""

JournalStatus: TypeAlias = Literal["running", "completed", "halted", "stopped", "failed"]
"""The status that a process recorded for the run."""

BUSY_TIMEOUT_S: Final = 30.0

_OUTCOME_COLUMNS: Final = (
    "item, life, key, digest, status, input_tokens, output_tokens, cost, attempts, requests, record, checksum"
)


class Intent(NamedTuple):
    """An item that is about to be sampled."""

    item: int
    digest: int


class Spent(NamedTuple):
    """The amounts that a budget counts."""

    usage: Usage = NO_USAGE
    attempts: int = 0
    requests: int = 0

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum of both."""
        return Spent(self.usage + other.usage, self.attempts + other.attempts, self.requests + other.requests)


class OutcomeRow(NamedTuple):
    """A row of the table `outcomes`."""

    item: int
    life: int
    key: str
    digest: int
    status: ItemStatus
    input_tokens: int
    output_tokens: int
    cost: float
    attempts: int
    requests: int
    record: str
    checksum: int = 0


RawRow: TypeAlias = tuple[int, int, str, int, ItemStatus, int, int, float, int, int, str, int]
"""An `OutcomeRow` as a plain tuple, as SQLite returns it. Converting a million of them would be slow."""


@attrs.frozen(kw_only=True)
class JournalState:
    """The content of a journal when a run begins."""

    run_id: str
    recorded: int
    """The number of items with an outcome."""

    last_item: int
    """The highest index with an outcome or an intent, or -1."""

    interrupted: Mapping[int, int]
    """Digests of the items that an earlier process started but did not finish, by index."""

    spent: Spent
    """The amount spent by earlier processes, as far as they could record it."""

    changes: tuple[str, ...]
    """The differences from the recorded fingerprint, if the run resumes despite them."""


class Store:
    """The open journal file of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = 0
        """The number of this process among those that worked on the run, counted from 1."""

        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._database: sqlite3.Connection | None = None
        self._owner: tuple[Any, ...] = ()

    # Open and close.

    def open(self, fingerprint: Mapping[str, Any], on_change: OnChange) -> JournalState:
        """
        Lock and check the file, and register this process.

        The file must be undamaged and belong to this run.
        """
        with self._translate_errors("opened"):
            self._lock.acquire()
        try:
            with self._translate_errors("opened"):
                if not self.path.exists():
                    self._create(fingerprint)
                self._database = connect(self.path)
                _check_whole(self._database, self.path)
                run_id, changes = self._check_run(fingerprint, on_change)
                opened = self._read_state(run_id, changes)
                self._register_process()
        except BaseException:
            self.close()
            raise
        return opened

    def _create(self, fingerprint: Mapping[str, Any]) -> None:
        """
        Create the file.

        It is created under another name and renamed when it is complete.
        So an empty file is never an unfinished journal of ours.
        """
        # SQLite would apply the leftover log of a deleted file to the new one.
        for suffix in ("-wal", "-journal"):
            if self.path.with_name(f"{self.path.name}{suffix}").exists():
                raise JournalDamaged(f"{self.path} is missing, but its {self.path.name}{suffix} exists")
        new = self.path.with_name(f"{self.path.name}.new")
        for leftover in (new, *(new.with_name(f"{new.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))):
            leftover.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            create_or_migrate(database, 0)
            run = (new_sampling_id(), time.time(), canonical(fingerprint))
            database.execute("INSERT INTO run VALUES (1, ?, ?, ?, ?)", (*run, checksum(*run)))
            database.execute("PRAGMA journal_mode = WAL")
        new.replace(self.path)
        _sync_directory(self.path.parent)

    def _check_run(self, fingerprint: Mapping[str, Any], on_change: OnChange) -> tuple[str, tuple[str, ...]]:
        run_id, _, recorded = run_of(self._connection, self.path)
        changes = tuple(differences(bounded_json.loads(recorded), fingerprint))
        if changes and on_change == "refuse":
            raise JournalMismatch(f"{self.path} was begun by a call that differs from this one:", changes)
        return run_id, changes

    def _read_state(self, run_id: str, changes: tuple[str, ...]) -> JournalState:
        totals = self._connection.execute(
            "SELECT count(*), coalesce(max(item), -1), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),"
            " coalesce(sum(cost), 0.0), coalesce(sum(attempts), 0), coalesce(sum(requests), 0) FROM outcomes"
        ).fetchone()
        recorded, last_item, input_tokens, output_tokens, cost, attempts, requests = totals
        other = self._connection.execute(
            "SELECT coalesce(sum(other_input_tokens), 0), coalesce(sum(other_output_tokens), 0),"
            " coalesce(sum(other_cost), 0.0), coalesce(sum(other_requests), 0) FROM lives"
        ).fetchone()
        interrupted = self._interrupted()
        return JournalState(
            run_id=run_id,
            recorded=recorded,
            last_item=max([last_item, *interrupted]),
            interrupted=interrupted,
            spent=Spent(Usage(input_tokens, output_tokens, cost) + Usage(*other[:3]), attempts, requests + other[3]),
            changes=changes,
        )

    def _interrupted(self) -> dict[int, int]:
        query = "SELECT item, life, digest, checksum FROM intents WHERE item NOT IN (SELECT item FROM outcomes)"
        interrupted: dict[int, int] = {}
        for item, process, digest, stored in self._connection.execute(query):
            if checksum(item, process, digest) != stored:
                raise JournalDamaged(f"{self.path} is damaged: the intent of item {item} has a wrong checksum")
            interrupted[item] = digest
        return interrupted

    def _register_process(self) -> None:
        (last,) = self._connection.execute("SELECT coalesce(max(life), 0) FROM lives").fetchone()
        self.process = last + 1
        owner = owner_now()
        self._owner = (self.process, owner["pid"], owner["host"], owner["started_s"])
        self._write_process(None, "running", None, None, Spent())

    def record_end(self, status: JournalStatus, items: int | None, error: str | None, unrecorded: Spent) -> None:
        """
        Record the end of the run.

        `items` is the number of items, if all were read. `unrecorded` is the amount spent on items without an outcome.
        """
        with self._translate_errors("written"):
            self._write_process(time.time(), status, items, error, unrecorded)

    def _write_process(
        self, ended_s: float | None, status: JournalStatus, items: int | None, error: str | None, unrecorded: Spent
    ) -> None:
        usage = unrecorded.usage
        spent = (usage.input_tokens, usage.output_tokens, usage.cost, unrecorded.requests)
        row = (*self._owner, ended_s, status, items, error, *spent)
        places = ", ".join("?" * (len(row) + 1))
        # One statement is one transaction, so the row is never half written.
        self._connection.execute(f"INSERT OR REPLACE INTO lives VALUES ({places})", (*row, checksum(*row)))  # noqa: S608

    def close(self) -> None:
        """Close the file and release the lock."""
        database, self._database = self._database, None
        try:
            if database is not None:
                database.close()
        finally:
            self._lock.release()

    # Read and write.

    def write(self, intents: Sequence[Intent], outcomes: Sequence[OutcomeRow]) -> None:
        """Write intents and outcomes in one transaction. When it returns, they are on disk."""
        process = self.process
        with self._translate_errors("written"):
            database = self._connection
            database.execute("BEGIN IMMEDIATE")
            try:
                database.executemany(
                    "INSERT INTO intents VALUES (?, ?, ?, ?)",
                    [(item, process, digest, checksum(item, process, digest)) for item, digest in intents],
                )
                database.executemany(
                    "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(*outcome[:-1], outcome_checksum(outcome)) for outcome in outcomes],
                )
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def read(self, first: int, limit: int) -> list[RawRow]:
        """Return up to `limit` outcomes, ordered, from this item on."""
        with self._translate_errors("read"):
            rows = self._connection.execute(
                f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE item >= ? ORDER BY item LIMIT ?",  # noqa: S608 - ours
                (first, limit),
            ).fetchall()
            check_rows(rows, self.path)
            return rows

    def digests(self) -> dict[int, int]:
        """
        Return the digests of recorded items, by index.

        An item is recorded if it has an intent or an outcome.
        """
        with self._translate_errors("read"):
            query = "SELECT item, digest FROM intents UNION SELECT item, digest FROM outcomes ORDER BY item"
            return dict(self._connection.execute(query).fetchall())

    def items_of_last_run(self) -> int | None:
        """
        Return the number of items, if it is known.

        It is known once a process has read all of them.
        """
        (items,) = self._connection.execute("SELECT max(items) FROM lives").fetchone()
        return cast("int | None", items)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise JournalError(f"{self.path} is not open")
        return self._database

    @contextmanager
    def _translate_errors(self, verb: str) -> Generator[None]:
        with translate_errors(self.path, verb):
            yield


@contextmanager
def translate_errors(path: Path, verb: str) -> Generator[None]:
    """Raise errors of SQLite and the system as `JournalError`."""
    try:
        yield
    except JournalError:
        raise
    except (sqlite3.OperationalError, sqlite3.IntegrityError, OSError) as error:
        raise JournalWriteFailed(f"{path} could not be {verb}: {error}") from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise JournalDamaged(f"{path} is not a journal, or is damaged: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing journal."""
    if not path.stat().st_size:
        raise JournalDamaged(f"{path} is empty: it was truncated, or is not a journal")
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        # No implicit transactions, because `write` begins and commits its own.
        isolation_level=None,
        # The session uses one thread at a time, but not always the same.
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
    )
    try:
        # Do not run functions that the schema of a crafted file names.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        # With write-ahead logging, lower levels do not sync each commit.
        database.execute("PRAGMA synchronous = FULL")
        _check_version(database, path)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalError(f"{path} can't use write-ahead logging (its mode is {mode}): put it on a local disk")  # noqa: TRY301
    except BaseException:
        database.close()
        raise
    return database


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalDamaged(f"{path} is a database, but not a journal")
    if version > VERSION:
        raise JournalTooNew(f"{path} is a journal of version {version}: this library reads up to version {VERSION}")
    # Compare the tables too, so that a crafted file can't bring triggers.
    if version < 1 or _schema(database) != _schema_of(version):
        raise JournalDamaged(f"{path} claims to be a journal of version {version}, but has other tables")
    if version < VERSION:
        create_or_migrate(database, version)


def _schema(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


def _schema_of(version: int) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as example:
        create_or_migrate(example, 0, up_to=version)
        return _schema(example)


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    (result,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise JournalDamaged(f"{path} is damaged: {result}")
    for life in database.execute("SELECT * FROM lives"):
        if checksum(*life[:-1]) != life[-1]:
            raise JournalDamaged(f"{path} is damaged: the entry of process {life[0]} has a wrong checksum")


def run_of(database: sqlite3.Connection, path: Path) -> tuple[str, float, str]:
    """Return the id, start time and fingerprint of the run."""
    row = database.execute("SELECT run_id, created_s, fingerprint, checksum FROM run").fetchone()
    if row is None or checksum(*row[:-1]) != row[-1]:
        raise JournalDamaged(f"{path} is damaged: the entry of the run has a wrong checksum")
    return cast("tuple[str, float, str]", tuple(row[:-1]))


def check_rows(rows: Sequence[RawRow], path: Path) -> None:
    """Raise JournalDamaged if an outcome has a wrong checksum."""
    for row in rows:
        try:
            whole = outcome_checksum(row) == row[11]
        except (struct.error, AttributeError, UnicodeError):
            # A damaged column may have another type.
            whole = False
        if not whole:
            raise JournalDamaged(f"{path} is damaged: the outcome of item {row[0]} has a wrong checksum")


@contextmanager
def connect_to_read(path: Path) -> Generator[sqlite3.Connection]:
    """Open a journal for reading, even during a run."""
    if not path.exists():
        raise FileNotFoundError(f"no such journal: {path}")
    with translate_errors(path, "read"), closing(connect(path)) as database:
        yield database


def all_outcomes(database: sqlite3.Connection, path: Path, chunk: int = 1_000) -> Iterator[OutcomeRow]:
    """Yield all outcomes, ordered by index. One chunk is in memory at a time."""
    cursor = database.execute(f"SELECT {_OUTCOME_COLUMNS} FROM outcomes ORDER BY item")  # noqa: S608 - ours
    while rows := cursor.fetchmany(chunk):
        check_rows(rows, path)
        yield from map(OutcomeRow._make, rows)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
