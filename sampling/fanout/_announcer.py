"""Tells hooks how a run gets on."""

from typing import Any

from sampling._engine import scope as identity
from sampling._plugins import installed_hooks
from sampling.fanout._arguments import Plan, wants_the_run
from sampling.fanout.items import FanOutEvent, FanOutFinished, FanOutStarted, ItemFinished, ItemOutcome
from sampling.hooks import CriticalHookError, Emitter
from sampling.results import HookFailure
from sampling.usage import Usage

__all__ = ["Announcer"]


class Announcer:
    """Makes the events of one run, where someone wants them. What a critical hook raises, it raises."""

    def __init__(self, plan: Plan) -> None:
        self._emitter = Emitter((*filter(wants_the_run, installed_hooks()), *plan.run_hooks))
        self._plan = plan
        self._ids: dict[str, Any] = {}
        self.ignores_items = not self._emitter.hooks_for(ItemFinished)
        """Whether nobody wants to know of single items: most runs, and it need not be asked a million times."""

    @property
    def failures(self) -> tuple[HookFailure, ...]:
        """Hooks that failed without being critical."""
        return tuple(self._emitter.failures)

    async def start(self, run_id: str, recorded: int) -> None:
        """Tell that the run begins."""
        self._ids = {"run_id": run_id, "parent_id": identity.parent_id()}
        if self._emitter.hooks_for(FanOutStarted):
            plan = self._plan
            event = FanOutStarted(
                sampling_id=run_id,
                **self._ids,
                strategy=type(plan.strategy).__name__,
                total=plan.total,
                recorded=recorded,
                max_concurrency=plan.max_concurrency,
            )
            await self._emit(event)

    async def finish_item(self, outcome: ItemOutcome[Any], *, recorded: bool) -> None:
        """Tell that an item has its outcome."""
        item_id = f"{self._ids['run_id']}:{outcome.key}:{outcome.index}"
        await self._emit(ItemFinished(sampling_id=item_id, **self._ids, outcome=outcome, recorded=recorded))

    async def finish(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """Tell that the run is over, if it was told that it began."""
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
