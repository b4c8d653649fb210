"""`Journal`, the file of a run, and `Session`, its use by one run."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context as ContextVars
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple, cast, get_args
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import attrs

from sampling._arguments import short_repr, wrong_type
from sampling._event_loop import in_own_task
from sampling._log import Logger
from sampling._serialization.values import MAX_NUMBER, storable_numbers
from sampling.budgets import Budget
from sampling.errors import JournalDamaged, JournalError, JournalMismatch
from sampling.fanout.items import Item, ItemOutcome, ItemStatus, as_item
from sampling.fanout.journal._code import PYTHON
from sampling.fanout.journal._fingerprint import (
    cannot_compare,
    earlier_item_digests,
    fingerprint_of,
    forget_descriptions,
    item_digest,
    unseen_in,
)
from sampling.fanout.journal._matching import RecordedItems
from sampling.fanout.journal._notes import BATCH, JournalNotes, NoteStore
from sampling.fanout.journal._page import read_findings, render_findings
from sampling.fanout.journal._pauses import Pause
from sampling.fanout.journal._records import Recorder
from sampling.fanout.journal._schema import (
    IS_INTERRUPTED,
    SAMPLED_AGAIN,
    intent_checksum,
    outcome_checksum,
    sums_of,
)
from sampling.fanout.journal._store import (
    ALL_OUTCOMES,
    IntentRow,
    JournalState,
    JournalStatus,
    NewRow,
    OnChange,
    RawRow,
    Spent,
    Store,
    all_outcomes,
    connect_to_read,
    former_outcomes,
    run_of,
)
from sampling.fanout.journal._writer import Batch, Intent, Writer
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import Requirement, as_requirements
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Usage

__all__ = ["Journal", "JournalSummary", "PendingOutcome", "Session"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = Logger()

_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "reasoning_tokens",
    "attempts",
    "requests",
    "estimated_tokens",
)

_CHUNK = 1_000
"""The number of outcomes to read at once when a run resumes."""


@attrs.frozen(kw_only=True)
class JournalSummary:
    """The state of the run in a journal."""

    run_id: str
    status: JournalStatus
    """The status that the last process recorded. A process that was killed leaves "running"."""

    succeeded: int
    failed: int
    errored: int
    interrupted: int
    """The number of items that were started and have no outcome."""

    maybe_billed_twice: tuple[int, ...]
    """Indexes of items that more than one process sampled."""

    usage: Usage
    """The usage of all outcomes, with those that were replaced."""

    processes: int
    """The number of processes that worked on the run."""


class Journal:
    """
    The file that records a fan-out.

    Pass it, or its path, as `journal`.
    It is a SQLite database that holds JSON. One run writes it at a time, and others may read it meanwhile.
    """

    def __init__(self, path: str | PathLike[str], *, on_change: OnChange = "refuse") -> None:
        """
        Set the path.

        The file is created when the first run begins.
        Args:
            path: The path of the file, on a local disk.

            on_change: The reaction to a file that was begun with another strategy or other requirements, options
                or items. "refuse" raises `JournalMismatch` with the differences. "continue" matches items by key,
                keeps the outcomes of those whose question is the same, and samples new and changed items with the
                current arguments.
        """
        if not isinstance(path, str | PathLike):
            raise wrong_type("path", path, "the path of a file")
        if on_change not in get_args(OnChange):
            raise ValueError(f"on_change must be one of 'refuse', 'continue', got {short_repr(on_change)}")
        self.path: Path = Path(path)
        self.on_change: OnChange = on_change

    def summary(self) -> JournalSummary:
        """Return the state of the run. This reads the whole file and checks it, and blocks meanwhile."""
        with connect_to_read(self.path) as database:
            # One transaction, so that all numbers are of the same moment.
            database.execute("BEGIN")
            run_id, _, _ = run_of(database, self.path)
            # Not counted by SQLite, which knows no checksums.
            counts = Counter(row.status for row in all_outcomes(database, self.path))
            deque(former_outcomes(database, self.path), maxlen=0)
            amounts = ("input_tokens", "output_tokens", "cost", "cached_input_tokens", "reasoning_tokens")
            used = database.execute(f"SELECT {sums_of(amounts)} FROM {ALL_OUTCOMES}").fetchone()  # noqa: S608 - ours
            (interrupted,) = database.execute(
                f"SELECT count(DISTINCT item) FROM intents WHERE {IS_INTERRUPTED}"  # noqa: S608 - ours
            ).fetchone()
            twice = database.execute(SAMPLED_AGAIN).fetchall()
            last = database.execute("SELECT life, status FROM lives ORDER BY life DESC").fetchone()
        return JournalSummary(
            run_id=run_id,
            status="running" if last is None else last[1],
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            errored=counts["errored"],
            interrupted=interrupted,
            maybe_billed_twice=tuple(item for (item,) in twice),
            usage=Usage(*used),
            processes=0 if last is None else last[0],
        )

    def to_html(self) -> str:
        """
        Return a page about the run: progress, cost, failures, slowest items, processes and pauses.

        It is self-contained, and its size does not grow with the number of items. This reads the whole file, and
        blocks meanwhile. A run may be in progress.
        """
        return render_findings(read_findings(self.path))

    async def in_thread(self, work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        """
        Run blocking work in a thread.

        A cancellation waits for it, so that no write is left half done.
        """
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    def __repr__(self) -> str:
        changes = "" if self.on_change == "refuse" else f", on_change={self.on_change!r}"
        return f"Journal({str(self.path)!r}{changes})"


class PendingOutcome(NamedTuple):
    """An outcome that is to be written to the journal."""

    item: Item[Any]
    digest: int
    outcome: ItemOutcome[Any]
    spent: Spent
    elapsed_s: float | None = None
    """The seconds that an item took whose call raised. A result has its own."""


_charged: "WeakKeyDictionary[Budget, dict[str, Spent]]" = WeakKeyDictionary()
"""For each budget, the amount already charged to it, by run id."""


class Session:
    """
    The use of a journal by one run.

    It opens the file, replays outcomes, writes new ones, and closes the file.
    """

    def __init__(  # noqa: PLR0913 - what decides the answers of a run
        self,
        journal: Journal,
        *,
        strategy: BaseSamplingStrategy,
        requirements: Sequence[Requirement],
        context: Context | None,
        options: Options | None,
        total: int | None,
        max_concurrency: int,
        backend: BackendLike | None = None,
        retry: Collection[ItemStatus] = (),
    ) -> None:
        all_requirements = (*as_requirements("requirements", strategy.requirements), *requirements)
        self._journal = journal
        self._store = Store(journal.path)
        self._recorder = Recorder(context, all_requirements)
        self._fingerprint_as_of = partial(fingerprint_of, strategy, all_requirements, context, options, total, backend)
        self._fingerprint: Mapping[str, Any] = self._fingerprint_as_of()
        forget_descriptions()
        self._retry = frozenset(retry)
        self._items: RecordedItems | None = None
        """The recorded items by key, if the run continues after a change."""

        self._chunk: deque[RawRow] = deque()
        self._rows: dict[int, RawRow] = {}
        """Outcomes by their place in the file, if the run continues after a change."""

        self._slots: dict[int, int] = {}
        """The places in the file of items in flight, by index, where they differ from it."""

        self._positions: dict[int, int] = {}
        """The indexes of items in flight whose place in the file is another number."""

        self._replaced: set[int] = set()
        """Places in the file whose outcome is to be replaced."""

        self._read_up_to = 0
        self._known_total: int | None = None
        self._recorded_now = Spent()
        self._counts_for_budget = False
        self._is_answered = False
        self._last_slot = -1
        self._new_from = math.inf
        """The first index that is certainly not in the file."""

        self._warned = False
        # Bound once, because every replayed outcome refers to it.
        self._restore = self._load_record
        # One thread at a time. Not the default limiter, because blocking checks may hold all of its threads.
        self._limiter = anyio.CapacityLimiter(1)
        self._writer: Writer[PendingOutcome] = Writer(self._write, max_intents=max_concurrency)
        self.state: JournalState = NOT_OPENED
        self.sampled_again: list[int] = []
        """Indexes of items that an earlier process started, and that are sampled again."""

        self.notes = JournalNotes(
            NoteStore(self._store),
            self._in_thread_of_own_task,
            lambda index: self._slots.get(index, index),
            self.sampled_again,
            self._check_unreachable,
        )

    # Open and close.

    async def open(self, items: object, budget: Budget | None) -> None:
        """Lock and check the journal. What the run spent earlier is charged to the budget."""
        try:
            await in_own_task(partial(self._open, items, budget))
        except BaseException:
            # It may be open all the same: a cancellation can come after the last step of its task.
            with anyio.CancelScope(shield=True):
                await in_own_task(self._close_store)  # noqa: ASYNC102 - shielded, and SQLite has a timeout
            raise

    async def _close_store(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._store.close)

    async def _open(self, items: object, budget: Budget | None) -> None:
        store = self._store
        fingerprints = self._fingerprint, self._fingerprint_as_of
        self.state = await self._in_thread(store.open, *fingerprints, self._journal.on_change)
        self._recorder.recorded = self.state.requirements
        self._known_total = await self._in_thread(store.items_of_last_run)
        if self._journal.on_change == "continue":
            recorded = await self._in_thread(store.recorded_items)
            self._items = RecordedItems(recorded, self.state.interrupted)
        elif isinstance(items, Sequence) and self.state.recorded <= self.state.last_item:
            # There are gaps, so items would be sampled before all recorded ones are compared. Compare them now.
            self._check_all(cast("Any", items), await self._in_thread(store.digests))
        if self._known_total is None and self._items is None:
            self._new_from = self.state.last_item + 1
        if budget is not None:
            self._counts_for_budget = True
            self._charge(budget)
        if unseen := self._fingerprint["unseen"]:
            log.warning("journal_cannot_compare", path=str(self._journal.path), places=unseen)
        if self.state.python not in {None, PYTHON}:
            log.warning("journal_python_changed", path=str(self._journal.path), was=self.state.python, now=PYTHON)
        if self.state.changes:
            log.warning("journal_changed", path=str(self._journal.path), changes=len(self.state.changes))

    async def check_notes(self) -> None:
        """Refuse to resume without the engine if batches are still in progress at a provider."""
        if self.notes.in_use or not (batches := await self.notes.items(BATCH)):
            return
        self._ignore_batches(
            len(batches),
            "was begun with a BatchEngine",
            f"{len(batches):,} batch(es) are in progress at the provider: resume with the engine, or pay again",
        )

    def _check_unreachable(self, places: Sequence[str]) -> None:
        names = ", ".join(sorted(set(places)))
        self._ignore_batches(
            len(places),
            "was begun with another backend",
            f"{len(places):,} batch(es) are in progress at {names}: resume with that backend, or pay again",
        )

    def _ignore_batches(self, count: int, begun: str, difference: str) -> None:
        """Refuse to leave batches in progress alone, unless the run continues after changes."""
        if self._journal.on_change == "refuse":
            raise JournalMismatch(f"{self._journal.path} {begun}:", [difference])
        log.warning("journal_batches_ignored", path=str(self._journal.path), batches=count)

    def _charge(self, budget: Budget) -> None:
        # Charge only what is new: the same budget may have paid for an earlier part of the run, in this process.
        counted = _charged.setdefault(budget, {})
        before, now = counted.get(self.state.run_id, Spent()), self.state.spent
        counted[self.state.run_id] = now
        usage = now.usage.minus(before.usage)
        attempts, requests = now.attempts - before.attempts, now.requests - before.requests
        estimated = now.estimated_tokens - before.estimated_tokens
        budget.charge(usage, attempts=max(0, attempts), requests=max(0, requests), estimated_tokens=max(0, estimated))

    def call_after_batch(self, function: Callable[[Batch[PendingOutcome]], None]) -> None:
        """Call this function when a batch is on disk, or could not be written."""
        self._writer.on_end = function

    async def run_writer(self) -> None:
        """Write batches until `stop_writer` is called."""
        await self._writer.run()

    def stop_writer(self) -> None:
        """Let the writer end after its last batch."""
        self._writer.close()

    async def close(
        self,
        status: JournalStatus,
        *,
        items: int | None,
        reason: str | None,
        unrecorded: Spent,
        budget: Budget | None,
    ) -> None:
        """
        Record the end of the run and the reason for it, and close the file.

        A cancellation does not interrupt this.
        """
        with anyio.CancelScope(shield=True):
            await in_own_task(partial(self._close, status, items, reason, unrecorded, budget))

    async def _close(
        self, status: JournalStatus, items: int | None, reason: str | None, unrecorded: Spent, budget: Budget | None
    ) -> None:
        store = self._store
        with anyio.CancelScope(shield=True):
            try:
                if self._writer.failure is not None:
                    # So that a reader knows why it ended. What could not be written is raised anyway.
                    with suppress(JournalError):
                        await self._in_thread(store.record_end, status, None, reason, unrecorded)
                else:
                    await self._record_moves(exhausted=items is not None)
                    await self._in_thread(store.record_end, status, items, reason, unrecorded)
                    if budget is not None:
                        total = self.state.spent.plus(self._recorded_now).plus(unrecorded)
                        _charged.setdefault(budget, {})[self.state.run_id] = total
            finally:
                await self._close_store()  # noqa: ASYNC102 - shielded, and SQLite has a timeout

    async def _record_moves(self, *, exhausted: bool) -> None:
        moves = [] if self._items is None else list(self._items.moves(exhausted=exhausted))
        if moves:
            self._warn_of_other_items()
            await self._in_thread(self._store.move, moves)

    async def _in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._journal.in_thread(partial(function, *args), self._limiter)

    async def _in_thread_of_own_task(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run blocking work in a thread. Even `Task.cancel` waits for it."""
        return await in_own_task(partial(self._in_thread, function, *args))

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the writer, if any."""
        return self._writer.failure

    @property
    def unsaved(self) -> tuple[ItemOutcome[Any], ...]:
        """The outcomes that could not be written, ordered by index."""
        return tuple(sorted((entry.outcome for entry in self._writer.unsaved), key=lambda outcome: outcome.index))

    # Replay recorded outcomes.

    def is_new(self, index: int) -> bool:
        """Return whether an item is certainly not in the file, so that no lookup is needed."""
        return index >= self._new_from

    def find(self, given: object, index: int, digest: int) -> int:
        """Return the place of an item in the file. It is the index, unless the items have changed."""
        if self._items is None:
            return index
        key = str(index) if isinstance(given, str) else as_item(given, index, "").key
        match = self._items.claim(key, (digest, *earlier_item_digests(given, index)), index)
        if match.slot != index:
            self._slots[index] = match.slot
            self._positions[match.slot] = index
        if match.is_replaced:
            self._warn_of_other_items()
            self._replaced.add(match.slot)
        self._is_answered = match.is_answered
        return match.slot

    def must_read(self, slot: int) -> bool:
        """Return whether `read` must precede `recorded` for this place."""
        if self._items is not None:
            return self._is_answered and slot not in self._rows
        return not self._chunk and self._read_up_to <= slot <= self.state.last_item

    async def read(self, slot: int) -> None:
        """Read the next chunk of recorded outcomes."""
        if self._items is not None:
            # Where the items are in another order than the file, most of a large chunk would be read in vain.
            few = slot != self._last_slot + 1
            self._rows = {row[0]: row for row in await self._in_thread(self._store.read, slot, 1 if few else _CHUNK)}
            return
        rows = await self._in_thread(self._store.read, slot, _CHUNK)
        self._chunk.extend(rows)
        # A full chunk may have successors, a shorter one is the last.
        self._read_up_to = rows[-1][0] + 1 if len(rows) == _CHUNK else self.state.last_item + 1

    def recorded(self, given: object, index: int, digest: int, slot: int) -> ItemOutcome[Any] | None:
        """Return the recorded outcome of an item, or None if it is to be sampled."""
        row = self._row_by_index(given, index, digest) if self._items is None else self._row_by_key(slot)
        if row is None:
            return None
        _, _, key, _, status, *used, attempts, requests, record, cached, reasoning, _, _ = row
        if status in self._retry:
            self._replaced.add(slot)
            return None
        self._slots.pop(index, None)
        # The record is decoded on first access, because there may be a million of them.
        usage = cast("tuple[int, int, float, int, int]", (*used, cached, reasoning))
        stored = (self._restore, record, given)
        return ItemOutcome(index, key, status, usage=usage, counts=(attempts, requests), stored=stored)

    def _row_by_key(self, slot: int) -> RawRow | None:
        if not self._is_answered:
            return None
        self._last_slot = slot
        return self._rows.pop(slot, None)

    def _row_by_index(self, given: object, index: int, digest: int) -> RawRow | None:
        if index > self.state.last_item or self._known_total is not None:
            if self._known_total is not None and index >= self._known_total:
                self._refuse(f"items: were {self._known_total:,}, are more")
            if index > self.state.last_item:
                return None
        chunk = self._chunk
        if not chunk or chunk[0][0] != index:
            self._compare(given, index, digest, self.state.interrupted.get(index, digest))
            return None
        row = chunk.popleft()
        self._compare(given, index, digest, row[3])
        self._ask_about(given, index)
        return row

    def _compare(self, given: object, index: int, digest: int, recorded_digest: int) -> None:
        if digest != recorded_digest and recorded_digest not in earlier_item_digests(given, index):
            self._refuse(_changed_item(given, index, self.state.python))

    def _ask_about(self, given: object, index: int) -> None:
        """Refuse to take the question of a recorded item for the same if its parser can't be compared."""
        for place in unseen_in(given):
            self._refuse(f"item {index}: {cannot_compare(place)}")

    def _load_record(self, record: str, given: object, index: int) -> Any:
        try:
            return self._recorder.load(record, as_item(given, index, self.state.run_id))
        except ValueError as error:
            raise JournalDamaged(f"{self._journal.path}: the record of item {index} can't be read: {error}") from error

    def check_end(self, total: int) -> None:
        """Check that there are as many items as before."""
        if self._items is not None:
            return
        expected = self._known_total
        if self.state.last_item >= total:
            expected = max(self.state.last_item + 1, expected or 0)
        if expected is not None and expected > total:
            self._refuse(f"items: were at least {expected:,}, are {total:,}")

    def _check_all(self, items: Sequence[Any], digests: Mapping[int, int]) -> None:
        for index, digest in digests.items():
            if index >= len(items):
                self._refuse(f"items: were at least {index + 1:,}, are {len(items):,}")
            self._compare(items[index], index, item_digest(items[index], index), digest)
            if index not in self.state.interrupted:
                self._ask_about(items[index], index)

    def _refuse(self, difference: str) -> NoReturn:
        raise JournalMismatch(f"{self._journal.path} was begun with other items:", [difference])

    def _warn_of_other_items(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("journal_items_changed", path=str(self._journal.path))

    # Write new entries.

    @property
    def has_enough_intents(self) -> bool:
        """True if no item is to be started before the next batch is on disk."""
        return self._writer.has_enough_intents

    def intend(self, item: Item[Any], digest: int, context: ContextVars) -> None:
        """Queue the intent to sample an item. It is to be started in this context when the intent is on disk."""
        if self.state.interrupted:
            slot = self._slots.get(item.index, item.index)
            if slot in self.state.interrupted and slot not in self.notes.accounted:
                self.sampled_again.append(item.index)
        self._writer.put_intent((item, digest, context))

    def record(self, entry: PendingOutcome) -> Batch[PendingOutcome]:
        """Queue an outcome for writing."""
        if self._counts_for_budget:
            self._recorded_now = self._recorded_now.plus(entry.spent)
        return self._writer.put_outcome(entry)

    def withdraw(self, item: Item[Any]) -> None:
        """Queue the deletion of an item's intent, because nothing was sent for it."""
        self._writer.withdraw_intent(self._slots.get(item.index, item.index))
        self.forget(item)

    def forget(self, item: Item[Any]) -> None:
        """Do not report an item as sampled again, because nothing was sent for it."""
        if item.index in self.sampled_again:
            self.sampled_again.remove(item.index)

    def record_pause(self, pause: Pause) -> None:
        """Queue the beginning or the end of a pause."""
        self._writer.put_note(pause.to_note(self._store.process))

    async def _write(self, batch: Batch[PendingOutcome]) -> None:
        await self._in_thread(self._write_now, batch)

    def _write_now(self, batch: Batch[PendingOutcome]) -> None:
        self._store.write(
            [self._intent_row(intent) for intent in batch.intents],
            [self._row(entry) for entry in batch.outcomes],
            batch.withdrawn,
            replaced=self._replaced,
            has_notes=self.notes.in_use,
            notes=batch.notes,
        )

    def _intent_row(self, intent: Intent) -> IntentRow:
        item, digest, _ = intent
        slot, process = self._slots.get(item.index, item.index), self._store.process
        return slot, process, digest, intent_checksum(slot, process, digest)

    def _row(self, entry: PendingOutcome) -> NewRow:
        item, digest, outcome, (usage, attempts, requests, estimated), elapsed_s = entry
        slot = self._slots.get(item.index, item.index)
        input_tokens, output_tokens, cost, cached, reasoning = usage.numbers()
        counts = (input_tokens, output_tokens, cached, reasoning, attempts, requests, estimated)
        notes: list[str] = []
        if cost > MAX_NUMBER:
            notes.append(f"cost is {cost:g}, and is stored as {MAX_NUMBER:,}")
            cost = MAX_NUMBER
        if max(counts) > MAX_NUMBER:
            input_tokens, output_tokens, cached, reasoning, attempts, requests, estimated = storable_numbers(
                _COUNTS, counts, notes
            )
        record, notes = self._recorder.dump(outcome, item.action, notes, elapsed_s)
        if notes:
            outcome.set_notes(tuple(notes))
        row = (
            slot,
            self._store.process,
            item.key,
            digest,
            outcome.status,
            input_tokens,
            output_tokens,
            float(cost),
            attempts,
            requests,
            record,
            cached,
            reasoning,
            estimated,
        )
        return (*row, outcome_checksum(*row), self._positions.get(slot))


NOT_OPENED = JournalState(
    run_id="", recorded=0, answered=False, last_item=-1, interrupted={}, spent=Spent(), changes=()
)


def _changed_item(given: object, index: int, python: str | None) -> str:
    item = as_item(given, index, "")
    changed = f"item {item.index} ({item.key!r}): differs from the recorded item, is now {short_repr(item.action.text)}"
    if item.action.parser is None or python in {None, PYTHON}:
        return changed
    return f"{changed} (its parser can't be compared: the run was begun with Python {python}, this is Python {PYTHON})"
