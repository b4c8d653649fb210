"""Print status lines to stderr."""

import sys

__all__ = ["print_status"]


def print_status(line: str) -> None:
    """Print a line to stderr, as stdout is for the result."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
