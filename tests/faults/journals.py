"""Helpers for the tests of journals."""

import contextlib
import sqlite3

from anyio.lowlevel import checkpoint

from sampling import Journal, Requirement
from sampling.testing import ScriptedBackend

YES = Requirement("says yes", lambda text: text.startswith("yes"))


def asked(request):
    return request.messages[-1].content


def answering(replies=None, default="yes"):
    """A backend whose answer depends on the question, and which counts requests."""
    return ScriptedBackend(lambda request: (replies or {}).get(asked(request), default))


def numbers(count):
    return [str(number) for number in range(count)]


class InlineJournal(Journal):
    """Runs functions in the event loop, because a thread takes no virtual time."""

    async def in_thread(self, work, limiter):
        async with limiter:
            await checkpoint()
            return work()


def rows(path, query):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def stored(path):
    """Return every row of the outcomes, by its first column."""
    return {row[0]: row for row in rows(path, "SELECT * FROM outcomes")}


def is_whole(path):
    return [("ok",)] == rows(path, "PRAGMA integrity_check")
