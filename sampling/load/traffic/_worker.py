"""A process that makes a part of the load: `python -m sampling.load.traffic._worker`, started by `_workers`."""

import json
import os
import signal
import sys
import time
from typing import Any, cast

import anyio
import attrs

from sampling._arguments import shown
from sampling.load.model._imported_workload import ImportedWorkload, opened
from sampling.load.model._profiles import profile_from_dict
from sampling.load.traffic._generator import Generator
from sampling.load.traffic._sending import Part

_PROGRESS_EVERY_S = 0.5


class Line:
    """The line to the process that started this one: what was standard input and output."""

    def __init__(self) -> None:
        self._input = os.dup(0)
        self._output = os.dup(1)
        # Whatever the workload prints, or reads, must not get in between.
        os.dup2(2, 1)
        os.set_blocking(self._input, False)
        self._unread = b""

    async def hear(self) -> dict[str, Any] | None:
        """Wait for the next message; None when there is nobody at the other end any more."""
        while b"\n" not in self._unread:
            await anyio.wait_readable(self._input)
            data = os.read(self._input, 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def say(self, body: bytes = b"", **message: Any) -> None:
        """Send a message, and what it announces."""
        rest = memoryview(json.dumps(message).encode() + b"\n" + body)
        while rest:
            rest = rest[os.write(self._output, rest) :]


async def work(line: Line, order: dict[str, Any]) -> None:
    """Make this process's part of the traffic, from the common start on, and hand over what was recorded."""
    workload = ImportedWorkload(order["target"], order["arguments"])
    part = Part(order["worker"], order["workers"])
    generator = Generator(workload, profile_from_dict(order["profile"]), seed=order["seed"], part=part)
    async with opened(workload) as draw:
        line.say(ready=True)
        message = await line.hear()
        if message is None:
            return
        if "stop" in message:  # before it began
            generator.stop()
        # Every process of a machine reads the same monotonic clock; only event loops may count from elsewhere.
        start = anyio.current_time() + message.get("start_at", time.monotonic()) - time.monotonic()
        async with anyio.create_task_group() as beside:
            beside.start_soon(_stop_when_told, line, generator)
            beside.start_soon(_tell_progress, line, generator)
            await generator.drive(draw, start)
            beside.cancel_scope.cancel()
    head, body = generator.recording.pack()
    line.say(body, recording=head)


async def _stop_when_told(line: Line, generator: Generator) -> None:
    await line.hear()
    generator.stop()


async def _tell_progress(line: Line, generator: Generator) -> None:
    while True:
        line.say(progress=attrs.asdict(generator.progress))
        await anyio.sleep(_PROGRESS_EVERY_S)


async def main(line: Line, order: dict[str, Any]) -> None:
    """Do as ordered, and say so if that fails."""
    try:
        await work(line, order)
    except Exception as error:
        line.say(error=f"{type(error).__name__}: {shown(str(error))}")
        raise


async def first_order(line: Line) -> dict[str, Any] | None:
    """Wait for the order that says which event loop to use, among other things."""
    return await line.hear()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    the_line = Line()
    the_order = anyio.run(first_order, the_line)
    if the_order is not None:
        sys.path[:] = the_order["path"]
        anyio.run(main, the_line, the_order, backend=the_order["loop"])
