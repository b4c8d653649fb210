"""
Concurrency and rate limits, independent of any backend.

`SlotPool` limits concurrency, `TokenBucket` limits a rate, and `AdaptiveLimit` finds the concurrency that a server
can handle. The last two are pure: they take the time as an argument and never wait.
"""

import math
from collections import deque
from collections.abc import Iterable
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Self

import anyio
import attrs
from anyio.lowlevel import EventLoopToken, RunVar, cancel_shielded_checkpoint, checkpoint_if_cancelled, current_token

from sampling._arguments import check_int, check_number
from sampling._event_loop import call_in_loop

__all__ = ["AdaptiveLimit", "HeldSlot", "LoopBinding", "SharedClock", "SlotPool", "TokenBucket"]


@attrs.define
class LoopBinding:
    """
    Remembers the event loop on which an object was last used.

    Two loops have unrelated clocks, and a task of one can't be woken from another.
    """

    _loop: EventLoopToken | None = None

    def has_changed(self) -> bool:
        """Return whether the running loop differs from the remembered one."""
        return self._loop != current_token()

    def rebind(self) -> None:
        """Remember the running loop."""
        self._loop = current_token()


class SharedClock:
    """
    One clock for several event loops, which may run in different threads.

    It is the clock of the first loop. The others are converted to it, because each event loop has its own zero.
    If a loop in virtual time has run ahead, a later loop restarts the clock.
    """

    def __init__(self) -> None:
        self._shift: RunVar[float] = RunVar("sampling_shared_clock")
        self._zero: float | None = None
        self._latest = -math.inf

    def now(self) -> float:
        """Return the time."""
        shift = self._shift.get(None)
        if shift is None:
            # A real clock that started with ours would show this now.
            passed = None if self._zero is None else monotonic() - self._zero
            if passed is None or self.has_run_ahead():
                self._zero = monotonic() - anyio.current_time()
                self._latest = -math.inf
                passed = anyio.current_time()
            shift = passed - anyio.current_time()
            self._shift.set(shift)
        time = anyio.current_time() + shift
        self._latest = max(self._latest, time)
        return time

    def has_run_ahead(self) -> bool:
        """Return whether a new event loop has to restart the clock."""
        is_new = self._shift.get(None) is None
        return is_new and (self._zero is None or self._latest > monotonic() - self._zero + _TOLERATED_LEAD_S)


_TOLERATED_LEAD_S = 0.1


@attrs.define(eq=False)
class _Waiter:
    """A request that waits for a slot, in any event loop."""

    holder: object
    loop: EventLoopToken = attrs.field(factory=current_token)
    granted: anyio.Event = attrs.field(factory=anyio.Event)
    has_slot: bool = False

    def wake(self) -> None:
        if self.loop == _loop_here():
            self.granted.set()
        else:
            call_in_loop(self.loop, self.granted.set)


def _loop_here() -> EventLoopToken | None:
    try:
        return current_token()
    except anyio.NoEventLoopError:
        return None


