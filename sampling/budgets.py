"""Limits on the spending of calls."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from sampling._arguments import check_int, check_number, short_repr
from sampling._event_loop import Wakeup
from sampling._event_loop.lending import lent
from sampling._text import estimate_tokens
from sampling.errors import BudgetExceeded, UnknownPrice
from sampling.usage import NO_USAGE, Price, Usage

__all__ = ["Budget", "Reservation"]


@attrs.frozen
class Reservation:
    """A part of a budget, held for a request in flight."""

    attempts: int
    requests: int
    tokens: int
    cost: float


_NOTHING = Reservation(0, 0, 0, 0.0)


class Budget:
    """
    A limit on attempts, requests, tokens, cost and time, for one call or shared by many.

    Every request (attempt, repair or judge) reserves room before it is sent and is settled after it ended,
    also when it was cancelled. Its usage is not known in advance, so the reservation is an estimate:
    the prompt at four characters per token, plus `max_tokens` if set, else the largest answer of this budget so far.
    A request is sent only if its estimate fits beside everything spent and reserved.
    If only reservations are in the way, it waits until the requests in flight are settled, first come, first served.
    Further requests of attempts in flight come before all others, because the others wait for those attempts.
    A call ends only if the limit is spent.
    A limit can be exceeded only by what the requests in flight use beyond their estimates.
    If a backend reports no usage, the estimate is charged.

    A limit on the cost needs a backend that reports one, else the call raises `UnknownPrice`: see `Priced`.

    The clock of `deadline_s` starts at the first use of the budget.
    """

    def __init__(
        self,
        *,
        attempts: int | None = None,
        requests: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.attempts: int | None = None if attempts is None else check_int("attempts", attempts, least=0)
        self.requests: int | None = None if requests is None else check_int("requests", requests, least=0)
        self.tokens: int | None = None if tokens is None else check_int("tokens", tokens, least=0)
        self.cost: float | None = None if cost is None else check_number("cost", cost, least=0)
        self.deadline_s: float | None = None if deadline_s is None else check_number("deadline_s", deadline_s, above=0)
        self._spent = Reservation(0, 0, 0, 0.0)
        self._reserved = Reservation(0, 0, 0, 0.0)
        self._usage = Usage()
        self._largest_answer = 0
        self._largest_cost = 0.0
        self._price_of: Callable[[str | None], Price] | None = None
        self._is_unpriced = False
        self._first_used_s: float | None = None
        self._deadline: tuple[object, float] | None = None
        self._outstanding: dict[int, Reservation] = {}
        """The reservations of requests in this process, by their `id`."""

        self._waiting: deque[_Waiter] = deque()
        self._holders: deque[_Waiter] = deque()
        """Those that wait and hold reservations themselves, or are inside of attempts that do."""

        # Calls in several threads may share a budget. The lock is never held across an await.
        self._lock = threading.Lock()

    @property
    def spent(self) -> Usage:
        """The usage that backends reported for settled requests."""
        return self._usage

    @property
    def attempts_made(self) -> int:
        """The number of attempts that were started."""
        return self._spent.attempts + self._reserved.attempts

    @property
    def requests_made(self) -> int:
        """The number of requests that were sent, including judges."""
        return self._spent.requests + self._reserved.requests

    @property
    def tokens_charged(self) -> int:
        """The tokens of settled requests: as reported, else as estimated."""
        return self._spent.tokens

    @property
    def charged(self) -> Reservation:
        """The totals of settled requests: as reported, else as estimated."""
        return self._spent

    @property
    def reserved(self) -> Reservation:
        """The totals held for requests in flight."""
        return self._reserved

    def check_prices(self, backend: object) -> None:
        """Raise `UnknownPrice` if this budget limits the cost, and a backend is known to report none."""
        reports_cost: bool | None = getattr(backend, "reports_cost", None)
        if self.cost is not None and (reports_cost is False or (self._is_unpriced and reports_cost is None)):
            raise UnknownPrice(f"budget of {self.cost:g} cost: the backend {short_repr(backend)} reports no cost")

    def check_cost(self, backend: object, used: Usage | None) -> None:
        """Raise `UnknownPrice` for an answer without a cost, if this budget has seen no other."""
        # A usage of zero is a cached answer. None means that the backend reported nothing at all.
        if self.cost is None or self._usage.cost or (used is not None and not used.total_tokens):
            return
        if not getattr(backend, "reports_cost", None):
            self._is_unpriced = True
            raise UnknownPrice(f"budget of {self.cost:g} cost: an answer of {short_repr(backend)} has no cost")

    def deadline(self, clock: object, now: float) -> float:
        """
        Return the deadline on the clock of an event loop.

        `clock` identifies the loop, `now` is its time.
        """
        if self.deadline_s is None:
            return math.inf
        with self._lock:
            if self._first_used_s is None:
                self._first_used_s = time.monotonic()
                self._deadline = (clock, now + self.deadline_s)
            if self._deadline is None or self._deadline[0] != clock:
                # Each event loop has its own zero (trio's is random), so convert through the age of the budget.
                age_s = time.monotonic() - self._first_used_s
                self._deadline = (clock, now + self.deadline_s - age_s)
            return self._deadline[1]

    @property
    def limits_spending(self) -> bool:
        """True if anything but time is limited."""
        return any(limit is not None for limit in (self.attempts, self.requests, self.tokens, self.cost))

    def reserve(
        self, *, attempts: int = 0, prompt_chars: int = 0, max_tokens: int | None = None, model: str | None = None
    ) -> Reservation:
        """Reserve room for one request, or raise `BudgetExceeded` if there is none now."""
        with self._lock:
            return self._reserve(self._estimate(_Asked(attempts, prompt_chars, max_tokens, model)))

    async def acquire(
        self,
        *,
        attempts: int = 0,
        prompt_chars: int = 0,
        max_tokens: int | None = None,
        model: str | None = None,
        holding: Iterable[Reservation] = (),
        used: Usage = NO_USAGE,
        held: Reservation = _NOTHING,
    ) -> Reservation:
        """
        Reserve room for one request, waiting for the reservations of others if necessary.

        `holding` are the reservations of the calls around this call, which are settled only after it.
        For a further request of an attempt, `used` is the usage of its earlier requests, and `held` is what it already
        holds. Only the difference is reserved.
        Raise `BudgetExceeded` if the limit is spent, or if waiting could never end.
        """
        with self._lock:
            asked = _Asked(attempts, prompt_chars, max_tokens, model, used, held)
            wanted = self._estimate(asked)
            if not self._waiting and not self._holders and self._lacking(wanted, self._reserved) is None:
                return self._reserve(wanted)
            waiter = _Waiter(asked, frozenset(map(id, holding)) & self._outstanding.keys())
            self._queue_of(waiter).append(waiter)
            self._serve()
        try:
            if not waiter.is_decided:
                # The others may need what this task holds before they can return their reservations.
                async with lent():
                    await waiter.wakeup.wait()
        except BaseException:
            self._leave_queue(waiter)
            raise
        if waiter.granted is None:
            raise BudgetExceeded(waiter.refusal)
        return waiter.granted

    def _leave_queue(self, waiter: "_Waiter") -> None:
        """Forget a waiter that was cancelled, and give back what it was granted in the meantime."""
        with self._lock:
            if waiter.granted is not None:
                self._unreserve(waiter.granted)
            elif waiter in self._queue_of(waiter):
                self._queue_of(waiter).remove(waiter)
            self._serve()

    def _queue_of(self, waiter: "_Waiter") -> "deque[_Waiter]":
        return self._holders if waiter.holding else self._waiting

    def _serve(self) -> None:
        """Grant or refuse waiting reservations, as far as that can be decided now."""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Grant or refuse one reservation if that can be decided now."""
        for waiter in self._holders:
            if self._decide(waiter):
                return True
        if self._holders:
            # Each waits for what the others hold. The first gives up, and returns what it holds.
            return self._is_stuck() and self._decide(self._holders[0], refuse=True)
        # Later ones wait, too, even if they would fit: otherwise a large request might wait forever.
        return bool(self._waiting) and self._decide(self._waiting[0])

    def _decide(self, waiter: "_Waiter", *, refuse: bool = False) -> bool:
        """Grant what fits, and refuse what never will: what is spent, and what the waiter holds itself, stays."""
        wanted = self._estimate(waiter.asked)
        lacking = self._lacking(wanted, self._reserved)
        if lacking is None:
            waiter.granted = self._reserve(wanted)
        elif refuse or self._lacking(wanted, self._held_by(waiter)) is not None:
            waiter.refusal = lacking
        else:
            return False
        self._queue_of(waiter).remove(waiter)
        waiter.wakeup.set()
        return True

    def _held_by(self, waiter: "_Waiter") -> Reservation:
        total = _NOTHING
        for one in waiter.holding & self._outstanding.keys():
            total = _add(total, self._outstanding[one], 1)
        return total

    def _is_stuck(self) -> bool:
        """Return whether every reservation belongs to a call that is waiting itself."""
        if self._reserved.requests > len(self._outstanding):
            # Another process holds the rest, and will return it.
            return False
        return self._outstanding.keys() <= frozenset[int]().union(*[waiter.holding for waiter in self._holders])

    def _estimate(self, asked: "_Asked") -> Reservation:
        used, held = asked.used, asked.held
        # Earlier requests of the attempt are not settled yet. Of several only the mean is known.
        earlier = max(held.requests, 1)
        answer_tokens = asked.max_tokens
        if answer_tokens is None:
            answer_tokens = max(self._largest_answer, math.ceil(used.output_tokens / earlier))
        tokens = estimate_tokens(asked.prompt_chars) + answer_tokens
        # At least one token: otherwise an empty prompt would fit into a used-up budget.
        tokens = max(tokens, 1) + used.total_tokens - held.tokens
        cost = max(self._largest_cost, used.cost / earlier)
        if self._price_of is not None:
            expected = Usage(estimate_tokens(asked.prompt_chars), answer_tokens)
            cost = max(cost, self._price_of(asked.model).of(expected))
        cost += used.cost - held.cost
        return Reservation(asked.attempts, 1, max(tokens, 0), max(cost, 0.0))

    def expect_prices(self, price_of: Callable[[str | None], Price]) -> None:
        """
        Estimate the cost of a request by the price of its model from now on, not only by the requests before it.

        For requests that are sent many at a time, such as those of a batch: their reservations must be right
        before the first of them is settled.
        """
        with self._lock:
            self._price_of = price_of

    def hold(self, wanted: Reservation) -> None:
        """
        Reserve room for a call in another process.

        Raise `BudgetExceeded` if there is not enough.
        """
        with self._lock:
            self._reserve(wanted)
            del self._outstanding[id(wanted)]

    def _reserve(self, wanted: Reservation) -> Reservation:
        lacking = self._lacking(wanted, self._reserved)
        if lacking is not None:
            raise BudgetExceeded(lacking)
        self._reserved = _add(self._reserved, wanted, 1)
        self._outstanding[id(wanted)] = wanted
        return wanted

    def _unreserve(self, reservation: Reservation) -> None:
        self._reserved = _add(self._reserved, reservation, -1)
        self._outstanding.pop(id(reservation), None)
        if not self._outstanding and not self._reserved.requests:
            # Rounding may leave a tiny rest of the cost, for which nobody must wait.
            self._reserved = _NOTHING

    def settle_held(self, held: Reservation, spent: Reservation, usage: Usage) -> None:
        """
        Replace the reservation of a call in another process by its spending.

        `spent` is charged, and `usage` is what its backend reported.
        """
        with self._lock:
            self._unreserve(held)
            self._charge(spent, usage)

    def _lacking(self, wanted: Reservation, held: Reservation) -> str | None:
        """Describe the limit without room for a request beside what is spent and held, or return None."""
        spent = self._spent
        # A started attempt counts, whatever its outcome.
        started = self._reserved.attempts
        return (
            _lacking("attempts", self.attempts, spent.attempts, started, wanted.attempts)
            or _lacking("requests", self.requests, spent.requests, held.requests, wanted.requests)
            or _lacking("tokens", self.tokens, spent.tokens, held.tokens, wanted.tokens)
            or _lacking("cost", self.cost, spent.cost, held.cost, wanted.cost)
        )

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        """
        Replace a reservation by the actual usage.

        None means unknown, and charges the estimate.
        """
        with self._lock:
            self._unreserve(reservation)
            if usage is None:
                self._charge(reservation, Usage())
            else:
                self._charge(attrs.evolve(reservation, tokens=usage.total_tokens, cost=usage.cost), usage)

    def charge(self, usage: Usage, *, attempts: int = 0, requests: int = 0, estimated_tokens: int = 0) -> None:
        """
        Add spending without checking the limits.

        For spending by another process, or by this run before a resume. `estimated_tokens` are those of requests whose
        usage was not reported. Their cost is estimated by the mean price of the reported tokens.
        """
        with self._lock:
            tokens = usage.total_tokens + estimated_tokens
            cost = usage.cost * tokens / usage.total_tokens if usage.total_tokens else usage.cost
            self._charge(Reservation(attempts, requests, tokens, cost), usage)

    def _charge(self, spent: Reservation, usage: Usage) -> None:
        self._spent = _add(self._spent, spent, 1)
        self._usage += usage
        # Of several requests only the mean is known, and the largest one had at least that.
        requests = max(spent.requests, 1)
        self._largest_answer = max(self._largest_answer, math.ceil(usage.output_tokens / requests))
        self._largest_cost = max(self._largest_cost, usage.cost / requests)
        self._serve()

    def count_request(self) -> None:
        """Count a further request of a reserved attempt, such as a retry."""
        with self._lock:
            lacking = _lacking("requests", self.requests, self._spent.requests, self._reserved.requests, 1)
            if lacking is not None:
                raise BudgetExceeded(lacking)
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests + 1)

    def settle_requests(self, reservation: Reservation) -> None:
        """
        Return the reservation of a further request of an attempt, and count the request.

        Its usage is settled with the attempt.
        """
        with self._lock:
            self._unreserve(reservation)
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests + reservation.requests)
            self._serve()

    def release(self, reservation: Reservation) -> None:
        """
        Return a reservation whose request was never sent.

        A started attempt still counts.
        """
        with self._lock:
            self._unreserve(reservation)
            self._spent = attrs.evolve(self._spent, attempts=self._spent.attempts + reservation.attempts)
            self._serve()

    def withdraw(self, reservation: Reservation) -> None:
        """Return a reservation whose attempt never started."""
        with self._lock:
            self._unreserve(reservation)
            self._serve()

    def __repr__(self) -> str:
        limits = ("attempts", "requests", "tokens", "cost", "deadline_s")
        given = [f"{name}={value!r}" for name in limits if (value := getattr(self, name)) is not None]
        return f"Budget({', '.join(given)}) with {self.requests_made} requests and {self.tokens_charged} tokens used"


