"""Calls inside a call, one after the other: what each spent, tried and answered is on the result of the outer one."""

from typing import Any, Generic, TypeVar

import attrs

from sampling._engine.attempt import Call
from sampling._engine.decisions import failure_of, next_stage, selected
from sampling._engine.records import ResultQueue
from sampling._engine.run import Run, log_errors
from sampling.errors import FatalError, SelectionFailed
from sampling.hooks import Hooks
from sampling.protocols import Stage
from sampling.results import HookFailure, SamplingResult, Slice, StopReason

__all__ = ["StagedRun"]

T = TypeVar("T")


class StagedRun(Run[T], Generic[T]):
    """
    A call that makes no attempt of its own, but other calls, as the strategy's `next_stage` says.

    They run inside of it: they carry its id as their parent, and its cancellation, deadline and budget are theirs.
    """

    def __init__(self, call: Call[T], hooks: Hooks | None) -> None:
        super().__init__(call)
        self._stage_hooks = _together(call.strategy, hooks)
        self._results: list[SamplingResult[T]] = []
        self._failures: list[Exception] = []
        """What stages raised because no attempt of theirs came to an answer."""

        self._not_logged: list[tuple[str, Exception]] = []
        self._hook_failures: list[HookFailure] = []
        self._adopted: dict[str, Slice[T]] = {}
        self._max_attempts = 0

    def _new_queue(self) -> ResultQueue[T]:
        # The stages have put their slices in order already.
        return ResultQueue()

    async def _run_subsamples(self) -> None:
        while True:
            stage = next_stage(self._call.strategy, self._call.first, tuple(self._results), self._queue.slices)
            if stage is None:
                break
            result = await self._run_stage(stage)
            self._results.append(result)
            self._attempter.budget_detail = result.stop_detail
            if result.stop_reason in {"budget", "deadline"} or self._fatal is not None:
                break
        if not self._results:
            raise SelectionFailed("next_stage() said that there is no call to make at all", ())

    async def _run_stage(self, stage: Stage[T]) -> SamplingResult[T]:
        started_s = self._attempter.now()
        inner: Run[T] = stage.strategy.run_inside(self._call, stage, self._stage_hooks)
        try:
            return await inner.run()
        except Exception as error:
            if error is not inner.failure:
                raise
            self._failures.append(error)
            self._not_logged.extend(inner._errors)
            if isinstance(error, FatalError):
                self._fatal = error
            return inner._result(None, [])
        finally:
            self._adopt(inner, started_s)

    def _adopt(self, inner: Run[T], started_s: float) -> None:
        """Take over all that a stage did, with times that count from the start of this call."""
        self._max_attempts += inner.max_attempts
        self._errors.extend(inner._errors)
        self._hook_failures.extend(inner.hook_failures)
        for record in inner._by_iteration(inner._queue.records):
            own = attrs.evolve(record, started_s=record.started_s + started_s, finished_s=record.finished_s + started_s)
            self._adopted[own.iteration_id] = own
            self._queue.put(own)

    def _choose(self) -> SamplingResult[T]:
        winners = [
            self._adopted[one.best.iteration_id] for one in self._results if one.success and one.best is not None
        ]
        slices = self._by_iteration(self._queue.slices)
        best: Slice[T] | None = None
        if winners:
            best = selected(self._call.strategy.select, winners)
        elif slices:
            best = selected(self._call.strategy.select_from_failure, slices)
        elif self._failures:
            self.failure = failure_of(self._errors, self._fatal) if len(self._failures) > 1 else self._failures[0]
            raise self.failure
        log_errors(self._not_logged)
        return attrs.evolve(self._result(best, slices), hook_failures=self.hook_failures)

    def _by_iteration(self, records: list[Slice[T]]) -> list[Slice[T]]:
        # Stage by stage, and in each by iteration, is how they were put.
        return records

    @property
    def hook_failures(self) -> tuple[HookFailure, ...]:
        """What went wrong in hooks, in those of the stages too."""
        return (*self._hook_failures, *super().hook_failures)

    def _reason_to_stop(self) -> StopReason:
        return "failed" if self._fatal is not None else self._results[-1].stop_reason

    @property
    def max_attempts(self) -> int:
        """How many attempts the calls that were made could have made together."""
        return self._max_attempts


def _together(strategy: Any, given: Hooks | None) -> Hooks:
    hooks = Hooks()
    hooks.include(strategy.hooks)
    if given is not None:
        hooks.include(given)
    return hooks
