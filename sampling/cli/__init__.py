"""The `sampling` command, with one module for each subcommand."""

import sys
from io import TextIOWrapper

from sampling.cli._stdout import discard_unwritten, reopen_closed_streams
from sampling.errors import MissingExtra

__all__ = ["main"]


def main() -> None:
    """Run the command of `sys.argv`, then exit."""
    reopen_closed_streams()
    try:
        code = _run()
    except KeyboardInterrupt:
        # A command that has begun handles the signal itself, so this one came while modules were imported.
        code = 130
    discard_unwritten()
    raise SystemExit(code)


def _run() -> int:
    try:
        # Imported here because it needs the `cli` extra. Without it, the user gets one line instead of a traceback.
        from sampling.cli._app import run  # noqa: PLC0415
        from sampling.cli._signals import raise_on_signals  # noqa: PLC0415
    except MissingExtra as missing:
        sys.stderr.write(f"sampling: {missing}\n")
        return 2
    raise_on_signals()
    for stream in (sys.stdout, sys.stderr):
        # A model may answer with half of a surrogate pair, which no encoding has.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return run()
