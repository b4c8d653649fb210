"""Stages: consecutive calls inside a call, whose attempts are on the result of the outer one."""

from typing import Any, Generic, TypeVar

import attrs

from sampling._engine import decisions
from sampling._engine.call import whole_nanoseconds
from sampling._engine.run import Run, log_errors
from sampling.errors import SelectionFailed
from sampling.hooks import Hooks
from sampling.protocols import Stage
from sampling.results import SamplingResult, Slice

__all__ = ["Stages", "stages_of"]

T = TypeVar("T")


@attrs.define
class Stages(Generic[T]):
    """
    The calls that a strategy makes inside one call, as its `next_stage` says.

    They carry the outer call's id as their parent, and share its cancellation, deadline and budget.
    """

    _hooks: Hooks
    """The hooks of the outer strategy and of its caller, for every stage."""

    _results: list[SamplingResult[T]] = attrs.field(factory=list[SamplingResult[T]])
    _failures: list[Exception] = attrs.field(factory=list[Exception])
    """The exceptions of stages in which no attempt got an answer."""

    _not_logged: list[tuple[str, Exception]] = attrs.field(factory=list[tuple[str, Exception]])
    _adopted: dict[str, Slice[T]] = attrs.field(factory=dict[str, Slice[T]])

    async def run(self, outer: Run[T]) -> None:
        """Run one stage after the other until the strategy has no more, or one ends the call."""
        call = outer.call
        outer.max_attempts = 0
        while True:
            stage = decisions.next_stage(call.strategy, call.first, tuple(self._results), outer.queue.slices)
            if stage is None:
                break
            result = await self._run_stage(stage, outer)
            self._results.append(result)
            outer.stop_reason, outer.budget_detail = result.stop_reason, result.stop_detail
            if result.stop_reason in {"budget", "deadline"} or outer.fatal is not None:
                break
        if not self._results:
            raise SelectionFailed("next_stage() returned None at once: there is no call to make", ())

    async def _run_stage(self, stage: Stage[T], outer: Run[T]) -> SamplingResult[T]:
        started_s = outer.call.elapsed_s()
        inner: Run[T] = stage.strategy.run_inside(outer.call, stage, self._hooks)
        try:
            return await inner.run()
        except Exception as error:
            if error is not inner.failure:
                raise
            self._failures.append(error)
            self._not_logged.extend(inner.errors)
            if decisions.ended_by(error) >= decisions.Ends.CALL:
                outer.fatal = error
            return inner.result(None)
        finally:
            self._adopt(inner, outer, started_s)

    def _adopt(self, inner: Run[T], outer: Run[T], started_s: float) -> None:
        """Add the records of a stage to the outer call, with times that count from its start."""
        outer.max_attempts += inner.max_attempts
        outer.errors.extend(inner.errors)
        outer.nested_hook_failures += inner.hook_failures
        counted = {record.iteration_id for record in inner.slices()}
        for record in inner.records():
            adopted = attrs.evolve(
                record,
                started_s=whole_nanoseconds(record.started_s + started_s),
                finished_s=whole_nanoseconds(record.finished_s + started_s),
            )
            self._adopted[adopted.iteration_id] = adopted
            outer.queue.put(adopted, counts=record.iteration_id in counted)

    def choose(self, outer: Run[T]) -> SamplingResult[T]:
        """Choose among the winners of the stages, or raise the failure if no attempt got an answer."""
        strategy, slices = outer.call.strategy, outer.queue.slices
        winners = [
            self._adopted[result.best.iteration_id]
            for result in self._results
            if result.success and result.best is not None
        ]
        best: Slice[T] | None = None
        if winners:
            best = decisions.select(strategy.select, winners)
        elif slices:
            best = decisions.select(strategy.select_from_failure, slices)
        elif self._failures:
            several = len(self._failures) > 1
            outer.failure = decisions.failure_of(outer.errors, outer.fatal) if several else self._failures[0]
            raise outer.failure
        log_errors(self._not_logged)
        for result in self._results:
            if best is not None and result.best is not None and result.best.iteration_id == best.iteration_id:
                outer.votes = (result.agreement, result.margin)
        return attrs.evolve(outer.result(best), hook_failures=outer.hook_failures)


def stages_of(strategy: Any, given: Hooks | None) -> Stages[Any]:
    """Return the stages of a call, with the hooks of its strategy and of its caller."""
    hooks = Hooks()
    hooks.include(strategy.hooks)
    if given is not None:
        hooks.include(given)
    return Stages(hooks)
