"""Register the subcommands, and turn their errors into exit codes."""

import sys
from collections.abc import Sequence

from sampling.errors import MissingExtra, SamplingError

try:
    import typer
    from typer.exceptions import TyperException
except ImportError as error:
    raise MissingExtra("the command line", "typer", "cli") from error

from sampling.cli import capacity, demo, load, plan, report, sample
from sampling.cli import map as map_file

__all__ = ["app", "run"]

FAILED = 1
"""The exit code of a valid command that failed."""

app = typer.Typer(
    help="Ask a language model deep and wide, check every answer, and stop at the first valid one.",
    epilog="Start with:  sampling demo",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # such tracebacks can show local variables, which may hold keys
)
app.command("sample", help=sample.HELP, epilog=sample.EXAMPLES)(sample.sample)
app.command("map", help=map_file.HELP, epilog=map_file.EXAMPLES)(map_file.map_prompts)
app.command("load", help=load.HELP, epilog=load.EXAMPLES)(load.load)
app.command("capacity", help=capacity.HELP, epilog=capacity.EXAMPLES)(capacity.capacity)
app.command("plan", help=plan.HELP, epilog=plan.EXAMPLES)(plan.plan)
app.command("report", help=report.HELP, epilog=report.EXAMPLES)(report.report)
app.command("demo", help=demo.HELP, epilog=demo.EXAMPLES)(demo.demo)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # Not standalone: typer would call sys.exit, and the caller wants the exit code.
        return app(given or ["--help"], prog_name="sampling", standalone_mode=False) or 0
    except TyperException as error:
        _print_error(error.format_message())
        return error.exit_code
    except SamplingError as error:
        _print_error(str(error), error.hint)
        return FAILED


def _print_error(*parts: str | None) -> None:
    """Print an error and its hint to stderr."""
    # Line breaks in a message are removed, because scripts read the error as one line.
    sys.stderr.write(f"sampling: {' '.join(' '.join(part.split()) for part in parts if part)}\n")
