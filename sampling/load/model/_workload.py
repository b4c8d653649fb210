"""What is sent: any `async def f(arrival)`, what it is told, and what it may say about how it went."""

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
    One request that is to be sent: the what and when of it, before anything is known of how it ends.

    `seed` and `rng` are this request's alone. They depend on the run's seed, the worker, the user and the number,
    and on nothing that happens while the run goes on, so that a rerun makes the same traffic.
    """

    __slots__ = ("_first_at", "_rng", "_run_seed", "index", "intended_s", "number", "operation", "user", "worker")

    def __init__(
        self, index: int, intended_s: float, *, user: int | None = None, number: int = 0, seed: int = 0, worker: int = 0
    ) -> None:
        self.index = index
        """The tick, ascending over the run; there are gaps where ticks were dropped."""

        self.intended_s = intended_s
        """When it is to be sent, in seconds from the start of the run."""

        self.user = user
        """Whose request this is, in a closed loop; None where everyone comes once."""

        self.number = number
        """How many were drawn before it: by this user in a closed loop, by this worker in an open one. No gaps."""

        self.worker = worker
        """Which process sends it."""

        self.operation: str | None = None
        """Which of several named operations it is, in a mix."""

        self._run_seed = seed
        self._rng: random.Random | None = None
        self._first_at = math.nan

    @property
    def seed(self) -> int:
        """A number that no other request of the run has."""
        return derive_seed(self._run_seed, self.worker, self.user, self.number)

    @property
    def rng(self) -> random.Random:
        """A stream of random numbers that no other request of the run shares."""
        if self._rng is None:
            self._rng = random.Random(self.seed)  # noqa: S311 - traffic is no secret
        return self._rng

    @property
    def first_token_at(self) -> float:
        """When the first token came, on the clock of the event loop; not a number if nobody said."""
        return self._first_at

    def first_token(self) -> None:
        """Say that the first token has come, now. Only the first time counts."""
        if math.isnan(self._first_at):
            self._first_at = anyio.current_time()

    def __repr__(self) -> str:
        user = "" if self.user is None else f", user={self.user}"
        return f"Arrival(index={self.index}{user}, intended_s={self.intended_s:g})"


@attrs.frozen
class Answered:
    """What a workload may return about an answer that came. Anything else it returns counts as a valid answer."""

    valid: bool = True
    """Whether the answer can be used. One that can't is no error, and no goodput either."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    requests: int = 1
    """How many requests to the backend it took."""


WorkloadFunction: TypeAlias = Callable[[Arrival], Awaitable[object]]
"""Sends one request and waits for its answer. What it raises counts as a failed request."""

Send: TypeAlias = Callable[[], Awaitable[object]]
"""One request, drawn and ready to be sent."""


@runtime_checkable
class DrawnWorkload(Protocol):
    """A workload that decides what to send when a request is admitted, and may have nothing left to send."""

    def draw(self, arrival: Arrival) -> Send | None:
        """
        Return what sends this request, or None if there is nothing left: then the run ends.

        It is asked only for requests that will be sent: what is dropped draws nothing,
        so the admitted ones are the beginning of the drawn sequence, without gaps.
        """
        ...


Workload: TypeAlias = WorkloadFunction | DrawnWorkload
Draw: TypeAlias = Callable[[Arrival], Send | None]

_arrival: ContextVar[Arrival | None] = ContextVar("sampling_load_arrival", default=None)


def current_arrival() -> Arrival | None:
    """Return the arrival that the running code belongs to, or None outside of a load run."""
    return _arrival.get()


def enter_arrival(arrival: Arrival) -> Token[Arrival | None]:
    """Make this the current arrival of the running task, until `leave_arrival`."""
    return _arrival.set(arrival)


def leave_arrival(entered: Token[Arrival | None]) -> None:
    """Leave the running task as it was before `enter_arrival`."""
    _arrival.reset(entered)


def first_token() -> None:
    """Say that the first token of the current request has come. Outside of a load run this does nothing."""
    arrival = _arrival.get()
    if arrival is not None:
        arrival.first_token()


def draw_function(workload: object) -> Draw:
    """Return the function that draws the next request from a workload; a plain function never runs out."""
    draw = getattr(workload, "draw", None)
    if callable(draw):
        return cast("Draw", draw)
    if isinstance(workload, type) or not callable(workload):
        raise wrong_type("workload", workload, "an async function of one arrival, or something with draw(arrival)")
    function = cast("Callable[[Arrival], Awaitable[Any]]", workload)

    def draw_call(arrival: Arrival) -> Send:
        return lambda: function(arrival)

    return draw_call
