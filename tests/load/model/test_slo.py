"""Limits of an SLO, their parsing, and the confidence of a verdict."""

import math

import pytest

from sampling.load import OpenLoop, Slo, read_trace
from sampling.load.model._confidence import confidence_within, is_at_edge, wilson
from sampling.load.model._series import cumulative, least_samples, nearest_rank, slope
from sampling.load.model._units import format_seconds, format_share


def test_an_slo_is_read_from_one_line():
    """With units, short names, and limits of single operations."""
    slo = Slo.parse("p95=2s, ttft_p99=500ms, valid_p50=1.5, error=0.1%, validity=95%, backlog=20, chat.p90=1s")
    assert slo == Slo(
        p95_s=2,
        ttft_p99_s=0.5,
        valid_p50_s=1.5,
        error_rate=0.001,
        validity_rate=0.95,
        backlog=20,
        operations={"chat": Slo(p90_s=1)},
    )


def test_an_slo_that_is_written_can_be_read():
    """An SLO is restored from its text and from JSON."""
    slo = Slo(p95_s=0.25, max_s=3, error_rate=0.001, backlog_slope=0.5, operations={"chat": Slo(p99_s=2)})
    assert slo == Slo.parse(str(slo))
    assert slo == Slo.from_dict(slo.to_dict())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p96=2s", "no such SLO metric: 'p96'; there are p50, p90"),
        ("p95", "an SLO is written as metric=limit, such as p95=2s, got 'p95'"),
        ("p95=fast", "p95 must be a time such as 250ms, 2s or 1m, got 'fast'"),
        ("p95=2s,p95_s=3s", "p95_s is limited twice"),
        ("error=2s", "error must be a share such as 0.1% or 0.001, got '2s'"),
        ("error=150%", "error_rate is a share and must be <= 1, got 1.5"),
        ("backlog=many", "backlog must be a number such as 50 or 1.5k"),
        ("p95=0s", "p95_s must be > 0, got 0.0"),
        ("", "an SLO needs at least one limit"),
    ],
)
def test_a_limit_that_can_not_be_read_says_what_to_change(text, says):
    """Bad input: one line."""
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        Slo.parse(text)


def test_the_tightest_limit_and_what_a_single_request_is_held_to():
    """The tightest latency limit, and for one request the limit of the highest percentile."""
    slo = Slo(p50_s=0.1, p99_s=2.0, ttft_p95_s=0.5, operations={"chat": Slo(p95_s=0.05)})
    assert 0.05 == slo.tightest_s
    assert {"latency": 2.0, "time_to_first_token": 0.5} == slo.request_limits


def test_times_and_shares_are_written_as_people_read_them():
    """Times below a second are in milliseconds."""
    assert ("143ms", "2.5s", "1234s", "0.1%") == (
        format_seconds(0.143),
        format_seconds(2.5),
        format_seconds(1234.4),
        format_share(0.001),
    )


def test_rounding_never_says_more_than_is_true():
    """A second is a second from below too, and nearly all is not all."""
    assert ("1s", "999ms") == (format_seconds(0.9999), format_seconds(0.9994))
    assert ("100%", ">99.9%", "99.9%") == (format_share(1.0), format_share(0.9999), format_share(0.9994))


def test_nearest_rank_is_exact_where_floats_are_not():
    """R6: 7 % of 100 is 7, although 0.07 * 100 is a little more."""
    assert 7 == nearest_rank(range(1, 101), 7)
    assert 999 == nearest_rank(range(1, 1001), 99.9)
    with pytest.raises(ValueError, match="an empty series has no percentiles"):
        nearest_rank([], 50)
    assert [2, 10, 20, 100, 1] == [least_samples(percent) for percent in (50, 90, 95, 99, 100)]


def test_the_distribution_is_a_curve_through_the_samples():
    """Every point of it is a sample, and the last one is the largest."""
    curve = cumulative([3.0, 1.0, 2.0, 4.0], points=4)
    assert [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)] == curve
    assert [] == cumulative([])


def test_a_slope_is_what_grows_per_second():
    """None where that can't be said."""
    assert 2.0 == pytest.approx(slope([0, 1, 2, 3], [5, 7, 9, 11]))
    assert slope([0, 1], [5, 7]) is None


def test_wilsons_interval_contains_the_share_and_shrinks():
    """R12: known values, and the ends of the scale."""
    assert (0.0, pytest.approx(0.0370, abs=1e-4)) == wilson(0, 100)
    assert (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4)) == wilson(50, 100)
    assert (0.0, 1.0) == wilson(0, 0)
    assert is_at_edge(5, 100, 0.05)
    assert not is_at_edge(0, 1000, 0.05)
    assert 0.5 == confidence_within(5, 100, 0.05)
    assert confidence_within(0, 1000, 0.05) > 0.99
    assert confidence_within(3, 10, 0.0) is None


def test_a_trace_is_read_from_text():
    """A trace is the first column, relative to its first stamp, without header and empty lines."""
    assert (0.0, 1.5, 2.0) == read_trace("time,path\n100.0,/a\n\n102.0,/b\n101.5,/c\n")
    with pytest.raises(ValueError, match="line 3 of the trace must begin with a number"):
        read_trace("1.0\n2.0\nthree\n")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "needs a rate"),
        ({"rate": 5}, "needs an end: set duration_s, or requests, or both"),
        ({"rate": 5, "trace": (1.0,)}, "trace and rate contradict each other"),
        ({"trace": (2.0, 1.0)}, r"trace\[1\] must be >= the instant before it \(2.0\), got 1.0"),
        ({"rate": 5, "duration_s": 1, "to_rate": 3, "shape": math.sin}, "to_rate and shape contradict each other"),
        ({"rate": 5, "requests": 1, "to_rate": 3}, "needs duration_s, over which it is spread"),
        ({"rate": 5, "duration_s": 1, "to_rate": 3, "arrivals": "burst"}, "bursts need a constant rate"),
        ({"rate": 5, "duration_s": 1, "max_in_flight": 0}, "max_in_flight must be >= 1, got 0"),
        ({"rate": 5, "duration_s": -1}, "duration_s must be > 0, got -1"),
    ],
)
def test_a_profile_that_contradicts_itself_says_what_to_change(settings, says):
    """C8, O7: one line."""
    with pytest.raises(ValueError, match=says):
        OpenLoop(**settings)
