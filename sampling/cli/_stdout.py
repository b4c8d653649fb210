"""
Write results to stdout, and keep everything else off it.

Results are written after the work has been paid for, so a closed pipe must not end the command.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

__all__ = [
    "ReaderLeft",
    "discard",
    "discard_unwritten",
    "only_results",
    "reopen_closed_streams",
    "terminal_safe",
    "write_result",
]

_KEPT_CONTROLS = frozenset("\n\t")
# They reorder the text around them, so that a terminal would show something else.
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def reopen_closed_streams() -> None:
    """
    Open the null device in place of stdin, stdout or stderr, if the process was started without it.

    Otherwise the next file that is opened would get its descriptor, and with it everything that is printed.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The system uses the lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


class ReaderLeft(Exception):
    """The reader of stdout has closed the pipe, as `head` does."""


def write_result(text: str) -> bool:
    """
    Write text to stdout, at once.

    Return False if its reader has left. An error of the system, such as a full disk, is raised.
    """
    stdout = _results[-1] if _results else sys.stdout
    try:
        stdout.write(text)
        stdout.flush()
    except OSError as error:
        # What is left in the buffer would raise again when the interpreter exits.
        discard(stdout)
        if isinstance(error, BrokenPipeError):
            return False
        raise
    return True


def discard_unwritten() -> None:
    """Drop what stdout and stderr have no room for. The interpreter would fail to write it again, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            discard(stream)


def discard(stream: TextIO) -> None:
    """Send all further output to the null device."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


_results: list[TextIO] = []
"""The stdout for results, while `sys.stdout` is redirected."""


@contextmanager
def only_results() -> Generator[None]:
    """
    Send what other code prints to stderr, unless stdout is a terminal.

    A workload, a check or a library may print, and a file or a pipe must have nothing but the result.
    """
    # On a terminal, a live display prints both above itself.
    if sys.stdout.isatty():
        yield
        return
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def terminal_safe(text: str) -> str:
    """Escape control characters, which could change the terminal or fake its content."""
    return "".join(character if _is_harmless(character) else _escaped(character) for character in text)


def _is_harmless(character: str) -> bool:
    if character in _KEPT_CONTROLS:
        return True
    control = character < " " or "\x7f" <= character <= "\x9f"
    return not control and character not in _DIRECTION_CONTROLS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
