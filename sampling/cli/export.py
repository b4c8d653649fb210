"""`sampling export`: write the answers of a journal to a file."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from sampling.cli._exit_codes import FAILED
from sampling.cli._files import Force, check_output, reason_of, replacing
from sampling.cli._flags import usage_errors
from sampling.cli._status import print_status
from sampling.fanout.journal import ExportFormat, export

__all__ = ["EXAMPLES", "HELP", "export_journal"]

HELP = """
Write the answers in a journal to a file. Reads the journal of `sampling map`, and writes JSON lines, CSV or Parquet.
To .html, it writes a page about the run: progress, cost, failures, slowest prompts, and pauses.

There is one row per prompt that has ended. The column `failures` has every failed requirement with its reason, and
every error. The run may still be in progress. Parquet needs the extra `parquet`.
"""

EXAMPLES = """
\b
Examples:
  sampling export answers.jsonl.journal --out answers.csv
  sampling export answers.jsonl.journal --out so-far.jsonl --force
  sampling export answers.jsonl.journal --out answers.parquet
  sampling export answers.jsonl.journal --out run.html
"""

_SUFFIXES = [f".{name}" for name in get_args(ExportFormat)]


def export_journal(
    journal: Annotated[Path, typer.Argument(help="The journal of a `sampling map`.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .jsonl, .csv, .parquet or .html file to write.")],
    force: Force = False,
) -> int:
    """Write the answers of a journal to a file."""
    with usage_errors():
        if not journal.exists():
            raise ValueError(f"there is no journal {str(journal)!r}")
        if journal.is_dir():
            raise ValueError(f"{str(journal)!r} is a directory: give the journal of a `sampling map`")
        check_output("--out", out, replace=force, protected={"the journal": journal})
        if out.suffix.lower() not in _SUFFIXES:
            raise ValueError(f"--out must end in {', '.join(_SUFFIXES)}, got {str(out)!r}")
        try:
            with replacing(out) as temporary:
                count = export(journal, temporary)
        except OSError as error:
            print_status(f"sampling: {out} could not be written: {reason_of(error)}. The journal is unchanged")
            return FAILED
    what = "a page about" if out.suffix.lower() == ".html" else ""
    print_status(f"wrote {what} {count:,} answers to {out}".replace("  ", " "))
    return 0
