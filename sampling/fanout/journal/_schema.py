"""
The tables of a journal, and their migrations.

A "life" is one process that worked on the run. An "intent" is an item that was about to be sampled.
"""

import sqlite3
import struct
import zlib
from collections.abc import Iterable
from typing import Final

__all__ = [
    "APPLICATION_ID",
    "IS_INTERRUPTED",
    "IS_UNFINISHED",
    "SAMPLED_AGAIN",
    "VERSION",
    "checksum",
    "create_or_migrate",
    "intent_checksum",
    "outcome_checksum",
    "sums_of",
]

APPLICATION_ID: Final = 0x53414D50
"""The SQLite application id in the file header: "SAMP"."""

_VERSIONS: Final = (
    # 1: the run, its processes, the items that were started, and their outcomes.
    """
    CREATE TABLE run (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        run_id TEXT NOT NULL,
        created_s REAL NOT NULL,
        fingerprint TEXT NOT NULL,
        checksum INTEGER NOT NULL
    );
    CREATE TABLE lives (
        life INTEGER PRIMARY KEY,
        pid INTEGER NOT NULL,
        host TEXT NOT NULL,
        started_s REAL NOT NULL,
        ended_s REAL,
        status TEXT NOT NULL,
        items INTEGER,
        error TEXT,
        other_input_tokens INTEGER NOT NULL,
        other_output_tokens INTEGER NOT NULL,
        other_cost REAL NOT NULL,
        other_requests INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    );
    CREATE TABLE intents (
        item INTEGER NOT NULL,
        life INTEGER NOT NULL,
        digest INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (item, life)
    ) WITHOUT ROWID;
    CREATE TABLE outcomes (
        item INTEGER PRIMARY KEY,
        life INTEGER NOT NULL,
        key TEXT NOT NULL,
        digest INTEGER NOT NULL,
        status TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost REAL NOT NULL,
        attempts INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        record TEXT NOT NULL,
        checksum INTEGER NOT NULL
    );
    """,
    # 2: triggers that keep outcomes unchanged, whichever program writes to the file.
    """
    CREATE TRIGGER outcomes_are_final BEFORE UPDATE ON outcomes
        BEGIN SELECT RAISE(ABORT, 'an outcome never changes'); END;
    CREATE TRIGGER outcomes_are_kept BEFORE DELETE ON outcomes
        BEGIN SELECT RAISE(ABORT, 'an outcome is never deleted'); END;
    """,
    # 3: cached and reasoning tokens.
    """
    ALTER TABLE outcomes ADD COLUMN cached_input_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE outcomes ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE lives ADD COLUMN other_cached_input_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE lives ADD COLUMN other_reasoning_tokens INTEGER NOT NULL DEFAULT 0;
    """,
    # 4: outcomes that a later one replaced, indexes of items that moved, and tokens that a budget estimated.
    """
    ALTER TABLE outcomes ADD COLUMN estimated_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE outcomes ADD COLUMN position INTEGER;
    ALTER TABLE lives ADD COLUMN other_estimated_tokens INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE replaced (
        item INTEGER NOT NULL,
        life INTEGER NOT NULL,
        key TEXT NOT NULL,
        digest INTEGER NOT NULL,
        status TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost REAL NOT NULL,
        attempts INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        record TEXT NOT NULL,
        cached_input_tokens INTEGER NOT NULL,
        reasoning_tokens INTEGER NOT NULL,
        estimated_tokens INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (item, life)
    ) WITHOUT ROWID;
    DROP TRIGGER outcomes_are_final;
    DROP TRIGGER outcomes_are_kept;
    CREATE TRIGGER outcomes_are_final BEFORE UPDATE OF item, life, key, digest, status, input_tokens, output_tokens,
        cost, attempts, requests, record, cached_input_tokens, reasoning_tokens, estimated_tokens, checksum ON outcomes
        BEGIN SELECT RAISE(ABORT, 'an outcome never changes'); END;
    CREATE TRIGGER outcomes_are_kept BEFORE DELETE ON outcomes
        WHEN NOT EXISTS (SELECT 1 FROM replaced WHERE replaced.item = OLD.item AND replaced.life = OLD.life)
        BEGIN SELECT RAISE(ABORT, 'an outcome is never deleted'); END;
    """,
    # 5: what an engine needs to know after a restart, such as batches in progress.
    """
    CREATE TABLE notes (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        item INTEGER,
        value TEXT NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (kind, name)
    );
    CREATE INDEX notes_of_items ON notes (item) WHERE item IS NOT NULL;
    """,
    # 6: attempts of items without an outcome.
    """
    ALTER TABLE lives ADD COLUMN other_attempts INTEGER NOT NULL DEFAULT 0;
    """,
)

