"""The notes of an engine in a journal, with which a later process can continue."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from sampling.errors import JournalDamaged
from sampling.fanout.engines import Note
from sampling.fanout.items import Item
from sampling.fanout.journal._schema import IS_UNFINISHED, checksum

if TYPE_CHECKING:
    from sampling.fanout.journal._store import Store

__all__ = ["BATCH", "REQUEST", "JournalNotes", "NoteStore", "forget_notes", "put_notes", "read_notes"]

BATCH = "batch"
"""The kind of the notes on batches that have not ended."""

REQUEST = "request"
"""The kind of the notes on requests that a batch may still answer."""

_LIFE = "life"
"""The kind of the notes that say which processes had an engine with notes."""


class NoteStore:
    """The notes in the file of a journal. All of this blocks."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    def put(self, notes: Sequence[Note], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Write and delete notes in one transaction. A note replaces one of the same kind and name."""
        with self._store.writing() as database:
            put_notes(database, notes)
            database.executemany("DELETE FROM notes WHERE kind = ? AND name = ?", dropped)

    def read(self, kind: str) -> list[Note]:
        """Return all notes of a kind."""
        return self._read("WHERE kind = ?", (kind,))

    def get(self, kind: str, name: str) -> str | None:
        """Return the value of a note."""
        found = self._read("WHERE kind = ? AND name = ?", (kind, name))
        return found[0].value if found else None

    def items(self, kind: str) -> dict[str, int | None]:
        """Return the items of all notes of a kind, by the names of the notes."""
        with self._store.reading() as database:
            return dict(database.execute("SELECT name, item FROM notes WHERE kind = ?", (kind,)).fetchall())

    def _read(self, where: str, values: tuple[str, ...]) -> list[Note]:
        with self._store.reading() as database:
            return read_notes(database, self._store.path, where, values)

    def begin(self) -> None:
        """Record that this process has an engine with notes."""
        self.put([Note(_LIFE, str(self._store.process), None, "")])

    def forget_intents(self, in_doubt: Iterable[int]) -> list[int]:
        """
        Delete intents of earlier processes that had an engine with notes, and return their items.

        Such an engine knows what it sent, so these items are not billed twice, except for those in doubt.
        """
        in_flight = f"SELECT item, life FROM intents WHERE life != ? AND {IS_UNFINISHED}"  # noqa: S608 - ours
        with self._store.writing() as database:
            known = {int(name) for (name,) in database.execute("SELECT name FROM notes WHERE kind = ?", (_LIFE,))}
            rows = database.execute(in_flight, (self._store.process,)).fetchall()
            # An item that an engine without notes has started may still be billed twice.
            unknown = {item for item, process in rows if process not in known}
            items = {item for item, _ in rows} - unknown - set(in_doubt)
            known_rows = [row for row in rows if row[0] in items]
            database.executemany("DELETE FROM intents WHERE item = ? AND life = ?", known_rows)
        return sorted(items)


def put_notes(database: Connection, notes: Iterable[Note]) -> None:
    """Write notes. A note replaces one of the same kind and name."""
    rows = [(*note, checksum(*note)) for note in notes]
    database.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", rows)


def forget_notes(database: Connection, outcomes: Iterable[tuple[int, str]]) -> None:
    """
    Delete the notes on items that have an outcome, given as pairs of a place and a status.

    An item without a valid answer keeps them while a batch may still answer it: a retry uses what was paid for.
    """
    waiting = "SELECT 1 FROM notes WHERE item = ?1 AND kind = ?3"
    database.executemany(
        f"DELETE FROM notes WHERE item = ?1 AND (?2 = 'succeeded' OR NOT EXISTS ({waiting}))",  # noqa: S608 - ours
        [(item, status, REQUEST) for item, status in outcomes],
    )


def read_notes(database: Connection, path: Path, where: str, values: tuple[str, ...]) -> list[Note]:
    """Return the notes that a condition selects."""
    rows = database.execute(f"SELECT kind, name, item, value, checksum FROM notes {where}", values).fetchall()  # noqa: S608 - ours
    for *columns, stored in rows:
        if checksum(*columns) != stored:
            raise JournalDamaged(f"{path} is damaged: a note has a wrong checksum")
    return [Note(*columns) for *columns, _ in rows]


class JournalNotes:
    """The notes of an engine in the journal of its run."""

    def __init__(
        self,
        notes: NoteStore,
        in_thread: Callable[..., Any],
        slot_of: Callable[[int], int],
        sampled_again: list[int],
        check_unreachable: Callable[[Sequence[str]], None],
    ) -> None:
        self._notes = notes
        self._in_thread = in_thread
        self._slot_of = slot_of
        self._sampled_again = sampled_again
        self._check_unreachable = check_unreachable
        self.accounted: frozenset[int] = frozenset()
        """Places of items that an earlier process started, and that are not billed twice."""

        self.in_use = False
        """Whether the engine of this run has notes."""

    def slot_of(self, item: Item[Any]) -> int:
        """Return the place of an item in the journal, which stays the same if items are added before it."""
        return self._slot_of(item.index)

    async def begin(self) -> None:
        """Declare that this engine keeps notes. Call it before anything is sent."""
        self.in_use = True
        await self._in_thread(self._notes.begin)

    async def put(self, notes: Sequence[Note], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Write and delete notes in one transaction. When it returns, they are on disk."""
        await self._in_thread(self._notes.put, notes, dropped)

    async def read(self, kind: str) -> list[Note]:
        """Return all notes of a kind."""
        found: list[Note] = await self._in_thread(self._notes.read, kind)
        return found

    async def get(self, kind: str, name: str) -> str | None:
        """Return the value of a note."""
        found: str | None = await self._in_thread(self._notes.get, kind, name)
        return found

    async def items(self, kind: str) -> dict[str, int | None]:
        """Return the items of all notes of a kind, by the names of the notes."""
        found: dict[str, int | None] = await self._in_thread(self._notes.items, kind)
        return found

    async def account(self, in_doubt: Collection[int]) -> None:
        """Report which of the interrupted items may be billed twice. The notes have the state of the others."""
        self.accounted = frozenset(await self._in_thread(self._notes.forget_intents, in_doubt))

    def check_unreachable(self, places: Sequence[str]) -> None:
        """Refuse to go on while batches are in progress at other places, unless the journal continues after changes."""
        self._check_unreachable(places)

    def maybe_billed_twice(self, item: int) -> None:
        """Report that an item may be billed twice, by its index."""
        if item not in self._sampled_again:
            self._sampled_again.append(item)
