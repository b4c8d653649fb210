"""Detect user code that blocks the event loop."""

import time

from sampling._log import Logger

__all__ = ["BLOCKED_S", "warn_if_blocked"]

log = Logger()

BLOCKED_S = 0.25
"""The number of seconds after which a sync function counts as blocking the event loop."""


def warn_if_blocked(started_s: float, by: str) -> None:
    """
    Log a warning if a function ran for too long.

    `by` is its name, and `started_s` the time of its start by `time.perf_counter`.
    A sync function can't be interrupted, and every task of the event loop waits while it runs.
    """
    blocked_s = time.perf_counter() - started_s
    if blocked_s > BLOCKED_S:
        log.warning("event_loop_blocked", by=by, blocked_s=round(blocked_s, 3))
