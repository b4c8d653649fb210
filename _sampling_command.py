"""
Start the `sampling` command.

Not in the package: importing that takes a moment, and Ctrl-C must not print a traceback then.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Import the package, and run the command of `sys.argv`."""
    try:
        from sampling.cli import main as run_command  # noqa: PLC0415 - see above

        run_command()
    except KeyboardInterrupt:
        # Nothing was sent yet: a command that has begun handles the signal itself.
        sys.exit(130)
