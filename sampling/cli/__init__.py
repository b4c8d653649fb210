"""The `sampling` command, with one module for each subcommand."""

import sys

from sampling.errors import MissingExtra

__all__ = ["main"]


def main() -> None:
    """Run the command of `sys.argv`, then exit."""
    try:
        # Imported here because it needs the `cli` extra. Without it, the user gets one line instead of a traceback.
        from sampling.cli._app import run  # noqa: PLC0415
    except MissingExtra as missing:
        sys.stderr.write(f"sampling: {missing}\n")
        raise SystemExit(2) from None
    raise SystemExit(run())
