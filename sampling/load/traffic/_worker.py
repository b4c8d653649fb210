"""A worker process of a load run. `_workers` starts it as `python -m sampling.load.traffic._worker`."""

import json
import os
import signal
import sys
import time
from typing import Any, cast

import anyio
import attrs

from sampling._arguments import short_repr
from sampling.load.model._imported_workload import ImportedWorkload, open_workload
from sampling.load.model._profiles import profile_from_dict
from sampling.load.traffic._generator import Generator
from sampling.load.traffic._sending import Shard

_PROGRESS_EVERY_S = 0.5


class ParentChannel:
    """The channel to the parent process. It uses the original standard input and output."""

    def __init__(self) -> None:
        self._input = os.dup(0)
        self._output = os.dup(1)
        # Redirect stdout to stderr, so that output of the workload can't corrupt the messages.
        os.dup2(2, 1)
        os.set_blocking(self._input, False)
        self._unread = b""

    async def receive(self) -> dict[str, Any] | None:
        """Wait for the next message. Return None when the parent has closed the channel."""
        while b"\n" not in self._unread:
            await anyio.wait_readable(self._input)
            data = os.read(self._input, 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def send(self, body: bytes = b"", **message: Any) -> None:
        """Send a message as a line of JSON, then the body."""
        rest = memoryview(json.dumps(message).encode() + b"\n" + body)
        while rest:
            rest = rest[os.write(self._output, rest) :]


async def work(channel: ParentChannel, order: dict[str, Any]) -> None:
    """
    Send this worker's share of the traffic.

    It begins at the common start. The recording is returned to the parent.
    """
    workload = ImportedWorkload(order["target"], order["arguments"])
    shard = Shard(order["worker"], order["workers"])
    generator = Generator(workload, profile_from_dict(order["profile"]), seed=order["seed"], shard=shard)
    async with open_workload(workload) as draw:
        channel.send(ready=True)
        message = await channel.receive()
        if message is None:
            return
        if "stop" in message:  # before it began
            generator.stop()
        # All processes share the monotonic clock, but the clock of an event loop may have another origin.
        start = anyio.current_time() + message.get("start_at", time.monotonic()) - time.monotonic()
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(_stop_on_message, channel, generator)
            helpers.start_soon(_report_progress, channel, generator)
            await generator.drive(draw, start)
            helpers.cancel_scope.cancel()
    head, body = generator.recording.pack()
    channel.send(body, recording=head)


async def _stop_on_message(channel: ParentChannel, generator: Generator) -> None:
    await channel.receive()
    generator.stop()


async def _report_progress(channel: ParentChannel, generator: Generator) -> None:
    while True:
        channel.send(progress=attrs.asdict(generator.progress))
        await anyio.sleep(_PROGRESS_EVERY_S)


async def main(channel: ParentChannel, order: dict[str, Any]) -> None:
    """Run the order, and report an error to the parent."""
    try:
        await work(channel, order)
    except Exception as error:
        channel.send(error=f"{type(error).__name__}: {short_repr(str(error))}")
        raise


async def first_order(channel: ParentChannel) -> dict[str, Any] | None:
    """Wait for the order, which also selects the event loop."""
    return await channel.receive()


if __name__ == "__main__":
    # Only the parent reacts to a terminal. It stops its workers, and they return what they have recorded.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    the_channel = ParentChannel()
    # The order names the event loop to use, so it is read before that loop can start.
    the_order = anyio.run(first_order, the_channel)
    if the_order is not None:
        sys.path[:] = the_order["path"]
        anyio.run(main, the_channel, the_order, backend=the_order["loop"])
