"""
Open-loop traffic: requests are sent on schedule.

Each tick first takes a permit and then draws from the workload, so that a dropped arrival draws nothing.
"""

import math

import anyio

from sampling.load.model._profiles import OpenLoop
from sampling.load.model._workload import Arrival, Draw
from sampling.load.traffic._arrivals import instants, sending_ends_s, share
from sampling.load.traffic._sending import Sender, Shard
from sampling.load.traffic._task_pool import TaskPool

__all__ = ["drive_open_loop"]

_MOST_IN_A_TURN = 16
"""Maximum number of due arrivals that are sent before other tasks run: far less than a millisecond."""


async def drive_open_loop(sender: Sender, profile: OpenLoop, draw: Draw, *, seed: int, shard: Shard) -> None:
    """Send every arrival on schedule, or drop it. Then wait for the remaining answers."""
    ticker = _Ticker(sender, profile, draw, seed, shard)
    with anyio.CancelScope() as overtime:
        async with anyio.create_task_group() as tasks:
            requests = TaskPool(tasks, sender.send)
            try:
                await ticker.tick(requests)
            finally:
                # Idle tasks would keep the task group open.
                requests.close()
            await ticker.wait_for_end()
            overtime.deadline = math.inf if profile.drain_s is None else anyio.current_time() + profile.drain_s


class _Ticker:
    """The clock of an open loop. It waits for the schedule and for nothing else."""

    def __init__(self, sender: Sender, profile: OpenLoop, draw: Draw, seed: int, shard: Shard) -> None:
        self._sender = sender
        self._profile = profile
        self._draw = draw
        self._seed = seed
        self._shard = shard
        self._permits = max(1, shard.of(profile.max_in_flight))
        self._slept_until_s = -math.inf
        self._drawn = 0
        # As if a turn were used up, so that other tasks run before the first arrival.
        self._sent_this_turn = _MOST_IN_A_TURN

    async def tick(self, requests: TaskPool) -> None:
        """Send or drop the arrivals of the schedule."""
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
        Sleep until a time, unless it has passed.

        At a high rate several arrivals are due at each iteration of the event loop. An iteration costs about as much
        as a request, so due arrivals share one. If all permits are taken, other tasks run first, because their
        requests may be answered already.
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

    async def wait_for_end(self) -> None:
        """
        Wait until the end of the duration, and record the end of the traffic.

        After the last of `requests` there is nothing to wait for.
        """
        recording, profile = self._sender.recording, self._profile
        if recording.exhausted:
            recording.ended_s = self._sender.elapsed_s
            return
        # The planned end, because the clock is read a little later.
        recording.ended_s = sending_ends_s(profile, self._seed)
        if profile.duration_s is not None and recording.ended_s >= profile.warmup_s + profile.duration_s:
            await self._sender.wait_for(recording.ended_s)

    def _slept_through(self, instant_s: float) -> bool:
        """
        Return True if the machine stood still for too long.

        That is longer than `late_limit_s` past this time.
        Sending all arrivals of such a long pause would be an unwanted burst. After a shorter pause, the requests are
        sent late, and their latency counts from the time they were due.
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
        """Draw and send a request. Return False if the workload has run out."""
        arrival = Arrival(index, instant_s, number=self._drawn, seed=self._seed, worker=self._shard.worker)
        send = self._sender.draw(arrival, self._draw)
        if send is None:
            return False
        self._drawn += 1
        self._sender.admit(arrival)
        requests.start_soon(arrival, send)
        return True