def _add(left: Reservation, right: Reservation, sign: int) -> Reservation:
    return Reservation(
        left.attempts + sign * right.attempts,
        left.requests + sign * right.requests,
        left.tokens + sign * right.tokens,
        # Rounding may leave a tiny negative rest.
        max(0.0, left.cost + sign * right.cost),
    )


def _lacking(name: str, limit: float | None, spent: float, reserved: float, wanted: float) -> str | None:
    # A further request of an attempt may need no more than is held for it.
    if limit is None or not wanted or spent + reserved + wanted <= limit:
        return None
    return f"budget of {limit:g} {name}: {spent:g} spent, {reserved:g} reserved, {wanted:g} more needed"


@attrs.frozen
class _Asked:
    """A request that room is reserved for."""

    attempts: int
    prompt_chars: int
    max_tokens: int | None
    model: str | None = None
    used: Usage = NO_USAGE
    held: Reservation = _NOTHING


@attrs.define(eq=False)
class _Waiter:
    """A request that waits for room."""

    asked: _Asked
    holding: frozenset[int]
    wakeup: Wakeup = attrs.field(factory=Wakeup)
    granted: Reservation | None = None
    refusal: str = ""

    @property
    def is_decided(self) -> bool:
        """True if it was granted or refused."""
        return self.granted is not None or bool(self.refusal)
