"""Requirements for regular expressions."""

from sampling._arguments import check_number, check_str
from sampling._schemas.validation import compiled
from sampling.requirements import Requirement, Verdict

__all__ = ["matches"]

_MAX_PARTIAL_CHARS = 4_096
"""Maximum length for partial matching, because every piece is matched from the start again."""


def matches(pattern: str, description: str | None = None, *, timeout_s: float = 1.0) -> Requirement:
    """
    Require that the whole answer matches a regular expression.

    `description` explains the pattern in plain words, such as "a date like 2030-12-31".
    A match that takes longer than `timeout_s` fails the attempt.

    It needs the extra `regex`. The standard library's `re` has no timeout and holds the GIL,
    so one bad pattern would stall the whole process.
    """
    expression = compiled("matches()", check_str("pattern", pattern))
    if description is not None:
        check_str("description", description, empty=False)
    limit_s = check_number("timeout_s", timeout_s, above=0)
    whole = f"the whole answer must match {pattern}, with nothing before or after it"
    reason = whole if description is None else f"it is not {description}: {whole}"

    def whole_answer_matches(text: str) -> Verdict:
        return expression.fullmatch(text, timeout=limit_s) is not None, reason

    def may_still_match(text: str) -> Verdict:
        if len(text) > _MAX_PARTIAL_CHARS:
            return True
        return expression.fullmatch(text, timeout=limit_s, partial=True) is not None, reason

    return Requirement(description or f"matches {pattern}", whole_answer_matches, partial=may_still_match)
