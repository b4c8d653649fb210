"""Replace files atomically."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

__all__ = ["is_special", "replacing", "written_path"]


def is_special(path: Path) -> bool:
    """Return whether the path is a device or a pipe, which is written to and not replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def written_path(path: Path) -> Path:
    """Return the target of a link, which is the file to replace, or the path itself of a device or a pipe."""
    # The link /dev/stdout to a pipe has a target that can't be opened by its name.
    return path if is_special(path) else path.resolve()


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """
    Yield a temporary path, and move its file to `path` at the end.

    Readers of `path` never see half of a file, and an exception leaves the old one as it was. A symbolic link stays
    one, and its target is replaced.
    """
    target = written_path(path)
    special = is_special(target)
    # In the same directory, because a move between file systems is not atomic.
    directory = Path(tempfile.gettempdir()) if special else target.parent
    # Without the name of the target, which may be as long as the system allows.
    temporary = directory / f".sampling-{os.getpid()}-{token_hex(4)}.part{path.suffix}"
    try:
        yield temporary
        if special:
            _copy_into(temporary, target)
        else:
            _move(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _copy_into(temporary: Path, target: Path) -> None:
    with temporary.open("rb") as source, target.open("wb") as device:
        shutil.copyfileobj(source, device)


def _move(temporary: Path, target: Path) -> None:
    # Without fsync, a power failure after the rename could leave an empty file.
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    if target.exists():
        shutil.copymode(target, temporary)
    temporary.replace(target)
