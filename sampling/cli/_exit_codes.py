"""The exit codes of all commands."""

import signal

__all__ = ["EXIT_CODES", "FAILED", "REFUSED", "SUCCEEDED", "exit_code_of"]

SUCCEEDED = 0
FAILED = 1
REFUSED = 2

EXIT_CODES = """
\b
Exit codes of all commands:
  0    it succeeded: a valid answer, an SLO that held, checks that passed
  1    it failed: no valid answer, an SLO that did not hold, an error of the server
  2    a flag or a file is wrong, or a package is missing; nothing was sent
  129  the terminal was closed (SIGHUP); everything gathered until then is written
  130  interrupted by Ctrl-C; everything gathered until then is written
  143  terminated by SIGTERM; everything gathered until then is written
"""
"""The table for help texts. Shells use 128 + the number of the signal for a process that a signal ended."""


def exit_code_of(received: signal.Signals) -> int:
    """Return the exit code after a signal."""
    return 128 + received
