"""Emit the events of a run to hooks."""

from typing import Any

import anyio

from sampling._engine.scope import parent_id
from sampling._plugins import installed_hooks
from sampling.fanout._arguments import FanOutArguments, handles_run_events
from sampling.fanout.items import FanOutEvent, FanOutFinished, FanOutStarted, ItemFinished, ItemOutcome
from sampling.hooks import CriticalHookError, Emitter
from sampling.results import HookFailure
from sampling.usage import Usage

__all__ = ["Announcer"]


class Announcer:
    """
    Emits the events of one run to hooks.

    An error of a critical hook is raised, other hooks can't affect the run.
    """

    def __init__(self, arguments: FanOutArguments) -> None:
        self._emitter = Emitter((*filter(handles_run_events, installed_hooks()), *arguments.run_hooks))
        self._arguments = arguments
        self._ids: dict[str, Any] = {}
        self._item_slots = anyio.Semaphore(arguments.max_concurrency)
        self.has_item_hooks = bool(self._emitter.hooks_for(ItemFinished))
        """Whether any hook listens to `ItemFinished`. Computed once, because a run may have a million items."""

    @property
    def failures(self) -> tuple[HookFailure, ...]:
        """Failures of hooks that are not critical."""
        return tuple(self._emitter.failures)

    async def emit_started(self, run_id: str, recorded: int) -> None:
        """Emit `FanOutStarted`."""
        strategy = type(self._arguments.strategy).__name__
        self._ids = {"run_id": run_id, "parent_id": parent_id(), "strategy": strategy}
        if self._emitter.hooks_for(FanOutStarted):
            arguments = self._arguments
            event = FanOutStarted(
                sampling_id=run_id,
                **self._ids,
                total=arguments.total,
                recorded=recorded,
                max_concurrency=arguments.max_concurrency,
            )
            await self._emit(event)

    async def emit_item_finished(self, outcome: ItemOutcome[Any], *, recorded: bool) -> None:
        """Emit `ItemFinished`, for at most `max_concurrency` items at once."""
        item_id = f"{self._ids['run_id']}:{outcome.key}:{outcome.index}"
        # An item has given its slot back by now. Without a limit, slow hooks would run for every buffered outcome.
        async with self._item_slots:
            await self._emit(ItemFinished(sampling_id=item_id, **self._ids, outcome=outcome, recorded=recorded))

    async def emit_finished(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """Emit `FanOutFinished`, if the start of the run was emitted."""
        if not self._ids or not self._emitter.hooks_for(FanOutFinished):
            return
        run_id = self._ids["run_id"]
        try:
            await self._emit(FanOutFinished(sampling_id=run_id, **self._ids, status=status, usage=usage, error=error))
        except Exception as veto:
            if error is None:
                raise
            error.add_note(f"a critical hook on FanOutFinished failed too: {veto!r}")

    async def _emit(self, event: FanOutEvent) -> None:
        try:
            await self._emitter.emit(event)
        except CriticalHookError as veto:
            raise veto.error from None
