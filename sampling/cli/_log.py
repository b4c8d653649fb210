"""Send the log lines of the library to stderr."""

import sys
import time
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import structlog

from sampling.cli._status import print_status
from sampling.cli._stdout import terminal_safe

__all__ = ["RepeatedLines", "logging_to_stderr"]

_Fields: TypeAlias = MutableMapping[str, Any]

_IDS = ("sampling_id", "iteration_id", "item_id", "parent_id", "run_id")
_MAX_VALUE_CHARS = 300
_SENTENCES = {
    "outage_began": "every request fails now. Waiting up to {grace_s:g} s for an answer. Press Ctrl-C to stop, or set "
    "--outage-grace. The error is {error}",
    "outage_over": "the server answers again after {lasted_s:g} s",
    "outage_grace_spent": "there was no answer in {grace_s:g} s, so errors count now",
}
"""The events that a user has to act on, as sentences."""

_SHOWN_ALREADY = frozenset({"batch_created", "batch_ended"})
"""The events that a command prints itself: `BatchLines`."""


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """
    Print log lines to stderr inside the block.

    An application that runs commands itself and has configured structlog keeps its configuration.
    """
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _drop_shown, RepeatedLines(), _render],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _drop_shown(_logger: object, _method: str, fields: _Fields) -> _Fields:
    """Raise DropEvent for a line that a command prints itself."""
    if fields.get("event") in _SHOWN_ALREADY:
        raise structlog.DropEvent
    return fields


class RepeatedLines:
    """
    Drops log lines that repeat an earlier one for a while.

    An overloaded server causes thousands of retries. The next line that is printed has the number of dropped ones.
    """

    def __init__(self, *, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._printed: dict[tuple[str, Any], float] = {}
        self._dropped: dict[tuple[str, Any], int] = {}

    def __call__(self, _logger: object, _method: str, fields: _Fields) -> _Fields:
        """Return the fields of a line, or raise DropEvent."""
        kind = (str(fields.get("event")), fields.get("error_type"))
        now = self._clock()
        if now - self._printed.get(kind, -self._every_s) < self._every_s:
            self._dropped[kind] = self._dropped.get(kind, 0) + 1
            raise structlog.DropEvent
        self._printed[kind] = now
        if dropped := self._dropped.pop(kind, 0):
            fields["more_like_this"] = dropped
        return fields


def _render(_logger: object, method: str, fields: _Fields) -> str:
    """Return a line such as `warning: request_retried tries=1`."""
    event = fields.pop("event", "")
    if event in _SENTENCES:
        return terminal_safe(f"{method}: {_SENTENCES[event].format_map(fields)}")
    shown = [f"{name}={_value(value)}" for name, value in fields.items() if name not in _IDS and name != "exc_info"]
    return terminal_safe(" ".join([f"{'note' if method == 'info' else method}: {event}", *shown])).replace("\n", "\\n")


def _value(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"


class _StderrLogger:
    """
    A logger that writes to the current `sys.stderr`.

    A live display replaces `sys.stderr` while it is shown, and prints lines above itself.
    """

    def __init__(self, *_names: object) -> None:
        pass

    def msg(self, line: str) -> None:
        """Print a line."""
        if sys.stderr is not None:
            print_status(line)

    debug = info = warning = error = critical = log = exception = fatal = msg
