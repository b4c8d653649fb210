"""The pace of requests that share a machine: the more of them are in slots, the slower each, at every moment anew."""

from typing import Literal

import anyio

__all__ = ["SharedMachine", "SharedPace"]

_Clock = Literal["first", "token"]
_NOTHING_S = 1e-9


class SharedMachine:
    """
    Two clocks that run slower the more requests there are: one for first tokens, one for those that follow.

    They show seconds of a request that has the machine to itself. Who waits for an instant on them
    sleeps as long as that takes at the present pace, and looks again when the pace changes.
    """

    def __init__(self, first_token_slowdown: float, token_slowdown: float) -> None:
        self._slowdowns: dict[_Clock, float] = {"first": first_token_slowdown, "token": token_slowdown}
        self._clocks: dict[_Clock, float] = {"first": 0.0, "token": 0.0}
        self._busy = 0
        self._at = 0.0
        self._changed = anyio.Event()

    def enter(self) -> None:
        """Count one more request."""
        if not self._busy:
            self._at = anyio.current_time()  # time may have begun anew: this may be another event loop
        self._change(+1)

    def leave(self) -> None:
        """Count one less."""
        self._change(-1)

    def _change(self, by: int) -> None:
        self._advance()
        self._busy += by
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
        """Return what a clock shows now."""
        self._advance()
        return self._clocks[clock]

    async def until(self, clock: _Clock, instant: float) -> None:
        """Sleep until a clock shows this instant."""
        while (left_s := instant - self.read(clock)) > _NOTHING_S:
            with anyio.move_on_after(left_s * self._slowness(clock)):
                await self._changed.wait()


class SharedPace:
    """When the tokens of one request are done, on a machine that others use too."""

    def __init__(self, machine: SharedMachine, first_token_s: float, per_token_s: float) -> None:
        self._machine = machine
        self._first_at = machine.read("first") + first_token_s
        self._per_token_s = per_token_s
        self._later_from: float | None = None
        """What the clock for later tokens showed when the first one was done."""

    async def reach(self, tokens: int) -> None:
        """Sleep until so many tokens are done."""
        if self._later_from is None:
            await self._machine.until("first", self._first_at)
            self._later_from = self._machine.read("token")
        await self._machine.until("token", self._later_from + max(0, tokens - 1) * self._per_token_s)

    def tokens_by(self, _now: float) -> float:
        """Return how many tokens are done by now."""
        if self._later_from is None:
            return 0
        passed_s = self._machine.read("token") - self._later_from
        return 1 + passed_s / self._per_token_s + 1e-6 if self._per_token_s else float("inf")
