"""Requirements that are ready made."""

import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy
from sampling.checks import matches
from sampling.testing import ScriptedBackend


async def sample(text, requirement):
    return await RejectionSamplingStrategy().sample("q", None, ScriptedBackend([text]), [requirement])


@pytest.mark.parametrize(("text", "expected"), [("2026-11-16", True), ("on 2026-11-16", False), ("", False)])
def test_the_whole_answer_has_to_match(run, text, expected):
    """A date is a date, not a text with a date in it."""
    result = run(sample, text, matches(r"\d{4}-\d\d-\d\d"))
    assert expected is result.success
    if not expected:
        assert (r"it does not match \d{4}-\d\d-\d\d",) == result.best.complaints


def test_a_pattern_that_explodes_is_stopped(run):
    """Row 54: the verdict is an error, and it fails closed; the loop is not held up for hours."""
    with capture_logs():
        result = run(sample, "a" * 50 + "!", matches(r"(a|a|aa)+$", timeout_s=0.05))
    assert not result.success
    assert [TimeoutError] == [type(error) for error in result.errors]


def test_a_pattern_that_is_none_says_so():
    """Names the pattern, and what is wrong with it."""
    with pytest.raises(ValueError, match=r"pattern must be a regular expression, got '\(': missing \)"):
        matches("(")
