"""
One run of a fan-out.

One task reads items: it takes a slot, then reads an item, then starts a task for it, in a context and a cancel scope
of its own. What ends the run early is a terminal event, a halt or an exception, and the one with the lowest index
wins: nothing more is started, items above it are cancelled, items below it finish, for one of them may be lower still.
So the outcome is that of running the items one after another, whatever the order in which they end.

With a journal, an item is asked when it is on disk that it will be, and its outcome is handed out when that is on disk.
Its slot is given back when the outcome is on its way there: the next item's intent is in the same transaction, or in
a later one, so there are never more calls than slots whose outcome could be lost.
"""

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, cast

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from sampling._engine import scope as identity
from sampling.errors import JournalWriteFailed
from sampling.fanout._announcer import Announcer
from sampling.fanout._arguments import Plan
from sampling.fanout._delivery import Delivery
from sampling.fanout._source import END, Source
from sampling.fanout.engines import SampleItem, Work
from sampling.fanout.items import FanOutResult, Item, ItemOutcome, as_item
from sampling.fanout.journal._fingerprint import item_digest
from sampling.fanout.journal._journal import Entry, Session
from sampling.fanout.journal._store import Spent
from sampling.fanout.journal._writer import Batch
from sampling.results import SamplingResult
from sampling.usage import NO_USAGE, Usage

__all__ = ["FanOut", "RunStatus"]

T = TypeVar("T")

RunStatus: TypeAlias = Literal["running", "completed", "halted", "stopped", "failed"]
"""How a run ended, or that it has not: "stopped" was left, or drained, before its last item."""

log = structlog.get_logger("sampling")

_REPLAYS_IN_A_ROW = 500
"""How many recorded outcomes may be handed on before others get a turn."""


@attrs.frozen
class _Terminal:
    """What ends a run before its last item: a halt, or an exception."""

    index: int
    error: BaseException | None


