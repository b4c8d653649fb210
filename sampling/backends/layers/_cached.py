"""A layer that remembers answers, sample by sample."""

import sqlite3
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import anyio
import attrs
from anyio.lowlevel import EventLoopToken, current_token

from sampling._arguments import check_int, check_str, wrong_type
from sampling._engine.scope import report_usage
from sampling._json import bounded as bounded_json
from sampling._message_json import canonical, digest, dump_generation, load_generation, plain_request
from sampling.backends.layers._layer import NOTHING, Delivery, Layer, Receive, ask, deliver
from sampling.errors import FileRefused, TransientError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike

__all__ = ["AnswerStore", "Cached", "FileStore", "MemoryStore"]

_REMEMBERED_ATTEMPTS = 65_536
_CUT = "cut"


class AnswerStore(Protocol):
    """A store for cached answers."""

    def get(self, key: str) -> Generation | None:
        """Return the answer that was put under this key, if it is still there."""
        ...

    def put(self, key: str, generation: Generation) -> None:
        """Keep an answer."""
        ...


class MemoryStore:
    """Keeps the answers that were used last, as long as the process lives."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self.max_entries = check_int("max_entries", max_entries, least=1)
        self._entries: OrderedDict[str, Generation] = OrderedDict()

    def get(self, key: str) -> Generation | None:
        """Return an answer, and count it as used."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: str, generation: Generation) -> None:
        """Store an answer, and evict the least recently used one if full."""
        self._entries[key] = generation
        self._entries.move_to_end(key)
        if len(self._entries) > self.max_entries:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"MemoryStore({self.max_entries}) with {len(self)} answers"


