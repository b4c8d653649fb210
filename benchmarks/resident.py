"""Read the resident memory of this process. Standard library only, because the environments of the peers import it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes"]


def resident_bytes() -> int:
    """Return the resident memory."""
    return _field("VmRSS")


def peak_bytes() -> int:
    """
    Return the most resident memory so far.

    Not `ru_maxrss`: Linux counts into it what the process that started this one had.
    """
    return _field("VmHWM")


def _field(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024
