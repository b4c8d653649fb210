"""Requirements for regular expressions."""

from collections.abc import Awaitable
from functools import partial

from sampling._arguments import check_number, check_str
from sampling._json.time_limit import INLINE_S, TooComplex, time_limit, within_time
from sampling._schemas.patterns import compiled, fits
from sampling.requirements import Requirement, Verdict

__all__ = ["matches"]

_MAX_PARTIAL_CHARS = 4_096
"""Maximum length for partial matching, because every piece is matched from the start again."""

_MAX_SLOW_STARTS = 64
"""The number of texts to remember whose partial matching took too long."""


def matches(pattern: str, description: str | None = None, *, timeout_s: float = 1.0) -> Requirement:
    """
    Require that the whole answer matches a regular expression.

    `description` explains the pattern in plain words, such as "a date like 2030-12-31".
    A match that takes longer than `timeout_s` fails the attempt.

    It needs the extra `regex`. The standard library's `re` has no timeout and holds the GIL,
    so one bad pattern would stall the whole process. A match that takes long goes on in a thread.
    """
    expression = compiled("matches()", check_str("pattern", pattern))
    if description is not None:
        check_str("description", description, empty=False)
    limit_s = check_number("timeout_s", timeout_s, above=0)
    whole = f"the whole answer must match {pattern}, with nothing before or after it"
    reason = whole if description is None else f"it is not {description}: {whole}"

    slow_starts: tuple[str, ...] = ()

    def verdict(text: str) -> Verdict:
        return fits(expression.fullmatch, text, limit_s), reason

    def whole_answer_matches(text: str) -> Verdict | Awaitable[Verdict]:
        return within_time(partial(verdict, text), limit_s)

    def may_still_match(text: str) -> Verdict:
        nonlocal slow_starts
        if len(text) > _MAX_PARTIAL_CHARS or text.startswith(slow_starts):
            return True
        try:
            with time_limit(INLINE_S, inline=True):
                return fits(expression.fullmatch, text, limit_s, partial=True), reason
        except TooComplex:
            # Nothing is ruled out. More of the same text would block the event loop again.
            slow_starts = (text, *slow_starts[: _MAX_SLOW_STARTS - 1])
            return True

    return Requirement(description or f"matches {pattern}", whole_answer_matches, partial=may_still_match)
