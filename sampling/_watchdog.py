"""Notice when someone else's code blocks the event loop."""

import time

import structlog

__all__ = ["BLOCKED_S", "warn_if_blocked"]

log = structlog.get_logger("sampling")

BLOCKED_S = 0.25
"""From how many seconds on a plain function counts as blocking the event loop."""


def warn_if_blocked(started_s: float, by: str) -> None:
    """
    Log a warning if the code that `by` names has been running since `started_s` for too long.

    Nothing can interrupt a plain function; but while it runs, every task in the process stands still,
    and whoever looks for the reason should find it in the log.
    """
    blocked_s = time.perf_counter() - started_s
    if blocked_s > BLOCKED_S:
        log.warning("event_loop_blocked", by=by, blocked_s=round(blocked_s, 3))
