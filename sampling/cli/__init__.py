"""The command line: `sampling sample` asks, `sampling demo` shows what asking well is worth."""

import sys

from sampling.errors import MissingExtra

__all__ = ["main"]


def main() -> None:
    """Run what the arguments of this process ask for, and exit."""
    try:
        from sampling.cli._app import run  # noqa: PLC0415 - it needs an extra, and a missing one gets one line to read
    except MissingExtra as missing:
        sys.stderr.write(f"sampling: {missing}\n")
        raise SystemExit(2) from None
    raise SystemExit(run())