class SlotPool:
    """
    A resizable semaphore that serves waiters first come, first served.

    Hold a slot with `async with slots.hold():`. A waiter that is cancelled leaves the queue at once.
    A pool may be used by several threads with an event loop each.
    """

    def __init__(self, total: int) -> None:
        self._total = check_int("total", total, least=0)
        # Held only for a few steps that never wait, so it does not block an event loop.
        self._lock = Lock()
        self._holders: set[object] = set()
        self._waiters: deque[_Waiter] = deque()

    @property
    def total(self) -> int:
        """
        The number of slots.

        Lowering it below `in_use` does not interrupt current holders.
        """
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        with self._lock:
            self._total = check_int("total", total, least=0)
            granted = self._grant()
        _wake(granted)

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def hold(self) -> "HeldSlot":
        """Return an async context manager that holds one slot."""
        return HeldSlot(self)

    async def acquire(self, holder: object, *, first: bool = False) -> None:
        """Wait for a slot on behalf of `holder`, which must not hold one yet. `first` puts it before all others."""
        await checkpoint_if_cancelled()
        with self._lock:
            if holder in self._holders:
                raise RuntimeError("this holder has a slot already")
            waiter = None if len(self._holders) < self._total and not self._waiters else _Waiter(holder)
            if waiter is None:
                self._holders.add(holder)
            elif first:
                self._waiters.appendleft(waiter)
            else:
                self._waiters.append(waiter)
        if waiter is None:
            await self._let_others_run(holder)
        else:
            await self._wait(waiter)

    async def _let_others_run(self, holder: object) -> None:
        try:
            await cancel_shielded_checkpoint()
        except BaseException:
            self.release(holder)
            raise

    async def _wait(self, waiter: _Waiter) -> None:
        try:
            await waiter.granted.wait()
        except BaseException:
            with self._lock:
                if not waiter.has_slot:
                    self._waiters.remove(waiter)
            if waiter.has_slot:
                self.release(waiter.holder)
            raise

    def release(self, holder: object) -> None:
        """Release the slot of `holder` to the next waiter."""
        with self._lock:
            self._holders.remove(holder)
            granted = self._grant()
        _wake(granted)

    def _grant(self) -> list[_Waiter]:
        """Give the free slots to the first waiters, and return them. The lock must be held."""
        granted: list[_Waiter] = []
        while self._waiters and len(self._holders) < self._total:
            waiter = self._waiters.popleft()
            self._holders.add(waiter.holder)
            waiter.has_slot = True
            granted.append(waiter)
        return granted

    def __repr__(self) -> str:
        return f"SlotPool({self._total}) with {self.in_use} in use and {self.waiting} waiting"


def _wake(granted: Iterable[_Waiter]) -> None:
    for waiter in granted:
        waiter.wake()


@attrs.define(eq=False)
class HeldSlot:
    """
    A slot held for the length of an `async with`.

    Code inside may lend it while it waits for others: see `lendable`. Several tasks inside may do so at once.
    Then it is lent until the last of them goes on.
    """

    _slots: SlotPool
    _is_held: bool = False
    _is_closed: bool = False
    _lenders: int = 0
    """The number of tasks inside that wait for others."""

    _is_awaited: bool = False
    """Whether a task inside waits to get it back."""

    _lock: Lock = attrs.field(factory=Lock)
    """The tasks inside may run in several threads. It is taken before the lock of the pool, and never across a wait."""

    async def __aenter__(self) -> Self:
        await self._slots.acquire(self)
        self._is_held = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            # A thread that was abandoned may still wait for others.
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release(self)

    def lend(self) -> None:
        """Give up the slot for others to use."""
        with self._lock:
            self._lenders += 1
            self._release()

    def stop_lending(self) -> None:
        """Request the slot back, without waiting for it."""
        with self._lock:
            self._lenders -= 1

    async def take_back(self) -> None:
        """Wait for the slot, before all that have none yet, unless a task inside lends it or waits for it."""
        with self._lock:
            if self._is_held or self._is_closed or self._lenders or self._is_awaited:
                return
            self._is_awaited = True
        try:
            await self._slots.acquire(self, first=True)
            self._is_held = True
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        with self._lock:
            self._is_awaited = False
            # Another task inside may have begun to wait for others meanwhile.
            if self._lenders or self._is_closed:
                self._release()


class TokenBucket:
    """
    A rate limit with bursts of at most `burst` after a pause.

    It stores only the time at which everything taken so far is paid off at the rate,
    so there is nothing to refill, and rounding errors don't add up.
    More than `burst` may be taken at once. The excess delays later requests.
    """

    def __init__(self, per_s: float, *, burst: float = 1) -> None:
        self.per_s = check_number("per_s", per_s, above=0)
        self.burst = check_number("burst", burst, above=0)
        self._paid_at = -math.inf

    def ready_at(self, amount: float) -> float:
        """
        Return the time from which this amount may be taken.

        A past time means now.
        """
        ahead = self.burst - min(amount, self.burst)
        return self._paid_at - ahead / self.per_s

    def take(self, amount: float, now: float) -> None:
        """
        Take an amount.

        A negative amount gives back what was taken in excess.
        """
        self._paid_at = max(self._paid_at, now) + amount / self.per_s

    def __repr__(self) -> str:
        return f"TokenBucket({self.per_s:g}, burst={self.burst:g})"


