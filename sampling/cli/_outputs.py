"""Check and write the report files of `--out`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sampling._arguments import short_repr
from sampling.cli._status import print_status
from sampling.load.report._files import Report, format_of, write_report

__all__ = ["Out", "Samples", "check_outputs", "write_outputs"]

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
    paths: Sequence[Path] | None, *, samples: bool = False, endings: Sequence[str] = ()
) -> tuple[Path, ...]:
    """Return the output paths, or raise ValueError."""
    # Checked before the run: an hour of traffic must not end with a report that can't be written.
    found = tuple(paths or ())
    for path in found:
        ending = format_of(path)
        if endings and ending not in endings:
            raise ValueError(f"--out: this report is written as {' or '.join(endings)}, got {short_repr(str(path))}")
        if not path.parent.is_dir():
            raise ValueError(
                f"--out: there is no directory {short_repr(str(path.parent))} to write {short_repr(path.name)} to"
            )
        if path.is_dir():
            raise ValueError(f"--out: {short_repr(str(path))} is a directory: give a file name")
    if samples and not any(path.suffix.lower() == ".json" for path in found):
        raise ValueError("--samples needs a .json to write them to: add --out report.json")
    return found


def write_outputs(report: Report, paths: Sequence[Path], *, samples: bool = False) -> None:
    """Write a report to every path."""
    for path in paths:
        write_report(report, path, samples=samples)
        print_status(f"wrote {path}")
