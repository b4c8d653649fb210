"""
The state of every subsample, for the calls that need it.

Three kinds of strategies do: those that start subsamples late, those that decide by what may still come, and those
whose winner must not depend on timing. Other calls do without, because it costs more than an attempt's own work.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import anyio
import attrs

from sampling._engine.call import Call
from sampling._engine.records import OrderedQueue, Prefix, ResultQueue, order_key
from sampling.messages import Request
from sampling.protocols import Progress, Running
from sampling.results import Slice

__all__ = ["Tracker"]

T = TypeVar("T")


@attrs.define
class Tracker(Generic[T]):
    """Tracks which subsamples have started, what each one runs, and which have ended."""

    call: Call[T]
    queue: ResultQueue[T]
    started: int | None = None
    """The number of subsamples that have started, if they start late."""

    running: dict[int, Running] = attrs.field(factory=dict[int, Running])
    ended: set[int] = attrs.field(factory=set[int])
    scopes: "dict[int, anyio.CancelScope]" = attrs.field(factory=dict[int, Any])
    """In a deterministic call: cancels one subsample."""

    changed: "anyio.Event | None" = None
    """Set when the next start has to be decided again, if subsamples start late."""

    starting: bool = False
    """True while the next start is being decided, so that the next attempt is unknown."""

    in_turn: bool = False
    """In a deterministic call with a limited budget: attempts are made one after the other."""

    _turns: "dict[tuple[int, int], anyio.Event]" = attrs.field(factory=dict[tuple[int, int], Any])
    """The attempts that wait for their turn."""

    _bound: tuple[float, float] = (math.inf, math.inf)
    """In a deterministic call: no attempt that ranks after this one can win."""

    @property
    def ordered(self) -> OrderedQueue[T] | None:
        """The queue of a deterministic call."""
        return self.queue if isinstance(self.queue, OrderedQueue) else None

    def scope_of(self, subsample: int) -> "anyio.CancelScope":
        """Return the cancel scope of one subsample."""
        return self.scopes.setdefault(subsample, anyio.CancelScope())

    def start_subsample(self, subsample: int) -> None:
        """Record that a subsample starts late, before its task first runs."""
        self.running[subsample] = Running(subsample, 0, self.call.elapsed_s())
        self.started = subsample + 1

    def start_attempt(self, subsample: int, attempt: int) -> bool:
        """Record that an attempt starts, unless it can no longer win."""
        if (attempt, subsample) > self._bound:
            return False
        self.running[subsample] = Running(subsample, attempt, self.call.elapsed_s())
        return True

    def has_lost(self, request: Request) -> bool:
        """Return whether an attempt of a deterministic call ranks after a possible winner or the end of the call."""
        return order_key(request) > self._bound

    async def wait_for_turn(self, subsample: int, attempt: int) -> None:
        """
        Wait until every attempt that ranks before this one has ended.

        What is left of a budget depends on what the others used, and so must not depend on which of them was faster.
        """
        place = attempt, subsample
        turn = self._turns[place] = anyio.Event()
        self._next_turn()
        try:
            await turn.wait()
        finally:
            self._turns.pop(place, None)

    def _next_turn(self) -> None:
        """Let the first attempt in order start, if all live subsamples wait."""
        started = self.call.concurrency_budget if self.started is None else self.started
        if self._turns and not self.starting and len(self._turns) == started - len(self.ended):
            self._turns.pop(min(self._turns)).set()

    def end_subsample(self, subsample: int) -> None:
        """Record that a subsample adds no more records."""
        self.running.pop(subsample, None)
        self.ended.add(subsample)
        if self.ordered is not None:
            self.ordered.close(subsample)
        # A subsample that starts instead ranks before the second attempts of those that wait.
        self.wake()
        self._next_turn()

    def close_from(self, first: int) -> None:
        """Record that neither this subsample nor any later one will start."""
        if self.ordered is not None:
            for subsample in range(first, self.call.concurrency_budget):
                self.ordered.close(subsample)

    def wake(self) -> None:
        """Wake the task that decides when the next subsample starts."""
        if self.changed is not None:
            self.starting = True
            self.changed.set()

    def start_none(self) -> None:
        """Record that no subsample starts now, so that waiting ones may take their turns."""
        self.starting = False
        self._next_turn()

    def progress(self, slices: Sequence[Slice[T]]) -> Progress[T]:
        """Return the state of the call, for a strategy that has seen these slices."""
        call = self.call
        return Progress(
            slices=slices,
            attempts=Prefix(self.queue.records),
            started=call.concurrency_budget if self.started is None else self.started,
            running=tuple(self.running.values()),
            ended=frozenset(self.ended),
            loop_budget=call.loop_budget,
            concurrency_budget=call.concurrency_budget,
            now_s=call.elapsed_s(),
        )

    def cancel_after(self, record: Slice[T] | Request) -> None:
        """In a deterministic call, cancel the attempts that rank after a possible winner or the end of the call."""
        self._bound = min(self._bound, order_key(record))
        for running in self.running.values():
            if (running.attempt, running.subsample) > self._bound:
                self.scope_of(running.subsample).cancel()
