"""Wait out an outage of the backend instead of recording its errors."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from sampling._log import Logger
from sampling._text import quoted
from sampling.errors import BackendError, ConnectFailed, RateLimited, WorkerLost
from sampling.fanout.items import ItemOutcome, cut_off_by
from sampling.fanout.journal._pauses import Pause, PauseEnd
from sampling.results import Slice

__all__ = ["Outage", "has_answer", "is_cached", "is_judged", "transient_error"]

log = Logger()

_FIRST_INTERVAL_S: Final = 1.0
_LONGEST_INTERVAL_S: Final = 60.0
_PROBES_OF_ONE_ITEM: Final = 2
"""The number of probes with the same item after which another one is tried: the item itself may be the cause."""

_ABOUT_SERVER: Final = (ConnectFailed, RateLimited)
"""Errors that can't be the item's own."""

_OVERLOADED: Final = frozenset({503, 529})
"""The statuses of a server that refuses a part of the requests because of its load, whatever they ask."""

_MAX_ERROR_CHARS: Final = 200
_LAST_ITEM_GRACE_S: Final = 60.0
"""The grace of a run's last item. There is no other item to compare with, and the item itself may be the cause."""


class Outage:
    """
    Holds items whose calls failed transiently until the backend answers again.

    It begins when an item fails after the run has had an answer.
    Held items keep their slots, so the run pauses by itself once every call fails.
    One held item at a time calls again, at growing intervals. The answer to a call that started later releases all.
    An item that fails again although others were answered in between is the cause itself, and its error counts. If the
    error is about the server, as in a storm that refuses some requests, it counts `grace_s` after the first.
    An error of a judge is one of the backend, too. Then only an answer that was judged shows that the outage is over.
    After `grace_s` without an answer, there is a last probe, because the outage may have ended since the one before it.
    If it fails as well, or hangs, all errors count again. For an item that is the only one left, the grace is a minute,
    unless the error is about the server and not about the item.
    """

    def __init__(
        self,
        grace_s: float,
        notify: Callable[[], None],
        is_last: Callable[[], bool] = lambda: False,
        record: Callable[[Pause], None] = lambda _: None,
        latest: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """
        Call `notify` when an item is held, and when `needs_another_item` may have changed. It may cancel held items.

        `is_last` returns whether all other items have ended, and no more will come.
        `record` is called when a pause begins, and again when it is over.
        `latest` returns the time at which the budget ends the run. No item waits longer. Call `wake` when it changes.
        """
        self._grace_s = grace_s
        self._notify = notify
        self._is_last = is_last
        self._record = record
        self._latest = latest
        self.answer_seen = False
        """Whether the run has had an answer. Before that, an error is more likely a mistake in the settings."""

        self._newest_answered = -math.inf
        """The latest start of a call that was answered."""

        self._newest_judged = -math.inf
        """The latest start of a call whose answer was judged, if there are judges."""

        self._of_judge = False
        self._number = 0
        self._began_at = math.inf
        self._next_probe_at = math.inf
        self._probed_at = -math.inf
        """The time of the latest probe."""

        self._interval_s = _FIRST_INTERVAL_S
        self._grace_spent = False
        self._began_s = 0.0
        self._pause: Pause | None = None
        """The pause, once it was logged. One that ends before the first probe was a single failing item."""

        self._changed = anyio.Event()
        self._held: deque[int] = deque()
        self._probes: dict[int, int] = {}

    @property
    def held(self) -> tuple[int, ...]:
        """The indexes of the items that wait for the backend."""
        return tuple(self._held)

    @property
    def needs_another_item(self) -> bool:
        """True if the only held item was tried often enough, so that another one should be tried."""
        return len(self._held) == 1 and self._probes.get(self._held[0], 0) >= _PROBES_OF_ONE_ITEM

    def answered(self, started_at: float, *, judged: bool = True, cached: bool = False) -> None:
        """
        Record an answer to a call that started at this time.

        `judged` is whether the judges, if any, answered as well. An answer that was `cached` shows nothing about now.
        """
        self.answer_seen = True
        if cached:
            return
        self._grace_spent = False
        self._newest_answered = max(self._newest_answered, started_at)
        if judged:
            self._newest_judged = max(self._newest_judged, started_at)
        if started_at >= self._began_at and (judged or not self._of_judge):
            if self._pause is not None:
                lasted_s = round(anyio.current_time() - self._began_at, 1)
                log.warning("outage_over", lasted_s=lasted_s, held=len(self._held))
            self._end("answered")

    async def wait(self, outcome: ItemOutcome[Any], started_at: float, first_failed_at: float) -> bool:
        """
        Hold an item whose call failed transiently. Return whether to call again.

        `started_at` is when that call started, and `first_failed_at` is the time of the item's first failure, or
        `math.inf` if this is the first.
        """
        index, error = outcome.index, transient_error(outcome)
        self.answer_seen |= has_answer(outcome)
        of_judge = _is_of_judge(outcome, error)
        if not self._grace_s or not self.answer_seen:
            return False
        self._check_grace(index, started_at, error)
        if self._grace_spent or self._is_its_own(error, started_at, first_failed_at, of_judge=of_judge):
            return False
        self._begin()
        self._postpone_probe(error)
        self._of_judge |= of_judge
        self._held.append(index)
        try:
            self._notify()
            await checkpoint_if_cancelled()
            return await self._wait_for_turn(index, self._number, error)
        finally:
            self._held.remove(index)

    def _check_grace(self, index: int, started_at: float, error: BaseException | None) -> None:
        """Let errors count again if a call that started at this time, and was not answered, was the last probe."""
        grace_s = self._grace(error)
        if started_at >= self._began_at + grace_s:
            log.warning("outage_grace_spent", grace_s=grace_s, held=len({index, *self._held}))
            self._grace_spent = True
            self._end("grace spent")

    def _is_its_own(
        self, error: BaseException | None, started_at: float, first_failed_at: float, *, of_judge: bool
    ) -> bool:
        """Return whether an item fails by itself: it failed before, and others were answered in between."""
        if _is_about_server(error):
            # In a storm that refuses some requests, the same item may be refused again and again.
            return started_at - first_failed_at >= self._grace_s
        return (self._newest_judged if of_judge else self._newest_answered) >= first_failed_at

    def _begin(self) -> None:
        if self._began_at == math.inf:
            self._began_at = anyio.current_time()
            self._began_s = time.time()
            self._interval_s = _FIRST_INTERVAL_S
            self._next_probe_at = self._began_at + self._interval_s

    def _postpone_probe(self, error: BaseException | None) -> None:
        """Wait as long as the server asked for, within the longest interval."""
        retry_after_s: object = getattr(error, "retry_after_s", None)
        # An error of the user's own may have anything there.
        if isinstance(retry_after_s, int | float):
            wanted = anyio.current_time() + min(retry_after_s, _LONGEST_INTERVAL_S)
            self._next_probe_at = max(self._next_probe_at, wanted)

    def _announce(self, grace_s: float, error: BaseException | None) -> None:
        if self._pause is None:
            fields = {"error_type": type(error).__name__, "error": quoted(str(error), _MAX_ERROR_CHARS)}
            log.warning("outage_began", grace_s=grace_s, held=len(self._held), **fields)
            # Only the type: the message may contain prompts or keys.
            self._pause = Pause(self._number, self._began_s, type(error).__name__, len(self._held))
            self._record(self._pause)

    def _grace(self, error: BaseException | None) -> float:
        """Return the time to wait for an answer after this error."""
        if self._is_last() and not _is_about_server(error):
            return min(self._grace_s, _LAST_ITEM_GRACE_S)
        return self._grace_s

    def _end(self, ending: PauseEnd) -> None:
        if self._pause is not None:
            self._record(self._pause.end(time.time(), ending))
        self._pause = None
        self._of_judge = False
        self._number += 1
        self._began_at = self._next_probe_at = math.inf
        self._probes.clear()
        self.wake()

    def wake(self) -> None:
        """Let held items look again at the state of the run."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_for_turn(self, index: int, number: int, error: BaseException | None) -> bool:
        while self._number == number:
            now, latest = anyio.current_time(), self._latest()
            if now >= latest:
                # The call ends at once, because its time is over, or is not made at all.
                return True
            if now >= self._next_probe_at and self._held[0] == index:
                # The last probe may hang.
                self._check_grace(index, self._probed_at, error)
                if self._number == number:
                    self._begin_probe(index, error)
                return not self._grace_spent
            with anyio.CancelScope(deadline=min(latest, max(self._next_probe_at, now))):
                await self._changed.wait()
        return not self._grace_spent

    def _begin_probe(self, index: int, error: BaseException | None) -> None:
        now, grace_s = anyio.current_time(), self._grace(error)
        self._announce(grace_s, error)
        self._probed_at, ends_at = now, self._began_at + grace_s
        self._interval_s = min(2 * self._interval_s, _LONGEST_INTERVAL_S)
        # The last probe is at the end of the grace, and not up to a minute later. It has a minute to be answered.
        self._next_probe_at = min(now + self._interval_s, ends_at) if now < ends_at else now + _LONGEST_INTERVAL_S
        self._probes[index] = self._probes.get(index, 0) + 1


def has_answer(outcome: ItemOutcome[Any]) -> bool:
    """Return whether the backend answered a call of the item, and its judges did not fail."""
    if outcome.status == "succeeded":
        return True
    return outcome.result is not None and any(_transient_error_of(one) is None for one in outcome.result.slices)


def is_cached(outcome: ItemOutcome[Any]) -> bool:
    """Return whether all answers of the item came from a cache, and none from the backend."""
    return outcome.result is not None and all(attempt.from_cache for attempt in outcome.result.slices)


def is_judged(outcome: ItemOutcome[Any]) -> bool:
    """Return whether all judges, or one at least, gave a verdict on an answer of the item."""
    if outcome.status == "succeeded" or outcome.result is None:
        return outcome.status == "succeeded"
    verdicts = [one for attempt in outcome.result.slices for one in attempt.validations if one.error is None]
    return any(one.requirement is not None and one.requirement.judged for one in verdicts)


def transient_error(outcome: ItemOutcome[Any]) -> BaseException | None:
    """Return the transient error of the backend or a judge that ended the item's call, or None."""
    result = outcome.result
    if outcome.status == "errored":
        return outcome.error if _is_transient(outcome.error) else None
    if outcome.status == "succeeded" or result is None or cut_off_by(outcome) is not None:
        return None
    last = {attempt.subsample: attempt for attempt in sorted(result.attempts, key=lambda attempt: attempt.attempt)}
    return next(filter(None, map(_transient_error_of, last.values())), None)


def _transient_error_of(attempt: Slice[Any]) -> BaseException | None:
    """Return the transient error of an attempt, or of its judges if nothing else is wrong with its answer."""
    if attempt.outcome == "errored":
        return attempt.error if _is_transient(attempt.error) else None
    errors = [validation.error for validation in attempt.validations if not validation.passed]
    return errors[0] if errors and all(map(_is_transient, errors)) else None


def _is_of_judge(outcome: ItemOutcome[Any], error: BaseException | None) -> bool:
    slices = () if outcome.result is None else outcome.result.slices
    return any(validation.error is error for attempt in slices for validation in attempt.validations)


def _is_about_server(error: BaseException | None) -> bool:
    return isinstance(error, _ABOUT_SERVER) or (isinstance(error, BackendError) and error.status in _OVERLOADED)


def _is_transient(error: BaseException | None) -> bool:
    if isinstance(error, WorkerLost) and error.maybe_billed:
        # It ran twice already, and may have killed both workers.
        return False
    return isinstance(error, BackendError) and error.retryable
