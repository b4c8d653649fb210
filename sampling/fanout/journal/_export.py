"""Export a journal as JSON lines, CSV, Parquet or HTML."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from sampling._arguments import short_repr
from sampling._files import replacing
from sampling._json import bounded as bounded_json
from sampling.errors import JournalDamaged, MissingExtra
from sampling.fanout.items import ItemOutcome
from sampling.fanout.journal._page import read_findings, render_findings
from sampling.fanout.journal._records import Recorder, describe_requirement, padded_validation
from sampling.fanout.journal._store import OutcomeRow, all_outcomes, connect_to_read, is_file_of, run_of
from sampling.messages import Action
from sampling.requirements import Requirement

__all__ = ["ExportFormat", "export", "live_row", "rows"]

ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet", "html"]
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
    "failures": "string",
    "attempts": "int64",
    "requests": "int64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "cached_input_tokens": "int64",
    "reasoning_tokens": "int64",
    "cost": "double",
    "elapsed_s": "double",
    "sampling_id": "string",
}
"""The columns of every export and their Parquet types. In JSON lines, `value` and `failures` are not encoded."""

_ENCODED: Final = ("value", "failures")

_PARQUET_ROWS: Final = 10_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""The characters with which a spreadsheet begins a formula, also those of East Asian keyboards."""


def export(
    journal: str | PathLike[str],
    to: str | PathLike[str],
    *,
    format: ExportFormat | None = None,  # noqa: A002
) -> int:
    """
    Write the outcomes of a journal to a file.

    They are ordered by index. Return their number.
    The format follows the suffix `.jsonl`, `.csv`, `.parquet` or `.html` unless it is given. Parquet needs the extra
    `parquet`. HTML is a page about the run: its progress, its failures and its slowest items.
    The file appears once it is complete. A device or a pipe is written to, and the file behind a link is replaced.
    A run may still be writing the journal: its stored outcomes are exported.
    In CSV, text that a spreadsheet would treat as a formula is preceded by an apostrophe.
    """
    target = Path(to)
    write = _writer_for(target, format)
    if is_file_of(Path(journal), target):
        raise ValueError(f"an export must not overwrite the journal: {target} belongs to {journal}")
    with replacing(target) as unfinished:
        return write(unfinished, Path(journal))


def rows(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of a journal, ordered by index."""
    with connect_to_read(journal) as database:
        descriptions = _descriptions(run_of(database, journal)[2])
        for outcome in all_outcomes(database, journal):
            yield _row(outcome, str(journal), descriptions)


def live_row(outcome: ItemOutcome[Any], requirements: Sequence[Requirement]) -> dict[str, Any]:
    """Return the row of an outcome that is in no journal."""
    usage = outcome.usage
    record, _ = Recorder(None, requirements).dump(outcome, Action(""))
    spent = (usage.input_tokens, usage.output_tokens, usage.cost, outcome.attempts, outcome.requests)
    details = (usage.cached_input_tokens, usage.reasoning_tokens)
    row = OutcomeRow(outcome.index, 0, outcome.key, 0, outcome.status, *spent, record, *details)
    return _row(row, "the answer", [one.description for one in requirements])


def _descriptions(fingerprint: str) -> list[str]:
    """Return the descriptions of the requirements of a run."""
    return [one["description"] for one in bounded_json.loads(fingerprint)["requirements"]]


def _row(outcome: OutcomeRow, journal: str, descriptions: Sequence[str]) -> dict[str, Any]:
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
            "failures": [] if outcome.status == "succeeded" else list(_failures(record, descriptions)),
            "attempts": outcome.attempts,
            "requests": outcome.requests,
            "input_tokens": outcome.input_tokens,
            "output_tokens": outcome.output_tokens,
            "cached_input_tokens": outcome.cached_input_tokens,
            "reasoning_tokens": outcome.reasoning_tokens,
            "cost": outcome.cost,
            "elapsed_s": record.get("elapsed_s"),
            "sampling_id": record.get("sampling_id"),
        }
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise JournalDamaged(f"{journal}: the record of item {outcome.item} can't be read: {problem}") from problem


def _failures(record: Mapping[str, Any], descriptions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the failed requirements and the errors of every attempt, or those of a call that raised."""
    if "error" in record:
        for error in (record["error"], *record.get("others", ())):
            yield {"error_type": error["type"], "error": error["message"]}
        return
    for attempt in record["attempts"]:
        for position, passed, reason, _, _, name in map(padded_validation, attempt.get("validations", ())):
            if not passed:
                described = name or describe_requirement(position, descriptions)
                yield {"iteration": attempt["iteration"], "requirement": described, "reason": reason or described}
        if attempt["outcome"] == "errored" and "error" in attempt:
            error = record["errors"][attempt["error"]]
            yield {"iteration": attempt["iteration"], "error_type": error["type"], "error": error["message"]}


def _writer_for(target: Path, given: str | None) -> Callable[[Path, Path], int]:
    writers = {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet, "html": _write_page}
    chosen = target.suffix.removeprefix(".").lower() if given is None else given
    if chosen not in writers:
        allowed = ", ".join(f".{name}" for name in writers)
        got = short_repr(target.name if given is None else given)
        raise ValueError(f"an export must have a name or a format that is one of {allowed}, got {got}")
    return writers[chosen]


def _write_page(path: Path, journal: Path) -> int:
    findings = read_findings(journal)
    path.write_text(render_findings(findings), encoding="utf-8")
    return findings.ended


def _write_jsonl(path: Path, journal: Path) -> int:
    count = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        for count, outcome in enumerate(rows(journal), 1):  # noqa: B007 - the last number is the count
            file.write(f"{json.dumps(outcome, allow_nan=False)}\n")
    return count


def _write_csv(path: Path, journal: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.DictWriter(file, list(_COLUMNS))
        table.writeheader()
        for count, outcome in enumerate(rows(journal), 1):  # noqa: B007
            table.writerow({name: _inert(value) for name, value in _encoded(outcome).items()})
    return count


def _write_parquet(path: Path, journal: Path) -> int:
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
        for outcome in rows(journal):
            batch.append(_encodable(_encoded(outcome)))
            if len(batch) == _PARQUET_ROWS:
                table.write_batch(pa.RecordBatch.from_pylist(batch, schema))
                count += len(batch)
                batch.clear()
        table.write_batch(pa.RecordBatch.from_pylist(batch, schema))
        count += len(batch)
    return count


def _encoded(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose values are all plain, for formats without nesting."""
    nested = {name: value for name in _ENCODED if not isinstance(value := outcome[name], str | None)}
    return {**outcome, **{name: json.dumps(value) for name, value in nested.items()}}


def _inert(value: Any) -> Any:
    """Return a cell that no spreadsheet evaluates. A plain number stays as it is."""
    # Some programs ignore space before a formula.
    if not isinstance(value, str) or not (value.startswith(_FORMULA) or value.lstrip().startswith(_FORMULA)):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _encodable(outcome: dict[str, Any]) -> dict[str, Any]:
    # A model may answer with lone surrogates, which Parquet can't store.
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in outcome.items()
    }
