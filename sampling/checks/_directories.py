"""Remove a temporary directory, however deeply code nested others in it."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from tempfile import TemporaryDirectory

__all__ = ["remove"]


def remove(directory: "TemporaryDirectory[str]") -> None:
    """Remove a directory. What can't be removed is left."""
    try:
        directory.cleanup()
    except RecursionError:
        # shutil recurses into directories, before Python 3.14.
        with suppress(OSError):
            _empty(directory.name)
        directory.cleanup()


def _empty(top: str) -> None:
    """Remove everything in a directory. Directories are moved to the top first, because their paths may be too long."""
    top_fd = os.open(top, os.O_RDONLY)
    try:
        names = (f"{os.urandom(8).hex()}-{number}" for number in count())
        while found := os.listdir(top_fd):  # noqa: PTH208 - of a descriptor
            for name in found:
                if not _unlinked(name, top_fd):
                    _lift(name, top_fd, names)
    finally:
        os.close(top_fd)


def _lift(name: str, top_fd: int, names: Iterator[str]) -> None:
    """Move the directories in a directory to the top under new names, and remove it with its files."""
    os.chmod(name, 0o700, dir_fd=top_fd)
    fd = os.open(name, os.O_RDONLY, dir_fd=top_fd)
    try:
        for inner in os.listdir(fd):  # noqa: PTH208 - of a descriptor
            if not _unlinked(inner, fd):
                os.rename(inner, next(names), src_dir_fd=fd, dst_dir_fd=top_fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top_fd)


def _unlinked(name: str, directory_fd: int) -> bool:
    """Remove a file, and return False for a directory."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory_fd)
    return True
