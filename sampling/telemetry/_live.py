"""Live displays in terminals and notebooks that never block the event loop."""

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import StringIO
from typing import Any

from sampling._arguments import check_bool, check_instance
from sampling.errors import MissingExtra

try:
    from rich.console import Console, RenderableType
    from rich.live import Live
except ImportError as error:
    raise MissingExtra("a progress bar", "rich", "cli") from error

__all__ = ["live_display"]

_REDRAW_EVERY_S = 0.1
_NOTEBOOK_EVERY_S = 0.25
_NOTEBOOK_WIDTH = 100
_HTML = '<pre style="line-height: 1.25; white-space: pre-wrap">{code}</pre>'


@contextmanager
def live_display(
    render: Callable[[], RenderableType],
    console: Console | None,
    *,
    show: bool | None,
    transient: bool = False,
    line: Callable[[], str] | None = None,
    line_every_s: float | None = None,
) -> Generator[bool]:
    """
    Draw the result of `render` while the block runs.

    It is drawn repeatedly, and a last time at the end, unless the display is transient.
    Yields whether anything is drawn. `show=None` draws only on a terminal or in a notebook. The default console is
    standard error. Where nothing is drawn, `line` can be printed every few seconds, if it has changed.
    """
    in_notebook = console is None and _in_notebook()
    if console is None:
        # The terminal wraps what is printed above the display, so that a long line can be copied as one.
        console = Console(stderr=True, soft_wrap=True)
    check_instance("console", console, Console, "a rich.console.Console or None")
    if in_notebook and show is not False:
        with _notebook_display(render):
            yield True
    elif console.is_terminal if show is None else check_bool("show", show):
        # rich prints output to stdout above the display. Redirect it only if stdout is a terminal, not a file or pipe.
        live = _Display(
            console=console,
            get_renderable=render,
            auto_refresh=False,
            transient=transient,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        with live, _repeating(live.refresh, _REDRAW_EVERY_S):
            yield True
    elif line is not None and line_every_s is not None and show is None:
        with _repeating(_Log(console, line).print_news, line_every_s):
            yield True
    else:
        yield False


class _Display(Live):
    """A live display that goes silent when its terminal is closed. That must not end a run that is paid for."""

    def refresh(self) -> None:
        """Draw, if there is still a terminal."""
        with suppress(OSError):
            super().refresh()

    def stop(self) -> None:
        """Restore the terminal, if there is still one."""
        with suppress(OSError):
            super().stop()


@contextmanager
def _repeating(draw: Callable[[], object], every_s: float) -> Generator[None]:
    """Draw in a thread of its own. So no event waits for the terminal."""
    # Not rich's own refresh thread, which may outlive the display for a moment.
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            draw()

    thread = threading.Thread(target=repeat, name="sampling-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Log:
    """A line that is printed again only when it has changed."""

    def __init__(self, console: Console, line: Callable[[], str]) -> None:
        self._file = console.file
        self._line = line
        self._printed = ""

    def print_news(self) -> None:
        line = self._line()
        if line == self._printed:
            return
        self._printed = line
        # A log that can't be written must not end a run that is paid for.
        with suppress(OSError, ValueError):
            # One write, because a display of others prints each write above itself.
            self._file.write(f"{line}\n")
            self._file.flush()


# Notebooks.


def _in_notebook() -> bool:
    """Return whether this code runs in the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # The shell of a terminal has none.
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _notebook_display(render: Callable[[], RenderableType]) -> Generator[None]:
    """Show an output of the cell that is replaced each time."""
    # It is not a dependency, because every notebook has it.
    handle: Any = import_module("IPython.display").display(_as_bundle(render()), raw=True, display_id=True)

    def update() -> None:
        handle.update(_as_bundle(render()), raw=True)

    try:
        with _repeating(update, _NOTEBOOK_EVERY_S):
            yield
    finally:
        update()


def _as_bundle(shown: RenderableType) -> dict[str, str]:
    """Return the display as HTML, and as text for viewers without HTML."""
    console = Console(file=StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False)
    console.print(shown)
    html = console.export_html(inline_styles=True, code_format=_HTML, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}
