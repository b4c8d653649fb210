"""Print status lines to stderr."""

import sys

__all__ = ["print_status"]


def print_status(line: str) -> None:
    """Print a line that is not part of the result to stderr, so that a pipe does not receive it."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
