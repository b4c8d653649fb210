"""
Detect code that blocks the event loop.

While a function blocks the loop, nothing in the loop can notice, so a thread does. The loop sends a heartbeat, and when
it is overdue, the thread inspects the stack of the loop's thread to find the blocking code.
"""

import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Self

import anyio

from sampling._event_loop.watchdog import BLOCKED_S
from sampling._log import Logger
from sampling.load.model._about import is_real_clock
from sampling.load.model._stall import Stall

__all__ = ["watch_for_stalls"]

log = Logger()

_BEAT_S = BLOCKED_S / 4
"""The interval of the heartbeats, and of the checks."""

_MOST_FRAMES = 8
_EVENT_LOOPS = frozenset({"anyio", "asyncio", "trio"})
_GENERATOR = "sampling.load."


async def watch_for_stalls(work: Callable[[], Awaitable[None]], start: float, stalls: list[Stall]) -> None:
    """
    Await the work, and record each stall.

    A stall is a time in which code blocks the event loop. It is logged, too.
    `start` is the start of the run on the event loop's clock. In virtual time there is no monitor, because the clock
    waits for the loop and can't show that the loop is late.
    """
    if not is_real_clock():
        await work()
        return
    failure: Exception | None = None
    with _StallMonitor(stalls, time.monotonic() - (anyio.current_time() - start)) as monitor:
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(monitor.beat)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, outside of the exception group
                failure = error
            helpers.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _StallMonitor:
    """Monitors the event loop from another thread."""

    def __init__(self, stalls: list[Stall], start_s: float) -> None:
        self._stalls = stalls
        self._start_s = start_s
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run_thread, name="sampling load stalls", daemon=True)
        self._over = threading.Event()
        # The lock guards the fields below, which both threads write.
        self._lock = threading.Lock()
        self._due_s = time.monotonic() + _BEAT_S
        self._blocking: tuple[str, ...] = ()
        self._last_seen: Sequence[FrameType] = ()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._end_stall()

    # In the event loop.

    async def beat(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await anyio.sleep(_BEAT_S)
            self._end_stall()

    def _end_stall(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            if self._blocking:
                stall = Stall(at_s=self._due_s - self._start_s, blocked_s=now_s - self._due_s, where=self._blocking)
                self._stalls.append(stall)
                self._blocking = ()
            self._due_s = now_s + _BEAT_S

    # In the thread.

    def _run_thread(self) -> None:
        checked_s, used_s = time.monotonic(), time.process_time()
        while not self._over.wait(_BEAT_S):
            now_s, now_used_s = time.monotonic(), time.process_time()
            # A C function that holds the GIL stops this thread too, but uses CPU time. A suspended machine does not.
            was_starved = min(now_s - checked_s - _BEAT_S, now_used_s - used_s) > BLOCKED_S / 2
            self._check(now_s, was_starved=was_starved)
            checked_s, used_s = now_s, now_used_s

    def _check(self, now_s: float, *, was_starved: bool) -> None:
        with self._lock:
            overdue_s = now_s - self._due_s
            if overdue_s < BLOCKED_S / 2:
                self._last_seen = ()
                return
            running = _running_code(self._watched)
            # Many short steps, or a busy CPU, make the loop late as well. Only code that was already running at the
            # last check, or that starved this thread, counts as blocking.
            blocking = [frame for frame in running if was_starved or any(frame is seen for seen in self._last_seen)]
            self._last_seen = running
            if overdue_s < BLOCKED_S or not blocking or self._blocking:
                return
            where = self._blocking = tuple(islice(_locations(blocking), _MOST_FRAMES))
        # Log now, not at the end of the stall: it may never end.
        log.warning("event_loop_blocked", by=where[0], called_from=list(where[1:]), blocked_s=round(overdue_s, 3))


def _running_code(thread: int) -> list[FrameType]:
    """
    Return the frames of a thread, innermost first.

    The frames of the event loop are left out.
    """
    found: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - documented
    while frame is not None and _module(frame).partition(".")[0] not in _EVENT_LOOPS:
        found.append(frame)
        frame = frame.f_back
    # A lone `selectors` frame is asyncio waiting for events. Other code that waits there has a caller.
    return [] if len(found) == 1 and _module(found[0]) == "selectors" else found


def _locations(frames: Sequence[FrameType]) -> Iterator[str]:
    """
    Yield the locations of frames.

    Those of the load generator are left out if there are others.
    """
    for frame in [frame for frame in frames if not _module(frame).startswith(_GENERATOR)] or frames:
        code = frame.f_code
        # Only the end of the path: the whole path would reveal details of the machine.
        yield f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{frame.f_lineno} {code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
