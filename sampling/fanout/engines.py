"""Engines that run the calls, in this process or elsewhere."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import attrs

from sampling._engine.scope import limit_other_backends
from sampling.backends.layers import Limited
from sampling.budgets import Budget
from sampling.fanout.items import Item
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import Requirement
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy

__all__ = ["EngineNotes", "FanOutEngine", "LocalEngine", "Note", "SampleItem", "Work"]


class Note(NamedTuple):
    """An entry of an engine in the journal of a run."""

    kind: str
    name: str
    """Unique among the notes of its kind."""

    item: int | None
    """The place of the item that it belongs to. The note is deleted when that item has an outcome."""

    value: str


class EngineNotes(Protocol):
    """
    The notes of an engine in the journal of its run.

    An engine records here what a later process needs to know in order not to pay twice.
    When `put` returns, the notes are on disk.
    """

    def slot_of(self, item: Item[Any]) -> int:
        """Return the place of an item in the journal, which stays the same if items are added before it."""
        ...

    async def begin(self) -> None:
        """Declare that this engine keeps notes. Call it before anything is sent."""
        ...

    async def put(self, notes: Sequence[Note], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Write notes, and delete others by kind and name, in one transaction."""
        ...

    async def read(self, kind: str) -> list[Note]:
        """Return all notes of a kind."""
        ...

    async def get(self, kind: str, name: str) -> str | None:
        """Return the value of a note."""
        ...

    async def items(self, kind: str) -> dict[str, int | None]:
        """Return the items of all notes of a kind, by the names of the notes."""
        ...

    async def account(self, in_doubt: Collection[int]) -> None:
        """Report which items, by their places, may be billed twice because an earlier process started them."""
        ...

    def check_unreachable(self, places: Sequence[str]) -> None:
        """Refuse to go on while batches are in progress at other places, unless the journal continues after changes."""
        ...

    def maybe_billed_twice(self, item: int) -> None:
        """Report that an item may be billed twice, by its index."""
        ...


@attrs.frozen(kw_only=True)
class Work:
    """The arguments of `strategy.sample` that all items share."""

    run_id: str
    strategy: BaseSamplingStrategy
    context: Context | None
    backend: BackendLike
    requirements: tuple[Requirement, ...]
    """The requirements of the call. The strategy adds its own."""

    options: Options | None
    budget: Budget | None
    hooks: Hooks | None
    """Hooks on events of each call. The run itself emits its own events."""

    max_concurrency: int
    max_requests: int | None = None
    """The number of requests to `backend` in flight at once, over all items. An engine must respect it."""

    notes: EngineNotes | None = None
    """The notes of the engine in the journal. None without a journal."""


SampleItem: TypeAlias = Callable[[Item[Any]], Awaitable[SamplingResult[Any]]]
"""Samples one item. Returns the result of `strategy.sample`, or raises its error with its own type."""


@runtime_checkable
class FanOutEngine(Protocol):
    """
    Runs `strategy.sample` for each item of a fan-out.

    The run does everything else: it reads and orders items, limits concurrency, halts, writes the journal
    and emits its own events.

    An engine may have an attribute `window`, a number of items, which replaces `max_concurrency` and is a lower bound
    of `max_buffered`. It is for engines whose items wait for hours and cost little meanwhile.
    """

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """
        Return a context manager that yields a `SampleItem` function.

        The run enters it before it reads the first item, and leaves it after the last item has ended.
        It awaits the function for up to `max_concurrency` items at once, each in its own task and context.
        When the function is cancelled, the call must have stopped, wherever it runs, before the function raises.
        For an item that raises, call `report_usage` first if the engine knows the usage.
        """
        ...


class RequestLimit:
    """Limits the requests in flight of a run, over all of its backends together."""

    def __init__(self, max_requests: int | None) -> None:
        """Set the limit. None is no limit."""
        self._max_requests = max_requests

    def wrap(self, backend: BackendLike) -> BackendLike:
        """Return the backend with this limit."""
        if self._max_requests is None:
            return backend
        return Limited(backend, max_in_flight=self._max_requests, key=self)

    def wrap_others(self) -> None:
        """Limit the backends of tiers and judges as well, for the item that this code runs in."""
        if self._max_requests is not None:
            limit_other_backends(self.wrap)


class LocalEngine:
    """Runs every call in this process."""

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """Return a context manager for one run."""
        return _Local(work)


class _Local:
    def __init__(self, work: Work) -> None:
        self._limit = RequestLimit(work.max_requests)
        self._work = attrs.evolve(work, backend=self._limit.wrap(work.backend))

    async def __aenter__(self) -> SampleItem:
        return self._sample

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing, because nothing is open."""

    def _sample(self, item: Item[Any]) -> Awaitable[SamplingResult[Any]]:
        # Not `async def`: returning the coroutine saves a frame for each of a million items.
        work = self._work
        self._limit.wrap_others()
        return work.strategy.sample(
            item.action,
            work.context,
            work.backend,
            work.requirements,
            options=work.options,
            budget=work.budget,
            hooks=work.hooks,
        )
