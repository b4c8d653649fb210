"""`sampling report`: show, convert or compare reports."""

from pathlib import Path
from typing import Annotated

import typer

from sampling.cli._exit_codes import FAILED, SUCCEEDED
from sampling.cli._files import Force
from sampling.cli._flags import usage_errors
from sampling.cli._outputs import Out, check_outputs, publish
from sampling.load import LoadReport, Plan, PopulationsReport, compare, read_report
from sampling.load.model._units import parse_share
from sampling.load.report._files import Report
from sampling.load.report._table import load_table

__all__ = ["EXAMPLES", "HELP", "report"]

HELP = """
Show, convert or compare a .json report. Converts it to HTML or CSV, or compares it with an earlier one.

Only reports of the same kind can be compared, for example two open loops.

Exit code: 0 on success, 1 if --against finds that something got worse.
"""

EXAMPLES = """
\b
Examples:
  sampling report capacity.json
  sampling report capacity.json --out capacity.html
  sampling report today.json --against yesterday.json
  ssh lab cat today.json | sampling report - --out today.html
  sampling report today.json --against yesterday.json --tolerance 10% || echo "slower than yesterday"
"""


_STDIN = Path("/dev/stdin")


def report(
    file: Annotated[Path, typer.Argument(help="A .json report of load, capacity or plan, or - for stdin.")],
    *,
    against: Annotated[Path | None, typer.Option(help="An earlier report to compare with.")] = None,
    tolerance: Annotated[str, typer.Option(help="With --against: ignore smaller changes.")] = "5%",
    out: Out = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the files, and write nothing.")] = False,
) -> int:
    """Show, convert or compare a report."""
    with usage_errors():
        _check_no_journal(file)
        found = read_report(_STDIN if str(file) == "-" else file)
        earlier = None if against is None else read_report(against)
        # A plan can't be written as HTML.
        endings = (".json", ".csv") if isinstance(found, Plan) or isinstance(earlier, Plan) else ()
        protected = {"the report that is read": file, "the report of --against": against}
        outputs = check_outputs(out, force=force, protected=protected, endings=endings)
        compared = None
        if earlier is not None:
            if isinstance(found, Plan) or isinstance(earlier, Plan):
                raise ValueError("--against compares load and capacity reports, not plans")
            compared = compare(earlier, found, tolerance=parse_share("--tolerance", tolerance))
    text = f"{_render(found) if compared is None else compared.render()}\n"
    if not publish(found, text, () if dry_run else outputs, comparison=compared):
        return FAILED
    return SUCCEEDED if compared is None else compared.exit_code


def _check_no_journal(file: Path) -> None:
    """Raise ValueError for the journal of a `sampling map`, which has a page of its own."""
    if file.is_file():
        with file.open("rb") as opened:
            if opened.read(len(_SQLITE)) == _SQLITE:
                raise ValueError(f"{file} is a journal: write its page with `sampling export {file} --out run.html`")


_SQLITE = b"SQLite format 3\0"
"""The first bytes of a journal."""


def _render(found: Report) -> str:
    return load_table(found) if isinstance(found, LoadReport | PopulationsReport) else found.render()
