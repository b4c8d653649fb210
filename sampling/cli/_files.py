"""Check output files before a run."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from sampling._arguments import short_repr
from sampling._files import is_special, replacing, written_path

__all__ = [
    "Force",
    "check_distinct",
    "check_output",
    "is_same_file",
    "is_special",
    "read_input",
    "reason_of",
    "replacing",
    "written_path",
]

Force = Annotated[bool, typer.Option("--force", help="Replace output files that exist.")]


def read_input(flag: str, path: Path) -> str:
    """Return the text of an input file without its byte order mark, or raise ValueError with the flag and the file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{flag}: can't read {short_repr(str(path))}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{flag}: can't read {short_repr(str(path))}: it is not UTF-8 text") from None


def check_output(flag: str, path: Path, *, replace: bool, protected: Mapping[str, Path | None]) -> Path:
    """
    Return the path of an output file, or raise ValueError.

    This is checked before a run: an hour of traffic must not end with a file that can't be written.

    Args:
        flag: The flag that named the file, for messages.

        path: The file to write.

        replace: Accept a file that exists.

        protected: Files that must never be written, such as the input, by description.
    """
    shown, folder = short_repr(str(path)), short_repr(str(path.parent))
    _check_reachable(flag, path)
    if not path.parent.is_dir():
        raise ValueError(f"{flag}: there is no directory {folder} to write {path.name!r} to: create it first")
    if path.is_dir():
        raise ValueError(f"{flag}: {shown} is a directory: give a file name")
    for what, other in protected.items():
        if other is not None and is_same_file(path, other):
            raise ValueError(f"{flag}: {shown} is {what}, which is never overwritten: choose another name")
    if not _may_write(path):
        raise ValueError(f"{flag}: {shown if is_special(path) else f'the directory {folder}'} can't be written to")
    if path.exists() and not replace and not is_special(path):
        raise ValueError(f"{flag}: {shown} already exists: add --force to replace it, or choose another name")
    return path


def _check_reachable(flag: str, path: Path) -> None:
    """Raise ValueError for a path that the system refuses: a loop of links, a long name, a closed directory."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ValueError(f"{flag}: {short_repr(str(path))} can't be used: {reason_of(error)}") from None


def _may_write(path: Path) -> bool:
    """Return whether a device or a pipe can be written to, or any other file replaced."""
    return os.access(path if is_special(path) else path.resolve().parent, os.W_OK)


def check_distinct(flag: str, paths: Iterable[Path]) -> None:
    """Raise ValueError if a file is named twice."""
    seen: list[Path] = []
    for path in paths:
        if any(is_same_file(path, other) for other in seen):
            raise ValueError(f"{flag}: {short_repr(str(path))} is given twice")
        seen.append(path)


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are one file, also through symbolic and hard links."""
    if one.resolve() == other.resolve():
        return True
    try:
        return one.samefile(other)
    except OSError:
        return False


def reason_of(error: OSError) -> str:
    """Return the reason of an error of the system, such as "No space left on device"."""
    return error.strerror or str(error) or type(error).__name__
