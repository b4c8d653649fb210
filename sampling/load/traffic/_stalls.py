"""
What stood in the way of the event loop: which code was running while a load run stood still.

While a function blocks the loop, nothing in it can look; so a thread does. The loop gives a sign of life now and then,
and where that is overdue, the thread reads off the stack of the loop's thread who is in the way.
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
import structlog

from sampling._watchdog import BLOCKED_S
from sampling.load.model._stall import Stall

__all__ = ["watch_for_stalls"]

log = structlog.get_logger("sampling")

_BEAT_S = BLOCKED_S / 4
"""Between two signs of life, and between two looks at them."""

_MOST_FRAMES = 8
_EVENT_LOOPS = frozenset({"anyio", "asyncio", "trio"})
_GENERATOR = "sampling.load."


async def watch_for_stalls(work: Callable[[], Awaitable[None]], start: float, stalls: list[Stall]) -> None:
    """
    Await the work, and write down and log each time that code blocked the event loop meanwhile.

    `start` is when the run began on the clock of the event loop. In virtual time nobody watches: a clock that waits for
    the loop can't tell that the loop is late.
    """
    if not _is_real(anyio.current_time):
        await work()
        return
    failure: Exception | None = None
    with _StallMonitor(stalls, time.monotonic() - (anyio.current_time() - start)) as monitor:
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(monitor.beat)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - for the caller, as it is and not in a group
                failure = error
            helpers.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _is_real(clock: Callable[[], float]) -> bool:
    """Tell whether a clock goes by itself: one of virtual time stands still while code runs."""
    before, began_s = clock(), time.monotonic()
    while time.monotonic() == began_s:
        pass
    return clock() != before


class _StallMonitor:
    """A thread that looks at the event loop's thread, for as long as it is entered."""

    def __init__(self, stalls: list[Stall], start_s: float) -> None:
        self._stalls = stalls
        self._start_s = start_s
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run_thread, name="sampling load stalls", daemon=True)
        self._over = threading.Event()
        # Both threads write what follows, so that a stall is either still going on or already over.
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
        """Give signs of life until cancelled."""
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
            # A C function that holds the interpreter stops this thread, too, but it uses a processor meanwhile;
            # a machine that was suspended does not.
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
            # Many short steps, or a processor that is busy elsewhere, make the loop late as well: only what was
            # running at the last look, and still is, or what has kept this thread out, is in the way.
            blocking = [frame for frame in running if was_starved or any(frame is seen for seen in self._last_seen)]
            self._last_seen = running
            if overdue_s < BLOCKED_S or not blocking or self._blocking:
                return
            where = self._blocking = tuple(islice(_locations(blocking), _MOST_FRAMES))
        # Said at once: there may be no end to it.
        log.warning("event_loop_blocked", by=where[0], called_from=list(where[1:]), blocked_s=round(overdue_s, 3))


def _running_code(thread: int) -> list[FrameType]:
    """Return what a thread is running, from the inside out, up to what belongs to the event loop."""
    found: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - documented
    while frame is not None and _module(frame).partition(".")[0] not in _EVENT_LOOPS:
        found.append(frame)
        frame = frame.f_back
    # Here asyncio waits for the next event; whoever else waits here, for a process say, is called by someone.
    return [] if len(found) == 1 and _module(found[0]) == "selectors" else found


def _locations(frames: Sequence[FrameType]) -> Iterator[str]:
    """Say where code is, without the generator itself where it only called who is in the way."""
    for frame in [frame for frame in frames if not _module(frame).startswith(_GENERATOR)] or frames:
        code = frame.f_code
        # The end of its path: the whole of it would tell whose machine this is.
        yield f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{frame.f_lineno} {code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
