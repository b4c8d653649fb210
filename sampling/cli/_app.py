"""Register the subcommands, and turn their errors into exit codes."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

from sampling.errors import MissingExtra, SamplingError

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
    from typer.exceptions import Abort, TyperException
except ImportError as error:
    raise MissingExtra("the command line", "typer", "cli") from error

import sampling
from sampling._redaction import Redactor, Secret
from sampling.cli._exit_codes import EXIT_CODES, FAILED, REFUSED, exit_code_of
from sampling.cli._files import reason_of
from sampling.cli._flag_names import describe_error
from sampling.cli._headers import header_values
from sampling.cli._log import logging_to_stderr
from sampling.cli._signals import Interrupted
from sampling.cli._status import print_status
from sampling.cli._stdout import write_result

__all__ = ["app", "run"]


class _Command(TyperCommand):
    """A command whose module is imported when it is chosen. The list of commands only needs its summary."""

    def __init__(self, name: str, function: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._function = function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments of the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """Return the command itself."""
        module = import_module(f"sampling.cli.{self.name}")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        register = alone.command(self.name, help=module.HELP, epilog=module.EXAMPLES + EXIT_CODES)
        register(getattr(module, self._function))
        return typer.main.get_command(alone)


_COMMANDS = (
    _Command("sample", "sample", "Ask one question and print the answer."),
    _Command("map", "map_prompts", "Answer every prompt of a file."),
    _Command("export", "export_journal", "Write the answers in a journal to a file."),
    _Command("load", "load", "Send traffic and report latencies, errors, validity and cost."),
    _Command("capacity", "capacity", "Find the highest rate that meets an SLO."),
    _Command("plan", "plan", "Find the cheapest depth × breadth for an SLO."),
    _Command("report", "report", "Show, convert or compare a .json report."),
    _Command("doctor", "doctor", "Check a backend, and say what to fix."),
    _Command("demo", "demo", "Compare seven strategies on a tiny model."),
)


class _Group(TyperGroup):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in _COMMANDS:
            self.add_command(command)


app = typer.Typer(
    cls=_Group,
    help="Ask a language model several times, check every answer, and return the first valid one.",
    epilog=f"Start with:  sampling demo\n{EXIT_CODES}",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # such tracebacks can show local variables, which may hold keys
)

_ELSEWHERE = {
    "--api-key": "The key is in OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY",
    "--base-url": "The address is part of --backend openai:MODEL@URL",
    "--model": "The model is part of --backend openai:MODEL or openai:MODEL@URL",
    "--prompt": "The question of `sampling sample` has no flag",
    "--prompts": "The file is the argument of `sampling map`, and --questions of load and capacity",
    "--url": "The address is part of --backend openai:MODEL@URL",
}
"""Flags of other tools, and what to use instead."""


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
        return REFUSED if isinstance(error, MissingExtra) else FAILED
    except OSError as error:
        # Most likely stdout is a file on a full disk. A traceback would not help.
        where = f" ({error.filename!r})" if error.filename else ""
        _print_error(given, f"the system refused: {reason_of(error)}{where}")
        return FAILED


def _advice(error: TyperException) -> str:
    """Return advice about a flag of another tool, or about a question without quotes."""
    if "unexpected extra argument" in error.format_message() and _command_of(error) == "sample":
        return ': put the question in quotes, as in sampling sample "Is it?"'
    option = getattr(error, "option_name", None)
    return f". {_ELSEWHERE[option]}" if option in _ELSEWHERE else ""


def _command_of(error: TyperException) -> str | None:
    return getattr(getattr(error, "ctx", None), "info_name", None)


def _print_error(arguments: Sequence[str], message: str) -> None:
    """Print an error to stderr."""
    redactor = Redactor([Secret(value) for value in header_values(arguments)])
    # Line breaks in a message are removed, because scripts read the error as one line.
    print_status(f"sampling: {redactor.redact(' '.join(message.split()))}")
