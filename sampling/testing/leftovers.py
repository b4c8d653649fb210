"""What a piece of code left behind: tasks that still run, threads that still work, sockets that are still open."""

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Self

import anyio
import attrs
from anyio.lowlevel import checkpoint

__all__ = ["Leftovers", "left_behind"]

_POLL_S = 0.01

# A pool keeps its threads for the next job. One that waits for a job has these files on its stack and no others.
_POOL_FILES = ("anyio/_backends/_asyncio.py", "trio/_core/_thread_cache.py", "concurrent/futures/thread.py")
_WAITING_FILES = (*_POOL_FILES, "/threading.py", "/queue.py")


@attrs.frozen
class Leftovers:
    """Everything that is alive at one moment: of each thing its id, and words that say what it is."""

    tasks: dict[int, str]
    threads: dict[int, str]
    """Those that work; a thread of a pool that waits for its next job does not count."""

    sockets: dict[int, str]
    """Not seen on Windows."""

    @classmethod
    def now(cls) -> Self:
        """Take stock of this process and the event loop that runs in this thread."""
        return cls(dict(_tasks()), dict(_threads()), dict(_sockets()))

    def since(self, before: "Leftovers") -> "Leftovers":
        """Return what was not there before."""
        return Leftovers(
            _new(self.tasks, before.tasks), _new(self.threads, before.threads), _new(self.sockets, before.sockets)
        )

    def __bool__(self) -> bool:
        return bool(self.tasks or self.threads or self.sockets)

    def __str__(self) -> str:
        return ", ".join([*self.tasks.values(), *self.threads.values(), *self.sockets.values()]) or "nothing"


async def left_behind(
    before: Leftovers, grace_s: float, *, is_fine: Callable[[Leftovers], bool] | None = None
) -> Leftovers:
    """
    Wait until all that is new since `before` is gone, at most for the grace period; return what is left then.

    With `is_fine`, wait only until that says yes: an open backend may keep connections, say.
    """
    deadline = anyio.current_time() + grace_s
    while True:
        # A task that was cancelled, or a callback that closes something, needs a turn of the loop to be gone.
        await checkpoint()
        left = Leftovers.now().since(before)
        if (is_fine(left) if is_fine is not None else not left) or anyio.current_time() >= deadline:
            return left
        await anyio.sleep(_POLL_S)


def _new(now: dict[int, str], before: dict[int, str]) -> dict[int, str]:
    return {key: words for key, words in now.items() if key not in before}


def _tasks() -> Iterator[tuple[int, str]]:
    for task in anyio.get_running_tasks():
        yield task.id, f"the task {task.name!r}"


def _threads() -> Iterator[tuple[int, str]]:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented, its underscore is a warning
    for thread in threading.enumerate():
        if thread.ident is not None and not _waits_for_a_job(frames.get(thread.ident)):
            yield thread.ident, f"the thread {thread.name!r}"


def _waits_for_a_job(frame: FrameType | None) -> bool:
    files = [file.replace("\\", "/") for file in _files_on_stack(frame)]
    in_pool = any(file.endswith(_POOL_FILES) for file in files)
    return in_pool and all(file.endswith(_WAITING_FILES) for file in files)


def _files_on_stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _sockets() -> Iterator[tuple[int, str]]:
    folder = Path("/dev/fd")
    for name in [entry.name for entry in folder.iterdir()] if folder.is_dir() else ():
        try:
            status = os.fstat(int(name))
        except OSError:
            # The descriptor with which the folder was read.
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield status.st_ino, f"the socket with descriptor {name}"
