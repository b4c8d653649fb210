"""
The SQLite file behind a journal: opened by one run at a time, and read by anyone.

All of this blocks, so a run calls it in a thread. A transaction is on disk when `write` returns, or did not happen.
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

from sampling._engine import scope as identity
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
    "LifeStatus",
    "OnChange",
    "Opened",
    "Recorded",
    "Row",
    "Spent",
    "Store",
    "connect_to_read",
    "run_of",
]

OnChange: TypeAlias = Literal["refuse", "continue"]
"""What to do when a journal was begun by a call that is not this one."""

LifeStatus: TypeAlias = Literal["running", "completed", "halted", "stopped", "failed"]

BUSY_TIMEOUT_S: Final = 30.0

_OUTCOME_COLUMNS: Final = (
    "item, life, key, digest, status, input_tokens, output_tokens, cost, attempts, requests, record, checksum"
)


class Intent(NamedTuple):
    """An item that is about to be asked."""

    item: int
    digest: int


class Spent(NamedTuple):
    """What a budget counts."""

    usage: Usage = NO_USAGE
    attempts: int = 0
    requests: int = 0

    def plus(self, other: "Spent") -> "Spent":
        """Add two."""
        return Spent(self.usage + other.usage, self.attempts + other.attempts, self.requests + other.requests)


class Recorded(NamedTuple):
    """An outcome as it is in the file."""

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


Row: TypeAlias = tuple[int, int, str, int, ItemStatus, int, int, float, int, int, str, int]
"""The same as SQLite hands it out: a million of them are not made twice."""


@attrs.frozen(kw_only=True)
class Opened:
    """What there is in a journal when a run begins or goes on."""

    run_id: str
    recorded: int
    """How many items have an outcome."""

    last_item: int
    """The highest index that an outcome or an intent is of; -1 if there is none."""

    begun: Mapping[int, int]
    """Items that had been begun when an earlier process ended, and have no outcome, with digests of what was asked."""

    spent: Spent
    """By all processes before this one, as far as they lived to tell."""

    changes: tuple[str, ...]
    """What is not as it was, if the run goes on all the same."""


class Store:
    """The file of one run, while this process works on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.life = 0
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._database: sqlite3.Connection | None = None
        self._owner: tuple[Any, ...] = ()

    # Begin and end.

    def open(self, fingerprint: Mapping[str, Any], on_change: OnChange) -> Opened:
        """Take the lock, see that the file is whole and of this run, and begin a life in it."""
        with self._explaining("opened"):
            self._lock.acquire()
        try:
            with self._explaining("opened"):
                if not self.path.exists():
                    self._create(fingerprint)
                self._database = connect(self.path)
                _check_whole(self._database, self.path)
                run_id, changes = self._check_run(fingerprint, on_change)
                opened = self._take_stock(run_id, changes)
                self._begin_life()
        except BaseException:
            self.close()
            raise
        return opened

    def _create(self, fingerprint: Mapping[str, Any]) -> None:
        """Make the file elsewhere and put it in place when it is whole: so an empty one is never one that we began."""
        for suffix in ("-wal", "-journal"):
            if self.path.with_name(f"{self.path.name}{suffix}").exists():
                raise JournalDamaged(f"{self.path} is not there, but {self.path.name}{suffix} is, which belongs to it")
        new = self.path.with_name(f"{self.path.name}.new")
        for leftover in (new, *(new.with_name(f"{new.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))):
            leftover.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            create_or_migrate(database, 0)
            run = (identity.new_sampling_id(), time.time(), canonical(fingerprint))
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

    def _take_stock(self, run_id: str, changes: tuple[str, ...]) -> Opened:
        totals = self._connection.execute(
            "SELECT count(*), coalesce(max(item), -1), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),"
            " coalesce(sum(cost), 0.0), coalesce(sum(attempts), 0), coalesce(sum(requests), 0) FROM outcomes"
        ).fetchone()
        recorded, last_item, input_tokens, output_tokens, cost, attempts, requests = totals
        other = self._connection.execute(
            "SELECT coalesce(sum(other_input_tokens), 0), coalesce(sum(other_output_tokens), 0),"
            " coalesce(sum(other_cost), 0.0), coalesce(sum(other_requests), 0) FROM lives"
        ).fetchone()
        begun = self._begun()
        return Opened(
            run_id=run_id,
            recorded=recorded,
            last_item=max([last_item, *begun]),
            begun=begun,
            spent=Spent(Usage(input_tokens, output_tokens, cost) + Usage(*other[:3]), attempts, requests + other[3]),
            changes=changes,
        )

    def _begun(self) -> dict[int, int]:
        query = "SELECT item, life, digest, checksum FROM intents WHERE item NOT IN (SELECT item FROM outcomes)"
        begun: dict[int, int] = {}
        for item, life, digest, check in self._connection.execute(query):
            if checksum(item, life, digest) != check:
                raise JournalDamaged(f"{self.path} is damaged: the entry for item {item} is not as it was written")
            begun[item] = digest
        return begun

    def _begin_life(self) -> None:
        (last,) = self._connection.execute("SELECT coalesce(max(life), 0) FROM lives").fetchone()
        self.life = last + 1
        owner = owner_now()
        self._owner = (self.life, owner["pid"], owner["host"], owner["started_s"])
        self._write_life(None, "running", None, None, Spent())

    def end_life(self, status: LifeStatus, items: int | None, error: str | None, other: Spent) -> None:
        """
        Write down how the run ended.

        `items` is how many there are, if all of them were read; `other` is what was spent on items without an outcome.
        """
        with self._explaining("written"):
            self._write_life(time.time(), status, items, error, other)

    def _write_life(
        self, ended_s: float | None, status: LifeStatus, items: int | None, error: str | None, other: Spent
    ) -> None:
        usage = other.usage
        spent = (usage.input_tokens, usage.output_tokens, usage.cost, other.requests)
        row = (*self._owner, ended_s, status, items, error, *spent)
        places = ", ".join("?" * (len(row) + 1))
        # One statement, so one transaction: the row is the old one or the new one.
        self._connection.execute(f"INSERT OR REPLACE INTO lives VALUES ({places})", (*row, checksum(*row)))  # noqa: S608

    def close(self) -> None:
        """Close the file, and give the lock back."""
        database, self._database = self._database, None
        try:
            if database is not None:
                database.close()
        finally:
            self._lock.release()

    # In between.

    def write(self, intents: Sequence[Intent], outcomes: Sequence[Recorded]) -> None:
        """Write all of this in one transaction, and return when it is on disk."""
        life = self.life
        with self._explaining("written"):
            database = self._connection
            database.execute("BEGIN IMMEDIATE")
            try:
                database.executemany(
                    "INSERT INTO intents VALUES (?, ?, ?, ?)",
                    [(item, life, digest, checksum(item, life, digest)) for item, digest in intents],
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

    def read(self, first: int, limit: int) -> list[Row]:
        """Return up to `limit` outcomes from this item on, by index."""
        with self._explaining("read"):
            rows = self._connection.execute(
                f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE item >= ? ORDER BY item LIMIT ?",  # noqa: S608 - ours
                (first, limit),
            ).fetchall()
            check(rows, self.path)
            return rows

    def digests(self) -> dict[int, int]:
        """Return what was asked, by item, for all that are in the file."""
        with self._explaining("read"):
            query = "SELECT item, digest FROM intents UNION SELECT item, digest FROM outcomes ORDER BY item"
            return dict(self._connection.execute(query).fetchall())

    def items_of_last_run(self) -> int | None:
        """Return how many items there were, if an earlier process had read all of them."""
        (items,) = self._connection.execute("SELECT max(items) FROM lives").fetchone()
        return cast("int | None", items)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise JournalError(f"{self.path} is not open")
        return self._database

    @contextmanager
    def _explaining(self, verb: str) -> Generator[None]:
        with explaining(self.path, verb):
            yield


@contextmanager
def explaining(path: Path, verb: str) -> Generator[None]:
    """Turn what SQLite and the system say into errors that say what to do."""
    try:
        yield
    except JournalError:
        raise
    except (sqlite3.OperationalError, sqlite3.IntegrityError, OSError) as error:
        raise JournalWriteFailed(f"{path} could not be {verb}: {error}") from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise JournalDamaged(f"{path} is no journal, or damaged: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that is there already."""
    if not path.stat().st_size:
        raise JournalDamaged(f"{path} is empty: a journal never is, so this one was truncated, or is something else")
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
    )
    try:
        # What a crafted file brings along is not run.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("PRAGMA synchronous = FULL")
        _check_version(database, path)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalError(f"{path} can't be written ahead (its mode is {mode}): put it on a local disk")  # noqa: TRY301
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
        raise JournalTooNew(f"{path} is a journal of version {version}; this is made for versions up to {VERSION}")
    if version < 1 or _schema(database) != _schema_of(version):
        raise JournalDamaged(f"{path} says that it is a journal of version {version}, but has other tables")
    if version < VERSION:
        create_or_migrate(database, version)


def _schema(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


def _schema_of(version: int) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as example:
        create_or_migrate(example, 0, up_to=version)
        return _schema(example)


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise JournalDamaged(f"{path} is damaged: {verdict}")
    for life in database.execute("SELECT * FROM lives"):
        if checksum(*life[:-1]) != life[-1]:
            raise JournalDamaged(f"{path} is damaged: the entry of its process {life[0]} is not as it was written")


def run_of(database: sqlite3.Connection, path: Path) -> tuple[str, float, str]:
    """Return the run's id, when it began, and its fingerprint."""
    row = database.execute("SELECT run_id, created_s, fingerprint, checksum FROM run").fetchone()
    if row is None or checksum(*row[:-1]) != row[-1]:
        raise JournalDamaged(f"{path} is damaged: what it says of the run is not as it was written")
    return cast("tuple[str, float, str]", tuple(row[:-1]))


def check(rows: Sequence[Row], path: Path) -> None:
    """Refuse outcomes that are not as they were written."""
    for row in rows:
        try:
            whole = outcome_checksum(row) == row[11]
        except (struct.error, AttributeError, UnicodeError):
            # Not even of the types that they were.
            whole = False
        if not whole:
            raise JournalDamaged(f"{path} is damaged: the outcome of item {row[0]} is not as it was written")


@contextmanager
def connect_to_read(path: Path) -> Generator[sqlite3.Connection]:
    """Open a journal to look at it, also while a run writes it."""
    if not path.exists():
        raise FileNotFoundError(f"no such journal: {path}")
    with explaining(path, "read"), closing(connect(path)) as database:
        yield database


def all_outcomes(database: sqlite3.Connection, path: Path, chunk: int = 1_000) -> Iterator[Recorded]:
    """Go through all outcomes, by index, holding a few at a time."""
    cursor = database.execute(f"SELECT {_OUTCOME_COLUMNS} FROM outcomes ORDER BY item")  # noqa: S608 - ours
    while rows := cursor.fetchmany(chunk):
        check(rows, path)
        yield from map(Recorded._make, rows)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
