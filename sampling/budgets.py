"""What a call, or many calls together, may spend."""

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
    """What is held back for a request that is on its way."""

    attempts: int
    requests: int
    tokens: int
    cost: float


class Budget:
    """
    A limit on attempts, requests, tokens, cost and time, for one call or shared by many.

    Room is reserved before a request is sent and settled after it, for attempts, repairs and judges alike,
    and what cancelled losers used is settled too. What a request will use is not known before,
    so the reservation is an estimate: its prompt at four characters a token,
    plus `max_tokens` if the options say so, else the largest answer that this budget has seen.
    A request is sent only if all that was spent and reserved leaves room for its estimate;
    so the limit is passed, if at all, by no more than what the requests in flight use beyond their estimates.
    A backend that reports no usage is charged the estimate.

    The clock of `deadline_s` starts when the budget is first used.
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
        self.attempts = None if attempts is None else check_int("attempts", attempts, least=0)
        self.requests = None if requests is None else check_int("requests", requests, least=0)
        self.tokens = None if tokens is None else check_int("tokens", tokens, least=0)
        self.cost = None if cost is None else check_number("cost", cost, least=0)
        self.deadline_s = None if deadline_s is None else check_number("deadline_s", deadline_s, above=0)
        self._spent = Reservation(0, 0, 0, 0.0)
        self._reserved = Reservation(0, 0, 0, 0.0)
        self._usage = Usage()
        self._largest_answer = 0
        self._largest_cost = 0.0
        self._first_used_s: float | None = None
        self._deadline: tuple[object, float] | None = None
        # Calls in several threads may share one budget; within a thread nothing here waits.
        self._lock = threading.Lock()

    @property
    def spent(self) -> Usage:
        """What backends reported, of everything that is settled."""
        return self._usage

    @property
    def attempts_made(self) -> int:
        """Attempts that were started."""
        return self._spent.attempts + self._reserved.attempts

    @property
    def requests_made(self) -> int:
        """Requests that were sent: attempts and judges."""
        return self._spent.requests + self._reserved.requests

    @property
    def tokens_charged(self) -> int:
        """Tokens that are settled: as reported, or as estimated where nothing was reported."""
        return self._spent.tokens

    @property
    def charged(self) -> Reservation:
        """All that is settled: as reported, or as estimated where nothing was reported."""
        return self._spent

    @property
    def reserved(self) -> Reservation:
        """What is held for requests that are on their way."""
        return self._reserved

    def deadline(self, clock: object, now: float) -> float:
        """Return when time is up, on the clock of the event loop that `clock` stands for."""
        if self.deadline_s is None:
            return math.inf
        with self._lock:
            if self._first_used_s is None:
                self._first_used_s = time.monotonic()
                self._deadline = (clock, now + self.deadline_s)
            if self._deadline is None or self._deadline[0] != clock:
                # Another event loop counts from another zero (trio's from a random one): carry the age over.
                age_s = time.monotonic() - self._first_used_s
                self._deadline = (clock, now + self.deadline_s - age_s)
            return self._deadline[1]

    def reserve(self, *, attempts: int = 0, prompt_chars: int = 0, max_tokens: int | None = None) -> Reservation:
        """Hold room for one request, or raise `BudgetExceeded` and hold nothing."""
        with self._lock:
            answer_tokens = self._largest_answer if max_tokens is None else max_tokens
            tokens = estimate_tokens(prompt_chars) + answer_tokens
            wanted = Reservation(attempts, 1, max(tokens, 1), self._largest_cost)
            self._hold(wanted)
            return wanted

    def hold(self, wanted: Reservation) -> None:
        """Hold room for a whole call that is made elsewhere, or raise `BudgetExceeded` and hold nothing."""
        with self._lock:
            self._hold(wanted)

    def _hold(self, wanted: Reservation) -> None:
        self._check_room("attempts", self.attempts, self._spent.attempts, self._reserved.attempts, wanted.attempts)
        self._check_room("requests", self.requests, self._spent.requests, self._reserved.requests, wanted.requests)
        self._check_room("tokens", self.tokens, self._spent.tokens, self._reserved.tokens, wanted.tokens)
        self._check_room("cost", self.cost, self._spent.cost, self._reserved.cost, wanted.cost)
        self._reserved = _plus(self._reserved, wanted, 1)

    def settle_held(self, held: Reservation, spent: Reservation, usage: Usage) -> None:
        """Replace what was held for a call by what it took: of room, and as the backend reported it."""
        with self._lock:
            self._reserved = _plus(self._reserved, held, -1)
            self._spent = _plus(self._spent, spent, 1)
            self._usage += usage

    @staticmethod
    def _check_room(name: str, limit: float | None, spent: float, reserved: float, wanted: float) -> None:
        if limit is not None and spent + reserved + wanted > limit:
            raise BudgetExceeded(
                f"budget of {limit:g} {name}: {spent:g} spent, {reserved:g} reserved, {wanted:g} more needed"
            )

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        """Replace a reservation by what was really used; None, where nobody can say, keeps the estimate."""
        with self._lock:
            self._reserved = _plus(self._reserved, reservation, -1)
            charged = reservation
            if usage is not None:
                charged = attrs.evolve(reservation, tokens=usage.total_tokens, cost=usage.cost)
                self._usage += usage
                self._largest_answer = max(self._largest_answer, usage.output_tokens)
                self._largest_cost = max(self._largest_cost, usage.cost)
            self._spent = _plus(self._spent, charged, 1)

    def charge(self, usage: Usage, *, attempts: int = 0, requests: int = 0) -> None:
        """Count what was spent elsewhere, in another process or before a resume, whether there is room or not."""
        charged = Reservation(attempts, requests, usage.total_tokens, usage.cost)
        with self._lock:
            self._usage += usage
            self._spent = _plus(self._spent, charged, 1)

    def count_request(self) -> None:
        """Count a request that goes out within an attempt that has its reservation already."""
        with self._lock:
            self._check_room("requests", self.requests, self._spent.requests, self._reserved.requests, 1)
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests + 1)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back whose request was never sent; an attempt that was started still counts as one."""
        with self._lock:
            self._reserved = _plus(self._reserved, reservation, -1)
            self._spent = attrs.evolve(self._spent, attempts=self._spent.attempts + reservation.attempts)

    def __repr__(self) -> str:
        limits = ("attempts", "requests", "tokens", "cost", "deadline_s")
        given = [f"{name}={value!r}" for name in limits if (value := getattr(self, name)) is not None]
        return f"Budget({', '.join(given)}) with {self.requests_made} requests and {self.tokens_charged} tokens used"


def _plus(left: Reservation, right: Reservation, sign: int) -> Reservation:
    return Reservation(
        left.attempts + sign * right.attempts,
        left.requests + sign * right.requests,
        left.tokens + sign * right.tokens,
        # What is given back may differ in the last bit from what was taken.
        max(0.0, left.cost + sign * right.cost),
    )
