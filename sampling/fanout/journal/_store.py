"""
The SQLite file of a journal.

One run writes it at a time, and others may read it meanwhile.
All of this blocks, so a run calls it in a thread. When `write` returns, its transaction is on disk. If it raises,
nothing was written. The tables call a process that worked on the run a "life".
"""

import errno
import os
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import attrs

from sampling._engine.scope import new_sampling_id
from sampling._json import bounded as bounded_json
from sampling._serialization.messages import canonical
from sampling._serialization.values import MAX_NUMBER
from sampling.errors import (
    JournalDamaged,
    JournalError,
    JournalLocked,
    JournalMismatch,
    JournalTooNew,
    JournalWriteFailed,
)
from sampling.fanout.engines import Note
from sampling.fanout.items import ItemStatus
from sampling.fanout.journal._fingerprint import differences
from sampling.fanout.journal._lock import FileLock, SharedLocks, owner_now
from sampling.fanout.journal._matching import RecordedItem
from sampling.fanout.journal._notes import forget_notes, put_notes
from sampling.fanout.journal._schema import (
    APPLICATION_ID,
    IS_UNFINISHED,
    VERSION,
    checksum,
    create_or_migrate,
    intent_checksum,
    outcome_checksum,
    sums_of,
)
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "ALL_OUTCOMES",
    "IntentRow",
    "JournalState",
    "JournalStatus",
    "NewRow",
    "OnChange",
    "OutcomeRow",
    "RawRow",
    "Spent",
    "Store",
    "all_outcomes",
    "connect_to_read",
    "former_outcomes",
    "is_file_of",
    "run_of",
]

OnChange: TypeAlias = Literal["refuse", "continue"]
"""The reaction to a journal that was begun by a different call."""

JournalStatus: TypeAlias = Literal["running", "completed", "halted", "stopped", "failed"]
"""The status that a process recorded for the run."""

BUSY_TIMEOUT_S: Final = 30.0

_OUTCOME_COLUMNS: Final = (
    "item, life, key, digest, status, input_tokens, output_tokens, cost, attempts, requests, record,"
    " cached_input_tokens, reasoning_tokens, estimated_tokens, checksum"
)
ALL_OUTCOMES: Final = f"(SELECT {_OUTCOME_COLUMNS} FROM outcomes UNION ALL SELECT {_OUTCOME_COLUMNS} FROM replaced)"  # noqa: S608 - ours
_PROCESS_COLUMNS: Final = (
    "life, pid, host, started_s, ended_s, status, items, error,"
    " other_input_tokens, other_output_tokens, other_cost, other_requests,"
    " other_cached_input_tokens, other_reasoning_tokens, other_estimated_tokens, other_attempts, checksum"
)


