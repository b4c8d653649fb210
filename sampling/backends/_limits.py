"""
Concurrency and rate limits, independent of any backend.

`SlotPool` is a waiting room, `TokenBucket` a rate, `AdaptiveLimit` finds out by itself how much a server can take.
The last two are pure: they are told the time and never wait.
"""

import math
from types import TracebackType

import anyio
import attrs
from anyio.lowlevel import EventLoopToken, current_token

from sampling._arguments import check_int, check_number
from sampling.errors import WrongThread

__all__ = ["AdaptiveLimit", "LoopBinding", "SlotPool", "TokenBucket"]


@attrs.define
class LoopBinding:
    """
    Remembers the event loop on which an object was last used.

    Clocks of two loops have nothing in common, and what waits in one can't be woken from another.
    """

    _loop: EventLoopToken | None = None

    def has_changed(self) -> bool:
        """Return whether the running loop differs from the remembered one."""
        return self._loop != current_token()

    def rebind(self) -> None:
        """Remember the running loop."""
        self._loop = current_token()


class SlotPool:
    """
    A resizable semaphore that serves waiters first come, first served.

    A place is held with `async with slots.hold():`; whoever is cancelled while waiting leaves the queue at once.
    SlotPool outlive event loops, but serve one at a time.
    """

    def __init__(self, total: int) -> None:
        self._total = check_int("total", total, least=0)
        self._limiter: anyio.CapacityLimiter | None = None
        self._loop = LoopBinding()
        self._entered = 0

    @property
    def total(self) -> int:
        """The number of slots. Lowering it below `in_use` does not interrupt current holders."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = check_int("total", total, least=0)
        if self._limiter is not None and self._entered:
            self._limiter.total_tokens = total
        else:
            # Idle, so there may be no event loop in which to change it: the next one who comes makes a new one.
            self._limiter = None

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return self._limiter.borrowed_tokens if self._limiter is not None and self._entered else 0

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return self._entered - self.in_use

    def hold(self) -> "HeldSlot":
        """Return an async context manager that holds one slot."""
        return HeldSlot(self)

    async def acquire(self, holder: object) -> None:
        """Wait for a slot on behalf of `holder`, which must not hold one yet."""
        limiter = self._limiter_here()
        self._entered += 1
        try:
            await limiter.acquire_on_behalf_of(holder)
        except BaseException:
            self._entered -= 1
            raise

    def release(self, holder: object) -> None:
        """Release the slot of `holder` to the next waiter."""
        self._entered -= 1
        self._limiter_here().release_on_behalf_of(holder)

    def _limiter_here(self) -> anyio.CapacityLimiter:
        if self._limiter is None or self._loop.has_changed():
            if self._entered:
                raise WrongThread(
                    f"these slots are in use by another event loop ({self._entered} hold or await one)",
                    hint="Give each event loop a limiter or a backend of its own.",
                )
            self._loop.rebind()
            self._limiter = anyio.CapacityLimiter(self._total)
        return self._limiter

    def __repr__(self) -> str:
        return f"SlotPool({self._total}) with {self.in_use} in use and {self.waiting} waiting"


@attrs.frozen(eq=False)
class HeldSlot:
    """A slot held for the length of an `async with`."""

    _slots: SlotPool

    async def __aenter__(self) -> None:
        await self._slots.acquire(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slots.release(self)


class TokenBucket:
    """
    A rate limit with bursts of at most `burst` after a pause.

    All it remembers is the instant at which everything taken so far has been paid for at that rate,
    so there is nothing to refill, and nothing adds up rounding errors.
    More than `burst` may be taken in one go; the rest is a debt that those who come later wait for.
    """

    def __init__(self, per_s: float, *, burst: float = 1) -> None:
        self.per_s = check_number("per_s", per_s, above=0)
        self.burst = check_number("burst", burst, above=0)
        self._paid_at = -math.inf

    def ready_at(self, amount: float) -> float:
        """Return the time from which this amount may be taken. A past time means now."""
        ahead = self.burst - min(amount, self.burst)
        return self._paid_at - ahead / self.per_s

    def take(self, amount: float, now: float) -> None:
        """Take an amount. A negative amount gives back what was taken in excess."""
        self._paid_at = max(self._paid_at, now) + amount / self.per_s

    def __repr__(self) -> str:
        return f"TokenBucket({self.per_s:g}, burst={self.burst:g})"


class AdaptiveLimit:
    """
    Adapts the number of concurrent requests to what a server can handle.

    It adds while all is well and cuts back when it is not: when the server refuses (or a request times out),
    and when requests begin to wait in the server's queue. Where answers are streamed, that wait is what the first
    piece of text comes later than it used to; else it is what a token takes longer than it used to.
    "Used to" is a minimum that moves slowly: it is measured anew, with the queue drained, every few dozen windows.

    A window is as many answers as there may be requests in flight: one round trip. At its end,

    - with more than `tolerated_wait` of the time spent waiting, the limit falls to what Little's law says
      the server works on at once, and a little below, so that the queue drains;
    - with less than half of that, and if it was reached, the limit rises a little with every answer of the next
      window: at once to where it had been well before, by 1 around there, and by ever more beyond.

    A refusal shows where the ceiling is. The limit falls below what is still in flight, rises to the ceiling again
    and stays there. Now and then it is tried whether the ceiling still holds: once for 64 answers on the average.
    When even a lone request is refused, nothing is sent for as long as the server asked,
    or for a second, then two, then four … if it did not say.
    """

    _CUT = 0.9  # how far below the capacity to fall
    _VICINITY = 1.25  # up to how far above it to feel the way
    _GROWTH = 1.5  # how much larger each step is beyond that
    _FEWEST_ANSWERS = 4  # in a window: fewer say too little
    _ANSWERS_PER_TRIAL = 64  # of a ceiling, so that no more than 1.6 % are refused in the long run
    _MOST_TRIALS_SAVED = 16  # for when capacity is lost: it may come back before 64 more answers do
    _WINDOWS_PER_TRIAL = 6
    _WINDOWS_PER_BASELINE = 32
    _DRAIN = 0.6  # how far to fall to measure it: any queue that is tolerated is gone then
    _LONGEST_PAUSE_S = 120.0
    _LONGEST_PAUSE_OF_OUR_OWN_S = 16.0

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
        """The time to send again after even a lone request was refused."""

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._limit)

    def sent(self) -> None:
        """Record that a request is sent."""
        self._in_flight += 1
        self._window.reached |= self._in_flight >= self.limit

    def answered(self, *, sent_at: float, now: float, first_at: float | None = None, tokens: int = 0) -> None:
        """Record a complete answer: when it was sent, when its first text arrived if known, and its length."""
        self._in_flight -= 1
        self._next_pause_s = 1.0
        self._trials = min(self._trials + 1 / self._ANSWERS_PER_TRIAL, self._MOST_TRIALS_SAVED)
        if sent_at < self._valid_from or now <= sent_at:
            return  # sent under a limit that has been cut since: what it saw is old news
        window = self._window
        window.add(now - sent_at, None if first_at is None else first_at - sent_at, tokens)
        # In small steps, so that waiting requests don't leave all at once.
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
        # What refuses a lone request says nothing of how much it could take if it took any.
        self._ceiling = self._in_flight or math.inf
        self._windows_at_ceiling = 0
        if self._in_flight * self._CUT < self._limit:
            self._fall_to(self._in_flight, now)
            self._window = self._next_window()

    def _pause(self, now: float, asked_s: float | None) -> None:
        if asked_s is not None and asked_s >= 0:
            pause_s = min(asked_s, self._LONGEST_PAUSE_S)
        else:
            pause_s = self._next_pause_s
            self._next_pause_s = min(2 * pause_s, self._LONGEST_PAUSE_OF_OUR_OWN_S)
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
        elif self._drained_from is not None:
            self._set_baseline(window.kind, signal)
            self._limit = self._target = self._drained_from
            self._drained_from = None
        elif self._baseline_age > self._WINDOWS_PER_BASELINE:
            drained_from = self._limit
            self._cut_to(self._limit * self._DRAIN, now)
            self._drained_from = drained_from
        elif window.reached and waiting < self.tolerated_wait / 2:
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
        self._valid_from = now

    def _raise(self) -> None:
        if self._limit >= self._ceiling:
            self._windows_at_ceiling += 1
            if self._windows_at_ceiling < self._WINDOWS_PER_TRIAL or self._trials < 1:
                return
            self._trials -= 1
            self._ceiling = math.inf
            self._step = 1.0
        # Up to where it was well before at once, and slowly from there on.
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
        """Return the time that grows with waiting, and the time that the waiting is a share of."""
        if self.first_s is not None:
            return self.first_s / self.answers, self.latency_s / self.answers
        pace = self.latency_s / (self.answers if self.tokens is None else self.tokens)
        return pace, pace
