"""Format a load report as a table for a terminal."""

from collections.abc import Iterator

from sampling._text import aligned
from sampling.load.model._about import describe_briefly
from sampling.load.model._populations_report import PopulationsReport
from sampling.load.model._report import LoadReport
from sampling.load.model._series import Summary
from sampling.load.model._units import format_seconds, format_share, number_or_dash, seconds_or_dash, share_or_dash

__all__ = ["POPULATION_COLUMNS", "SUMMARY_COLUMNS", "load_table", "population_rows", "summary_rows"]

SUMMARY_COLUMNS = ("", "count", "mean", "p50", "p90", "p95", "p99", "max")
"""The headings of `summary_rows`."""


POPULATION_COLUMNS = ("population", "loop", "sent", "per second", "p50", "p95", "p99", "errors", "valid", "verdict")
"""The headings of `population_rows`."""


def load_table(report: LoadReport | PopulationsReport) -> str:
    """Return a report as text, for a terminal."""
    if isinstance(report, PopulationsReport):
        return "\n".join(_populations(report))
    return "\n".join([*_counts(report), "", *aligned([SUMMARY_COLUMNS, *summary_rows(report)]), *_remarks(report)])


def _populations(report: PopulationsReport) -> Iterator[str]:
    """Yield an overview, and then the report of each population."""
    yield from aligned([POPULATION_COLUMNS, *population_rows(report)])
    for name, population in report.populations.items():
        yield ""
        yield f"{name}: {population.verdict or 'no SLO'}{_reasons(population)}"
        yield load_table(population)


def _reasons(report: LoadReport) -> str:
    return f": {'; '.join(report.reasons)}" if report.reasons else ""


def population_rows(report: PopulationsReport) -> list[tuple[str, ...]]:
    """Return one row for each population, and one for their total, which has no latencies."""
    rows = [
        (
            name,
            each.model,
            f"{each.admitted:,}",
            number_or_dash(each.achieved_rate),
            *(seconds_or_dash(time) for time in (each.latency.p50, each.latency.p95, each.latency.p99)),
            share_or_dash(each.error_rate),
            share_or_dash(each.validity_rate),
            each.verdict or "—",
        )
        for name, each in report.populations.items()
    ]
    total = report.total
    shares = (share_or_dash(total.error_rate), share_or_dash(total.validity_rate))
    numbers = (f"{total.admitted:,}", number_or_dash(total.achieved_rate))
    return [*rows, ("total", "", *numbers, "", "", "", *shares, report.verdict or "—")]


def summary_rows(report: LoadReport) -> list[tuple[str, ...]]:
    """Return one row for each series with values."""
    return [(name, *_cells(summary)) for name, summary in _series(report) if summary.count]


def _counts(report: LoadReport) -> Iterator[str]:
    if report.about:
        yield f"measured: {describe_briefly(report.about)}"
    asked = f"{report.target_rate:g}/s" if report.target_rate is not None else f"{report.profile.users or 'a trace'}"
    users = " users" if report.profile.users is not None else ""
    yield f"{report.model} loop, {asked}{users}, {format_seconds(report.duration_s)}: {report.achieved_rate:.4g}/s sent"
    yield (
        f"{report.scheduled:,} due = {report.dropped:,} dropped + {report.admitted:,} sent; "
        f"{report.admitted:,} sent = {report.succeeded:,} answered + {report.failed:,} failed "
        f"+ {report.cancelled:,} unanswered"
    )
    shares = {"errors": report.error_rate, "valid": report.validity_rate, "within the SLO": report.good_share}
    parts = [f"{name} {format_share(share)}" for name, share in shares.items() if share is not None]
    if report.goodput is not None:
        parts.append(f"goodput {report.goodput:.4g}/s")
    if report.requests:
        parts.append(f"{report.requests:,} requests to the backend")
    if report.output_tokens:
        parts.append(f"{report.input_tokens:,} tokens in, {report.output_tokens:,} out")
    if report.cost:
        parts.append(f"cost {report.cost:.4g}")
    yield ", ".join(parts)


def _series(report: LoadReport) -> Iterator[tuple[str, Summary]]:
    yield "latency (from due)", report.latency
    yield "service time (from sent)", report.service_time
    yield "time to first token", report.time_to_first_token
    yield "time per output token", report.time_per_output_token
    yield "longest time between tokens", report.time_between_tokens
    yield "time to a valid answer", report.time_to_valid
    yield "until a failure", report.error_latency
    yield "schedule lag", report.schedule_lag
    for name, operation in report.operations.items():
        yield f"{name}: latency", operation.latency


def _cells(summary: Summary) -> Iterator[str]:
    yield f"{summary.count:,}"
    for name in SUMMARY_COLUMNS[2:]:
        yield seconds_or_dash(getattr(summary, name))


def _remarks(report: LoadReport) -> Iterator[str]:
    remarks = [f"{times} × {name}: {report.error_messages.get(name, '')}" for name, times in report.errors.items()]
    remarks += report.notes
    if remarks:
        yield ""
        yield from (f"note: {remark}" for remark in remarks)