class Spent(NamedTuple):
    """The amounts that a budget counts."""

    usage: Usage = NO_USAGE
    attempts: int = 0
    requests: int = 0
    estimated_tokens: int = 0
    """The tokens that a budget estimated for requests without a reported usage."""

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum of both."""
        return Spent(
            self.usage + other.usage,
            self.attempts + other.attempts,
            self.requests + other.requests,
            self.estimated_tokens + other.estimated_tokens,
        )


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
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    checksum: int = 0


RawRow: TypeAlias = tuple[int, int, str, int, ItemStatus, int, int, float, int, int, str, int, int, int, int]
"""An `OutcomeRow` as a plain tuple, as SQLite returns it. Converting a million of them would be slow."""

IntentRow: TypeAlias = tuple[int, int, int, int]
"""A row of the table `intents`: the number of an item, the process, the digest of the item, and the checksum."""

NewRow: TypeAlias = tuple[
    int, int, str, int, ItemStatus, int, int, float, int, int, str, int, int, int, int, int | None
]
"""A `RawRow` to be written, and the index of its item if that is stored under another number."""


@attrs.frozen(kw_only=True)
class JournalState:
    """The content of a journal when a run begins."""

    run_id: str
    recorded: int
    """The number of items with an outcome."""

    answered: bool
    """Whether an item had an answer. One that errored had none, whatever the cause."""

    last_item: int
    """The highest index with an outcome or an intent, or -1."""

    interrupted: Mapping[int, int]
    """
    Digests of the items that an earlier process started but did not finish, by index.

    Such an item has an outcome if it was sampled again on purpose, or because its question had changed.
    """

    spent: Spent
    """The amount spent by earlier processes, as far as they could record it."""

    changes: tuple[str, ...]
    """The differences from the recorded fingerprint, if the run resumes despite them."""

    requirements: tuple[str, ...] = ()
    """The descriptions of the requirements with which the run was begun. Records refer to them by number."""

    python: str | None = None
    """The version of Python with which the run was begun, such as "3.11", if it is known."""


class Store:
    """The open journal file of one run."""

    def __init__(self, path: Path) -> None:
        # SQLite puts its log beside the file that a symlink leads to. The lock belongs there too: otherwise two names
        # of one file would be two locks.
        self.path = path = Path(os.path.realpath(path))
        self.process = 0
        """The number of this process among those that worked on the run, counted from 1."""

        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._shared_locks = SharedLocks(path)
        self._database: sqlite3.Connection | None = None
        self._identities: dict[Path, tuple[int, int]] = {}
        """The device and the number of the file and of its log."""

        self._owner: tuple[Any, ...] = ()
        self._opened_by: int | None = None
        """The id of the process that opened the file, and not of a forked child."""

    # Open and close.

    def open(
        self, fingerprint: Mapping[str, Any], fingerprint_as_of: Callable[[int], Mapping[str, Any]], on_change: OnChange
    ) -> JournalState:
        """
        Lock and check the file, and register this process.

        The file must be undamaged and belong to this run. If its fingerprint is of an earlier format, it is compared
        with the one as of that format.
        """
        with self._translate_errors("opened"):
            self._lock.acquire()
        self._opened_by = os.getpid()
        try:
            with self._translate_errors("opened"):
                is_new = not self.path.exists()
                if is_new:
                    self._create(fingerprint)
                _check_one_name(self.path)
                _check_access(self.path, os.W_OK)
                self._database = connect(self.path)
                _check_whole(self._database, self.path)
                run_id, recorded, changes = self._check_run(fingerprint, fingerprint_as_of, on_change, is_new=is_new)
                opened = self._read_state(run_id, recorded, changes)
                self._register_process()
                # From here on, SQLite keeps its log until the file is closed.
                self._identities = {path: _identity(path) for path in (self.path, _beside(self.path, "-wal"))}
                self._shared_locks.acquire()
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
            # It is synced once, when it is complete. Until then, nothing reads it.
            database.execute("PRAGMA synchronous = OFF")
            create_or_migrate(database, 0)
            run = (new_sampling_id(), time.time(), canonical(fingerprint))
            database.execute("INSERT INTO run VALUES (1, ?, ?, ?, ?)", (*run, checksum(*run)))
            database.execute("PRAGMA journal_mode = WAL")
        _sync(new)
        new.replace(self.path)
        _sync(self.path.parent)

    def _check_run(
        self,
        fingerprint: Mapping[str, Any],
        fingerprint_as_of: Callable[[int], Mapping[str, Any]],
        on_change: OnChange,
        *,
        is_new: bool,
    ) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
        run_id, _, text = run_of(self._connection, self.path)
        recorded = bounded_json.loads(text)
        if recorded.get("format") != fingerprint["format"]:
            fingerprint = fingerprint_as_of(recorded.get("format", 0))
        changes = () if is_new else tuple(differences(recorded, fingerprint))
        if changes and on_change == "refuse":
            raise JournalMismatch(f"{self.path} was begun by a call that differs from this one:", changes)
        return run_id, recorded, changes

    def _read_state(self, run_id: str, fingerprint: Mapping[str, Any], changes: tuple[str, ...]) -> JournalState:
        recorded, last_item = self._connection.execute(
            "SELECT count(*), coalesce(max(item), -1) FROM outcomes"
        ).fetchone()
        (answered,) = self._connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM {ALL_OUTCOMES} WHERE status <> 'errored')"  # noqa: S608 - ours
        ).fetchone()
        amounts = ("input_tokens", "output_tokens", "cost", "cached_input_tokens", "reasoning_tokens")
        counts = ("attempts", "requests", "estimated_tokens")
        names = (*amounts, *counts)
        *used, attempts, requests, estimated = self._sums(ALL_OUTCOMES, names)
        *other_used, other_attempts, other_requests, other_estimated = self._sums(
            "lives", [f"other_{name}" for name in names]
        )
        recorded_spent = Spent(Usage(*used), attempts, requests, estimated)
        other_spent = Spent(Usage(*other_used), other_attempts, other_requests, other_estimated)
        interrupted = self._interrupted()
        return JournalState(
            run_id=run_id,
            recorded=recorded,
            answered=bool(answered),
            last_item=max([last_item, *interrupted]),
            interrupted=interrupted,
            spent=recorded_spent.plus(other_spent),
            changes=changes,
            requirements=tuple(one["description"] for one in fingerprint["requirements"]),
            python=fingerprint.get("python"),
        )

    def _sums(self, table: str, columns: Iterable[str]) -> tuple[Any, ...]:
        query = f"SELECT {sums_of(columns)} FROM {table}"  # noqa: S608 - ours
        return cast("tuple[Any, ...]", self._connection.execute(query).fetchone())

    def _interrupted(self) -> dict[int, int]:
        query = f"SELECT item, life, digest, checksum FROM intents WHERE {IS_UNFINISHED}"  # noqa: S608 - ours
        interrupted: dict[int, int] = {}
        for item, process, digest, stored in self._connection.execute(query):
            _check_intent(item, process, digest, stored, self.path)
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
        input_tokens, output_tokens, cost, *details = unrecorded.usage.numbers()
        added_later = (unrecorded.estimated_tokens, unrecorded.attempts)
        counts = (input_tokens, output_tokens, unrecorded.requests, *details, *added_later)
        input_tokens, output_tokens, requests, *added = [min(count, MAX_NUMBER) for count in counts]
        spent = (input_tokens, output_tokens, float(min(cost, MAX_NUMBER)), requests)
        row = (*self._owner, ended_s, status, items, error, *spent, *added)
        places = ", ".join("?" * (len(row) + 1))
        # One statement is one transaction, so the row is never half written.
        self._connection.execute(
            f"INSERT OR REPLACE INTO lives ({_PROCESS_COLUMNS}) VALUES ({places})",  # noqa: S608 - ours
            (*row, _process_checksum(row)),
        )

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._opened_by != os.getpid():
            # It was not opened, or this is a forked child, which must not use the connection of its parent.
            return
        database, self._database = self._database, None
        try:
            if database is not None:
                self._shared_locks.release()
                # The last connection does this when it is closed, but another program may still be reading.
                with suppress(sqlite3.Error):
                    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
                database.close()
        finally:
            self._shared_locks.close()
            self._lock.release()

    # Read and write.

    def write(
        self,
        intents: Sequence[IntentRow],
        outcomes: Sequence[NewRow],
        withdrawn: Sequence[int] = (),
        *,
        replaced: Collection[int] = (),
        has_notes: bool = False,
        notes: Sequence[Note] = (),
    ) -> None:
        """
        Write intents and outcomes in one transaction. When it returns, they are on disk.

        `intents` are the items that are about to be sampled.
        `withdrawn` are items whose intent of this process is deleted.
        `replaced` are items that already have an outcome, which is moved to another table.
        `has_notes` says that the engine may have notes on these items, see `forget_notes`.
        `notes` are written, too.
        """
        process = self.process
        again = [(row[0],) for row in outcomes if row[0] in replaced] if replaced else []
        with self._translate_errors("written"), self._transaction() as database:
            database.executemany("INSERT INTO intents VALUES (?, ?, ?, ?)", intents)
            if again:
                chosen = f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE item = ?"  # noqa: S608 - ours
                database.executemany(f"INSERT INTO replaced ({_OUTCOME_COLUMNS}) {chosen}", again)
                database.executemany("DELETE FROM outcomes WHERE item = ?", again)
            database.executemany(
                f"INSERT INTO outcomes ({_OUTCOME_COLUMNS}, position) VALUES ({', '.join('?' * 16)})",  # noqa: S608 - ours
                outcomes,
            )
            if withdrawn:
                database.executemany(
                    "DELETE FROM intents WHERE item = ? AND life = ?", [(item, process) for item in withdrawn]
                )
            if has_notes:
                forget_notes(database, [(row[0], row[4]) for row in outcomes])
            if notes:
                put_notes(database, notes)

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """Write in one transaction. When the block ends, it is on disk."""
        with self._translate_errors("written"), self._transaction() as database:
            yield database

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Read in the block."""
        with self._translate_errors("read"):
            yield self._connection

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        database = self._connection
        database.execute("BEGIN IMMEDIATE")
        try:
            self._keep_lock()
            yield database
            database.execute("COMMIT")
            self._check_in_place()
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _keep_lock(self) -> None:
        """Raise JournalWriteFailed if the lock was removed, and another run has begun. Two runs must not write."""
        try:
            self._lock.keep()
        except JournalLocked as error:
            raise JournalWriteFailed(f"{self.path} could not be written: its lock was removed, and {error}") from error
        except FileNotFoundError:
            # The directory is gone. `_check_in_place` says more about that.
            return

    def _check_in_place(self) -> None:
        """Raise JournalWriteFailed if the file or its log is gone. Nothing that is written to it would be found."""
        for path, identity in self._identities.items():
            try:
                in_place = _identity(path) == identity
            except FileNotFoundError:
                in_place = False
            if not in_place:
                advice = f"if it still exists, move it back beside {self.path.name}-wal"
                if path != self.path:
                    # SQLite merges it on closing, by its open descriptor.
                    advice = f"what it held is in {self.path.name} when this run has ended"
                raise JournalWriteFailed(f"{path} was moved, deleted or replaced during the run: {advice}")

    def move(self, moves: Iterable[tuple[int, int]]) -> None:
        """Record the new indexes of items: pairs of the number under which one is stored, and its index."""
        with self._translate_errors("written"), self._transaction() as database:
            database.executemany(
                "UPDATE outcomes SET position = nullif(?, item) WHERE item = ?", [(to, slot) for slot, to in moves]
            )

    def recorded_items(self) -> list[RecordedItem]:
        """Return all items with an outcome, without their records."""
        with self._translate_errors("read"):
            query = "SELECT item, coalesce(position, item), key, digest FROM outcomes ORDER BY coalesce(position, item)"
            return list(map(RecordedItem._make, self._connection.execute(query)))

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
        with self._translate_errors("read"):
            (items,) = self._connection.execute("SELECT max(items) FROM lives").fetchone()
            return cast("int | None", items)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise JournalError(f"{self.path} is not open")
        if self._opened_by != os.getpid():
            # SQLite does not know of the fork, and would corrupt the file.
            raise JournalError(f"{self.path} was opened by the process from which this one was forked")
        if not self._lock.is_held:
            raise JournalError(f"{self.path} is not locked by this run any more")
        return self._database

    @contextmanager
    def _translate_errors(self, verb: str) -> Generator[None]:
        with translate_errors(self.path, verb):
            yield


