"""Check and write the report files of `--out`."""

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sampling._arguments import short_repr
from sampling.cli._files import check_distinct, check_output, reason_of, replacing
from sampling.cli._status import print_status
from sampling.cli._stdout import write_result
from sampling.load import Comparison
from sampling.load.report._files import Report, format_of, write_report

__all__ = ["Out", "Samples", "check_outputs", "publish", "write_outputs"]

Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="Write the report to this .json, .csv or .html file. Repeatable.",
    ),
]
Samples = Annotated[
    bool, typer.Option("--samples", help="Keep every request in the .json, for `sampling plan --like`.")
]


def check_outputs(
    paths: Sequence[Path] | None,
    *,
    force: bool,
    protected: Mapping[str, Path | None],
    samples: bool = False,
    endings: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Return the output paths, or raise ValueError."""
    found = tuple(paths or ())
    for path in found:
        ending = format_of(path)
        if endings and ending not in endings:
            raise ValueError(f"--out: this report is written as {' or '.join(endings)}, got {short_repr(str(path))}")
        check_output("--out", path, replace=force, protected=protected)
    check_distinct("--out", found)
    if samples and not any(path.suffix.lower() == ".json" for path in found):
        raise ValueError("--samples needs a .json to write them to: add --out report.json")
    return found


def publish(
    report: Report, text: str, paths: Sequence[Path], *, samples: bool = False, comparison: Comparison | None = None
) -> bool:
    """
    Write a report to every path, with a comparison on its page, and its text to stdout.

    Return False if one of them failed. The report is then saved elsewhere, because its measurements are expensive.
    """
    written = write_outputs(report, paths, samples=samples, comparison=comparison)
    try:
        write_result(text)
    except OSError as error:
        problem = f"stdout could not be written: {reason_of(error)}"
        if paths and written:
            print_status(f"sampling: {problem}. The report is in {', '.join(map(str, paths))}")
        else:
            _rescue(report, problem, samples=samples)
        return False
    return written


def write_outputs(
    report: Report, paths: Sequence[Path], *, samples: bool = False, comparison: Comparison | None = None
) -> bool:
    """Write a report to every path. Return False if one of them failed."""
    problems = {path: _write(report, path, samples=samples, comparison=comparison) for path in paths}
    failed = {path: problem for path, problem in problems.items() if problem is not None}
    if failed:
        problem = "; ".join(f"{path} could not be written: {reason}" for path, reason in failed.items())
        _rescue(report, problem, *(word for path in failed for word in ("-o", str(path))), samples=samples)
    return not failed


def _write(report: Report, path: Path, *, samples: bool, comparison: Comparison | None) -> str | None:
    """Write a report to a path. Return the problem, if there was one."""
    try:
        with replacing(path) as temporary:
            write_report(report, temporary, samples=samples, comparison=comparison)
    except OSError as error:
        return reason_of(error)
    print_status(f"wrote {path}")
    return None


def _rescue(report: Report, problem: str, *arguments: str, samples: bool) -> None:
    """Save a report in the directory for temporary files, and print the command that writes it."""
    try:
        saved = Path(tempfile.mkdtemp(prefix="sampling-")) / "report.json"
        write_report(report, saved, samples=samples)
    except OSError as error:
        print_status(f"sampling: {problem}, and no other file either: {reason_of(error)}")
        return
    command = shlex.join(["sampling", "report", str(saved), *arguments])
    print_status(f"sampling: {problem}. The report is saved in {saved}. Fix that, and run: {command}")
