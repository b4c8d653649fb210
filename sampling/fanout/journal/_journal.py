"""`Journal`: where a run is written down, and what a run does with it."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, cast, get_args
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import attrs
import structlog

from sampling._arguments import shown, wrong_type
from sampling.budgets import Budget
from sampling.errors import JournalDamaged, JournalMismatch
from sampling.fanout.items import Item, ItemOutcome, as_item
from sampling.fanout.journal._fingerprint import fingerprint_of, item_digest
from sampling.fanout.journal._records import Recorder
from sampling.fanout.journal._store import (
    Intent,
    LifeStatus,
    OnChange,
    Opened,
    Recorded,
    Row,
    Spent,
    Store,
    connect_to_read,
    run_of,
)
from sampling.fanout.journal._writer import Batch, Writer
from sampling.messages import Context, Options
from sampling.requirements import Requirement, as_requirements
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Usage

__all__ = ["Entry", "Journal", "JournalSummary", "Session"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = structlog.get_logger("sampling")

_CHUNK = 1_000
"""How many outcomes are read at once when a run goes on."""


@attrs.frozen(kw_only=True)
class JournalSummary:
    """What a journal says of its run."""

    run_id: str
    status: LifeStatus
    """How the last process that worked on it ended; "running" also if it was killed."""

    succeeded: int
    failed: int
    errored: int
    interrupted: int
    """Items that were begun, and have no outcome."""

    maybe_billed_twice: tuple[int, ...]
    """Items that were asked by more than one process, by index."""

    usage: Usage
    """What all items with an outcome spent."""

    processes: int
    """How many worked on it."""


class Journal:
    """
    The file that a fan-out is written down in. Pass it, or its path, as `journal`.

    It is a SQLite database that holds JSON. One run writes it at a time; anyone may read it meanwhile.
    """

    def __init__(self, path: str | PathLike[str], *, on_change: OnChange = "refuse") -> None:
        """
        Name the file; it is made when the first run begins.

        Args:
            path: Where it is, on a local disk.

            on_change: What to do if the file was begun with another strategy, other requirements, options or items:
                "refuse", and show the difference, or "continue": answers that are there are kept as they are,
                and what has none yet is asked as the call says now.
        """
        if not isinstance(path, str | PathLike):
            raise wrong_type("path", path, "the path of a file")
        if on_change not in get_args(OnChange):
            raise ValueError(f"on_change must be one of 'refuse', 'continue', got {shown(on_change)}")
        self.path = Path(path)
        self.on_change: OnChange = on_change

    def summary(self) -> JournalSummary:
        """Say how far the run is. This reads the file, and blocks for as long as that takes."""
        with connect_to_read(self.path) as database:
            run_id, _, _ = run_of(database, self.path)
            counts = dict(database.execute("SELECT status, count(*) FROM outcomes GROUP BY status").fetchall())
            used = database.execute(
                "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost), 0.0)"
                " FROM outcomes"
            ).fetchone()
            (interrupted,) = database.execute(
                "SELECT count(DISTINCT item) FROM intents WHERE item NOT IN (SELECT item FROM outcomes)"
            ).fetchone()
            twice = database.execute("SELECT item FROM intents GROUP BY item HAVING count(*) > 1").fetchall()
            last = database.execute("SELECT life, status FROM lives ORDER BY life DESC").fetchone()
        return JournalSummary(
            run_id=run_id,
            status="running" if last is None else last[1],
            succeeded=counts.get("succeeded", 0),
            failed=counts.get("failed", 0),
            errored=counts.get("errored", 0),
            interrupted=interrupted,
            maybe_billed_twice=tuple(item for (item,) in twice),
            usage=Usage(*used),
            processes=0 if last is None else last[0],
        )

    async def in_thread(self, work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        """Do what blocks. A cancellation waits for it: a write is done, or it is not."""
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    def __repr__(self) -> str:
        changes = "" if self.on_change == "refuse" else f", on_change={self.on_change!r}"
        return f"Journal({str(self.path)!r}{changes})"


@attrs.frozen
class Entry:
    """An outcome on its way into the file."""

    item: Item[Any]
    digest: int
    outcome: ItemOutcome[Any]
    spent: Spent


_charged: "WeakKeyDictionary[Budget, dict[str, Spent]]" = WeakKeyDictionary()
"""For each budget, and each run, what of the run it has counted already."""


class Session:
    """One run's work on its journal."""

    def __init__(
        self,
        journal: Journal,
        *,
        strategy: BaseSamplingStrategy,
        requirements: Sequence[Requirement],
        context: Context | None,
        options: Options | None,
        total: int | None,
    ) -> None:
        all_requirements = (*as_requirements("requirements", strategy.requirements), *requirements)
        self._journal = journal
        self._store = Store(journal.path)
        self._recorder = Recorder(context, all_requirements)
        self._fingerprint: Mapping[str, Any] = fingerprint_of(strategy, all_requirements, context, options, total)
        self._chunk: deque[Row] = deque()
        self._read_up_to = 0
        self._known_total: int | None = None
        self._recorded_now = Spent()
        self._counts_for_budget = False
        self._warned = False
        # One bound method for all outcomes, and not one for each.
        self._restore = self._restore_now
        # One thread at a time; and a limiter of its own, for checks that block may hold all threads of the common one.
        self._limiter = anyio.CapacityLimiter(1)
        self._writer: Writer[Entry] = Writer(self._write)
        self.opened: Opened = NOT_OPENED
        self.asked_again: list[int] = []
        """Items that an earlier process had begun, and that are begun again."""

    # Begin and end.

    async def open(self, items: object, budget: Budget | None) -> None:
        """Take the journal, or say why not; what was spent before is charged to the budget."""
        store = self._store
        self.opened = await self._in_thread(store.open, self._fingerprint, self._journal.on_change)
        try:
            self._known_total = await self._in_thread(store.items_of_last_run)
            if isinstance(items, Sequence) and self.opened.recorded <= self.opened.last_item:
                # Something would be asked before the last of what is recorded is compared.
                self._check_all(cast("Any", items), await self._in_thread(store.digests))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._in_thread(store.close)
            raise
        if budget is not None:
            self._counts_for_budget = True
            self._charge(budget)
        if self.opened.changes:
            log.warning("journal_changed", path=str(self._journal.path), changes=len(self.opened.changes))

    def _charge(self, budget: Budget) -> None:
        counted = _charged.setdefault(budget, {})
        before, now = counted.get(self.opened.run_id, Spent()), self.opened.spent
        counted[self.opened.run_id] = now
        usage = Usage(
            max(0, now.usage.input_tokens - before.usage.input_tokens),
            max(0, now.usage.output_tokens - before.usage.output_tokens),
            max(0.0, now.usage.cost - before.usage.cost),
        )
        attempts, requests = now.attempts - before.attempts, now.requests - before.requests
        budget.charge(usage, attempts=max(0, attempts), requests=max(0, requests))

    async def run_writer(self) -> None:
        """Write until the run is closed."""
        await self._writer.run()

    def stop_writer(self) -> None:
        """Let the writer end when all is written."""
        self._writer.close()

    async def close(
        self, status: LifeStatus, *, items: int | None, error: BaseException | None, other: Spent, budget: Budget | None
    ) -> None:
        """Write down how the run ended, and let go of the file, which is done whatever is cancelled."""
        store = self._store
        with anyio.CancelScope(shield=True):
            try:
                if self._writer.failure is None:
                    # Only the type: what it says may quote anything.
                    name = None if error is None else type(error).__name__
                    await self._in_thread(store.end_life, status, items, name, other)
                    if budget is not None:
                        total = self.opened.spent.plus(self._recorded_now).plus(other)
                        _charged.setdefault(budget, {})[self.opened.run_id] = total
            finally:
                await self._in_thread(store.close)  # noqa: ASYNC102 - shielded, and SQLite itself gives up in the end

    async def _in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._journal.in_thread(partial(function, *args), self._limiter)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more is written, if something went wrong."""
        return self._writer.failure

    @property
    def unsaved(self) -> tuple[ItemOutcome[Any], ...]:
        """The outcomes that are not in the file and should be, by index."""
        return tuple(sorted((entry.outcome for entry in self._writer.unsaved), key=lambda outcome: outcome.index))

    # What is there already.

    def must_read(self, index: int) -> bool:
        """Tell whether `read` has to be awaited before `recorded` can answer for this item."""
        return not self._chunk and self._read_up_to <= index <= self.opened.last_item

    async def read(self, index: int) -> None:
        """Read what is recorded from this item on, a chunk of it."""
        rows = await self._in_thread(self._store.read, index, _CHUNK)
        self._chunk.extend(rows)
        self._read_up_to = rows[-1][0] + 1 if len(rows) == _CHUNK else self.opened.last_item + 1

    def recorded(self, given: object, index: int, digest: int) -> ItemOutcome[Any] | None:
        """Return the outcome that an item has already, if it has one."""
        if index > self.opened.last_item or self._known_total is not None:
            if self._known_total is not None and index >= self._known_total:
                self._differs(f"items: were {self._known_total:,}, are more")
            if index > self.opened.last_item:
                return None
        chunk = self._chunk
        if not chunk or chunk[0][0] != index:
            self._compare(given, index, digest, self.opened.begun.get(index, digest))
            return None
        _, _, key, asked, status, input_tokens, output_tokens, cost, _, _, record, _ = chunk.popleft()
        self._compare(given, index, digest, asked)
        # All that can wait until someone looks at it, waits: there may be a million of these.
        usage = (input_tokens, output_tokens, cost)
        return ItemOutcome(index, key, status, usage=usage, stored=(self._restore, record, given))

    def _compare(self, given: object, index: int, digest: int, asked: int) -> None:
        if digest != asked:
            self._differs(_changed_item(given, index))

    def _restore_now(self, record: str, given: object, index: int) -> Any:
        try:
            return self._recorder.load(record, as_item(given, index, self.opened.run_id))
        except ValueError as error:
            raise JournalDamaged(f"{self._journal.path}: the record of item {index} can't be read: {error}") from error

    def check_end(self, total: int) -> None:
        """See that there are as many items as there were."""
        expected = self._known_total
        if self.opened.last_item >= total:
            expected = max(self.opened.last_item + 1, expected or 0)
        if expected is not None and expected > total:
            self._differs(f"items: were at least {expected:,}, are {total:,}")

    def _check_all(self, items: Sequence[Any], digests: Mapping[int, int]) -> None:
        for index, digest in digests.items():
            if index >= len(items):
                self._differs(f"items: were at least {index + 1:,}, are {len(items):,}")
                break
            if item_digest(items[index], index) != digest:
                self._differs(_changed_item(items[index], index))

    def _differs(self, difference: str) -> None:
        if self._journal.on_change == "refuse":
            raise JournalMismatch(f"{self._journal.path} was begun with other items:", [difference])
        if not self._warned:
            self._warned = True
            log.warning("journal_items_changed", path=str(self._journal.path))

    # What is new.

    def intend(self, item: Item[Any], digest: int) -> Batch[Entry]:
        """Have it written that an item is about to be asked."""
        if item.index in self.opened.begun:
            self.asked_again.append(item.index)
        return self._writer.put_intent(Intent(item.index, digest))

    def record(self, entry: Entry) -> Batch[Entry]:
        """Have an outcome written."""
        if self._counts_for_budget:
            self._recorded_now = self._recorded_now.plus(entry.spent)
        return self._writer.put_outcome(entry)

    async def _write(self, intents: Sequence[Intent], entries: Sequence[Entry]) -> None:
        await self._in_thread(self._write_now, intents, entries)

    def _write_now(self, intents: Sequence[Intent], entries: Sequence[Entry]) -> None:
        self._store.write(intents, [self._row(entry) for entry in entries])

    def _row(self, entry: Entry) -> Recorded:
        item, outcome, spent = entry.item, entry.outcome, entry.spent
        usage = spent.usage
        return Recorded(
            item.index,
            self._store.life,
            item.key,
            entry.digest,
            outcome.status,
            usage.input_tokens,
            usage.output_tokens,
            usage.cost,
            spent.attempts,
            spent.requests,
            self._recorder.dump(outcome, item.action),
        )


NOT_OPENED = Opened(run_id="", recorded=0, last_item=-1, begun={}, spent=Spent(), changes=())


def _changed_item(given: object, index: int) -> str:
    item = as_item(given, index, "")
    return f"item {item.index} ({item.key!r}): is not what was asked then; it is {shown(item.action.text)}"
