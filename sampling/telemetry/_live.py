"""A live terminal display that never blocks the event loop."""

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

__all__ = ["live_display"]

_REDRAW_EVERY_S = 0.1


@contextmanager
def live_display(
    render: Callable[[], RenderableType], console: Console | None, *, show: bool | None
) -> Generator[bool]:
    """
    Draw the result of `render` while the block runs.

    It is drawn repeatedly, and a last time at the end.
    Yields whether anything is drawn. `show=None` draws only on a terminal. The default console is standard error.
    """
    if console is None:
        console = Console(stderr=True)
    check_instance("console", console, Console, "a rich.console.Console or None")
    if not (console.is_terminal if show is None else check_bool("show", show)):
        yield False
        return
    # rich prints output to stdout above the display. Redirect it only if stdout is a terminal, not a file or a pipe.
    live = Live(console=console, get_renderable=render, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
    with live, _redrawing(live):
        yield True


@contextmanager
def _redrawing(live: Live) -> Generator[None]:
    """Refresh the display in its own thread. So no event waits for the terminal."""
    # Not rich's own refresh thread, which may outlive the display for a moment.
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
