"""Find tasks, threads and sockets that a piece of code left behind."""

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

# A pool keeps its threads for the next job. An idle thread of a pool has only these files on its stack.
_POOL_FILES = ("anyio/_backends/_asyncio.py", "trio/_core/_thread_cache.py", "concurrent/futures/thread.py")
_IDLE_FILES = (*_POOL_FILES, "/threading.py", "/queue.py")


@attrs.frozen
class Leftovers:
    """Tasks, threads and sockets with their descriptions, by id."""

    tasks: dict[int, str]
    threads: dict[int, str]
    """Busy threads. An idle thread of a pool does not count."""

    sockets: dict[int, str]
    """Always empty on Windows, which has no /dev/fd."""

    @classmethod
    def now(cls) -> Self:
        """Take a snapshot of this process and its event loop."""
        return cls(dict(_tasks()), dict(_threads()), dict(_sockets()))

    def since(self, before: "Leftovers") -> "Leftovers":
        """Return what is not in the earlier snapshot."""
        return Leftovers(
            _added(self.tasks, before.tasks),
            _added(self.threads, before.threads),
            _added(self.sockets, before.sockets),
        )

    def __bool__(self) -> bool:
        return bool(self.tasks or self.threads or self.sockets)

    def __str__(self) -> str:
        return ", ".join([*self.tasks.values(), *self.threads.values(), *self.sockets.values()]) or "nothing"


async def left_behind(
    before: Leftovers, grace_s: float, *, is_fine: Callable[[Leftovers], bool] | None = None
) -> Leftovers:
    """
    Wait until nothing new is left, and return what is left after `grace_s`.

    Only tasks, threads and sockets that are not in `before` count. With `is_fine`, stop waiting as soon as it returns
    True. An open backend may keep connections, for example.
    """
    deadline = anyio.current_time() + grace_s
    while True:
        # A cancelled task, or a callback that closes something, needs one turn of the loop to end.
        await checkpoint()
        left = Leftovers.now().since(before)
        if (is_fine(left) if is_fine is not None else not left) or anyio.current_time() >= deadline:
            return left
        await anyio.sleep(_POLL_S)


def _added(now: dict[int, str], before: dict[int, str]) -> dict[int, str]:
    return {key: words for key, words in now.items() if key not in before}


def _tasks() -> Iterator[tuple[int, str]]:
    for task in anyio.get_running_tasks():
        yield task.id, f"the task {task.name!r}"


def _threads() -> Iterator[tuple[int, str]]:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented, its underscore is a warning
    for thread in threading.enumerate():
        if thread.ident is not None and not _is_idle_in_pool(frames.get(thread.ident)):
            yield thread.ident, f"the thread {thread.name!r}"


def _is_idle_in_pool(frame: FrameType | None) -> bool:
    files = [file.replace("\\", "/") for file in _files_on_stack(frame)]
    in_pool = any(file.endswith(_POOL_FILES) for file in files)
    return in_pool and all(file.endswith(_IDLE_FILES) for file in files)


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
            # The descriptor of the folder itself, closed by now.
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield status.st_ino, f"the socket with descriptor {name}"
