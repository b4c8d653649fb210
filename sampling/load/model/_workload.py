"""
The interface of workloads.

A workload is any `async def f(arrival)`. It gets an `Arrival` and may return an `Answered`.
"""

import math
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio
import attrs

from sampling._arguments import wrong_type
from sampling.load.model._seeds import derive_seed

__all__ = [
    "Answered",
    "Arrival",
    "Draw",
    "DrawnWorkload",
    "Send",
    "Workload",
    "WorkloadFunction",
    "current_arrival",
    "draw_function",
    "enter_arrival",
    "first_token",
    "leave_arrival",
]


class Arrival:
    """
    One request to send.

    No other request has the same `seed` and `rng`. They depend only on the run's seed, the worker, the user and the
    number, and not on events during the run, so a rerun generates the same traffic.
    """

    __slots__ = (
        "_first_at",
        "_last_at",
        "_rng",
        "_run_seed",
        "index",
        "intended_s",
        "longest_gap_s",
        "number",
        "operation",
        "user",
        "worker",
    )

    def __init__(
        self, index: int, intended_s: float, *, user: int | None = None, number: int = 0, seed: int = 0, worker: int = 0
    ) -> None:
        self.index: int = index
        """The tick, ascending over the run, with gaps where ticks were dropped."""

        self.intended_s: float = intended_s
        """The scheduled time, in seconds from the start of the run."""

        self.user: int | None = user
        """The user in a closed loop, or None in an open loop."""

        self.number: int = number
        """Number of earlier requests of this user (closed loop) or this worker (open loop), without gaps."""

        self.worker: int = worker
        """The process that sends it."""

        self.operation: str | None = None
        """The name of the operation, in a mix."""

        self.longest_gap_s: float = math.nan
        """The longest time between two tokens so far, or NaN without two tokens."""

        self._run_seed = seed
        self._rng: random.Random | None = None
        self._first_at = math.nan
        self._last_at = math.nan

    @property
    def seed(self) -> int:
        """A seed that no other request of the run has."""
        return derive_seed(self._run_seed, self.worker, self.user, self.number)

    @property
    def rng(self) -> random.Random:
        """A random number generator for this request alone."""
        if self._rng is None:
            self._rng = random.Random(self.seed)  # noqa: S311 - traffic is no secret
        return self._rng

    @property
    def first_token_at(self) -> float:
        """
        The time of the first token.

        It is on the clock of the event loop, and NaN if none was reported.
        """
        return self._first_at

    def first_token(self) -> None:
        """Record that the first token has arrived now. Later calls have no effect."""
        if math.isnan(self._first_at):
            self._first_at = anyio.current_time()

    def token(self) -> None:
        """Record that a token has arrived now: the first one, or the time since the one before."""
        now = anyio.current_time()
        if math.isnan(self._first_at):
            self._first_at = now
        else:
            self.add_gap(now - self._last_at)
        self._last_at = now

    def add_gap(self, gap_s: float) -> None:
        """Record the time between two tokens, for workloads that measure it themselves."""
        # `not <=` instead of `>`, because the first gap replaces NaN.
        if not gap_s <= self.longest_gap_s:
            self.longest_gap_s = gap_s

    def __repr__(self) -> str:
        user = "" if self.user is None else f", user={self.user}"
        return f"Arrival(index={self.index}{user}, intended_s={self.intended_s:g})"


@attrs.frozen
class Answered:
    """
    The optional return value of a workload.

    Any other return value counts as a valid answer.
    """

    valid: bool = True
    """True if the answer is usable. An invalid answer is neither an error nor goodput."""

    input_tokens: int | None = 0
    """Number of input tokens, or None if unknown. An invalid number is ignored, and counted in the report."""

    output_tokens: int | None = 0
    cost: float | None = 0.0
    requests: int | None = 1
    """Number of requests to the backend that it took."""


WorkloadFunction: TypeAlias = Callable[[Arrival], Awaitable[object]]
"""Sends one request and waits for its answer. An exception counts as a failed request."""

Send: TypeAlias = Callable[[], Awaitable[object]]
"""Sends one drawn request."""


@runtime_checkable
class DrawnWorkload(Protocol):
    """A workload that chooses each request on admission. It may run out of requests."""

    def draw(self, arrival: Arrival) -> Send | None:
        """
        Return a function that sends this request.

        None ends the run.
        It is called only for admitted requests. A dropped arrival draws nothing, so the admitted requests are a
        prefix of the drawn sequence, without gaps.
        """
        ...


Workload: TypeAlias = WorkloadFunction | DrawnWorkload
Draw: TypeAlias = Callable[[Arrival], Send | None]

_arrival: ContextVar[Arrival | None] = ContextVar("sampling_load_arrival", default=None)


def current_arrival() -> Arrival | None:
    """Return the arrival being served, if any."""
    return _arrival.get()


def enter_arrival(arrival: Arrival) -> Token[Arrival | None]:
    """Set the current arrival of the running task until `leave_arrival`."""
    return _arrival.set(arrival)


def leave_arrival(entered: Token[Arrival | None]) -> None:
    """Restore the current arrival from before `enter_arrival`."""
    _arrival.reset(entered)


def first_token() -> None:
    """Record the first token of the current request. Do nothing outside of a load run."""
    arrival = _arrival.get()
    if arrival is not None:
        arrival.first_token()


def draw_function(workload: object) -> Draw:
    """Return the function that draws the next request. A plain function never runs out."""
    draw = getattr(workload, "draw", None)
    if callable(draw):
        return cast("Draw", draw)
    if isinstance(workload, type) or not callable(workload):
        raise wrong_type("workload", workload, "an async function of one arrival, or an object with draw(arrival)")
    function = cast("Callable[[Arrival], Awaitable[Any]]", workload)

    def draw_call(arrival: Arrival) -> Send:
        return lambda: function(arrival)

    return draw_call
