"""Format times and amounts for people."""

from datetime import UTC, datetime

__all__ = ["clock_time", "long_time", "short_time", "tick_time"]


def long_time(seconds: float) -> str:
    """Return a duration of any length with two units at most: `7 h 12 min`."""
    if seconds < 60:
        return short_time(seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24:,} d {hours % 24} h"


def short_time(seconds: float) -> str:
    """Return a duration in seconds or milliseconds."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if not seconds or float(f"{seconds:.3g}") >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"


def tick_time(span_s: float) -> "tuple[float, str]":
    """Return the length in seconds and the name of the unit for an axis of this length."""
    for unit_s, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")):
        if span_s >= 3 * unit_s:
            return unit_s, name
    return 0.001, "milliseconds"


def clock_time(seconds: float) -> str:
    """Return a time of the day."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
