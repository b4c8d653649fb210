"""
Limit the time to check hostile answers.

Validators can take exponential time: a union of recursive models tries every branch on every level. Neither pydantic
nor jsonschema has a timeout, both hold the GIL, and no thread can be stopped. So they call `count_step` as they go.
Regular expressions have a timeout, and get the time that is left.
"""

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import thread_time
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sampling._event_loop import limiter_of_this_loop
from sampling._picklable import Picklable

__all__ = ["TooComplex", "count_step", "may_go_on_in_thread", "time_left", "time_limit", "within_time"]

T = TypeVar("T")

INLINE_S = 0.05
THREAD_S = 1.0
"""
The limit on the processor time of a check, which first runs on the event loop and then in a thread. A hostile answer
could take years.
"""

_STEPS_PER_LOOK = 16
_MAX_THREADS = 32
_threads: "RunVar[anyio.CapacityLimiter]" = RunVar("sampling_slow_checks")


class TooComplex(Picklable, Exception):
    """
    Validating a value takes too long.

    It is no ValueError, because pydantic would take that for an error of the value and go on.
    """

    def __init__(self) -> None:
        super().__init__("it takes too long to check: make it shorter, with less nesting")


class _Limit(threading.local):
    """The limit of each thread."""

    ends_at: float | None = None
    inline: bool = False
    steps: int = 0


_limit = _Limit()


def within_time(work: Callable[[], T], seconds: float = THREAD_S) -> T | Awaitable[T]:
    """
    Do work that may be slow, without blocking the event loop.

    It is begun here. If it raises `TooComplex` because it takes longer than a moment, it is begun again in a thread,
    with this limit, and has to be awaited. A cancelled thread is left behind: it ends at its limit.
    """
    try:
        with time_limit(INLINE_S, inline=True):
            return work()
    except TooComplex:
        return _in_thread(work, seconds)


async def _in_thread(work: Callable[[], T], seconds: float) -> T:
    def limited() -> T:
        with time_limit(seconds):
            return work()

    # Not anyio's own limiter: hostile answers must not take the application's threads away.
    limiter = limiter_of_this_loop(_threads, _MAX_THREADS)
    return await anyio.to_thread.run_sync(limited, abandon_on_cancel=True, limiter=limiter)


@contextmanager
def time_limit(seconds: float, *, inline: bool = False) -> Generator[None]:
    """
    Limit the processor time of this thread. An outer limit stays as it is.

    It is not the time of a clock, so that a busy machine does not fail an answer.
    `inline` says that the work is done again in a thread if it takes longer.
    """
    if _limit.ends_at is not None:
        yield
        return
    _limit.ends_at, _limit.inline = thread_time() + seconds, inline
    try:
        yield
    finally:
        _limit.ends_at, _limit.inline = None, False


def may_go_on_in_thread() -> bool:
    """Return True if work that raises `TooComplex` is done again in a thread."""
    return _limit.inline


def time_left(most_s: float) -> float:
    """Return the seconds that are left, at most so many."""
    return most_s if _limit.ends_at is None else min(most_s, max(0.0, _limit.ends_at - thread_time()))


def count_step() -> None:
    """Raise `TooComplex` if the time is up."""
    _limit.steps += 1
    # Looking at the clock takes longer than a step.
    if _limit.steps % _STEPS_PER_LOOK == 0 and _limit.ends_at is not None and thread_time() > _limit.ends_at:
        raise TooComplex
