"""
The load generator.

It sends requests on schedule and records their outcomes.
It drives any `async def` and does not depend on models. Its clock never waits for the system under test. An arrival
is sent on time, or dropped and counted, but never late because an earlier one is slow.
"""

from functools import partial

import anyio

from sampling._arguments import check_instance, check_int
from sampling.load.model._imported_workload import ImportedWorkload, open_workload
from sampling.load.model._profiles import ClosedLoop, OpenLoop, Profile
from sampling.load.model._recording import Recording, Tally
from sampling.load.model._workload import Draw, Workload, draw_function
from sampling.load.traffic._closed_loop import drive_closed_loop
from sampling.load.traffic._open_loop import drive_open_loop
from sampling.load.traffic._sending import WHOLE, Sender, Shard
from sampling.load.traffic._stalls import watch_for_stalls

__all__ = ["Generator"]

_LEVELS = 60
"""Number of samples of the requests in flight, for runs of known length."""


class Generator:
    """One run of one profile. `recording` is complete even if `generate()` is cancelled."""

    def __init__(
        self, workload: Workload | ImportedWorkload, profile: Profile, *, seed: int = 0, shard: Shard = WHOLE
    ) -> None:
        check_instance("profile", profile, (OpenLoop, ClosedLoop), "an OpenLoop or a ClosedLoop")
        if not isinstance(workload, ImportedWorkload):
            draw_function(workload)  # raises if it is not a workload
        self._workload = workload
        self._profile = profile
        self._seed = check_int("seed", seed)
        self._shard = shard
        measured_s = profile.measured_s
        self.recording = Recording(measured_s / _LEVELS if measured_s else 1.0)
        self._stopping = anyio.CancelScope()

    def stop(self) -> None:
        """End the run now, and cancel the requests in flight. The recording stays complete."""
        self._stopping.cancel()

    @property
    def progress(self) -> Tally:
        """The counts so far, including the warm-up."""
        counts = Tally()
        counts.add(self.recording.warmup)
        counts.add(self.recording.tally)
        return counts

    async def generate(self) -> Recording:
        """Generate the traffic from now on, and return the recording."""
        async with open_workload(self._workload) as draw:
            return await self.drive(draw, anyio.current_time())

    async def drive(self, draw: Draw, start: float) -> Recording:
        """
        Generate the traffic with an open workload.

        It begins at `start` on the clock of the event loop.
        """
        profile, recording = self._profile, self.recording
        sender = Sender(recording, start, profile.warmup_s)
        # Until the end is reached, because a cancellation may come at any time.
        recording.interrupted = True
        try:
            with self._stopping:
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
