"""
Requirements that are ready made.

    from sampling.checks import matches
    await strategy.sample("…", ctx, backend, [matches(r"\\d{4}-\\d\\d-\\d\\d")])
"""

from sampling._arguments import check_number, check_str
from sampling.errors import MissingExtra
from sampling.requirements import Requirement

__all__ = ["matches"]


def matches(pattern: str, description: str | None = None, *, timeout_s: float = 1.0) -> Requirement:
    """
    Require that the whole answer matches a regular expression.

    It needs the extra `regex`: the standard library's `re` can't be stopped, and holds the interpreter while it runs,
    so that one bad pattern stalls the whole process. A match that takes longer than `timeout_s` fails the attempt.
    """
    try:
        import regex  # noqa: PLC0415 - an extra: only those who match need it
    except ImportError as error:
        raise MissingExtra("matches()", "regex", "regex") from error
    check_str("pattern", pattern)
    limit_s = check_number("timeout_s", timeout_s, above=0)
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"pattern must be a regular expression, got {pattern!r}: {error}") from None

    def whole_answer_matches(text: str) -> tuple[bool, str | None]:
        return compiled.fullmatch(text, timeout=limit_s) is not None, f"it does not match {pattern}"

    return Requirement(description or f"matches {pattern}", check=whole_answer_matches)
