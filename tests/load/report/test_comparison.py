"""Two reports side by side."""

import attrs
import pytest

from sampling.load import CapacityAnswer, LoadReport, OpenLoop, Slo, Summary, compare
from tests.load.reports import capacity_answer, closed_report, load_report


def slower(report: LoadReport, factor: float) -> LoadReport:
    numbers = {
        field.name: getattr(report.latency, field.name) * factor
        for field in attrs.fields(Summary)
        if field.name != "count"
    }
    return attrs.evolve(report, latency=Summary(report.latency.count, **numbers))


def test_a_report_is_the_same_as_itself():
    """Two equal reports have exit code 0 and one line of output."""
    same = compare(load_report(), load_report())
    assert (0, "the same, within 5%") == (same.exit_code, str(same))


@pytest.mark.parametrize(("factor", "trend"), [(1.04, "same"), (1.06, "worse"), (0.9, "better"), (3, "worse")])
def test_latencies_are_compared_by_their_ratio(factor, trend):
    """A difference within the tolerance is noise, beyond it worse or better."""
    found = compare(load_report(), slower(load_report(), factor))
    changes = {change.name: change for change in found.changes}
    assert trend == changes["p95"].trend
    assert factor == pytest.approx(changes["p95"].factor)
    assert (1 if trend == "worse" else 0) == found.exit_code


def test_shares_are_compared_by_their_difference():
    """An error rate of 0.1 % after none is noise, and of 10 % is worse."""
    report = load_report()
    few = attrs.evolve(report, failed=report.failed + 1, scheduled=report.scheduled + 1, admitted=report.admitted + 1)
    many = attrs.evolve(
        report, failed=report.failed + 50, scheduled=report.scheduled + 50, admitted=report.admitted + 50
    )
    assert "errors" not in {change.name for change in compare(report, few, tolerance=0.1).worse}
    assert "errors" in {change.name for change in compare(report, many).worse}


def test_a_table_shows_all_of_it():
    """Before, after, by how much, and what was different about how they were measured."""
    other = load_report(OpenLoop(rate=3, duration_s=30, arrivals="poisson", max_in_flight=12))
    table = compare(load_report(), other).render()
    assert "note: rate was 6 and is 3" in table
    assert "better: p50, p95, p99" in table


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (load_report, closed_report, "the open loop with one of the closed loop"),
        (load_report, capacity_answer, "can't compare a load run with a capacity search"),
        (capacity_answer, lambda: attrs.evolve(capacity_answer(), slo=Slo(p95_s=1)), "use the same --slo"),
        (capacity_answer, lambda: attrs.evolve(capacity_answer(), axis="users"), "use the same axis"),
    ],
)
def test_only_like_is_compared_with_like(before, after, complaint):
    """O8: nothing mixes reports of different models."""
    with pytest.raises(ValueError, match=complaint):
        compare(before(), after())


def test_a_search_that_finds_less_is_worse():
    """The answer first, then the steps that both of them have and that held before."""
    answer = capacity_answer()
    assert answer.max_rate is not None
    less = attrs.evolve(answer, steps=tuple(step for step in answer.steps if step.target_rate < answer.max_rate))
    found = compare(answer, less)
    assert "max rate" in {change.name for change in found.worse}
    assert any("steps that only one of them has" in remark for remark in found.remarks)
    assert isinstance(less, CapacityAnswer)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_is_a_share(tolerance):
    """A tolerance outside of 0 to 1 is refused."""
    with pytest.raises(ValueError, match="tolerance"):
        compare(load_report(), load_report(), tolerance=tolerance)