class AdaptiveLimit:
    """
    Adapts the number of concurrent requests to what a server can handle.

    The limit rises while the server keeps up. It falls when the server refuses a request, when a request times out,
    and when requests start to wait in the server's queue. For streamed answers, that wait is the increase of the time
    to the first text over its baseline. For others, it is the increase of the time per token.
    The baseline is a minimum that is measured again, with a drained queue, every few dozen windows.

    A window is as many answers as there may be requests in flight, which is about one round trip. At its end:

    - If requests waited for more than `tolerated_wait` of their time, the limit falls slightly below the number that
      the server works on at once by Little's law, so that the queue drains.
    - If they waited for less than half of that, and the limit was reached, it rises a little with every answer of the
      next window: at once to the last known capacity, by 1 around it, and by growing steps beyond it.

    A refusal reveals the ceiling. The limit falls below the number still in flight, rises to the ceiling again
    and stays there. On average once in 64 answers, a request above the ceiling tests whether it still holds.
    If the only request in flight is refused, nothing is sent for the time that the server asked for,
    or else for 1 s, then 2 s, 4 s and so on.
    """

    _CUT = 0.9  # the share of the capacity to fall to
    _VICINITY = 1.25  # up to this multiple of the capacity, the limit rises by 1
    _GROWTH = 1.5  # the growth of the steps beyond that
    _FEWEST_ANSWERS = 4  # in a window: fewer are too noisy
    _ANSWERS_PER_TRIAL = 64  # of a ceiling, so that at most 1.6 % are refused in the long run
    _MOST_TRIALS_SAVED = 16  # after a loss of capacity, which may be back before 64 more answers have arrived
    _WINDOWS_PER_TRIAL = 6
    _WINDOWS_PER_BASELINE = 32
    _DRAIN = 0.6  # the share of the limit to fall to for a new baseline: it drains any tolerated queue
    _LONGEST_REQUESTED_PAUSE_S = 120.0  # that a server may ask for
    _LONGEST_BACKOFF_S = 16.0  # without a request of the server

    def __init__(self, *, initial: int = 8, least: int = 1, most: int = 1_000, tolerated_wait: float = 0.2) -> None:
        self.least = check_int("least", least, least=1)
        self.most = check_int("most", most, least=least)
        self.tolerated_wait = check_number("tolerated_wait", tolerated_wait, above=0)
        self._limit = self._target = float(min(check_int("initial", initial, least=least), most))
        self._in_flight = 0
        self._step = 1.0
        self._window = self._next_window()
        self._valid_from = -math.inf
        self._baselines: dict[str, float] = {}
        self._baseline_age = 0
        self._drained_from: float | None = None
        self._capacity = 0.0
        self._ceiling = math.inf
        self._windows_at_ceiling = 0
        self._trials = 1.0
        self._next_pause_s = 1.0
        self.paused_until = -math.inf
        """The time until which nothing may be sent, after the only request in flight was refused."""

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._limit)

    def sent(self) -> None:
        """Record that a request is sent."""
        self._in_flight += 1
        self._window.reached |= self._in_flight >= self.limit

    def answered(self, *, sent_at: float, now: float, first_at: float | None = None, tokens: int = 0) -> None:
        """
        Record a complete answer.

        Args:
            sent_at: When its request was sent.

            now: The current time.

            first_at: When its first text arrived, if known.

            tokens: Its length, or 0 if unknown.
        """
        self._in_flight -= 1
        self._next_pause_s = 1.0
        # Answers earn trials of the ceiling, and only some of them can be saved up.
        self._trials = min(self._trials + 1 / self._ANSWERS_PER_TRIAL, self._MOST_TRIALS_SAVED)
        if sent_at < self._valid_from or now <= sent_at:
            return  # sent under a higher limit, so its times say nothing about the current one
        window = self._window
        window.add(now - sent_at, None if first_at is None else first_at - sent_at, tokens)
        # In small steps, so that waiting requests are not sent all at once.
        self._limit = min(self._limit + window.rise, self._target)
        if window.answers >= window.size:
            self._limit = self._target
            self._adjust(window, now)
            self._window = self._next_window()

    def refused(self, *, now: float, retry_after_s: float | None = None) -> None:
        """Record that the server refused a request or timed out."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._pause(now, retry_after_s)
        # A refusal of the only request does not show how many the server can handle.
        self._ceiling = self._in_flight or math.inf
        self._windows_at_ceiling = 0
        if self._in_flight * self._CUT < self._limit:
            self._fall_to(self._in_flight, now)
            self._window = self._next_window()

    def _pause(self, now: float, asked_s: float | None) -> None:
        if asked_s is not None and asked_s >= 0:
            pause_s = min(asked_s, self._LONGEST_REQUESTED_PAUSE_S)
        else:
            pause_s = self._next_pause_s
            self._next_pause_s = min(2 * pause_s, self._LONGEST_BACKOFF_S)
        self.paused_until = max(self.paused_until, now + pause_s)

    def abandoned(self) -> None:
        """Record a request that was cancelled or failed for a reason of its own."""
        self._in_flight -= 1

    def restart_clock(self) -> None:
        """Forget all times, because another event loop has another clock."""
        self._valid_from = self.paused_until = -math.inf

    def _adjust(self, window: "_Window", now: float) -> None:
        """Adjust the limit after a window."""
        signal, scale = window.signal()
        if self._limit <= self.least or signal < self._baselines.get(window.kind, math.inf):
            self._set_baseline(window.kind, signal)
        waiting = (signal - self._baselines[window.kind]) / scale
        self._baseline_age += 1
        if waiting > self.tolerated_wait:
            self._fall_to(self._limit * (1 - waiting), now)
        elif self._drained_from is not None:  # the queue is drained: measure the baseline and return to the old limit
            self._set_baseline(window.kind, signal)
            self._limit = self._target = self._drained_from
            self._drained_from = None
        elif self._baseline_age > self._WINDOWS_PER_BASELINE:  # the baseline is old: drain the queue first
            drained_from = self._limit
            self._cut_to(self._limit * self._DRAIN, now)
            self._drained_from = drained_from
        elif window.reached and waiting < self.tolerated_wait / 2:  # a limit that was not reached says nothing
            self._raise()
        else:
            self._step = 1.0

    def _set_baseline(self, kind: str, signal: float) -> None:
        self._baselines[kind] = signal
        self._baseline_age = 0

    def _fall_to(self, capacity: float, now: float) -> None:
        self._capacity = capacity
        self._cut_to(capacity * self._CUT, now)

    def _cut_to(self, limit: float, now: float) -> None:
        self._limit = self._target = max(limit, self.least)
        self._step = 1.0
        self._drained_from = None
        # Requests sent before now ran under the old limit, so `answered` ignores their times.
        self._valid_from = now

    def _raise(self) -> None:
        if self._limit >= self._ceiling:
            self._windows_at_ceiling += 1
            if self._windows_at_ceiling < self._WINDOWS_PER_TRIAL or self._trials < 1:
                return
            self._trials -= 1
            self._ceiling = math.inf
            self._step = 1.0
        # At once to the last known capacity, and slowly from there on.
        self._target = min(max(self._limit + self._step, self._capacity), self.most, max(self._ceiling, self.least))
        if self._limit > self._capacity * self._VICINITY:
            self._step = max(self._step + 1, self._GROWTH * self._step)

    def _next_window(self) -> "_Window":
        size = max(self.limit, self._FEWEST_ANSWERS)
        return _Window(size, rise=(self._target - self._limit) / size)

    def __repr__(self) -> str:
        return f"AdaptiveLimit(least={self.least}, most={self.most}) at {self.limit} with {self._in_flight} in flight"


@attrs.define
class _Window:
    """The measurements of one window of answers."""

    size: int
    rise: float
    """The increase of the limit per answer."""

    answers: int = 0
    reached: bool = False
    latency_s: float = 0.0
    first_s: float | None = 0.0
    tokens: int | None = 0

    def add(self, latency_s: float, first_s: float | None, tokens: int) -> None:
        self.answers += 1
        self.latency_s += latency_s
        self.first_s = None if self.first_s is None or first_s is None else self.first_s + first_s
        self.tokens = None if self.tokens is None or not tokens else self.tokens + tokens

    @property
    def kind(self) -> str:
        """The time that shows queueing: to the first text if known, else per token, else per answer."""
        if self.first_s is not None:
            return "first text"
        return "answer" if self.tokens is None else "token"

    def signal(self) -> tuple[float, float]:
        """Return the mean time that grows with queueing, and the mean time to compare it with."""
        if self.first_s is not None:
            return self.first_s / self.answers, self.latency_s / self.answers
        pace = self.latency_s / (self.answers if self.tokens is None else self.tokens)
        return pace, pace
