"""Where the innermost call of each item runs: here, or somewhere else."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from sampling.budgets import Budget
from sampling.fanout.items import Item
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import Requirement
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy

__all__ = ["FanOutEngine", "LocalEngine", "SampleItem", "Work"]


@attrs.frozen(kw_only=True)
class Work:
    """What all items of a run have in common: with an `Item`, all that one call of `strategy.sample` needs."""

    run_id: str
    strategy: BaseSamplingStrategy
    context: Context | None
    backend: BackendLike
    requirements: tuple[Requirement, ...]
    """Those of the call; the strategy adds its own."""

    options: Options | None
    budget: Budget | None
    hooks: Hooks | None
    """For the events of each call. Those of the run are called by the run itself."""

    max_concurrency: int


SampleItem: TypeAlias = Callable[[Item[Any]], Awaitable[SamplingResult[Any]]]
"""Does for one item what `strategy.sample` does: returns its result, or raises what it raised, with its own type."""


@runtime_checkable
class FanOutEngine(Protocol):
    """
    Runs `strategy.sample` for each item of a fan-out.

    Everything else stays with the run: reading items, their order, slots, halting, the journal, the run's own hooks.
    """

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """
        Get ready for one run, and give what samples an item.

        It is entered before the first item is read, and left after the last one has ended, however the run ends.
        What it gives is awaited for up to `max_concurrency` items at once, each in a task and a context of its own.
        When that is cancelled, the call must have stopped, wherever it runs, before the cancellation goes on.
        An item that raises should first say with `report_usage` what it spent, if the engine knows.
        """
        ...


class LocalEngine:
    """Runs every call in this process, in the event loop of the run."""

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """Get ready for one run."""
        return _Local(work)


class _Local:
    def __init__(self, work: Work) -> None:
        self._work = work

    async def __aenter__(self) -> SampleItem:
        return self._sample

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is left open."""

    def _sample(self, item: Item[Any]) -> Awaitable[SamplingResult[Any]]:
        # Not async itself: it hands the call's own coroutine on, one step less for each of a million items.
        work = self._work
        return work.strategy.sample(
            item.action,
            work.context,
            work.backend,
            work.requirements,
            options=work.options,
            budget=work.budget,
            hooks=work.hooks,
        )
