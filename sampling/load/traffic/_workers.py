"""
Load generation in several processes.

This reaches rates that one process can't.
Each worker sends its shard of a common schedule, with its own random numbers, and returns its recording. The report
covers all of them. Processes exchange JSON messages and raw columns of numbers.
"""

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self, cast

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from sampling._arguments import check_instance
from sampling._event_loop import running_loop_name
from sampling.errors import WorkerFailed
from sampling.load.model._imported_workload import ImportedWorkload, as_imported_workload
from sampling.load.model._profiles import ClosedLoop, OpenLoop, Profile
from sampling.load.model._recording import Recording, Tally
from sampling.load.model._workload import Workload

__all__ = ["WorkerPool"]

_LEAD_S = 0.2
"""Time from when all workers are ready to the common start, for the message to reach them."""

_GRACE_S = 10.0
"""Time for a stopped worker to return its recording."""

_LONGEST_LINE = 50_000_000


class WorkerPool:
    """A load generator like `Generator`, but in several processes."""

    def __init__(
        self, workload: Workload | ImportedWorkload, profile: Profile, *, seed: int = 0, workers: int = 2
    ) -> None:
        check_instance("profile", profile, (OpenLoop, ClosedLoop), "an OpenLoop or a ClosedLoop")
        if isinstance(profile, OpenLoop) and profile.shape is not None:
            raise ValueError("a shape is code and can't be sent to another process: use workers=1, or to_rate or trace")
        if isinstance(profile, OpenLoop) and profile.max_in_flight < workers:
            raise ValueError(f"max_in_flight must be >= workers ({workers}), got {profile.max_in_flight}")
        imported = as_imported_workload(workload)
        self._orders = [
            {
                "target": imported.target,
                "arguments": imported.arguments,
                "profile": profile.to_dict(),
                "seed": seed,
                "worker": worker,
                "workers": workers,
            }
            for worker in range(workers)
        ]
        self.recording = Recording(1.0)
        self._workers: list[_Worker] = []
        self._stopping = anyio.Event()
        self._when_open: Callable[[], Awaitable[float]] | None = None
        self._failure: WorkerFailed | None = None

    @property
    def progress(self) -> Tally:
        """The counts so far, as last reported by the workers."""
        counts = Tally()
        for worker in self._workers:
            counts.add(worker.progress)
        return counts

    def stop(self) -> None:
        """End the run now. The workers return what they have recorded."""
        self._stopping.set()

    async def generate(self, when_open: Callable[[], Awaitable[float]] | None = None) -> Recording:
        """
        Run the worker processes and merge their recordings.

        `when_open` is awaited once all workers are ready, and returns the start on the clock of the event loop.
        """
        self._when_open = when_open
        async with AsyncExitStack() as stack:
            for order in self._orders:
                self._workers.append(await stack.enter_async_context(_Worker(order)))
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pass_on_stop)
                    group.start_soon(self._work, group.cancel_scope)
            finally:
                with anyio.move_on_after(_GRACE_S, shield=True):
                    await self._collect_rest()
                self._merge()
        if self._failure is not None:
            raise self._failure
        return self.recording

    async def _work(self, whole: anyio.CancelScope) -> None:
        """Start all workers at once, and collect their recordings."""
        try:
            for worker in self._workers:
                await worker.ready()
            # Both clocks are monotonic, but the clock of an event loop may have another origin.
            start = anyio.current_time() if self._when_open is None else await self._when_open()
            start_at = time.monotonic() + start - anyio.current_time() + _LEAD_S
            for worker in self._workers:
                await worker.send(start_at=start_at)
        except WorkerFailed as failure:
            self._failure = failure
        else:
            async with anyio.create_task_group() as group:
                for worker in self._workers:
                    group.start_soon(self._finish, worker, whole)
        whole.cancel()

    async def _finish(self, worker: "_Worker", whole: anyio.CancelScope) -> None:
        try:
            await worker.finish()
        except WorkerFailed as failure:
            self._failure = self._failure or failure
            whole.cancel()

    async def _pass_on_stop(self) -> None:
        await self._stopping.wait()
        for worker in self._workers:
            await worker.send(stop=True)

    async def _collect_rest(self) -> None:
        """Stop the unfinished workers and collect their recordings."""
        for worker in self._workers:
            if worker.recording is None:
                try:
                    await worker.send(stop=True)
                    await worker.finish()
                except (WorkerFailed, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    continue  # Its recording is lost. The cause of the failure is already being raised.

    def _merge(self) -> None:
        parts = [worker.recording for worker in self._workers if worker.recording is not None]
        if parts:
            self.recording = parts[0]
        for part in parts[1:]:
            self.recording.merge(part)
        # A report without the requests of a lost worker must not look complete.
        self.recording.interrupted |= len(parts) < len(self._workers)


class _Worker:
    """The parent's handle of one worker process."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._name = f"worker {order['worker']} of {order['workers']}"
        self.progress = Tally()
        self.recording: Recording | None = None
        self._process: Process | None = None
        self._output: BufferedByteReceiveStream | None = None

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-m", "sampling.load.traffic._worker"]
        # A new session: only the parent gets Ctrl-C, and it stops the workers.
        self._process = await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, start_new_session=True
        )
        if self._process.stdout is None:
            raise WorkerFailed(f"{self._name} has no output")
        self._output = BufferedByteReceiveStream(self._process.stdout)
        await self.send(**self._order, path=sys.path, loop=running_loop_name())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None and self.recording is None:
                self._process.kill()
            await self._process.aclose()

    async def send(self, **message: Any) -> None:
        """Send one message as a line of JSON."""
        if self._process is None or self._process.stdin is None:
            raise WorkerFailed(f"{self._name} has no input")
        try:
            await self._process.stdin.send(json.dumps(message).encode() + b"\n")
        except anyio.BrokenResourceError:
            raise self._died() from None

    async def ready(self) -> None:
        """Wait until the worker has opened its workload."""
        message = await self._receive()
        if "ready" not in message:
            raise WorkerFailed(f"{self._name} could not start: {message.get('error', 'no reason given')}")

    async def finish(self) -> None:
        """Wait for the worker's recording."""
        while self.recording is None:
            message = await self._receive()
            if "error" in message:
                raise WorkerFailed(f"{self._name} failed: {message['error']}")
            if "progress" in message:
                self.progress = Tally(**message["progress"])
            if "recording" in message:
                head = message["recording"]
                self.recording = Recording.unpack(head, await self._receive_exactly(sum(head["sizes"])))

    async def _receive(self) -> dict[str, Any]:
        if self._output is None:
            raise WorkerFailed(f"{self._name} has no output")
        try:
            line = await self._output.receive_until(b"\n", _LONGEST_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._died() from None
        return cast("dict[str, Any]", json.loads(line))

    async def _receive_exactly(self, size: int) -> bytes:
        if self._output is None or not size:
            return b""
        try:
            return await self._output.receive_exactly(size)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            raise self._died() from None

    def _died(self) -> WorkerFailed:
        return WorkerFailed(f"{self._name} died before it returned its recording; see its output above, if any")
