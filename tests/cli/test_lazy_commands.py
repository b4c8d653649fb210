"""Commands are imported when they are chosen, and the list of commands shows what they say about themselves."""

import subprocess
import sys

import pytest
import typer

from sampling.cli import _app

COMMANDS = typer.main.get_command(_app.app).commands
WIDE = 1_000


def imported_by(code):
    """Return the modules that a program imports, which prints nothing to stderr but these."""
    code += "\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    return set(done.stderr.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(name):
    """The list is written without importing the commands."""
    listed, itself = COMMANDS[name], COMMANDS[name].load()
    assert listed.get_short_help_str(WIDE) == itself.get_short_help_str(WIDE)
    assert itself.name == name


def test_help_imports_no_command_and_no_backend():
    """It starts in less than twice the time of an empty program with typer: `python -m benchmarks --only import`."""
    imported = imported_by("from sampling.cli._app import run\nrun(['--help'])")
    assert "sampling.cli._app" in imported
    assert not imported & {f"sampling.cli.{name}" for name in COMMANDS}
    assert not imported & {"sampling.fanout", "sampling.load", "sampling.telemetry", "sampling.backends"}


def test_only_the_chosen_command_is_imported():
    """A command does not wait for the imports of the others."""
    modules = imported_by("from sampling.cli._app import run\nrun(['export', '--help'])")
    imported = {name for name in COMMANDS if f"sampling.cli.{name}" in modules}
    assert imported == {"export"}
