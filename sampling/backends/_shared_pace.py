"""Simulated timing of requests that slow each other down."""

from typing import Literal

import anyio

__all__ = ["SharedMachine", "SharedPace"]

_Clock = Literal["first", "token"]
_EPSILON_S = 1e-9


class SharedMachine:
    """
    A machine with two clocks that slow down as requests are added.

    One clock times first tokens, the other the tokens after them. A clock shows the seconds that the work would have
    taken for a single request. A waiter sleeps as long as needed at the current pace, and again when the pace changes.
    """

    def __init__(self, first_token_slowdown: float, token_slowdown: float) -> None:
        self._slowdowns: dict[_Clock, float] = {"first": first_token_slowdown, "token": token_slowdown}
        self._clocks: dict[_Clock, float] = {"first": 0.0, "token": 0.0}
        self._busy = 0
        self._at = 0.0
        self._changed = anyio.Event()

    def enter(self) -> None:
        """Add a request."""
        if not self._busy:
            self._at = anyio.current_time()  # this may be another event loop, with another clock
        self._change(+1)

    def leave(self) -> None:
        """Remove a request."""
        self._change(-1)

    def _change(self, by: int) -> None:
        self._advance()
        self._busy += by
        # Wake all waiters, because their remaining time depends on the pace.
        self._changed.set()
        self._changed = anyio.Event()

    def _slowness(self, clock: _Clock) -> float:
        return 1 + self._slowdowns[clock] * max(self._busy - 1, 0)

    def _advance(self) -> None:
        now = anyio.current_time()
        passed_s, self._at = now - self._at, now
        for clock in self._clocks:
            self._clocks[clock] += passed_s / self._slowness(clock)

    def read(self, clock: _Clock) -> float:
        """Return the current reading of a clock."""
        self._advance()
        return self._clocks[clock]

    async def until(self, clock: _Clock, instant: float) -> None:
        """Sleep until a clock shows this time."""
        while (left_s := instant - self.read(clock)) > _EPSILON_S:
            with anyio.move_on_after(left_s * self._slowness(clock)):
                await self._changed.wait()


class SharedPace:
    """The token times of one request on a shared machine."""

    def __init__(self, machine: SharedMachine, first_token_s: float, per_token_s: float) -> None:
        self._machine = machine
        self._first_at = machine.read("first") + first_token_s
        self._per_token_s = per_token_s
        self._later_from: float | None = None
        """The reading of the token clock when the first token was done."""

    async def reach(self, tokens: int) -> None:
        """Sleep until this many tokens are done."""
        if self._later_from is None:
            await self._machine.until("first", self._first_at)
            self._later_from = self._machine.read("token")
        await self._machine.until("token", self._later_from + max(0, tokens - 1) * self._per_token_s)

    def tokens_by(self, _now: float) -> float:
        """Return the number of tokens that are done by now."""
        if self._later_from is None:
            return 0
        passed_s = self._machine.read("token") - self._later_from
        # The small addend keeps a token that is just done from being lost to rounding.
        return 1 + passed_s / self._per_token_s + 1e-6 if self._per_token_s else float("inf")
