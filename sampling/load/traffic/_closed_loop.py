"""Closed-loop traffic: users wait for their answers."""

import math

import anyio

from sampling.load.model._profiles import ClosedLoop
from sampling.load.model._recording import UserEnd
from sampling.load.model._workload import Arrival, Draw
from sampling.load.traffic._arrivals import first_requests, start_time
from sampling.load.traffic._sending import Sender, Shard

__all__ = ["drive_closed_loop"]


async def drive_closed_loop(sender: Sender, profile: ClosedLoop, draw: Draw, *, seed: int, shard: Shard) -> None:
    """Run every user of this shard to its end."""
    overtime = anyio.CancelScope()
    group = _UserGroup(sender, profile, draw, seed, shard, overtime)
    with overtime:
        async with anyio.create_task_group() as users:
            for user in range(shard.worker, group.starting_users, shard.workers):
                users.start_soon(group.run_user, user)
            group.count_unstarted(len(range(shard.worker, profile.users, shard.workers)))
    group.record_end()


_FIRST_BACKOFF_S = 0.01
_LONGEST_BACKOFF_S = 0.2


def _backoff_s(failures: int) -> float:
    """
    Return the minimum time between two requests of a user after consecutive failures.

    A server that refuses connections fails at once, and without think time its users would only spin.
    """
    return 0.0 if failures < 2 else min(_FIRST_BACKOFF_S * 2 ** min(failures - 2, 10), _LONGEST_BACKOFF_S)


class _UserGroup:
    """The users of one process. They share a request budget and a deadline."""

    def __init__(
        self, sender: Sender, profile: ClosedLoop, draw: Draw, seed: int, shard: Shard, overtime: anyio.CancelScope
    ) -> None:
        self._sender = sender
        self._profile = profile
        self._draw = draw
        self._seed = seed
        self._shard = shard
        self._overtime = overtime
        self._drain_s = math.inf if profile.drain_s is None else profile.drain_s
        self.starting_users, follow_ups = first_requests(profile)
        self._follow_ups = math.inf if follow_ups is None else shard.of(follow_ups)
        self._unsent = len(range(shard.worker, self.starting_users, shard.workers))
        self._index = shard.worker
        self._thinking: set[int] = set()
        # Without a warm-up, users count as active if they start within the think time over which they are spread.
        self._settled_s = profile.warmup_s or profile.think_time_s
        if profile.horizon_s is not None:
            self._end_by(profile.horizon_s)

    def count_unstarted(self, users: int) -> None:
        """Count the users beyond the request budget. They never start, and draw nothing."""
        started = len(range(self._shard.worker, self.starting_users, self._shard.workers))
        if users > started:
            self._sender.recording.user_ends["budget"] += users - started

    async def run_user(self, user: int) -> None:
        """Run one user, and record its end exactly once."""
        end: UserEnd = "cancelled"
        try:
            end = await self._send_requests(user)
        finally:
            if end == "cancelled" and user in self._thinking and self._sender.recording.exhausted:
                end = "completed"  # there was nothing left to send
            self._sender.recording.user_ends[end] += 1

    async def _send_requests(self, user: int) -> UserEnd:
        profile = self._profile
        intended_s = start_time(user, profile)
        number = failures = 0
        while True:
            if profile.horizon_s is not None and intended_s > profile.horizon_s:
                return "horizon"
            self._thinking.add(user)
            await self._sender.wait_for(intended_s)
            self._thinking.discard(user)
            if self._sender.recording.exhausted:
                return "completed"
            arrival = Arrival(
                self._index, intended_s, user=user, number=number, seed=self._seed, worker=self._shard.worker
            )
            send = self._sender.draw(arrival, self._draw)
            if send is None:
                self._sender.recording.exhausted = True
                # There are no more requests, so the drain begins.
                self._end_by(self._sender.elapsed_s)
                return "completed"
            self._admit(arrival)
            outcome, done_s = await self._sender.send(arrival, send)
            if outcome == "failed" and profile.on_error == "cancel":
                return "cancelled"
            if not self._follow_ups:
                return "budget"
            self._follow_ups -= 1
            self._unsent += 1
            # Due only after this answer. That is why a stall hardly shows in the latencies of a closed loop.
            failures = failures + 1 if outcome == "failed" else 0
            intended_s = self._next_time(intended_s, done_s, failures)
            number += 1

    def _next_time(self, intended_s: float, done_s: float, failures: int) -> float:
        after_think_s = done_s + self._profile.think_time_s
        backed_off_s = intended_s + _backoff_s(failures)
        if backed_off_s <= after_think_s:
            return after_think_s
        self._sender.recording.backoffs += 1
        return backed_off_s

    def record_end(self) -> None:
        """Record the end of the traffic: the horizon, unless the last request came earlier."""
        horizon_s, recording = self._profile.horizon_s, self._sender.recording
        out_of_budget = not self._follow_ups and not self._unsent
        if horizon_s is not None and self._sender.elapsed_s >= horizon_s and not (out_of_budget or recording.exhausted):
            recording.ended_s = horizon_s

    def _admit(self, arrival: Arrival) -> None:
        self._sender.admit(arrival)
        self._index += self._shard.workers
        self._unsent -= 1
        if not arrival.number and arrival.intended_s <= self._settled_s:
            self._sender.recording.active_users += 1
        self._sender.recording.ended_s = self._sender.elapsed_s
        if not self._follow_ups and not self._unsent:
            # This was the last request, so the drain begins.
            self._end_by(arrival.intended_s)

    def _end_by(self, instant_s: float) -> None:
        """Set the deadline for answers. It is this time plus the drain."""
        in_s = instant_s - self._sender.elapsed_s + self._drain_s
        self._overtime.deadline = min(self._overtime.deadline, anyio.current_time() + in_s)