@contextmanager
def translate_errors(path: Path, verb: str, failed: type[JournalError] = JournalWriteFailed) -> Generator[None]:
    """Raise errors of SQLite and the system as `failed`, and those of damaged files as `JournalDamaged`."""
    try:
        yield
    except JournalError:
        raise
    except (sqlite3.OperationalError, sqlite3.IntegrityError, OSError) as error:
        raise failed(f"{path} could not be {verb}: {error}") from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise JournalDamaged(f"{path} is not a journal, or is damaged: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing journal for writing, and migrate it to the current version."""
    database = _connect(path, "mode=rw")
    try:
        # With write-ahead logging, lower levels do not sync each commit.
        database.execute("PRAGMA synchronous = FULL")
        # Elsewhere than on macOS this has no effect. There, a plain sync leaves the data in the cache of the disk.
        database.execute("PRAGMA fullfsync = ON")
        # In pages. A sync takes longer while the log grows, and a run waits for every merge of the log into the file.
        database.execute("PRAGMA wal_autocheckpoint = 250")
        version = _check_version(database, path)
        if version < VERSION:
            create_or_migrate(database, version)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalError(f"{path} can't use write-ahead logging (its mode is {mode}): put it on a local disk")  # noqa: TRY301
    except BaseException:
        database.close()
        raise
    return database


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    if not path.stat().st_size:
        raise JournalDamaged(f"{path} is empty: it was truncated, or is not a journal")
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?{parameters}",
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
    except BaseException:
        database.close()
        raise
    return database


def _check_one_name(path: Path) -> None:
    """Raise JournalError if the path is a directory, or the file has several hard links."""
    if path.is_dir():
        raise JournalError(f"{path} is a directory: give the path of a file in it")
    # Each name would have its own log and its own lock, and SQLite would corrupt the file.
    if path.stat().st_nlink > 1:
        # A copy without the log of a killed run would lack outcomes that were handed out.
        log = _beside(path, "-wal")
        its_log = f", together with {log.name}," if log.exists() else ""
        raise JournalError(f"{path} has several hard links: copy it{its_log} to a directory of its own and use that")


def _check_access(path: Path, access: int) -> None:
    """
    Raise PermissionError if this user may not read or write the file and its log.

    SQLite would say less, and leave a log of this user behind.
    """
    for file in (path, _beside(path, "-wal")):
        if file.exists() and not os.access(file, access):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def _check_version(database: sqlite3.Connection, path: Path) -> int:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalDamaged(f"{path} is a database, but not a journal")
    if version > VERSION:
        raise JournalTooNew(f"{path} is a journal of version {version}: this library reads up to version {VERSION}")
    # Compare the tables too, so that a crafted file can't bring triggers.
    if version < 1 or _schema(database) != _schema_of(version):
        raise JournalDamaged(f"{path} claims to be a journal of version {version}, but has other tables")
    return cast("int", version)


def _schema(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


@cache
def _schema_of(version: int) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as example:
        create_or_migrate(example, 0, up_to=version)
        return _schema(example)


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    (result,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise JournalDamaged(f"{path} is damaged: {result}")
    for life in database.execute(f"SELECT {_PROCESS_COLUMNS} FROM lives"):  # noqa: S608 - ours
        if _process_checksum(life[:-1]) != life[-1]:
            raise JournalDamaged(f"{path} is damaged: the entry of process {life[0]} has a wrong checksum")


def _check_intents(database: sqlite3.Connection, path: Path) -> None:
    """Raise JournalDamaged if an intent has a wrong checksum. A run checks those that it uses."""
    for item, process, digest, stored in database.execute("SELECT item, life, digest, checksum FROM intents"):
        _check_intent(item, process, digest, stored, path)


def _check_intent(item: int, process: int, digest: int, stored: int, path: Path) -> None:
    if intent_checksum(item, process, digest) != stored:
        raise JournalDamaged(f"{path} is damaged: the intent of item {item} has a wrong checksum")


def _process_checksum(row: Sequence[Any]) -> int:
    """Return the checksum of a process. Rows from before versions 3, 4 and 6 lack the last columns."""
    # A damaged column may be empty, which is not 0.
    if row[-1] != 0:
        return checksum(*row)
    row = row[:-1]
    if row[-1] != 0:
        return checksum(*row)
    return checksum(*(row[:-3] if row[-3:-1] == (0, 0) else row[:-1]))


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
            whole = outcome_checksum(*row[:-1]) == row[-1]
        except (struct.error, AttributeError, UnicodeError):
            # A damaged column may have another type.
            whole = False
        if not whole:
            raise JournalDamaged(f"{path} is damaged: the outcome of item {row[0]} has a wrong checksum")


@contextmanager
def connect_to_read(path: Path) -> Generator[sqlite3.Connection]:
    """
    Open a journal for reading, even during a run, through a symlink or on a read-only medium.

    It writes nothing. In particular, it never merges or deletes the log of a run, as the last of several
    connections that can write would do.
    """
    path = Path(os.path.realpath(path))
    if not path.exists():
        raise FileNotFoundError(f"no such journal: {path}")
    if path.is_dir():
        raise JournalError(f"{path} is a directory: give the path of a file in it")
    with translate_errors(path, "read", JournalError), ExitStack() as stack:
        _check_access(path, os.R_OK)
        if not _beside(path, "-wal").exists():
            # No run is using it. A plain read-only connection would leave an empty log behind.
            stack.enter_context(_unchanged(path))
            parameters = "mode=ro&immutable=1"
        else:
            parameters = "mode=ro"
            if not _beside(path, "-shm").exists():
                # A killed run left it without its index. One that SQLite makes for this reader would stay behind, and
                # belong to its user.
                path = _copy(path, stack)
        database = stack.enter_context(closing(_connect(path, parameters)))
        if _check_version(database, path) < VERSION:
            # The queries are those of the current version, and a reader must not change the file.
            database = stack.enter_context(closing(connect(_copy(path, stack))))
        _check_whole(database, path)
        _check_intents(database, path)
        yield database


@contextmanager
def _unchanged(path: Path) -> Generator[None]:
    """Raise JournalError if a run begins to write to the file inside the block."""
    before = path.stat()
    yield
    after = path.stat()
    if _beside(path, "-wal").exists() or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise JournalError(f"{path} was being read when a run began to write to it: read it again")


def _copy(path: Path, stack: ExitStack) -> Path:
    """Copy a journal to a directory in which SQLite can create files."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for suffix in ("", "-wal"):
        if _beside(path, suffix).exists():
            shutil.copyfile(_beside(path, suffix), directory / f"{path.name}{suffix}")
    return directory / path.name


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def is_file_of(journal: Path, other: Path) -> bool:
    """Return whether a path leads to a journal or to one of the files beside it."""
    journal, other = Path(os.path.realpath(journal)), Path(os.path.realpath(other))
    if other in [_beside(journal, suffix) for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".new")]:
        return True
    return journal.exists() and other.exists() and journal.samefile(other)


def all_outcomes(database: sqlite3.Connection, path: Path, chunk: int = 1_000) -> Iterator[OutcomeRow]:
    """
    Yield the outcomes of all items, ordered by index. One chunk is in memory at a time.

    Outcomes of items that are no longer among those of the run are left out.
    """
    cursor = database.execute(
        f"SELECT {_OUTCOME_COLUMNS}, coalesce(position, item) FROM outcomes"  # noqa: S608 - ours
        " WHERE coalesce(position, item) >= 0 ORDER BY coalesce(position, item)"
    )
    while rows := cursor.fetchmany(chunk):
        check_rows([row[:-1] for row in rows], path)
        for *row, index in rows:
            yield OutcomeRow._make(row)._replace(item=index)


def former_outcomes(database: sqlite3.Connection, path: Path, chunk: int = 1_000) -> Iterator[OutcomeRow]:
    """Yield the outcomes that `all_outcomes` leaves out, which were paid for: replaced ones, and of former items."""
    cursor = database.execute(
        f"SELECT {_OUTCOME_COLUMNS} FROM replaced UNION ALL"  # noqa: S608 - ours
        f" SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE coalesce(position, item) < 0"
    )
    while rows := cursor.fetchmany(chunk):
        check_rows(rows, path)
        yield from map(OutcomeRow._make, rows)


def _sync(path: Path) -> None:
    """Wait until a file or a directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
