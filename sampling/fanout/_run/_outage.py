"""Wait out an outage of the backend instead of recording its errors."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio

from sampling._log import Logger
from sampling.errors import BackendError
from sampling.fanout._run._spending import stopped_by_budget
from sampling.fanout.items import ItemOutcome
from sampling.results import SamplingResult

__all__ = ["Outage", "failed_transiently", "has_answer"]

log = Logger()

_FIRST_INTERVAL_S: Final = 1.0
_LONGEST_INTERVAL_S: Final = 60.0
_PROBES_OF_ONE_ITEM: Final = 2
"""The number of probes with the same item after which another one is tried: the item itself may be the cause."""


class Outage:
    """
    Holds items whose calls failed transiently until the backend answers again.

    It begins when an item fails after the run has had an answer.
    Held items keep their slots, so the run pauses by itself once every call fails.
    One held item at a time calls again, at growing intervals. The answer to a call that started later releases all.
    An item that fails again although others were answered in between is the cause itself, and its error counts.
    After `grace_s` without an answer, all errors count again.
    """

    def __init__(self, grace_s: float, notify: Callable[[], None]) -> None:
        """Call `notify` when `needs_another_item` may have changed."""
        self._grace_s = grace_s
        self._notify = notify
        self.answer_seen = False
        """Whether the run has had an answer. Before that, an error more likely is a mistake in the settings."""

        self._newest_answered = -math.inf
        """The latest start of a call that was answered."""

        self._number = 0
        self._began_at = math.inf
        self._next_probe_at = math.inf
        self._interval_s = _FIRST_INTERVAL_S
        self._grace_spent = False
        self._announced = False
        """Whether the outage was logged. One that ends before the first probe was a single failing item."""

        self._changed = anyio.Event()
        self._held: deque[int] = deque()
        self._probes: dict[int, int] = {}

    @property
    def held(self) -> tuple[int, ...]:
        """The indexes of the items that wait for the backend."""
        return tuple(self._held)

    @property
    def needs_another_item(self) -> bool:
        """Whether the only held item was tried often enough, so that a new item should be."""
        return len(self._held) == 1 and self._probes.get(self._held[0], 0) >= _PROBES_OF_ONE_ITEM

    def answered(self, started_at: float) -> None:
        """Note an answer to a call that started at this time."""
        self.answer_seen = True
        self._grace_spent = False
        self._newest_answered = max(self._newest_answered, started_at)
        if started_at >= self._began_at:
            if self._announced:
                lasted_s = round(anyio.current_time() - self._began_at, 1)
                log.warning("outage_over", lasted_s=lasted_s, held=len(self._held))
            self._end()

    async def wait(self, index: int, first_failed_at: float, *, answered: bool) -> bool:
        """
        Hold an item whose call failed transiently. Return whether to call again.

        `first_failed_at` is the time of the item's first failure, or `math.inf` if this is the first.
        `answered` says whether an earlier request of the same call was answered.
        """
        self.answer_seen |= answered
        if not self._grace_s or not self.answer_seen or self._grace_spent or self._newest_answered >= first_failed_at:
            return False
        self._begin()
        self._held.append(index)
        self._notify()
        try:
            return await self._wait_for_turn(index, self._number)
        finally:
            self._held.remove(index)

    def _begin(self) -> None:
        if self._began_at == math.inf:
            self._began_at = anyio.current_time()
            self._interval_s = _FIRST_INTERVAL_S
            self._next_probe_at = self._began_at + self._interval_s

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            log.warning("outage_began", grace_s=self._grace_s, held=len(self._held))

    def _end(self) -> None:
        self._number += 1
        self._announced = False
        self._began_at = self._next_probe_at = math.inf
        self._probes.clear()
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_for_turn(self, index: int, number: int) -> bool:
        while self._number == number:
            now, deadline = anyio.current_time(), self._began_at + self._grace_s
            if now >= deadline:
                log.warning("outage_grace_spent", grace_s=self._grace_s, held=len(self._held))
                self._grace_spent = True
                self._end()
            elif now >= self._next_probe_at and self._held[0] == index:
                self._announce()
                self._interval_s = min(2 * self._interval_s, _LONGEST_INTERVAL_S)
                self._next_probe_at = now + self._interval_s
                self._probes[index] = self._probes.get(index, 0) + 1
                return True
            else:
                with anyio.CancelScope(deadline=min(deadline, max(self._next_probe_at, now))):
                    await self._changed.wait()
        return not self._grace_spent


def has_answer(outcome: ItemOutcome[Any]) -> bool:
    """Return whether the backend answered a call of the item."""
    return outcome.status == "succeeded" or (outcome.result is not None and bool(outcome.result.slices))


def failed_transiently(outcome: ItemOutcome[Any]) -> bool:
    """Return whether another call may succeed, because the backend's transient errors ended this one."""
    if outcome.status == "errored":
        return _is_transient(outcome.error)
    result = outcome.result
    if outcome.status == "succeeded" or result is None or stopped_by_budget(result):
        return False
    return any(_is_transient(error) for error in _last_errors(result))


def _last_errors(result: SamplingResult[Any]) -> list[BaseException | None]:
    """Return the error of each subsample's last attempt."""
    last = {attempt.subsample: attempt for attempt in sorted(result.attempts, key=lambda attempt: attempt.attempt)}
    return [attempt.error for attempt in last.values() if attempt.outcome == "errored"]


def _is_transient(error: BaseException | None) -> bool:
    return isinstance(error, BackendError) and error.retryable
