"""
Limit the time to validate hostile JSON.

Validators can take exponential time: a union of recursive models tries every branch on every level. Neither pydantic
nor jsonschema has a timeout, both hold the GIL, and no thread can be stopped. So they call `step` as they go.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import thread_time

from sampling._picklable import Picklable

__all__ = ["TooComplex", "count_step", "time_limit"]

_STEPS_PER_LOOK = 16


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
    steps: int = 0


_limit = _Limit()


@contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """
    Limit the processor time of this thread. An outer limit stays as it is.

    It is not the time of a clock, so that a busy machine does not fail an answer.
    """
    if _limit.ends_at is not None:
        yield
        return
    _limit.ends_at = thread_time() + seconds
    try:
        yield
    finally:
        _limit.ends_at = None


def count_step() -> None:
    """Raise `TooComplex` if the time is up."""
    _limit.steps += 1
    # Looking at the clock takes longer than a step.
    if _limit.steps % _STEPS_PER_LOOK == 0 and _limit.ends_at is not None and thread_time() > _limit.ends_at:
        raise TooComplex
