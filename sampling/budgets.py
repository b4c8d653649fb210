"""Limits on the spending of calls."""

import math
import threading
import time

import attrs

from sampling._arguments import check_int, check_number
from sampling._text import estimate_tokens
from sampling.errors import BudgetExceeded
from sampling.usage import Usage

__all__ = ["Budget", "Reservation"]


@attrs.frozen
class Reservation:
    """A part of a budget, held for a request in flight."""

    attempts: int
    requests: int
    tokens: int
    cost: float


class Budget:
    """
    A limit on attempts, requests, tokens, cost and time, for one call or shared by many.

    Every request (attempt, repair or judge) reserves room before it is sent and is settled after it ended,
    also when it was cancelled. Its usage is not known in advance, so the reservation is an estimate:
    the prompt at four characters per token, plus `max_tokens` if set, else the largest answer of this budget so far.
    A request is sent only if its estimate fits beside everything spent and reserved.
    A limit can be exceeded only by what the requests in flight use beyond their estimates.
    If a backend reports no usage, the estimate is charged.

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
        self._first_used_s: float | None = None
        self._deadline: tuple[object, float] | None = None
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

    def reserve(self, *, attempts: int = 0, prompt_chars: int = 0, max_tokens: int | None = None) -> Reservation:
        """Reserve room for one request, or raise `BudgetExceeded`."""
        with self._lock:
            answer_tokens = self._largest_answer if max_tokens is None else max_tokens
            tokens = estimate_tokens(prompt_chars) + answer_tokens
            # At least one token: otherwise an empty prompt would fit into a used-up budget.
            wanted = Reservation(attempts, 1, max(tokens, 1), self._largest_cost)
            self._reserve(wanted)
            return wanted

    def hold(self, wanted: Reservation) -> None:
        """
        Reserve room for a call in another process.

        Raise `BudgetExceeded` if there is not enough.
        """
        with self._lock:
            self._reserve(wanted)

    def _reserve(self, wanted: Reservation) -> None:
        self._check_room("attempts", self.attempts, self._spent.attempts, self._reserved.attempts, wanted.attempts)
        self._check_room("requests", self.requests, self._spent.requests, self._reserved.requests, wanted.requests)
        self._check_room("tokens", self.tokens, self._spent.tokens, self._reserved.tokens, wanted.tokens)
        self._check_room("cost", self.cost, self._spent.cost, self._reserved.cost, wanted.cost)
        self._reserved = _add(self._reserved, wanted, 1)

    def settle_held(self, held: Reservation, spent: Reservation, usage: Usage) -> None:
        """
        Replace the reservation of a call in another process by its spending.

        `spent` is charged, and `usage` is what its backend reported.
        """
        with self._lock:
            self._reserved = _add(self._reserved, held, -1)
            self._spent = _add(self._spent, spent, 1)
            self._usage += usage

    @staticmethod
    def _check_room(name: str, limit: float | None, spent: float, reserved: float, wanted: float) -> None:
        if limit is not None and spent + reserved + wanted > limit:
            raise BudgetExceeded(
                f"budget of {limit:g} {name}: {spent:g} spent, {reserved:g} reserved, {wanted:g} more needed"
            )

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        """
        Replace a reservation by the actual usage.

        None means unknown, and charges the estimate.
        """
        with self._lock:
            self._reserved = _add(self._reserved, reservation, -1)
            charged = reservation
            if usage is not None:
                charged = attrs.evolve(reservation, tokens=usage.total_tokens, cost=usage.cost)
                self._usage += usage
                self._largest_answer = max(self._largest_answer, usage.output_tokens)
                self._largest_cost = max(self._largest_cost, usage.cost)
            self._spent = _add(self._spent, charged, 1)

    def charge(self, usage: Usage, *, attempts: int = 0, requests: int = 0) -> None:
        """
        Add spending without checking the limits.

        For what another process spent, or this one before a resume.
        """
        charged = Reservation(attempts, requests, usage.total_tokens, usage.cost)
        with self._lock:
            self._usage += usage
            self._spent = _add(self._spent, charged, 1)

    def count_request(self) -> None:
        """Count a further request of a reserved attempt, such as a retry."""
        with self._lock:
            self._check_room("requests", self.requests, self._spent.requests, self._reserved.requests, 1)
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests + 1)

    def release(self, reservation: Reservation) -> None:
        """
        Return a reservation whose request was never sent.

        A started attempt still counts.
        """
        with self._lock:
            self._reserved = _add(self._reserved, reservation, -1)
            self._spent = attrs.evolve(self._spent, attempts=self._spent.attempts + reservation.attempts)

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
