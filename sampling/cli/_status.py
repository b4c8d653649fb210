"""Print status lines to stderr."""

import sys
from contextlib import suppress

__all__ = ["print_status"]


def print_status(line: str) -> None:
    """Print a line to stderr, as stdout is for the result."""
    # A log that can't be written must not end a run that is paid for.
    with suppress(OSError, ValueError):
        # One write, because a live display prints each write above itself.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
