"""A lock on a file that names its owner, and that death frees."""

import contextlib
import json
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any

from sampling.errors import JournalError, JournalLocked

try:
    import fcntl
except ImportError:  # pragma: no cover - a system without it can do everything but keep a journal
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock"]

_LONGEST_OWNER = 1_000


class FileLock:
    """
    Held by one process, and by one run in it, from `acquire` to `release`, or to the end of the process.

    The system takes it from a process that is gone, so there is no such thing as a stale one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or raise `JournalLocked` with the owner."""
        if fcntl is None:
            raise JournalError("a journal needs POSIX file locks, which this system has not")
        while self._descriptor is None:
            # Python's descriptors are not inherited by programs that are started.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = _read_owner(descriptor)
                os.close(descriptor)
                raise JournalLocked(f"{self.path.name} is held by {owner}") from None
            except BaseException:
                os.close(descriptor)
                raise
            if _is_at(descriptor, self.path):
                self._descriptor = descriptor
            else:
                # Whoever had it removed it between our opening and our locking: that was another file.
                os.close(descriptor)
        _write_owner(self._descriptor)
        _held.add(self)

    def release(self) -> None:
        """Give it back, and leave no file behind."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.close()

    def close(self) -> None:
        """Let go of the file, as the end of the process would."""
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is not None:
            os.close(descriptor)


_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _forget_in_child() -> None:
    # A child that is forked shares the lock, and would keep it after the death of the process that owns it.
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def owner_now() -> dict[str, Any]:
    """Return who this process is."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started_s": time.time()}


def _write_owner(descriptor: int) -> None:
    text = json.dumps(owner_now()).encode("ascii")
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def _read_owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, _LONGEST_OWNER, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(owner["started_s"])))
        return f"process {int(owner['pid'])} on {str(owner['host'])[:100]!r}, since {since}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process that has not said who it is"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
