"""`sampling report`: look at a report again, as a table or a page, and compare it with another."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sampling.cli._flags import bad_flags
from sampling.cli._outputs import Out, check_outputs, write_outputs
from sampling.load import CapacityAnswer, LoadReport, Plan, compare, read_report
from sampling.load.model._units import parse_share
from sampling.load.report._files import Report
from sampling.load.report._table import load_table

__all__ = ["EXAMPLES", "HELP", "report"]

HELP = """
Show a report that was written as .json, turn it into a page or CSV, or compare it with an earlier one.

Only like is compared with like: an open loop is not compared with a closed one, nor a run with a search. The exit code
is 0, or 1 if --against finds that something got worse, or 2 if a flag or a file is wrong.
"""

EXAMPLES = """
\b
Examples:
  sampling report capacity.json
  sampling report capacity.json --out capacity.html
  sampling report today.json --against yesterday.json
  sampling report today.json --against yesterday.json --tolerance 10% || echo "slower than yesterday"
"""


def report(
    file: Annotated[Path, typer.Argument(help="A .json that load, capacity or plan wrote.")],
    *,
    against: Annotated[Path | None, typer.Option(help="An earlier one of the same kind, to compare with.")] = None,
    tolerance: Annotated[str, typer.Option(help="With --against: a change by less than this is none.")] = "5%",
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check the files, and write nothing.")] = False,
) -> int:
    """Show, turn into another form, compare; the flags are explained where they stand."""
    with bad_flags():
        found = read_report(file)
        earlier = None if against is None else read_report(against)
        if isinstance(found, Plan) or isinstance(earlier, Plan):
            check_outputs(out, endings=(".json", ".csv"))
        outputs = check_outputs(out)
        compared = None
        if earlier is not None:
            if isinstance(found, Plan) or isinstance(earlier, Plan):
                raise ValueError("--against compares runs and searches, and no plans: those are simulated")
            compared = compare(earlier, found, tolerance=parse_share("--tolerance", tolerance))
    sys.stdout.write(f"{_shown(found) if compared is None else compared.render()}\n")
    if not dry_run:
        write_outputs(found, outputs)
    return 0 if compared is None else compared.exit_code


def _shown(found: Report) -> str:
    return load_table(found) if isinstance(found, LoadReport) else _rendered(found)


def _rendered(found: CapacityAnswer | Plan) -> str:
    return found.render()
