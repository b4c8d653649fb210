"""Locks that end with their owner: one for a run, and a second hold on those of SQLite."""

import contextlib
import json
import os
import socket
import struct
import time
import weakref
from pathlib import Path
from typing import Any, Final

from sampling.errors import JournalError, JournalLocked

try:
    import fcntl
except ImportError:  # pragma: no cover - without it, everything but journals works
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock", "SharedLocks"]

_LONGEST_OWNER = 1_000

_LOCKED_WHILE_OPEN: Final = (("", 0x4000_0002, 510), ("-shm", 128, 1))
"""The bytes on which SQLite holds shared locks while a file with a write-ahead log is open, as its format defines."""


class FileLock:
    """
    An exclusive lock, held by one run in one process.

    It names its owner in the file.
    The system frees it when the process ends, so it can't become stale.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock. A child process that was forked from the owner does not."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock, or raise `JournalLocked` with the owner."""
        if fcntl is None:
            raise JournalError("a journal needs POSIX file locks, which this system does not have")
        while self._descriptor is None:
            # Python opens descriptors as non-inheritable, so child programs do not keep the lock.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = _is_same_file(descriptor, self.path)
            except BlockingIOError:
                owner = _read_owner(descriptor)
                os.close(descriptor)
                raise JournalLocked(f"{self.path.name} is held by {owner}") from None
            except BaseException:
                os.close(descriptor)
                raise
            if is_ours:
                self._descriptor = descriptor
            else:
                # The previous owner removed the file between our open and our lock, so this is a deleted file. Retry.
                os.close(descriptor)
        _write_owner(self._descriptor)
        _held.add(self)

    def keep(self) -> None:
        """Take the lock again if its file was removed. If another run has taken it since, raise `JournalLocked`."""
        if self._descriptor is not None and not _is_same_file(self._descriptor, self.path):
            self.close()
            self.acquire()

    def release(self) -> None:
        """Release the lock and remove its file."""
        if self._descriptor is not None:
            # Before the lock is freed, because afterwards the file may belong to another run. If the file was removed,
            # it may do so already.
            with contextlib.suppress(OSError):
                if _is_same_file(self._descriptor, self.path):
                    self.path.unlink()
            self.close()

    def close(self) -> None:
        """Close the file without removing it. The end of the process does the same."""
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is not None:
            os.close(descriptor)


class SharedLocks:
    """
    Holds the locks by which SQLite shows that a file is open once more.

    SQLite loses its own when any code of this process closes a descriptor of the file, for example after copying it.
    Then another program that opens and closes the file takes itself for the last one, and deletes the log, to which the
    run still writes. The locks held here belong to their descriptors, where the system has such locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Hold the locks of an open file."""
        if not hasattr(fcntl, "F_OFD_SETLK"):
            return
        for suffix, start, length in _LOCKED_WHILE_OPEN:
            # Without a lock, the file is as safe as SQLite makes it.
            with contextlib.suppress(OSError):
                self._descriptors.append(os.open(f"{self._path}{suffix}", os.O_RDONLY))
                _set_lock(self._descriptors[-1], start, length, held=True)
        _held.add(self)

    def release(self) -> None:
        """Release the locks before SQLite closes the file, so that it can delete its log."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                _set_lock(descriptor, 0, 0, held=False)

    def close(self) -> None:
        """Close the descriptors. SQLite must have closed the file, because this frees its own locks, too."""
        descriptors, self._descriptors = self._descriptors, []
        _held.discard(self)
        for descriptor in descriptors:
            os.close(descriptor)


def _set_lock(descriptor: int, start: int, length: int, *, held: bool) -> None:
    """Set or release a shared lock that belongs to an open file, and not to a process."""
    if fcntl is not None:
        kind = fcntl.F_RDLCK if held else fcntl.F_UNLCK
        # A `struct flock`, padded to its alignment.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, start, length, 0))


_held: "weakref.WeakSet[FileLock | SharedLocks]" = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the lock, and would keep it after the death of the owner.
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def owner_now() -> dict[str, Any]:
    """Return the process id, the host and the time."""
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
        return "an unknown process"


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
