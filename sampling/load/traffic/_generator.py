"""
The load generator.

It sends requests on schedule and records their outcomes.
It drives any `async def` and does not depend on models. Its clock never waits for the system under test. An arrival
is sent on time, or dropped and counted, but never late because an earlier one is slow.
"""

import math
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from sampling._arguments import check_instance, check_int
from sampling.load.model._imported_workload import ImportedWorkload, open_workload
from sampling.load.model._profiles import ClosedLoop, OpenLoop, Profile
from sampling.load.model._rates import RateIntegral
from sampling.load.model._recording import Recording, Tally
from sampling.load.model._workload import Draw, Workload, draw_function
from sampling.load.traffic._closed_loop import drive_closed_loop
from sampling.load.traffic._open_loop import drive_open_loop
from sampling.load.traffic._sending import WHOLE, Sender, Shard
from sampling.load.traffic._stalls import watch_for_stalls
from sampling.load.traffic._stop import StopRequest

__all__ = ["Generator", "levels_of"]

_LEVELS = 60
"""Number of samples of the requests in flight, for runs of known length."""

_MOST_LEVELS = 100_000
"""Maximum number of samples, with those of the warm-up."""


def levels_of(profile: Profile) -> tuple[float, float]:
    """Return the levels to record: how often requests in flight are sampled, and until when."""
    measured_s = profile.measured_s
    if not measured_s:
        return 1.0, math.inf
    total_s = profile.warmup_s + measured_s
    return max(measured_s / _LEVELS, total_s / _MOST_LEVELS), total_s


class Generator:
    """One run of one profile. `recording` is complete even if `generate()` is cancelled."""

    def __init__(
        self, workload: Workload | ImportedWorkload, profile: Profile, *, seed: int = 0, shard: Shard = WHOLE
    ) -> None:
        check_instance("profile", profile, (OpenLoop, ClosedLoop), "an OpenLoop or a ClosedLoop")
        if not isinstance(workload, ImportedWorkload):
            draw_function(workload)  # raises if it is not a workload
        if isinstance(profile, OpenLoop) and profile.shape is not None:
            RateIntegral(profile)  # raises if the shape does
        self._workload = workload
        self._profile = profile
        self._seed = check_int("seed", seed)
        self._shard = shard
        self.recording = Recording(*levels_of(profile))
        self._stopping = StopRequest()

    def stop(self) -> None:
        """End the run now, and cancel the requests in flight. The recording stays complete."""
        self._stopping.set()

    @property
    def progress(self) -> Tally:
        """The counts so far, including the warm-up."""
        counts = Tally()
        counts.add(self.recording.warmup)
        counts.add(self.recording.tally)
        return counts

    async def generate(self, when_open: Callable[[], Awaitable[float]] | None = None) -> Recording:
        """
        Generate the traffic from now on, and return the recording.

        `when_open` is awaited once the workload is open, and returns the start instead.
        """
        async with open_workload(self._workload) as draw:
            return await self.drive(draw, anyio.current_time() if when_open is None else await when_open())

    async def drive(self, draw: Draw, start: float) -> Recording:
        """
        Generate the traffic with an open workload.

        It begins at `start` on the clock of the event loop.
        """
        profile, recording = self._profile, self.recording
        sender = Sender(recording, start, profile.warmup_s, profile.timeout_s)
        # Until the end is reached, because a cancellation may come at any time.
        recording.interrupted = True
        try:
            with self._stopping.open_scope():
                await watch_for_stalls(partial(self._send_all, sender, draw), start, recording.stalls)
                recording.interrupted = False
        finally:
            recording.drained_s = max(0.0, sender.elapsed_s)
            if recording.interrupted:
                recording.ended_s = recording.drained_s
            recording.levels.advance(recording.drained_s)
        return recording

    async def _send_all(self, sender: Sender, draw: Draw) -> None:
        if isinstance(self._profile, OpenLoop):
            await drive_open_loop(sender, self._profile, draw, seed=self._seed, shard=self._shard)
        else:
            await drive_closed_loop(sender, self._profile, draw, seed=self._seed, shard=self._shard)
