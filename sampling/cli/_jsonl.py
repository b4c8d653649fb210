"""Write the answers of `sampling map` as JSON lines."""

import json
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

from sampling.cli._files import is_special, reason_of, replacing, written_path
from sampling.cli._stdout import ReaderLeft, write_result

__all__ = ["AnswersNotWritten", "RowWriter", "growing_file", "print_row", "write_rows"]

RowWriter: TypeAlias = Callable[[dict[str, Any]], None]
"""A function that writes one row."""


class AnswersNotWritten(Exception):
    """The answers could not be written. The message has what was saved."""


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a file by these rows."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for row in rows:
            file.write(_line(row))


@contextmanager
def growing_file(path: Path) -> Generator[RowWriter]:
    """
    Yield a function that writes rows to a new version of a file, as they arrive.

    Rows go to PATH.part, which is moved to `path` when the block ends. If the disk is full, the rows until then stay
    there. A device or a pipe is written to directly.
    """
    target = written_path(path)
    part = target if is_special(target) else target.with_name(f"{target.name}.part")
    try:
        with part.open("wb", buffering=0) as file:
            rows = _GrowingRows(path, part, file)
            yield rows.write
            if part is not target:
                os.fsync(file.fileno())
        # After a failure, which the caller may have caught, the part says by its name that it is one.
        if part is not target and not rows.failed:
            part.replace(target)
    except OSError as error:
        raise AnswersNotWritten(f"{path} could not be written: {reason_of(error)}.") from error


class _GrowingRows:
    """The rows of a file that grows."""

    def __init__(self, path: Path, part: Path, file: IO[bytes]) -> None:
        self._path = path
        self._part = part
        self._file = file
        self._rows = 0
        self._size = 0
        self.failed = False

    def write(self, row: dict[str, Any]) -> None:
        line = _line(row)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.failed = True
            saved = ""
            if not is_special(self._part):
                # Remove an incomplete row, so that the file can be read.
                self._file.truncate(self._size)
                saved = f" The first {self._rows:,} answers are in {self._part}."
            raise AnswersNotWritten(f"{self._path} could not be written: {reason_of(error)}.{saved}") from error
        self._rows += 1
        self._size += len(line)


def print_row(row: dict[str, Any]) -> None:
    """Print a row to stdout at once. Raise `ReaderLeft` if nobody reads it."""
    try:
        is_read = write_result(_line(row).decode("ascii"))
    except OSError as error:
        raise AnswersNotWritten(f"stdout could not be written: {reason_of(error)}.") from error
    if not is_read:
        raise ReaderLeft


def _line(row: dict[str, Any]) -> bytes:
    # ASCII only: model text must not send control sequences to a terminal.
    return f"{json.dumps(row, allow_nan=False)}\n".encode("ascii")
