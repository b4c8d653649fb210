"""A part of the terminal that is drawn anew all the time, without ever holding up the program."""

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sampling._arguments import check_bool, check_instance
from sampling.errors import MissingExtra

try:
    from rich.console import Console, RenderableType
    from rich.live import Live
except ImportError as error:
    raise MissingExtra("a progress bar", "rich", "cli") from error

__all__ = ["drawing"]

_REDRAW_EVERY_S = 0.1


@contextmanager
def drawing(render: Callable[[], RenderableType], console: Console | None, *, show: bool | None) -> Generator[bool]:
    """
    Draw what `render` returns, again and again while the block runs, and a last time at its end.

    Yields whether it is drawn at all: on a terminal, unless `show` says otherwise; None for the standard error output.
    """
    if console is None:
        console = Console(stderr=True)
    check_instance("console", console, Console, "a rich.console.Console or None")
    if not (console.is_terminal if show is None else check_bool("show", show)):
        yield False
        return
    # What is printed meanwhile goes above it; but if it goes elsewhere, into a file or a pipe, it is let through.
    live = Live(console=console, get_renderable=render, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
    with live, _redrawing(live):
        yield True


@contextmanager
def _redrawing(live: Live) -> Generator[None]:
    """Draw anew, regularly, in a thread of its own, so that no event ever waits for the terminal."""
    # Not rich's own thread, which may live on for a moment after the display is closed.
    over = threading.Event()

    def redraw() -> None:
        while not over.wait(_REDRAW_EVERY_S):
            live.refresh()

    thread = threading.Thread(target=redraw, name="sampling-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
