"""Register the subcommands, and turn their errors into exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

from sampling.errors import MissingExtra, SamplingError

try:
    import typer
    from typer.exceptions import Abort, TyperException
except ImportError as error:
    raise MissingExtra("the command line", "typer", "cli") from error

import sampling
from sampling._redaction import Redactor, Secret
from sampling.cli import capacity, demo, doctor, export, load, plan, report, sample
from sampling.cli import map as map_file
from sampling.cli._exit_codes import EXIT_CODES, FAILED, exit_code_of
from sampling.cli._files import reason_of
from sampling.cli._flag_names import describe_error
from sampling.cli._headers import header_values
from sampling.cli._log import logging_to_stderr
from sampling.cli._signals import Interrupted
from sampling.cli._status import print_status
from sampling.cli._stdout import write_result

__all__ = ["app", "run"]

app = typer.Typer(
    help="Ask a language model deep and wide, check every answer, and stop at the first valid one.",
    epilog=f"Start with:  sampling demo\n{EXIT_CODES}",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # such tracebacks can show local variables, which may hold keys
)
app.command("sample", help=sample.HELP, epilog=sample.EXAMPLES + EXIT_CODES)(sample.sample)
app.command("map", help=map_file.HELP, epilog=map_file.EXAMPLES + EXIT_CODES)(map_file.map_prompts)
app.command("export", help=export.HELP, epilog=export.EXAMPLES + EXIT_CODES)(export.export_journal)
app.command("load", help=load.HELP, epilog=load.EXAMPLES + EXIT_CODES)(load.load)
app.command("capacity", help=capacity.HELP, epilog=capacity.EXAMPLES + EXIT_CODES)(capacity.capacity)
app.command("plan", help=plan.HELP, epilog=plan.EXAMPLES + EXIT_CODES)(plan.plan)
app.command("report", help=report.HELP, epilog=report.EXAMPLES + EXIT_CODES)(report.report)
app.command("doctor", help=doctor.HELP, epilog=doctor.EXAMPLES + EXIT_CODES)(doctor.doctor)
app.command("demo", help=demo.HELP, epilog=demo.EXAMPLES + EXIT_CODES)(demo.demo)

_ELSEWHERE = {
    "--api-key": "The key is in OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY",
    "--base-url": "The address is part of --backend openai:MODEL@URL",
    "--model": "The model is part of --backend openai:MODEL or openai:MODEL@URL",
    "--url": "The address is part of --backend openai:MODEL@URL",
}
"""Flags of other tools, and what to use here."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the callback of a flag
    if wanted:
        write_result(f"sampling {sampling.__version__}\n")
        raise typer.Exit


@app.callback()
def _main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with logging_to_stderr():
            # Not standalone: typer would call sys.exit, and the caller wants the exit code.
            return app(given or ["--help"], prog_name="sampling", standalone_mode=False) or 0
    except TyperException as error:
        _print_error(given, f"{error.format_message()}{_advice(error)}")
        return error.exit_code
    except Abort:
        return FAILED
    except Interrupted as interrupted:
        return exit_code_of(interrupted.received)
    except SamplingError as error:
        _print_error(given, describe_error(error))
        return FAILED
    except OSError as error:
        # Most likely stdout is a file on a full disk. A traceback would not help.
        where = f" ({error.filename!r})" if error.filename else ""
        _print_error(given, f"the system refused: {reason_of(error)}{where}")
        return FAILED


def _advice(error: TyperException) -> str:
    """Return where to set what other tools have a flag for, if this is what is missing."""
    option = getattr(error, "option_name", None)
    return f". {_ELSEWHERE[option]}" if option in _ELSEWHERE else ""


def _print_error(arguments: Sequence[str], message: str) -> None:
    """Print an error to stderr."""
    redactor = Redactor([Secret(value) for value in header_values(arguments)])
    # Line breaks in a message are removed, because scripts read the error as one line.
    print_status(f"sampling: {redactor.redact(' '.join(message.split()))}")
