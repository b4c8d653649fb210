"""A layer that caches answers, one entry per sample."""

import sqlite3
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
from anyio.lowlevel import EventLoopToken, current_token

from sampling._arguments import check_int, check_str, wrong_type
from sampling._engine.scope import report_cache_hit, report_usage
from sampling._event_loop.lending import lendable
from sampling._json import bounded as bounded_json
from sampling._serialization.messages import canonical, digest, dump_generation, load_generation, plain_request
from sampling.backends._limits import SlotPool
from sampling.backends.layers._identity import identity_of
from sampling.backends.layers._layer import Layer, Receive, TrackedReceiver, call_backend, pass_on_text
from sampling.errors import FileRefused, TransientError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import NO_USAGE

__all__ = ["AnswerStore", "Cached", "FileStore", "MemoryStore"]

_REMEMBERED_ATTEMPTS = 65_536
_CUT = "cut"
"""The finish_reason of an answer that the receiver cut short. Stored in files, so it must not change."""


class AnswerStore(Protocol):
    """A store for cached answers."""

    def get(self, key: str) -> Generation | None:
        """Return the answer for a key, or None."""
        ...

    def put(self, key: str, generation: Generation) -> None:
        """Store an answer."""
        ...


class MemoryStore:
    """A store in memory that keeps the most recently used answers."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self.max_entries: int = check_int("max_entries", max_entries, least=1)
        self._entries: OrderedDict[str, Generation] = OrderedDict()

    def get(self, key: str) -> Generation | None:
        """Return an answer, and mark it as recently used."""
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
    A store in a SQLite file, which several processes may share.

    Answers are stored as JSON. Of prompts, only a digest is stored.
    Any other file raises `FileRefused`.
    """

    _VERSION = 1
    _TABLE = "CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        # Autocommit makes every statement atomic, so no answer is stored in part.
        self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._finalizer = weakref.finalize(self, self._database.close)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._translated_errors():
            schema = self._database.execute("SELECT sql FROM sqlite_master").fetchall()
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if not schema and version == 0:
                # A write-ahead log needs no flush to disk per answer, and still survives a kill.
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute(self._TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
                self._database.execute(f"PRAGMA user_version = {self._VERSION}")
            elif (schema, version) != ([(self._TABLE,)], self._VERSION):
                raise FileRefused(f"{self.path} is a database, but not a cache of version {self._VERSION}")
            self._database.execute("PRAGMA synchronous = NORMAL")

    def get(self, key: str) -> Generation | None:
        """Return an answer from the file, or None."""
        with self._translated_errors():
            row = self._database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else load_generation(bounded_json.loads(str(row[0])))

    def put(self, key: str, generation: Generation) -> None:
        """Write an answer to the file."""
        answer = canonical(dump_generation(generation))
        with self._translated_errors():
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer))

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Turn the errors of a damaged file into `FileRefused`."""
        try:
            yield
        except sqlite3.OperationalError:
            raise  # locked, or the disk is full: the file itself is not damaged
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, FileRefused):
                raise
            raise FileRefused(f"{self.path} is not a cache, or it is damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"


class Cached(Layer):
    """
    A backend that caches every sample of a request.

    Samples are cached separately: the third attempt of subsample 5 and the first of subsample 0 have their own entries,
    even for the same prompt. A repeated call gets the same samples again,
    while a hundred samples of one call are a hundred different answers that are all generated.

    The model of the backend is part of every key, so another model does not get old answers. It is the `model` of
    the backend, or the code and the bound values of a function. Set `fingerprint` on a backend of your own,
    a str or a method that returns one, if that is not enough.

    Failed and cancelled requests are not cached. A stream that a requirement cut short is cached as far as it came,
    because the requirement will probably cut it short again. If it does not, that costs one attempt.

    A cached answer has a usage of zero.
    Two concurrent requests for the same sample share one generation. If the first is cancelled, the second generates,
    and also if the first has to wait for its budget, because the second may hold what it waits for.
    """

    def __init__(
        self, backend: BackendLike, *, store: AnswerStore | str | Path | None = None, namespace: str = ""
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: The backend to wrap.

            store: The store: a `MemoryStore` by default, a path for a `FileStore`, or an `AnswerStore` of your own.

            namespace: A part of every key. Set it if backends that look the same share a store.
        """
        super().__init__(backend)
        self.namespace: str = check_str("namespace", namespace)
        self.store: AnswerStore = _as_store(store)
        self.hits: int = 0
        self.misses: int = 0
        self._occurrences = _Occurrences()
        self._stale: set[str] = set()
        """Keys of answers that were cut short in the past, but not the last time."""

        self._locks: dict[tuple[EventLoopToken, str], _KeyLock] = {}

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        request_digest = digest([self.namespace, identity_of(self.inner[0]), plain_request(request)])
        number = self._occurrences.take(request.iteration_id, request_digest)
        key = digest([request_digest, request.subsample, request.attempt, number])
        try:
            generation = await self._get_or_generate(key, request, receive)
        except BaseException:
            self._occurrences.release(request.iteration_id, request_digest, number)
            raise
        return generation

    async def _get_or_generate(self, key: str, request: Request, receive: Receive | None) -> Generation:
        async with self._locked(key):
            known = None if key in self._stale else self.store.get(key)
            # Without a receiver nothing can cut the answer short, so a partial one is of no use.
            if known is None or (known.finish_reason == _CUT and receive is None):
                self.misses += 1
                return await self._generate(key, request, receive)
        self.hits += 1
        report_usage(NO_USAGE)
        report_cache_hit()
        free = attrs.evolve(known, usage=NO_USAGE)
        if receive is not None:
            pass_on_text(free, receive)
        if free.finish_reason == _CUT:
            self._stale.add(key)
            # The next try skips this entry and generates a complete answer.
            raise TransientError("the cached answer was cut short, and this time nothing cut it short: try again")
        return free

    async def _generate(self, key: str, request: Request, receive: Receive | None) -> Generation:
        receiver = None if receive is None else TrackedReceiver(receive)
        try:
            generation = await call_backend(self.inner[0], request, receiver)
        except Exception:
            if receiver is not None and receiver.cut:
                self._put(key, Generation("".join(receiver.pieces), finish_reason=_CUT))
            raise
        self._put(key, generation)
        return generation

    def _put(self, key: str, generation: Generation) -> None:
        self.store.put(key, generation)
        self._stale.discard(key)

    @asynccontextmanager
    async def _locked(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a key, so that concurrent requests for one sample share a generation."""
        # Per event loop, because a lock can't be awaited in another loop.
        place = (current_token(), key)
        entry = self._locks.setdefault(place, _KeyLock())
        entry.users += 1
        try:
            # Others that wait for this answer may hold the budget that it waits for. Then they generate their own.
            async with entry.slot.hold() as held:
                with lendable(held):
                    yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[place]

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
class _KeyLock:
    """A lock for one sample, with the number of requests that use it."""

    slot: SlotPool = attrs.field(factory=lambda: SlotPool(1))
    users: int = 0


class _Occurrences:
    """
    Numbers the identical requests of one attempt.

    A check may send the same request to a judge three times, and each is a sample of its own.
    A request that fails releases its number, so that a retry gets the same number again.
    """

    def __init__(self) -> None:
        self._taken: OrderedDict[tuple[str, str], set[int]] = OrderedDict()

    def take(self, iteration_id: str, request_digest: str) -> int:
        if not iteration_id:
            return 0  # outside of any call, identical requests are one sample
        taken = self._taken.setdefault((iteration_id, request_digest), set())
        if len(self._taken) > _REMEMBERED_ATTEMPTS:
            self._taken.popitem(last=False)
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(number)
        return number

    def release(self, iteration_id: str, request_digest: str, number: int) -> None:
        self._taken.get((iteration_id, request_digest), set()).discard(number)
