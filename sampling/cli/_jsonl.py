"""Write the answers of `sampling map` as JSON lines."""

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from sampling.fanout.items import ItemOutcome

__all__ = ["RowWriter", "outcome_row", "print_row", "replace_file"]

RowWriter: TypeAlias = Callable[[dict[str, Any]], None]
"""A function that writes one row."""


def outcome_row(outcome: ItemOutcome[Any]) -> dict[str, Any]:
    """Return an outcome with the columns of a journal export."""
    result, error = outcome.result, outcome.error
    attempts = () if result is None else result.attempts
    return {
        "index": outcome.index,
        "key": outcome.key,
        "status": outcome.status,
        "text": None if result is None else result.text,
        "value": None if result is None else result.value,
        "stop_reason": None if result is None else result.stop_reason,
        "error_type": None if error is None else type(error).__name__,
        "error": None if error is None else str(error),
        "attempts": len(attempts),
        "requests": sum(attempt.requests for attempt in attempts),
        "input_tokens": outcome.usage.input_tokens,
        "output_tokens": outcome.usage.output_tokens,
        "cost": outcome.usage.cost,
        "elapsed_s": None if result is None else result.elapsed_s,
        "sampling_id": None if result is None else result.sampling_id,
    }


@contextmanager
def replace_file(path: Path) -> Generator[RowWriter]:
    """
    Yield a function that writes rows to a new version of a file.

    Rows go to a temporary file, which is moved to `path` when the block ends. The file is replaced atomically, so
    readers never see half of it. An exception leaves the old file as it was.
    """
    # In the same directory, because a move between file systems is not atomic.
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("w", encoding="ascii", newline="\n") as file:
            yield partial(_write_row, file)
            # Without fsync, a power failure after the rename could leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def print_row(row: dict[str, Any]) -> None:
    """Print a row to stdout."""
    _write_row(sys.stdout, row)
    sys.stdout.flush()  # a pipe gets each answer at once


def _write_row(file: TextIO, row: dict[str, Any]) -> None:
    # ASCII only: model text must not send control sequences to a terminal.
    file.write(f"{json.dumps(row, allow_nan=False)}\n")