class FanOut(Generic[T]):
    """
    A run while it runs: an async context manager, and the async iterator of its outcomes.

    It starts when the block is entered. When the block is left, however that happens,
    what is still in flight is cancelled, and everything that was paid for is in the journal.
    """

    def __init__(self, plan: Plan, *, bounded: bool = True) -> None:
        self._plan = plan
        self._source = Source(plan.items)
        self._session = self._new_session(plan)
        self._delivery = Delivery(ordered=plan.ordered)
        self._most_outstanding = plan.max_concurrency + plan.max_buffered if bounded else math.inf
        self._announcer = Announcer(plan)
        self._stack: AsyncExitStack | None = None
        self._entered = False
        self._tasks: TaskGroup
        self._sample: SampleItem
        self._running: dict[int, anyio.TaskHandle[None]] = {}
        self._over = anyio.Event()
        self._free = plan.max_concurrency
        self._alive = 0
        self._room: anyio.Event | None = None
        self._stopping = False
        self._admitting = True
        self._terminal: _Terminal | None = None
        self._cancelled_from = math.inf
        self._cut_short = False
        self._left_with: BaseException | None = None
        self._crash: BaseException | None = None
        self._raised: BaseException | None = None
        self._usage = NO_USAGE
        self._other = Spent()
        self._parent_id: str | None = None
        self.run_id = identity.new_sampling_id()
        """The run's own id: with a journal, that of the run which began it."""

        self.status: RunStatus = "running"

    @staticmethod
    def _new_session(plan: Plan) -> Session | None:
        if plan.journal is None:
            return None
        return Session(
            plan.journal,
            strategy=plan.strategy,
            requirements=plan.requirements,
            context=plan.context,
            options=plan.options,
            total=plan.total,
        )

    # What there is to know of it.

    @property
    def halted_by(self) -> int | None:
        """The index of the item that halted the run, if one did."""
        terminal = self._terminal
        return terminal.index if terminal is not None and terminal.error is None else None

    @property
    def usage(self) -> Usage:
        """Everything that was spent so far: before a resume, and by items that were cancelled, too."""
        return self._usage if self._session is None else self._session.opened.spent.usage + self._usage

    @property
    def maybe_billed_twice(self) -> tuple[int, ...]:
        """Items that an earlier process had begun and not finished, and that were asked again: by index."""
        return () if self._session is None else tuple(sorted(self._session.asked_again))

    def __repr__(self) -> str:
        return f"<FanOut {self.run_id}: {self.status}, {self._source.count:,} items read, {self._alive} in flight>"

    # Its life.

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this fan-out was entered before: make another one")
        self._stack = AsyncExitStack()
        self._parent_id = identity.parent_id()
        try:
            await self._begin(self._stack)
        except BaseException as error:
            await self._end_run(error)  # noqa: ASYNC102 - everything in it is shielded, or has a limit
            raise
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        session, plan = self._session, self._plan
        if session is not None:
            await session.open(plan.items, plan.budget)
            self.run_id = session.opened.run_id
            stack.push_async_callback(self._close_journal, session)
            writers = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(session.stop_writer)
            writers.start_soon(session.run_writer, name="sampling fan-out: journal")
        await self._announcer.start(self.run_id, 0 if session is None else session.opened.recorded)
        self._sample = await stack.enter_async_context(plan.engine.open(self._work()))
        self._tasks = await stack.enter_async_context(anyio.create_task_group())
        self._entered = True
        self._tasks.start_soon(self._admit, name="sampling fan-out: items")

    def _work(self) -> Work:
        plan = self._plan
        return Work(
            run_id=self.run_id,
            strategy=plan.strategy,
            context=plan.context,
            backend=plan.backend,
            requirements=plan.requirements,
            options=plan.options,
            budget=plan.budget,
            hooks=plan.call_hooks,
            max_concurrency=plan.max_concurrency,
        )

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end_run(exc)  # noqa: ASYNC102 - everything in it is shielded, or cancelled and over soon
        unseen = self._crash or (self._failure_to_store() if exc is None else None)
        if unseen is not None and unseen is not self._raised and unseen is not exc:
            raise unseen

    async def _end_run(self, error: BaseException | None) -> None:
        """Stop what still runs, and close what is open, in the reverse order."""
        self._stop_admitting()
        if self._entered and not self._over.is_set():
            self._tasks.cancel_scope.cancel()
        self._left_with = error
        if self._stack is not None:
            try:
                # What the caller's block raised is no business of these: a task group would wrap it up.
                await self._stack.aclose()
            except BaseExceptionGroup as group:
                raise _bare(group) from None
            finally:
                self.status = self._final_status()
                if self.maybe_billed_twice:
                    log.warning("maybe_billed_twice", run_id=self.run_id, items=len(self.maybe_billed_twice))
                await self._announcer.finish(self.status, self.usage, error)  # noqa: ASYNC102 - every hook is shielded, and has a timeout

    def _final_status(self) -> RunStatus:
        error = self._left_with
        if error is not None and (error is self._raised or not isinstance(error, anyio.get_cancelled_exc_class())):
            return "failed"
        if self._crash is not None or self._failure_to_store() is not None:
            return "failed"
        if self._cut_short:
            return "stopped"
        if self._terminal is not None:
            return "halted" if self._terminal.error is None else "failed"
        return "completed" if self._source.exhausted else "stopped"

    async def _close_journal(self, session: Session) -> None:
        await session.close(
            self._final_status(),
            items=self._source.count if self._source.exhausted else None,
            error=self._raised,
            other=self._other,
            budget=self._plan.budget,
        )

    # What others may ask of it.

    def drain(self) -> None:
        """Start nothing more. What is in flight finishes and is handed out, and then the iteration ends."""
        self._stop_admitting()

    def cancel(self) -> None:
        """Start nothing more, and cancel what is in flight. What had finished is handed out."""
        self._cut_short |= bool(self._running)
        self._stop_admitting()
        self._cancel_above(-1)

    def __aiter__(self) -> AsyncIterator[ItemOutcome[T]]:
        return self

    async def __anext__(self) -> ItemOutcome[T]:
        delivery = self._delivery
        while (outcome := delivery.take()) is None:
            if self._over.is_set():
                self._raise_what_ended_it()
                raise StopAsyncIteration
            await delivery.wait()
        if self._room is not None:
            self._make_room()
        return outcome

    async def collect(self) -> tuple[ItemOutcome[T], ...]:
        """Wait for all outcomes, and return them in the order of the items."""
        await self._over.wait()
        self._raise_what_ended_it()
        return tuple(self._delivery.take_all())

    def result(self, outcomes: tuple[ItemOutcome[T], ...]) -> FanOutResult[T]:
        """Make the result of a run that is over."""
        return FanOutResult(
            run_id=self.run_id,
            status="completed" if self.halted_by is None else "halted",
            outcomes=outcomes,
            halted_by=self.halted_by,
            usage=self.usage,
            maybe_billed_twice=self.maybe_billed_twice,
            hook_failures=self._announcer.failures,
        )

    def _raise_what_ended_it(self) -> None:
        error = self._crash or self._failure_to_store()
        if error is None and self._terminal is not None:
            error = self._terminal.error
        if error is not None:
            self._raised = error
            raise error

    def _failure_to_store(self) -> BaseException | None:
        session = self._session
        if session is None or session.failure is None:
            return None
        if isinstance(session.failure, JournalWriteFailed):
            session.failure.unsaved = session.unsaved
        return session.failure

    # Items come in.

    async def _admit(self) -> None:
        """Take a slot, read an item, start it; until there are no more, or no more are wanted."""
        try:
            await self._admit_all()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are read
            if isinstance(error, Exception):
                self._end_at(self._source.count, error)
            else:
                self._crashed(error)
        finally:
            await self._source.close()  # noqa: ASYNC102 - shielded, with a limit
            self._admitting = False
            self._check_over()

    async def _admit_all(self) -> None:
        source, session, run_id = self._source, self._session, self.run_id
        while not self._stopping:
            if not self._has_room():
                await self._wait_for_room()
                continue
            given = await source.next()
            if given is END:
                source.exhausted = not self._stopping
                break
            digest = 0 if session is None else item_digest(given, source.count)
            if session is None or not await self._was_recorded(given, digest, session):
                self._start(as_item(given, source.count, run_id), digest)
            source.count += 1
        if source.exhausted and session is not None:
            session.check_end(source.count)

    def _has_room(self) -> bool:
        return self._free > 0 and self._source.count - self._delivery.taken < self._most_outstanding

    async def _wait_for_room(self) -> None:
        self._room = anyio.Event()
        await self._room.wait()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    async def _was_recorded(self, given: object, digest: int, session: Session) -> bool:
        """Hand out the outcome that an item has already, if it has one."""
        index = self._source.count
        if session.must_read(index):
            await session.read(index)
        outcome = session.recorded(given, index, digest)
        if outcome is None:
            return False
        if self._decide(outcome):
            if self._announcer.ignores_items:
                self._delivery.put(outcome)
            else:
                await self._hand_out(outcome, recorded=True)
        if not index % _REPLAYS_IN_A_ROW:
            await checkpoint()
        return True

    def _start(self, item: Item[T], digest: int) -> None:
        self._free -= 1
        self._alive += 1
        # Its handle cancels it alone, also if it has not had its first turn yet.
        self._running[item.index] = self._tasks.start_soon(self._run_item, item, digest)

    def _stop_admitting(self) -> None:
        self._stopping = True
        self._source.stop()
        self._make_room()

    # One item.

    async def _run_item(self, item: Item[T], digest: int) -> None:
        """Ask one item, in a task of its own: nothing but a cancellation of the whole run leaves it."""
        place = identity.enter_item(item.item_id, self._parent_id)
        outcome: ItemOutcome[T] | None = None
        try:
            try:
                if item.index < self._cancelled_from and (
                    self._session is None or await self._session.intend(item, digest).on_disk()
                ):
                    outcome = await self._ask(item, place)
                    if not self._decide(outcome):
                        outcome = None
            finally:
                # From here on, it is not cancelled any more: what is paid for is kept.
                del self._running[item.index]
                self._free += 1
                batch = self._settle(item, digest, outcome, place)
                self._make_room()
            if outcome is not None and (batch is None or await batch.on_disk()):
                await self._hand_out(outcome, recorded=False)
        except anyio.get_cancelled_exc_class():
            self._cut_short |= item.index < self._cancelled_from
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are read
            self._crashed(error)
        finally:
            self._alive -= 1
            if self._session is not None and self._session.failure is not None:
                self._stop_admitting()
            if not self._alive:
                self._check_over()

    async def _ask(self, item: Item[T], place: identity.Scope) -> ItemOutcome[T]:
        try:
            result = await self._sample(item)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - it is the item's outcome
            return ItemOutcome(item.index, item.key, "errored", None, error, usage=_spent_at(place))
        return ItemOutcome(item.index, item.key, "succeeded" if result.success else "failed", result)

    def _decide(self, outcome: ItemOutcome[T]) -> bool:
        """Decide from an item's own outcome whether the run ends with it; False if it is not an outcome but raises."""
        if outcome.status == "errored":
            if self._plan.on_error == "raise":
                self._end_at(outcome.index, outcome.error)
                return False
            if self._plan.on_error == "halt":
                self._end_at(outcome.index, None)
        elif outcome.status == "failed" and self._plan.on_failure == "halt":
            self._end_at(outcome.index, None)
        return True

    def _settle(
        self, item: Item[T], digest: int, outcome: ItemOutcome[T] | None, place: identity.Scope
    ) -> Batch[Entry] | None:
        """Count what an item spent, and have it written; return what it is written with, if it is to be waited for."""
        result = None if outcome is None else outcome.result
        if result is None:
            spent = Spent(_spent_at(place), place.requests, place.requests)
        else:
            spent = Spent(result.usage, len(result.attempts), sum([attempt.requests for attempt in result.attempts]))
        if spent.usage is not NO_USAGE:
            self._usage += spent.usage
        if self._session is None:
            return None
        if outcome is None or (result is not None and _was_cut_off(result)):
            self._other = self._other.plus(spent)
            return None
        return self._session.record(Entry(item, digest, outcome, spent))

    async def _hand_out(self, outcome: ItemOutcome[T], *, recorded: bool) -> None:
        if not self._announcer.ignores_items:
            try:
                await self._announcer.finish_item(outcome, recorded=recorded)
            except Exception as veto:  # noqa: BLE001 - of a critical hook: it ends the run as if the item had raised it
                self._end_at(outcome.index, veto)
                return
        self._delivery.put(outcome)

    # The end.

    def _end_at(self, index: int, error: BaseException | None) -> None:
        """End the run with this item, unless it ends with one before it already."""
        if self._terminal is not None and index >= self._terminal.index:
            return
        self._terminal = _Terminal(index, error)
        self._delivery.last = index
        self._stop_admitting()
        self._cancel_above(index)

    def _cancel_above(self, index: int) -> None:
        # One that had no turn yet must not begin: a cancellation reaches it only where it first waits.
        self._cancelled_from = min(self._cancelled_from, index + 1)
        for other, handle in self._running.items():
            if other > index:
                handle.cancel()

    def _check_over(self) -> None:
        if not self._admitting and not self._alive:
            self._over.set()
            self._delivery.wake()

    def _crashed(self, error: BaseException) -> None:
        """End the run at once: an interrupt, or the end of memory."""
        if self._crash is None:
            self._crash = error
        self.cancel()


def _was_cut_off(result: SamplingResult[Any]) -> bool:
    """Tell whether the budget ended the call: that says nothing of the item, so a resume with more of it asks again."""
    return not result.success and result.stop_reason in {"budget", "deadline"}


def _spent_at(place: identity.Scope) -> Usage:
    return place.spent if place.reported is None else place.spent + place.reported


def _bare(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what is in a group: the first interrupt if there is one, else the first error."""
    first = (group.split(Exception)[1] or group).exceptions[0]
    return _bare(cast("BaseExceptionGroup[BaseException]", first)) if isinstance(first, BaseExceptionGroup) else first
