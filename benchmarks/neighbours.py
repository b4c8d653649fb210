"""Measure the processor time of other programs. They distort a benchmark."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """Processor times at one moment."""

    at_s: float
    everyone_s: float
    ours_s: float

    @classmethod
    def now(cls) -> Reading:
        """Read the clocks."""
        return cls(time.monotonic(), _everyone_s(), _ours_s())


def others_since(before: Reading) -> float:
    """Return the average number of processors used by others. Return 0 if it is unknown."""
    now = Reading.now()
    used_s = (now.everyone_s - before.everyone_s) - (now.ours_s - before.ours_s)
    return max(0.0, used_s / (now.at_s - before.at_s))


def _everyone_s() -> float:
    """
    Return the busy time of all processors.

    Waiting does not count, nor do interrupts, most of which are our own traffic.
    """
    try:
        _, user, nice, system, _idle, _iowait, _irq, _softirq, steal, *_ = (
            (_PROC / "stat").read_text("ascii").split("\n")[0].split()
        )
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, steal))) / _TICKS_PER_S


def _ours_s() -> float:
    """Return the time of this process and its children."""
    return sum(map(_used_s, _PROC.glob("[0-9]*/stat")))


def _used_s(stat: Path) -> float:
    try:
        # The second field is the name of the program, in parentheses. It may contain spaces and parentheses.
        fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:  # the process has ended
        return 0.0
    is_ours = os.getpid() in (int(stat.parent.name), int(fields[1]))
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if is_ours else 0.0
