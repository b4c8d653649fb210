"""Assemble a page. The result comes first, then the charts, then the settings."""

from collections.abc import Iterator

from sampling._result_page.report.document import figures, html_document, notes_list, table, tiles
from sampling._result_page.report.markup import Markup, element
from sampling.load.capacity._answer import CapacityAnswer, Step
from sampling.load.model._populations_report import PopulationsReport
from sampling.load.model._profiles import Profile
from sampling.load.model._report import LoadReport
from sampling.load.model._units import format_seconds, number_or_dash, seconds_or_dash, share_or_dash
from sampling.load.report._comparison import Comparison
from sampling.load.report._page.pictures import load_pictures, step_pictures
from sampling.load.report._table import POPULATION_COLUMNS, population_rows

__all__ = ["render_html"]


def render_html(
    report: LoadReport | PopulationsReport | CapacityAnswer, *, comparison: Comparison | None = None
) -> str:
    """
    Return a report as one self-contained HTML page, with a comparison if there is one.

    It has no scripts, and its content security policy allows none. All text from the run is escaped.
    """
    if isinstance(report, CapacityAnswer):
        return _document(_headline(report), "capacity", _capacity(report), comparison)
    if isinstance(report, PopulationsReport):
        return _document(_populations_headline(report), "load", _populations(report), comparison)
    return _document(_load_headline(report), "load", _load(report), comparison)


def _document(title: str, kind: str, content: Iterator[Markup], comparison: Comparison | None) -> str:
    """Return a page with the comparison below its first paragraph."""
    return html_document(title, kind, next(content), *_compared(comparison), *content)


def _compared(comparison: Comparison | None) -> Iterator[Markup]:
    """Return the changes since the earlier report."""
    if comparison is not None:
        yield element("h2", "Compared with the earlier report")
        yield element("p", f"{comparison}.", class_="lead")
        yield notes_list(comparison.remarks)
        # The trend comes second, so that a phone shows it without scrolling.
        rows = [(name, trend, *numbers) for name, *numbers, trend in (each.cells() for each in comparison.changes)]
        yield table(("figure", "trend", "before", "after", "change"), rows, "Comparison")


# One run.


def _load(report: LoadReport) -> Iterator[Markup]:
    yield element("p", f"{_how(report)}.{_judged(report)}", class_="lead")
    yield notes_list(report.notes)
    yield tiles(_load_tiles(report))
    yield from _details(report, "load")


def _details(report: LoadReport, place: str) -> Iterator[Markup]:
    yield figures(load_pictures(report), place)
    yield from _errors(report)
    yield from _stalls(report)
    yield from _settings(report)


def _load_headline(report: LoadReport) -> str:
    """Return the traffic as a headline, unless nothing was answered."""
    title = _title(report.profile)
    if report.succeeded:
        return title
    return f"Nothing was {'answered' if report.admitted else 'sent'}: {title}"


def _judged(report: LoadReport) -> str:
    if report.verdict is None:
        return ""
    why = f": {'; '.join(report.reasons)}" if report.reasons else f": {str(report.slo).replace(',', ', ')}"
    return f" {report.verdict}{why}."


def _title(profile: Profile) -> str:
    if profile.users is not None:
        return f"{profile.users:,} users, each waiting for answers"
    if profile.rate is None:
        return "Recorded traffic, played back"
    ramp = getattr(profile, "to_rate", None)
    return f"{profile.rate:g} to {ramp:g} requests per second" if ramp else f"{profile.rate:g} requests per second"


def _how(report: LoadReport) -> str:
    lost = f" {report.dropped:,} of {report.scheduled:,} arrivals were not sent." if report.dropped else ""
    return (
        f"{report.model.capitalize()} loop over {format_seconds(report.duration_s)}: "
        f"{report.admitted:,} requests sent, {report.succeeded:,} answered, "
        f"{report.valid:,} of these valid.{lost}".removesuffix(".")
    )


def _load_tiles(report: LoadReport) -> Iterator[tuple[str, str, str]]:
    latency = report.latency
    if report.verdict is not None:
        sure = "" if report.confidence is None else f"confidence {share_or_dash(report.confidence)}"
        yield "SLO", report.verdict, sure or "; ".join(report.reasons[:1])
    yield "p50", seconds_or_dash(latency.p50), "latency, from due"
    yield "p95", seconds_or_dash(latency.p95), f"mean {seconds_or_dash(latency.mean)}"
    yield "p99", seconds_or_dash(latency.p99), f"max {seconds_or_dash(latency.max)}"
    if report.time_to_first_token.count:
        first = report.time_to_first_token
        yield "first token", seconds_or_dash(first.p50), f"p99 {seconds_or_dash(first.p99)}"
    if report.time_per_output_token.count:
        later = report.time_per_output_token
        yield "per output token", seconds_or_dash(later.p50), f"p99 {seconds_or_dash(later.p99)}"
    if report.time_between_tokens.count:
        gaps = report.time_between_tokens
        yield "between tokens", seconds_or_dash(gaps.p50), f"longest of a request, p99 {seconds_or_dash(gaps.p99)}"
    yield (
        "sent",
        f"{number_or_dash(report.achieved_rate)}/s",
        f"{share_or_dash(report.delivered_share)} of arrivals due",
    )
    yield "errors", share_or_dash(report.error_rate), f"{report.failed:,} failed, {report.cancelled:,} unanswered"
    yield "valid", share_or_dash(report.validity_rate), f"{report.valid:,} of {report.succeeded:,} answers"
    if report.good is not None:
        yield "goodput", f"{number_or_dash(report.goodput)}/s", f"{share_or_dash(report.good_share)} of requests sent"
    if report.cost:
        each = report.cost / report.valid if report.valid else None
        yield "cost", number_or_dash(report.cost), f"{number_or_dash(each)} per valid answer"