class FileStore:
    """
    Keeps answers in a file, for as long as it is there. Several processes may use it at once.

    It is a SQLite database that holds answers as JSON; of prompts it holds only a digest.
    A file that is anything else is refused.
    """

    _VERSION = 1
    _TABLE = "CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Autocommit: an answer is in the file, whole, or it is not.
        self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._finalizer = weakref.finalize(self, self._database.close)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._refusing_damage():
            schema = self._database.execute("SELECT sql FROM sqlite_master").fetchall()
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if not schema and version == 0:
                # A log that is written ahead needs no flush to disk for every answer, and survives a kill all the same.
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute(self._TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
                self._database.execute(f"PRAGMA user_version = {self._VERSION}")
            elif (schema, version) != ([(self._TABLE,)], self._VERSION):
                raise FileRefused(f"{self.path} is a database, but not a cache of version {self._VERSION}")
            self._database.execute("PRAGMA synchronous = NORMAL")

    def get(self, key: str) -> Generation | None:
        """Read an answer."""
        with self._refusing_damage():
            row = self._database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else load_generation(bounded_json.loads(str(row[0])))

    def put(self, key: str, generation: Generation) -> None:
        """Write an answer."""
        answer = canonical(dump_generation(generation))
        with self._refusing_damage():
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer))

    @contextmanager
    def _refusing_damage(self) -> Generator[None]:
        try:
            yield
        except sqlite3.OperationalError:
            raise  # locked, or the disk is full: the file is as good as ever
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, FileRefused):
                raise
            raise FileRefused(f"{self.path} is no cache, or damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"


class Cached(Layer):
    """
    Answer from memory what was answered before, without mixing samples up.

    What is remembered is not "the answer" to a request but each sample of it: the third answer of subsample 5 is
    another one than the first of subsample 0, and stays so. A call that is repeated gets the same samples again;
    a hundred samples of one call are a hundred answers, asked for a hundred times.
    Failures, and what was cancelled, are asked for again. What a requirement cut short is kept as far as it came,
    to be cut short again; should it not be this time, that costs one attempt.

    An answer that was there already has used nothing, and its usage says so.
    Two who want the same sample at the same time share one generation; if the first is cancelled, the second asks.
    """

    def __init__(
        self, backend: BackendLike, *, store: AnswerStore | str | Path | None = None, namespace: str = ""
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: What to ask.

            store: Where answers are kept: a `MemoryStore` by default, a path for a `FileStore`, or your own.

            namespace: Keeps apart what different backends answer to the same request, if they share a store.
        """
        super().__init__(backend)
        self.namespace = check_str("namespace", namespace)
        self.store = _as_store(store)
        self.hits = 0
        self.misses = 0
        self._occurrences = _Occurrences()
        self._stale: set[str] = set()
        self._flights: dict[tuple[EventLoopToken, str], _Flight] = {}

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        question = digest([self.namespace, plain_request(request)])
        number = self._occurrences.take(request.iteration_id, question)
        key = digest([question, request.subsample, request.attempt, number])
        try:
            generation = await self._recall_or_ask(key, request, receive)
        except BaseException:
            self._occurrences.give_back(request.iteration_id, question, number)
            raise
        return generation

    async def _recall_or_ask(self, key: str, request: Request, receive: Receive | None) -> Generation:
        async with self._alone_with(key):
            known = None if key in self._stale else self.store.get(key)
            if known is None or (known.finish_reason == _CUT and receive is None):
                self.misses += 1
                return await self._ask(key, request, receive)
        self.hits += 1
        report_usage(NOTHING)
        free = attrs.evolve(known, usage=NOTHING)
        if receive is not None:
            deliver(free, receive)
        if free.finish_reason == _CUT:
            self._stale.add(key)
            raise TransientError("the answer that is remembered was cut short, and here it would go on: ask again")
        return free

    async def _ask(self, key: str, request: Request, receive: Receive | None) -> Generation:
        delivery = None if receive is None else Delivery(receive)
        try:
            generation = await ask(self.inner[0], request, delivery)
        except Exception:
            if delivery is not None and delivery.cut:
                self._keep(key, Generation("".join(delivery.pieces), finish_reason=_CUT))
            raise
        self._keep(key, generation)
        return generation

    def _keep(self, key: str, generation: Generation) -> None:
        self.store.put(key, generation)
        self._stale.discard(key)

    @asynccontextmanager
    async def _alone_with(self, key: str) -> AsyncGenerator[None]:
        """Let no one else in who wants the same sample."""
        place = (current_token(), key)
        flight = self._flights.setdefault(place, _Flight())
        flight.passengers += 1
        try:
            async with flight.lock:
                yield
        finally:
            flight.passengers -= 1
            if not flight.passengers:
                del self._flights[place]

    def _settings(self) -> dict[str, object]:
        return {"store": self.store, **({"namespace": self.namespace} if self.namespace else {})}


def _as_store(store: AnswerStore | str | Path | None) -> AnswerStore:
    if store is None:
        return MemoryStore()
    if isinstance(store, str | Path):
        return FileStore(store)
    if not all(callable(getattr(store, name, None)) for name in ("get", "put")):
        raise wrong_type("store", store, "a path, or an object with get(key) and put(key, generation)")
    return store


@attrs.define
class _Flight:
    """One generation, and how many want it."""

    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    passengers: int = 0


class _Occurrences:
    """
    Numbers the times that one attempt asks the very same question, as a check does that asks a judge thrice.

    A number is given back if nothing came of it, so that a retry is the same time as the try before.
    """

    def __init__(self) -> None:
        self._taken: OrderedDict[tuple[str, str], set[int]] = OrderedDict()

    def take(self, iteration_id: str, question: str) -> int:
        if not iteration_id:
            return 0  # outside of any call: the same request is the same request
        taken = self._taken.setdefault((iteration_id, question), set())
        if len(self._taken) > _REMEMBERED_ATTEMPTS:
            self._taken.popitem(last=False)
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(number)
        return number

    def give_back(self, iteration_id: str, question: str, number: int) -> None:
        self._taken.get((iteration_id, question), set()).discard(number)
