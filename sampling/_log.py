"""Logging that writes to stdout only if the application configures it."""

import logging
import sys
from functools import cache
from typing import Any

import structlog

__all__ = ["Logger", "StderrLogger"]


class Logger:
    """
    A logger that looks up its destination for each line.

    That is structlog if the application configured it, else the `logging` of the standard library. If that is not
    configured either, it writes warnings to stderr and drops what is below.
    """

    def __init__(self, name: str = "sampling") -> None:
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        """Write a line at level debug."""
        self._destination().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write a line at level info."""
        self._destination().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write a line at level warning."""
        self._destination().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write a line at level error."""
        self._destination().error(event, **fields)

    def _destination(self) -> Any:
        return structlog.get_logger(self._name) if _is_configured() else _standard_logger(self._name)


class StderrLogger(Logger):
    """A logger that writes lines of every level to stderr if no logging is configured."""

    def _destination(self) -> Any:
        # Without stderr, a PrintLogger would take stdout.
        if _is_configured() or sys.stderr is None or logging.getLogger(self._name).hasHandlers():
            return super()._destination()
        return structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),
            processors=_console_processors(),
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        )


def _configuration() -> dict[str, Any]:
    config = structlog.get_config()
    # A copy of the list, because `capture_logs` replaces its content.
    return {**config, "processors": list(config["processors"])}


_DEFAULTS = None if structlog.is_configured() else _configuration()
"""The default configuration of structlog, which prints to stdout."""


def _is_configured() -> bool:
    # `structlog.is_configured` alone is not enough: after `capture_logs`, it is True with the defaults.
    return structlog.is_configured() and _configuration() != _DEFAULTS


@cache
def _standard_logger(name: str) -> Any:
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _render_line,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )


def _render_line(logger: logging.Logger, _method: str, fields: Any) -> tuple[tuple[str, str], dict[str, int]]:
    # The name says where the line comes from if no formatter does.
    words = [] if logger.hasHandlers() else [f"{logger.name}:"]
    words += [str(fields.pop("event")), *(f"{name}={value!r}" for name, value in fields.items())]
    # As an argument, because a `%` in the line is text. The level skips the frames of structlog and of `Logger`.
    return ("%s", " ".join(words)), {"stacklevel": 5}


@cache
def _console_processors() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=False),
    ]
