"""The claims of the benchmark `searches`, checked with fewer servers in virtual time."""

import pytest

from benchmarks import searches


@pytest.mark.parametrize(("seed", "loop"), [(1, "trio"), (6, "trio"), (7, "asyncio")])
def test_the_rate_that_a_search_reports_is_the_truth(seed, loop):
    """R12: a server with pauses, one that sheds and one that hangs, to 5 %."""
    _, truth, answer = searches.search(seed, loop)
    assert truth == pytest.approx(answer.max_rate, rel=searches.NEAR)
