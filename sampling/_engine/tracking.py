"""
A call that knows at every moment what each of its subsamples is at. Most need not, and do not pay for it.

Three kinds of strategies do: those that let subsamples start late, those that decide by what may still come, and those
whose winner must not depend on timing.
"""

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from sampling._engine.attempt import AttemptState, Call
from sampling._engine.decisions import is_settled, wait_for_next_s
from sampling._engine.records import OrderedQueue, Prefix, ResultQueue, order_key
from sampling._engine.run import Run
from sampling.errors import SelectionFailed
from sampling.messages import Attempt
from sampling.protocols import Progress, Running
from sampling.results import Slice

__all__ = ["FollowedRun"]

T = TypeVar("T")


class FollowedRun(Run[T], Generic[T]):
    """A call whose subsamples are followed."""

    _ordered: OrderedQueue[T] | None
    """The queue of a deterministic call, which hands slices out in an order that does not depend on timing."""

    def __init__(self, call: Call[T]) -> None:
        super().__init__(call)
        self._decides_on_all = True
        self._running: dict[int, Running] = {}
        self._own_scopes: dict[int, anyio.CancelScope] = {}
        self._ended: set[int] = set()
        self._subsamples_started: int | None = None
        """Where subsamples start late: how many have."""

        self._changed: anyio.Event | None = None
        """Where subsamples start late: set when something happened that the next start may depend on."""

        self._bound: tuple[float, float] = (math.inf, math.inf)
        """In a deterministic call: no attempt that ranks after it can change the outcome."""

    def _new_queue(self) -> ResultQueue[T]:
        self._ordered = OrderedQueue(self._concurrency_budget) if self._call.deterministic else None
        return self._ordered or super()._new_queue()

    # Starting: all at once, or when the strategy says so.

    async def _start_subsamples(self, group: TaskGroup) -> None:
        if not self._call.seams.starts_late:
            await super()._start_subsamples(group)
            return
        started = self._subsamples_started = 0
        while started < self._concurrency_budget and not self._stopped:
            # Whatever happens while it waits, the strategy is asked anew.
            self._changed = anyio.Event()
            wait_s = self._wait_for_next_s() if started else 0.0
            if wait_s <= 0:
                self._running[started] = Running(started, 0, self._attempter.now())
                self._own_scopes[started] = anyio.CancelScope()
                self._start_task(group, started)
                started = self._subsamples_started = started + 1
            elif wait_s == math.inf and len(self._ended) == started:
                break
            else:
                with anyio.move_on_after(wait_s):
                    await self._changed.wait()
        self._subsamples_due = started
        self._close_what_never_starts(started)

    def _wait_for_next_s(self) -> float:
        try:
            return wait_for_next_s(self._call.strategy, self._progress(self._queue.seen()))
        except (SelectionFailed, MemoryError, RecursionError) as error:
            self._end_with(error)
            return math.inf

    def _close_what_never_starts(self, first: int) -> None:
        if self._ordered is not None:
            for subsample in range(first, self._concurrency_budget):
                self._ordered.close(subsample)
            self._decide()

    # Knowing what each subsample is at.

    async def _run_subsample(self, subsample: int) -> None:
        if self._ordered is None:
            await super()._run_subsample(subsample)
        else:
            with self._own_scopes.setdefault(subsample, anyio.CancelScope()):
                await super()._run_subsample(subsample)
            self._ordered.close(subsample)
        self._running.pop(subsample, None)
        self._ended.add(subsample)
        if self._ordered is not None:
            self._decide()
        self._decide_again()

    def _start(self, plan: Attempt[T], subsample: int, number: int) -> AttemptState[T] | None:
        if self._stopped or (number, subsample) > self._bound:
            return None
        self._running[subsample] = Running(subsample, number, self._attempter.now())
        return super()._start(plan, subsample, number)

    def _progress(self, slices: Sequence[Slice[T]]) -> Progress[T]:
        return Progress(
            slices=slices,
            attempts=Prefix(self._queue.records),
            started=self._concurrency_budget if self._subsamples_started is None else self._subsamples_started,
            running=tuple(self._running.values()),
            ended=frozenset(self._ended),
            loop_budget=self._loop_budget,
            concurrency_budget=self._concurrency_budget,
            now_s=self._attempter.now(),
        )

    # Deciding by it.

    def _decide_on(self, record: Slice[T]) -> None:
        self._decide()
        if record.outcome == "errored":
            self._decide_again()
        if self._ordered is not None and self._call.first_valid_ends:
            self._give_up_what_cannot_win(record, self._ordered)
        if self._changed is not None:
            self._changed.set()

    def _decide_again(self) -> None:
        """Ask when no slice was added, but less can be added than before: that alone may settle the outcome."""
        slices = self._queue.seen()
        if self._call.seams.settles and slices and not self._stopped and self._is_enough(slices):
            self._had_enough()
        if self._changed is not None:
            self._changed.set()

    def _says_enough(self, slices: Sequence[Slice[T]]) -> bool:
        if self._call.seams.settles:
            return is_settled(self._call.strategy, self._progress(slices))
        return super()._says_enough(slices)

    def _give_up_what_cannot_win(self, record: Slice[T], ordered: OrderedQueue[T]) -> None:
        """In a deterministic call, cancel what ranks after an answer that would do; what ranks before it goes on."""
        known = ordered.known_up_to(record)
        if self._stopped or not known or not self._is_enough(known):
            return
        self._bound = min(self._bound, order_key(record))
        for running in self._running.values():
            if (running.attempt, running.subsample) > self._bound:
                self._own_scopes[running.subsample].cancel()
