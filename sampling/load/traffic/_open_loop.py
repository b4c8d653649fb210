"""Traffic by the clock: the tick, the permit, the draw, in this order."""

import math

import anyio

from sampling.load.model._profiles import OpenLoop
from sampling.load.model._workload import Arrival, Draw
from sampling.load.traffic._arrivals import instants, share
from sampling.load.traffic._sending import Sender, Shard
from sampling.load.traffic._task_pool import TaskPool

__all__ = ["drive_open_loop"]

_MOST_IN_A_TURN = 16
"""How many arrivals that are due may be sent before the requests themselves get a turn: far less than a millisecond."""


async def drive_open_loop(sender: Sender, profile: OpenLoop, draw: Draw, *, seed: int, shard: Shard) -> None:
    """Send every arrival at its instant or count it as dropped, then wait for the answers that are still out."""
    ticker = _Ticker(sender, profile, draw, seed, shard)
    with anyio.CancelScope() as overtime:
        async with anyio.create_task_group() as tasks:
            requests = TaskPool(tasks, sender.send)
            try:
                await ticker.tick(requests)
            finally:
                requests.close()
            if profile.duration_s is not None and not sender.recording.exhausted:
                await sender.wait_for(profile.warmup_s + profile.duration_s)
            sender.recording.ended_s = sender.elapsed_s
            overtime.deadline = math.inf if profile.drain_s is None else anyio.current_time() + profile.drain_s


class _Ticker:
    """The clock of an open loop. It waits for its own instants, and for nothing else."""

    def __init__(self, sender: Sender, profile: OpenLoop, draw: Draw, seed: int, shard: Shard) -> None:
        self._sender = sender
        self._profile = profile
        self._draw = draw
        self._seed = seed
        self._shard = shard
        self._permits = max(1, shard.of(profile.max_in_flight))
        self._slept_until_s = -math.inf
        self._drawn = 0
        self._sent_this_turn = _MOST_IN_A_TURN

    async def tick(self, requests: TaskPool) -> None:
        """Go through the instants."""
        for index, instant_s in share(instants(self._profile, self._seed), self._shard.worker, self._shard.workers):
            await self._wait_for(instant_s)
            if self._slept_through(instant_s):
                self._sender.recording.missed_s.append(instant_s)
                self._count_drop(instant_s)
            elif self._sender.in_flight >= self._permits:
                self._sender.recording.dropped_s.append(instant_s)
                self._count_drop(instant_s)
            elif not self._send(requests, index, instant_s):
                self._sender.recording.exhausted = True
                return

    async def _wait_for(self, instant_s: float) -> None:
        """
        Sleep until an instant of the run, unless it has passed.

        At a high rate several arrivals are due whenever the event loop comes back here, and a turn of the loop costs
        about as much as a request: they share one. But nobody finds all permits taken by requests that are answered
        already and only wait for their turn.
        """
        if (
            self._sent_this_turn < _MOST_IN_A_TURN
            and instant_s <= self._sender.elapsed_s
            and self._sender.in_flight < self._permits
        ):
            self._sent_this_turn += 1
        else:
            self._sent_this_turn = 1
            await self._sender.wait_for(instant_s)

    def _slept_through(self, instant_s: float) -> bool:
        """
        Tell whether the machine stood still past this instant.

        After a pause that long, sending all that is due would be a burst that nobody asked for.
        A shorter one is made up for: its requests are sent late, and their latency counts from when they were due.
        """
        now_s = self._sender.elapsed_s
        if now_s - instant_s > self._profile.late_limit_s:
            self._slept_until_s = now_s
        return instant_s < self._slept_until_s

    def _count_drop(self, instant_s: float) -> None:
        tally = self._sender.tally_for(instant_s)
        tally.scheduled += 1
        tally.dropped += 1

    def _send(self, requests: TaskPool, index: int, instant_s: float) -> bool:
        """Draw a request, for which there is a permit, and send it; False if there is nothing left to draw."""
        arrival = Arrival(index, instant_s, number=self._drawn, seed=self._seed, worker=self._shard.worker)
        send = self._draw(arrival)
        if send is None:
            return False
        self._drawn += 1
        self._sender.admit(arrival)
        requests.start_soon(arrival, send)
        return True
