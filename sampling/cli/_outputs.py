"""Where reports go: checked before a long run, written after it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sampling._arguments import shown
from sampling.cli._load_progress import say
from sampling.load.report._files import Report, format_of, write_report

__all__ = ["Out", "Samples", "check_outputs", "write_outputs"]

Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="Write the report to this file, as its name ends: .json, .csv or .html. As often as you like.",
    ),
]
Samples = Annotated[
    bool, typer.Option("--samples", help="Keep every single request in the .json, for `sampling plan --like`.")
]


def check_outputs(
    paths: Sequence[Path] | None, *, samples: bool = False, endings: Sequence[str] = ()
) -> tuple[Path, ...]:
    """Return where to write to, if that can be written: better to know before the run than after it."""
    found = tuple(paths or ())
    for path in found:
        ending = format_of(path)
        if endings and ending not in endings:
            raise ValueError(f"--out: this is written as {' or '.join(endings)}, got {shown(str(path))}")
        if not path.parent.is_dir():
            raise ValueError(f"--out: there is no directory {shown(str(path.parent))} to write {shown(path.name)} to")
        if path.is_dir():
            raise ValueError(f"--out: {shown(str(path))} is a directory: name a file in it")
    if samples and not any(path.suffix.lower() == ".json" for path in found):
        raise ValueError("--samples needs a .json to write them to: add --out report.json")
    return found


def write_outputs(report: Report, paths: Sequence[Path], *, samples: bool = False) -> None:
    """Write a report to all of these files."""
    for path in paths:
        write_report(report, path, samples=samples)
        say(f"wrote {path}")
