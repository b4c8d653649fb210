"""
The tables of a journal, and their migrations.

A "life" is one process that worked on the run. An "intent" is an item that was about to be sampled.
"""

import sqlite3
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["APPLICATION_ID", "VERSION", "checksum", "create_or_migrate", "outcome_checksum"]

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
)

VERSION: Final = len(_VERSIONS)
"""The version that this library writes. Older files are migrated, newer ones are refused."""


def create_or_migrate(database: sqlite3.Connection, version: int, *, up_to: int = VERSION) -> None:
    """
    Create the tables, or migrate them to a later version.

    It is one transaction. Version 0 is a new file.
    """
    steps = "".join(_VERSIONS[version:up_to])
    database.executescript(
        f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {up_to}; PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
    )


def outcome_checksum(row: Sequence[Any]) -> int:
    """
    Return the checksum of an outcome.

    It is faster than `checksum`, because a resume reads all outcomes.
    """
    item, life, key, digest, status, input_tokens, output_tokens, cost, attempts, requests, record, _ = row
    numbers = _NUMBERS(item, life, digest, input_tokens, output_tokens, cost, attempts, requests)
    return zlib.crc32(record.encode("ascii"), zlib.crc32(b"%b%b\0%b" % (numbers, status.encode(), key.encode())))


_NUMBERS: Final = struct.Struct("<qqqqqdqq").pack


def checksum(*columns: object) -> int:
    """Return a checksum of these columns."""
    return zlib.crc32("\0".join(map(str, columns)).encode("utf-8", "backslashreplace"))