VERSION: Final = len(_VERSIONS)
"""The version that this library writes. Older files are migrated, newer ones are refused."""


IS_UNFINISHED: Final = (
    "NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.item = intents.item AND outcomes.life >= intents.life)"
)
"""The condition for intents without an outcome. An earlier outcome of an item that is sampled again does not count."""

SAMPLED_AGAIN: Final = (
    "SELECT coalesce(position, intents.item) AS place FROM intents LEFT JOIN outcomes ON outcomes.item = intents.item"
    " GROUP BY intents.item HAVING count(*) > 1"
    " + (SELECT count(*) FROM replaced WHERE replaced.item = intents.item)"
    " + (SELECT count(*) FROM outcomes WHERE outcomes.item = intents.item AND outcomes.life < max(intents.life))"
    " AND place >= 0 ORDER BY place"
)
"""
The query for indexes of items that more than one process sampled, without those that were asked again on purpose.

Such an item has an earlier outcome: one that was replaced, or the one that is kept until there is a new one. Items
that are no longer among those of the run have no index.
"""


IS_INTERRUPTED: Final = (
    "item NOT IN (SELECT item FROM outcomes)"
    " AND life > (SELECT coalesce(max(life), 0) FROM lives WHERE status = 'completed')"
)
"""The condition for intents of items that still wait for an outcome. A run that completed left none among its items."""


def sums_of(columns: Iterable[str]) -> str:
    """
    Return the SQL for the sums of columns, which are integers except for costs.

    Not `sum`, which fails if integers add up to more than 2**63, as the counts of a broken server may.
    """
    totals = [(name, f"total({name})") for name in columns]
    return ", ".join(total if name.endswith("cost") else f"CAST({total} AS INTEGER)" for name, total in totals)


def create_or_migrate(database: sqlite3.Connection, version: int, *, up_to: int = VERSION) -> None:
    """
    Create the tables, or migrate them to a later version.

    It is one transaction. Version 0 is a new file.
    """
    steps = "".join(_VERSIONS[version:up_to])
    database.executescript(
        f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {up_to}; PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
    )


def outcome_checksum(  # noqa: PLR0913, PLR0917 - the columns of a row
    item: int,
    life: int,
    key: str,
    digest: int,
    status: str,
    input_tokens: int,
    output_tokens: int,
    cost: float,
    attempts: int,
    requests: int,
    record: str,
    cached: int,
    reasoning: int,
    estimated: int,
) -> int:
    """
    Return the checksum of an outcome.

    It is faster than `checksum`, because a resume reads all outcomes.
    """
    numbers = _NUMBERS(item, life, digest, input_tokens, output_tokens, cost, attempts, requests)
    # Rows from before version 3 or 4 have none of these, and keep their checksums. A damaged column may be empty.
    if cached != 0 or reasoning != 0:
        numbers += _ADDED(cached, reasoning)
    if estimated != 0:
        numbers += _ESTIMATED(estimated)
    return zlib.crc32(f"{status}\0{key}{record}".encode(), zlib.crc32(numbers))


_NUMBERS: Final = struct.Struct("<qqqqqdqq").pack
_ADDED: Final = struct.Struct("<qq").pack
_ESTIMATED: Final = struct.Struct("<q").pack


def intent_checksum(item: int, life: int, digest: int) -> int:
    """Return the checksum of an intent: that of `checksum`, in half the time."""
    return zlib.crc32(f"{item}\0{life}\0{digest}".encode())


def checksum(*columns: object) -> int:
    """Return a checksum of these columns."""
    return zlib.crc32("\0".join(map(str, columns)).encode("utf-8", "backslashreplace"))
