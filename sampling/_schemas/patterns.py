"""Regular expressions that can't stall the process."""

from collections.abc import Callable
from time import thread_time
from typing import Any

from sampling._json.time_limit import TooComplex, may_go_on_in_thread, time_left
from sampling.errors import MissingExtra

__all__ = ["compiled", "fits"]


def compiled(what: str, pattern: str) -> Any:
    """
    Compile a pattern with the `regex` module.

    The standard library's `re` has no timeout.
    """
    try:
        import regex  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(what, "regex", "regex") from error
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"pattern must be a regular expression, got {pattern!r}: {error}") from None


def fits(match: Callable[..., Any], text: str, most_s: float, **options: Any) -> bool:
    """
    Return True if a method of a compiled pattern finds something, in the time that is left and at most so many seconds.

    Otherwise raise `TooComplex` if the work can go on in a thread, and TimeoutError if not.
    """
    limit_s = timeout_s = time_left(most_s)
    while True:
        started_s = thread_time()
        try:
            # Concurrent: without the GIL.
            return match(text, timeout=timeout_s, concurrent=True, **options) is not None
        except TimeoutError:
            if may_go_on_in_thread():
                raise TooComplex from None
            if thread_time() - started_s >= limit_s / 2:
                raise
            # The module counts the processor time of all threads. So this one had less than its time.
            timeout_s *= 2
