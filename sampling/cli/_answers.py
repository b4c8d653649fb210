"""Where answers go: one JSON line an item, in the order of the items."""

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from sampling.fanout.items import ItemOutcome

__all__ = ["Write", "printed", "replacing", "row_of"]

Write: TypeAlias = Callable[[dict[str, Any]], None]
"""Writes one row."""


def row_of(outcome: ItemOutcome[Any]) -> dict[str, Any]:
    """Return an outcome as plain values: the same columns that a journal's rows have."""
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
def replacing(path: Path) -> Generator[Write]:
    """
    Give what writes rows beside a file, and put them in its place when the block is left, unless by an exception.

    Whoever looks sees the file as it was, or as it is now, and never a half of it.
    """
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("w", encoding="ascii", newline="\n") as file:
            yield partial(_write, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(file: TextIO, row: dict[str, Any]) -> None:
    file.write(_line(row))


def printed(row: dict[str, Any]) -> None:
    """Print a row at once."""
    _write(sys.stdout, row)
    sys.stdout.flush()


def _line(row: dict[str, Any]) -> str:
    """Return a row as a line of ASCII JSON: nothing in it steers a terminal."""
    return f"{json.dumps(row, allow_nan=False)}\n"
