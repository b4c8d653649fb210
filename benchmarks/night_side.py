"""
Run a part of a night in one process, in virtual time: `python -m benchmarks.night_side <settings>`.

The settings are JSON. It runs until all items are answered, the disk is full, or it kills itself with SIGKILL.
Each line of stdout is a request that the server accepted, and has to be paid: the virtual time and the tokens.
The clock of the day follows the virtual clock, so that the journal has the times of the night.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from sampling import Generation, MultiTurnStrategy, Request, Requirement, Usage, open_fan_out
from sampling.backends.layers import Retrying
from sampling.errors import ConnectFailed, JournalWriteFailed, RateLimited
from sampling.fanout.journal import Journal
from sampling.testing import run_virtual

DISK_FULL = 3
MIDNIGHT_S = 1_790_000_000.0
"""The time of the day when the night begins."""

VALID = Requirement("begins with yes", check=lambda text: text.startswith("yes"))


class InlineJournal(Journal):
    """A journal that writes in the event loop, because a thread takes no virtual time. The file is a real one."""

    async def in_thread(self, work: Callable[[], Any], limiter: anyio.CapacityLimiter) -> Any:
        """Run the work at once."""
        async with limiter:
            await checkpoint()
            return work()


class Draw(NamedTuple):
    """The properties of an answer, which are the same in every night."""

    tokens: int
    seconds: float
    is_good: bool

    @classmethod
    def of(cls, question: str, attempt: int) -> Draw:
        """Draw by the question and the attempt alone. A third attempt is good."""
        drawn = hashlib.sha256(f"{question} {attempt}".encode()).digest()
        # In quarters of a second, so that several answers come at the same instant and share a transaction.
        return cls(40 + drawn[0], 0.5 + drawn[1] % 11 / 4, attempt > 1 or drawn[2] >= 20)


class Night:
    """The server, the clock and the misfortunes of a night."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._began_s: float = settings["began_s"]

    @property
    def now_s(self) -> float:
        """The seconds since the night began."""
        return self._began_s + anyio.current_time()

    async def answer(self, request: Request) -> Generation:
        """Answer, or fail as the hour has it. The answer depends on the question and on the attempt alone."""
        question = request.messages[0].text
        draw = Draw.of(question, request.attempt)
        if self._is_within("outages"):
            raise ConnectFailed("connection refused")
        if self._is_within("storms") and self._refuses():
            raise RateLimited("too many requests", retry_after_s=20.0)
        os.write(1, f"{self.now_s:.3f} {draw.tokens}\n".encode())
        await anyio.sleep(draw.seconds)
        usage = Usage(40, draw.tokens - 40, draw.tokens * 1e-6)
        return Generation(f"{'yes' if draw.is_good else 'no'} {question}", usage)

    def _is_within(self, kind: str) -> bool:
        return any(start <= self.now_s < end for start, end in self._settings[kind])

    def _refuses(self) -> bool:
        """Refuse two of three requests, and all of them in the first minute of a storm."""
        start = next(start for start, end in self._settings["storms"] if start <= self.now_s < end)
        self._asked = getattr(self, "_asked", 0) + 1
        return self.now_s < start + 60 or self._asked % 3 > 0

    async def kill(self) -> None:
        """Kill this process at its time, as the kernel would when memory runs out."""
        await anyio.sleep(max(self._settings["kill_at_s"] - self.now_s, 0.0))
        os.kill(os.getpid(), signal.SIGKILL)

    async def fill_disk(self) -> None:
        """Let the system refuse all writes to files, from its time on."""
        await anyio.sleep(max(self._settings["full_at_s"] - self.now_s, 0.0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    async def run(self) -> int:
        """Run all items. Return the exit code."""
        settings = self._settings
        items = ((f"k{number}", f"question {number}") for number in range(settings["items"]))
        _follow(lambda: MIDNIGHT_S + self.now_s)
        async with anyio.create_task_group() as group:
            for name, misfortune in (("kill_at_s", self.kill), ("full_at_s", self.fill_disk)):
                if settings[name] is not None:
                    group.start_soon(misfortune)
            try:
                async with open_fan_out(
                    MultiTurnStrategy(loop_budget=3),
                    items,
                    None,
                    Retrying(self.answer, attempts=3),
                    [VALID],
                    max_concurrency=settings["at_once"],
                    journal=InlineJournal(settings["journal"]),
                    ordered=False,
                ) as outcomes:
                    async for _ in outcomes:
                        pass
            except JournalWriteFailed:
                return DISK_FULL
            finally:
                group.cancel_scope.cancel()
        return 0


def _follow(now_s: Callable[[], float]) -> None:
    """Make the clock of the day follow another, wherever an event loop runs."""
    time.time = now_s
    time.time_ns = lambda: int(now_s() * 1e9)


if __name__ == "__main__":
    sys.exit(run_virtual(Night(json.loads(sys.argv[1])).run, loop="asyncio", step_limit=10_000_000))