def _errors(report: LoadReport) -> Iterator[Markup]:
    if report.errors:
        rows = [
            [name, f"{times:,}", report.error_messages.get(name, "")] for name, times in sorted(report.errors.items())
        ]
        yield element("h2", "What failed")
        yield table(("error", "times", "why"), rows, "Errors by type")


def _stalls(report: LoadReport) -> Iterator[Markup]:
    if report.stalls:
        rows = [
            [f"{stall.at_s:.3f} s", format_seconds(stall.blocked_s), ", called from ".join(stall.where)]
            for stall in report.stalls
        ]
        yield element("h2", "Code that blocked the load generator")
        yield table(("at", "for", "why"), rows, "Times when the event loop stood still")


def _settings(report: LoadReport) -> Iterator[Markup]:
    """Return the settings, so that the run can be repeated."""
    given = [
        [name.removesuffix("_s").replace("_", " "), _setting(name, value)]
        for name, value in report.profile.to_dict().items()
        if value is not None
    ]
    about = [[name, _setting(name, value)] for name, value in report.about.items() if value is not None]
    rows = [*about, *given, ["seed", str(report.seed)], ["workers", str(report.workers)]]
    if report.slo is not None:
        rows.append(["slo", str(report.slo).replace(",", ", ")])
    yield element("h2", "Settings of the run")
    yield table(("setting", "value"), rows, "Settings")


def _setting(name: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value):,} instants"  # pyright: ignore[reportUnknownArgumentType]
    if name.endswith("_s") and isinstance(value, int | float):
        return format_seconds(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# Several populations.


def _populations_headline(report: PopulationsReport) -> str:
    total = report.total
    title = f"{len(report.populations)} populations, {number_or_dash(total.achieved_rate)} requests per second"
    return title if total.succeeded else f"Nothing was {'answered' if total.admitted else 'sent'}: {title}"


def _populations(report: PopulationsReport) -> Iterator[Markup]:
    total = report.total
    judged = "" if report.verdict is None else f" {report.verdict}{': ' if report.reasons else ''}"
    yield element(
        "p",
        f"{total.admitted:,} requests sent, {total.succeeded:,} answered, {total.valid:,} of these valid."
        f"{judged}{'; '.join(report.reasons)}{'.' if judged else ''}",
        class_="lead",
    )
    yield notes_list(report.notes)
    yield table(POPULATION_COLUMNS, population_rows(report), "Populations")
    for number, (name, population) in enumerate(report.populations.items(), 1):
        yield element("h2", name)
        yield element("p", f"{_title(population.profile)}. {_how(population)}.{_judged(population)}", class_="lead")
        yield tiles(_load_tiles(population))
        yield from _details(population, f"population-{number}")


# A capacity search.


def _capacity(answer: CapacityAnswer) -> Iterator[Markup]:
    yield element("p", _lead(answer), class_="lead")
    yield notes_list(_capacity_notes(answer))
    yield tiles(_capacity_tiles(answer))
    yield figures(step_pictures(answer), "steps", shown=True)
    for name, step in _shown_steps(answer):
        if step.report is not None:
            yield element("h2", name)
            yield element("p", f"{_how(step.report)}.", class_="lead")
            yield figures(load_pictures(step.report), f"step-{step.target_rate:g}", level=3)
    if answer.best is not None and answer.best.report is not None:
        yield from _settings(answer.best.report)


def _unit(answer: CapacityAnswer) -> str:
    return "users" if answer.axis == "users" else "requests per second"


def _headline(answer: CapacityAnswer) -> str:
    if answer.max_rate is None:
        return "No step passed"
    return f"Holds {answer.max_rate:g} {_unit(answer)}"


def _lead(answer: CapacityAnswer) -> str:
    kept = f"The limits are {str(answer.slo).replace(',', ', ')}."
    if answer.first_trip is None:
        return f"{kept} Nothing tripped: the limit is higher than what was tried."
    return f"{kept} At {answer.first_trip:g} it broke: {answer.next_limit}."


def _capacity_notes(answer: CapacityAnswer) -> list[str]:
    notes = ["interrupted: these are the results until then"] if answer.interrupted else []
    unproven = [step for step in answer.steps if step.verdict == "INCONCLUSIVE"]
    notes += [f"{step.target_rate:g} proved nothing: {'; '.join(step.reasons)}" for step in unproven]
    return [*notes, *answer.notes]


def _capacity_tiles(answer: CapacityAnswer) -> Iterator[tuple[str, str, str]]:
    yield "holds", number_or_dash(answer.max_rate), _unit(answer)
    yield "breaks at", number_or_dash(answer.first_trip), "the first step that tripped"
    if answer.confidence is not None:
        passed, runs = answer.passes
        yield "confidence", share_or_dash(answer.confidence), f"{passed} of {runs} runs passed"
    if answer.best is not None and answer.best.report is not None:
        report = answer.best.report
        yield "p50", seconds_or_dash(report.latency.p50), "at the rate that holds"
        yield "p95", seconds_or_dash(report.latency.p95), f"p99 {seconds_or_dash(report.latency.p99)}"
        yield "valid", share_or_dash(report.validity_rate), f"errors {share_or_dash(report.error_rate)}"
        yield "in-flight limit", number_or_dash(report.suggested_in_flight), "suggested, by Little's law"


def _shown_steps(answer: CapacityAnswer) -> Iterator[tuple[str, Step]]:
    if answer.best is not None:
        yield f"At {answer.best.target_rate:g}, which holds", answer.best
    tripped = [step for step in answer.steps if step.target_rate == answer.first_trip and step.verdict == "TRIP"]
    if tripped:
        yield f"At {tripped[0].target_rate:g}, which trips", tripped[0]
