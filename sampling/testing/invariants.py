"""
Check the invariants of a call, after any outcome.

    watch = Watch(backend)
    try:
        await watch.sample(strategy, "…", None, [requirement])
    finally:
        watch.check()

The invariants and their numbers are listed in docs/reference/guarantees.md.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import anyio

from sampling._engine.decisions import Ends, ended_by
from sampling.budgets import Budget
from sampling.hooks import (
    Event,
    IterationEvent,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Repaired,
)
from sampling.messages import Action, Context, Generation, Request
from sampling.protocols import BackendLike, generate_of
from sampling.requirements import RequirementLike
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.testing.capture import CapturedEvents

__all__ = ["InvariantBroken", "Watch"]


class InvariantBroken(AssertionError):
    """A call broke an invariant, which is in the message."""


_INVARIANTS = {
    "I1": "every attempt that starts also finishes, and is recorded once",
    "I2": "every answer of the backend is recorded",
    "I3": "a call succeeds exactly if it has a valid slice, and no winner is lost",
    "I4": "the best slice is one of the slices, and valid if the call succeeded",
    "I5": "every error of an attempt is on the result",
    "I6": "no task or request outlives the call",
    "I7": "at most concurrency_budget attempts run at once",
    "I8": "ids are unique, and follow from subsample and attempt",
    "I9": "events come in order, and LoopFinished comes exactly once",
    "I10": "usage adds up, and no budget is exceeded",
    "I12": "only a deadline stops a call with the reason 'deadline'",
}


def _must(condition: object, invariant: str, message: str) -> None:
    if not condition:
        raise InvariantBroken(
            f"{invariant}: {message}. The invariant is: {_INVARIANTS[invariant]}. See docs/reference/guarantees.md"
        )


class Watch:
    """Records the requests, events and outcome of one call of `sample()`."""

    def __init__(self, backend: BackendLike) -> None:
        self._generate = generate_of(backend)
        self.events: CapturedEvents = CapturedEvents()
        self.result: SamplingResult[Any] | None = None
        self.error: BaseException | None = None
        self.returned: Counter[str] = Counter()
        """The number of answers of the backend, by iteration_id."""
        self._answered: set[str] = set()
        """The attempts whose latest request was answered. An attempt may need several, as with budget forcing."""

        self._in_flight: Counter[str] = Counter()
        self.most_in_flight: int = 0
        """The most attempts that waited for the backend at once."""
        self._left_running: list[int] = []
        self._budget: Budget | None = None

    async def generate(self, request: Request) -> Generation | str:
        """Forward a request to the backend and count it."""
        self._in_flight[request.iteration_id] += 1
        self._answered.discard(request.iteration_id)
        self.most_in_flight = max(self.most_in_flight, len(+self._in_flight))
        try:
            answer = await self._generate(request)
            self.returned[request.iteration_id] += 1
            self._answered.add(request.iteration_id)
            return answer
        finally:
            self._in_flight[request.iteration_id] -= 1

    async def sample(
        self,
        strategy: BaseSamplingStrategy,
        action: Action[Any] | str,
        ctx: Context | None = None,
        reqs: Iterable[RequirementLike] | None = None,
        **arguments: Any,
    ) -> SamplingResult[Any]:
        """
        Call `strategy.sample` with the watched backend.

        `hooks` can't be passed, because the watch uses it. Put your own hooks on the strategy.
        """
        self._budget = arguments.get("budget")
        caller = anyio.get_current_task().id
        before = _children(caller)
        try:
            self.result = await strategy.sample(action, ctx, self.generate, reqs, hooks=self.events, **arguments)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._left_running = sorted(_children(caller) - before)
        return self.result

    def check(self) -> None:
        """Raise `InvariantBroken` if an invariant does not hold."""
        if not self.events.events:
            return  # cancelled before it began
        self._check_attempts()
        self._check_answers()
        self._check_order()
        self._check_ids()
        self._check_nothing_is_left()
        self._check_budget()
        if self.result is not None:
            self._check_result(self.result)
        elif isinstance(self.error, Exception):
            self._check_failure(self.error)

    def _check_attempts(self) -> None:
        started = Counter(event.iteration_id for event in self.events.of(IterationStarted))
        finished = Counter(event.iteration_id for event in self.events.of(IterationFinished))
        _must(started == finished, "I1", f"started {dict(started)!r} but finished {dict(finished)!r}")
        _must(all(n == 1 for n in started.values()), "I8", f"an id started more than once: {dict(started)!r}")
        if self.result is not None:
            recorded = Counter(attempt.iteration_id for attempt in self.result.attempts)
            _must(recorded == finished, "I1", f"finished {dict(finished)!r} but recorded {dict(recorded)!r}")

    def _check_answers(self) -> None:
        kept = {event.iteration_id for event in self.events.of(IterationFinished) if event.slice.generation is not None}
        lost = self._answered - kept
        errored = {e.iteration_id for e in self.events.of(IterationFinished) if e.slice.outcome == "errored"}
        _must(lost <= errored, "I2", f"the backend answered {sorted(lost)!r}, and no record has the answer")

    def _check_order(self) -> None:
        calls = self._by_call()
        for events in calls.values():
            _must(isinstance(events[0], LoopStarted), "I9", f"the first event is {type(events[0]).__name__}")
            _must(isinstance(events[-1], LoopFinished), "I9", f"the last event is {type(events[-1]).__name__}")
            ends = sum(isinstance(event, LoopFinished) for event in events)
            _must(ends == 1, "I9", f"LoopFinished did not come exactly once, but {ends} times")
            self._check_order_of_attempts(events)
        outer, *inner = calls
        _must(self.events.events[-1].sampling_id == outer, "I9", "a call inside of this one ended after it")
        known = {outer, *(event.iteration_id for event in self.events.of(IterationEvent)), *inner}
        strays = [sampling_id for sampling_id in inner if calls[sampling_id][0].parent_id not in known]
        _must(not strays, "I8", f"calls inside of this one that do not say whose part they are: {strays!r}")

    def _by_call(self) -> dict[str, list[Event]]:
        """Group the events by call."""
        # Calls inside of this one, such as tiers, report to the same hooks.
        calls: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.events.events:
            calls[event.sampling_id].append(event)
        return calls

    @staticmethod
    def _check_order_of_attempts(events: list[Event]) -> None:
        by_subsample: defaultdict[int, list[Event]] = defaultdict(list)
        for event in events:
            if isinstance(event, IterationEvent):
                by_subsample[event.subsample].append(event)
        for subsample, own in by_subsample.items():
            names = [type(event).__name__ for event in own]
            _must(_in_order(own), "I9", f"the events of subsample {subsample} are out of order: {names!r}")

    def _check_ids(self) -> None:
        starts = {start.sampling_id: start for start in self.events.of(LoopStarted)}
        for event in self.events.of(IterationEvent):
            expected = event.subsample * starts[event.sampling_id].loop_budget + event.attempt + 1
            # Not the repr of the event: it would be built for every event of every schedule.
            _must(event.iteration == expected, "I8", f"iteration of {event.iteration_id} should be {expected}")
        allowed = max(start.concurrency_budget for start in starts.values())
        _must(self.most_in_flight <= allowed, "I7", f"{self.most_in_flight} at once, {allowed} allowed")

    def _check_nothing_is_left(self) -> None:
        _must(not +self._in_flight, "I6", f"requests outlived the call: {dict(+self._in_flight)!r}")
        _must(not self._left_running, "I6", f"tasks outlived the call: {self._left_running!r}")

    def _check_budget(self) -> None:
        budget = self._budget
        if budget is None:
            return
        for name, made in (("attempts", budget.attempts_made), ("requests", budget.requests_made)):
            limit = getattr(budget, name)
            _must(limit is None or made <= limit, "I10", f"{made} {name} made, {limit} allowed")

    def _check_result(self, result: SamplingResult[Any]) -> None:
        valid = [one for one in result.slices if one.valid]
        _must(result.success == bool(valid), "I3", f"success is {result.success} with {len(valid)} valid slices")
        _must(
            result.best is None or any(result.best is one for one in result.slices), "I4", "best is none of the slices"
        )
        _must(result.best is not None or not result.slices, "I4", "there are slices, but no best")
        _must(not result.success or (result.best is not None and result.best.valid), "I4", "the winner is not valid")
        self._check_cancellations(result)
        raised = [one.error for one in result.attempts if one.outcome == "errored"]
        missing = [error for error in raised if not any(error is kept for kept in result.errors)]
        _must(not missing, "I5", f"errors are not on the result: {missing!r}")
        spent = sum(one.usage.total_tokens for one in result.attempts)
        _must(result.usage.total_tokens == spent, "I10", f"usage says {result.usage}, the attempts add up to {spent}")

    def _check_cancellations(self, result: SamplingResult[Any]) -> None:
        timed = self._budget is not None and self._budget.deadline_s is not None
        _must(timed or result.stop_reason != "deadline", "I12", "stopped by a deadline, and there is none")
        cut = any(one.outcome == "cancelled" for one in result.attempts)
        fatal = any(ended_by(error) >= Ends.EQUAL_REQUESTS for error in result.errors)
        reason = result.success or fatal or timed
        _must(reason or not cut, "I3", "attempts were cancelled, and nothing had ended the call: one might have won")

    def _check_failure(self, error: Exception) -> None:
        finished = self.events.of(LoopFinished)[-1]
        _must(finished.error is error, "I9", f"LoopFinished tells of {finished.error!r}, the call raised {error!r}")


def _children(task_id: int) -> set[int]:
    """Return the ids of the child tasks of a task."""
    # Only children, because concurrent calls may have tasks too.
    return {task.id for task in anyio.get_running_tasks() if task.parent_id == task_id}


def _in_order(events: list[Event]) -> bool:
    """Return True if the events of a subsample are in order."""
    running: IterationEvent | None = None
    last: IterationEvent | None = None
    for event in events:
        if isinstance(event, IterationStarted):
            if running is not None or (last is not None and event.iteration <= last.iteration):
                return False
            running = event
        elif isinstance(event, IterationFinished):
            if running is None or running.iteration != event.iteration:
                return False
            running, last = None, event
        elif isinstance(event, Repaired) and (running is not None or last is None or last.iteration != event.iteration):
            return False
    return running is None
