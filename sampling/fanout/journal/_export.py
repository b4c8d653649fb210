"""Export a journal as JSON lines, CSV or Parquet."""

import csv
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from sampling._arguments import short_repr
from sampling._json import bounded as bounded_json
from sampling.errors import JournalDamaged, MissingExtra
from sampling.fanout.journal._store import OutcomeRow, all_outcomes, connect_to_read

__all__ = ["ExportFormat", "export", "rows"]

ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]
"""The file format of an export."""

_COLUMNS: Final = {
    "index": "int64",
    "key": "string",
    "status": "string",
    "text": "string",
    "value": "string",
    "stop_reason": "string",
    "error_type": "string",
    "error": "string",
    "attempts": "int64",
    "requests": "int64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "cost": "double",
    "elapsed_s": "double",
    "sampling_id": "string",
}
"""The columns of every export and their Parquet types. In JSON lines, `value` is not encoded as a string."""

_PARQUET_ROWS: Final = 10_000


def export(
    journal: str | PathLike[str],
    to: str | PathLike[str],
    *,
    format: ExportFormat | None = None,  # noqa: A002
) -> int:
    """
    Write the outcomes of a journal to a file.

    They are ordered by index. Return their number.
    The format follows the suffix `.jsonl`, `.csv` or `.parquet` unless it is given. Parquet needs the extra `parquet`.
    The file appears once it is complete. A run may write the journal meanwhile: its stored outcomes are exported.
    """
    target = Path(to)
    write = _writer_for(target, format)
    unfinished = target.with_name(f"{target.name}.part")
    try:
        count = write(unfinished, rows(Path(journal)))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def rows(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of a journal, ordered by index."""
    with connect_to_read(journal) as database:
        for outcome in all_outcomes(database, journal):
            yield _row(outcome, journal)


def _row(outcome: OutcomeRow, journal: Path) -> dict[str, Any]:
    try:
        record = bounded_json.loads(outcome.record)
        error = record.get("error", {})
        attempts: list[dict[str, Any]] = record.get("attempts", [])
        best = next((one for one in attempts if one["iteration"] == record["best"]), dict[str, Any]())
        text = best.get("generation", {}).get("text")
        return {
            "index": outcome.item,
            "key": outcome.key,
            "status": outcome.status,
            "text": text,
            "value": record.get("value", text),
            "stop_reason": record.get("stop_reason"),
            "error_type": error.get("type"),
            "error": error.get("message"),
            "attempts": outcome.attempts,
            "requests": outcome.requests,
            "input_tokens": outcome.input_tokens,
            "output_tokens": outcome.output_tokens,
            "cost": outcome.cost,
            "elapsed_s": record.get("elapsed_s"),
            "sampling_id": record.get("sampling_id"),
        }
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise JournalDamaged(f"{journal}: the record of item {outcome.item} can't be read: {problem}") from problem


def _writer_for(target: Path, given: str | None) -> Callable[[Path, Iterator[dict[str, Any]]], int]:
    writers = {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet}
    chosen = target.suffix.removeprefix(".").lower() if given is None else given
    if chosen not in writers:
        allowed = ", ".join(f".{name}" for name in writers)
        got = short_repr(target.name if given is None else given)
        raise ValueError(f"an export must have a name or a format that is one of {allowed}, got {got}")
    return writers[chosen]


def _write_jsonl(path: Path, outcomes: Iterator[dict[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        for count, outcome in enumerate(outcomes, 1):  # noqa: B007 - the last number is the count
            file.write(f"{json.dumps(outcome, allow_nan=False)}\n")
    return count


def _write_csv(path: Path, outcomes: Iterator[dict[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, list(_COLUMNS))
        table.writeheader()
        for count, outcome in enumerate(outcomes, 1):  # noqa: B007
            table.writerow(_with_text_value(outcome))
    return count


def _write_parquet(path: Path, outcomes: Iterator[dict[str, Any]]) -> int:
    try:
        # Imported here because it is a heavy extra. It ships no types, hence Any.
        pa: Any = import_module("pyarrow")
        pq: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("an export to Parquet", "pyarrow", "parquet") from error
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _COLUMNS.items()])
    count = 0
    with pq.ParquetWriter(path, schema) as table:
        batch: list[dict[str, Any]] = []
        for outcome in outcomes:
            batch.append(_encodable(_with_text_value(outcome)))
            if len(batch) == _PARQUET_ROWS:
                table.write_batch(pa.RecordBatch.from_pylist(batch, schema))
                count += len(batch)
                batch.clear()
        table.write_batch(pa.RecordBatch.from_pylist(batch, schema))
        count += len(batch)
    return count


def _with_text_value(outcome: dict[str, Any]) -> dict[str, Any]:
    value = outcome["value"]
    return outcome if value is None or isinstance(value, str) else {**outcome, "value": json.dumps(value)}


def _encodable(outcome: dict[str, Any]) -> dict[str, Any]:
    # A model may answer with lone surrogates, which Parquet can't store.
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in outcome.items()
    }
