"""Assemble the page of a run. The result comes first, then the charts, the failures and the interruptions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sampling._result_page.report.document import figures, html_document, notes_list, table, tiles
from sampling._result_page.report.markup import Markup, element, joined
from sampling.fanout.journal._page.amounts import clock_time, long_time, short_time
from sampling.fanout.journal._page.attempts import item_link, show_item
from sampling.fanout.journal._page.findings import (
    MAX_SHOWN_GROUPS,
    Findings,
    Group,
    Process,
    most_frequent,
)
from sampling.fanout.journal._page.pictures import run_pictures
from sampling.fanout.journal._pauses import Pause

__all__ = ["render_findings"]

_MAX_NAME_CHARS: Final = 200
_MAX_EXAMPLE_CHARS: Final = 300
_MAX_INTERRUPTIONS: Final = 100


def render_findings(findings: Findings) -> str:
    """
    Return a run as one self-contained HTML page.

    It has no scripts, and its content security policy allows none. All text from the run is escaped. Its size does not
    grow with the number of items.
    """
    return html_document(_headline(findings), "map", *_content(findings))


def _content(findings: Findings) -> Iterator[Markup]:
    yield element("p", _lead(findings), class_="lead")
    yield notes_list(list(_notes(findings)))
    yield tiles(_tiles(findings))
    yield figures(run_pictures(findings), "run")
    yield from _failures(findings)
    yield from _slowest(findings)
    yield from _interruptions(findings)
    yield from _settings(findings)
    yield from _attempts(findings)


def _headline(findings: Findings) -> str:
    succeeded, total = findings.counts["succeeded"], findings.total
    of = f" of {total:,}" if total is not None and total >= findings.ended else f" of {findings.ended:,}"
    if not findings.ended:
        return "No item has an outcome" if total != 0 else "There were no items"
    return f"{succeeded:,}{of} items have a valid answer"


_STATUSES: Final = {
    "completed": "The run is complete",
    "halted": "The run was halted",
    "stopped": "The run was stopped before its end",
    "failed": "The run ended with an error",
    "running": "The run is in progress, or its last process was killed",
}


def _lead(findings: Findings) -> str:
    error = findings.processes[-1].error if findings.processes else None
    ended = f"{_STATUSES.get(findings.status, findings.status)}{f' ({error})' if error else ''}"
    processes = f", by {len(findings.processes):,} processes" if len(findings.processes) > 1 else ""
    return f"{ended}: {long_time(findings.span_s)} from {clock_time(findings.created_s)}{processes}."


def _notes(findings: Findings) -> Iterator[str]:
    killed = [one for one in findings.processes[:-1] if one.ended_s is None]
    if killed:
        were = "1 process was" if len(killed) == 1 else f"{len(killed):,} processes were"
        yield f"{were} killed, or could not record the end. Items in flight were asked again."
    if findings.pauses:
        yield _waited([pause for _, pause in findings.pauses])
    if findings.billed_twice:
        were = _counted_as(findings.billed_twice, "item was", "items were")
        yield f"{were} in flight when a process ended, and may have been billed twice."
    if findings.interrupted:
        were = _counted_as(findings.interrupted, "item was started and has", "items were started and have")
        yield f"{were} no outcome yet."
    if findings.replaced:
        were = _counted_as(findings.replaced, "earlier outcome was", "earlier outcomes were")
        yield f"{were} replaced, because items were asked again."
    if findings.clock_was_set_back:
        yield "The clock was set back, or processes had different clocks, so times on this page may be wrong."


def _waited(pauses: Sequence[Pause]) -> str:
    lengths = [max(pause.ended_s - pause.began_s, 0.0) for pause in pauses if pause.ended_s is not None]
    times = "once" if len(pauses) == 1 else f"{len(pauses):,} times"
    in_all = f", {long_time(sum(lengths))} in all" if lengths else ""
    text = f"The backend failed every call, and the run waited for it {times}{in_all}."
    endless = [pause for pause in pauses if pause.ended_s is None]
    if not endless:
        return text
    since = _counted_as(len(endless), f"pause, since {clock_time(endless[-1].began_s)}, has", "pauses have")
    return f"{text} {since} no recorded end."


def _counted_as(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _tiles(findings: Findings) -> Iterator[tuple[str, str, str]]:
    ended, counts = findings.ended, findings.counts
    yield "valid", f"{counts['succeeded']:,}", _share(counts["succeeded"], ended)
    yield "no valid answer", f"{counts['failed']:,}", _share(counts["failed"], ended)
    yield "errors", f"{counts['errored']:,}", _share(counts["errored"], ended)
    if findings.total is not None and findings.total > ended:
        yield "open", f"{findings.total - ended:,}", f"of {findings.total:,} items"
    tokens = findings.input_tokens + findings.output_tokens
    if tokens:
        yield "tokens", _shortened(tokens), f"{findings.input_tokens:,} in, {findings.output_tokens:,} out"
    if findings.cost:
        each = f"{findings.cost / counts['succeeded']:.3g} per valid answer" if counts["succeeded"] else ""
        yield "cost", f"{findings.cost:,.6g}", each
    again = findings.requests - findings.attempts
    more = f"{again:,} retries, judges and items asked again" if again > 0 else "one for each attempt"
    yield "requests", f"{findings.requests:,}", more
    median, slow = (findings.durations.at(percent) for percent in (50, 95))
    if median is not None and slow is not None:
        yield "time per item", short_time(median), f"p95 {short_time(slow)}"


def _shortened(number: int) -> str:
    """Return a number that fits into a tile."""
    return f"{number:,}" if number < 10_000_000 else f"{number / 1e6:,.1f} M"


def _share(part: int, whole: int) -> str:
    if not whole:
        return "no outcomes"
    share = f"{part / whole:.1%}"
    # Never round up to all of them.
    return f"{'>99.9%' if share == '100.0%' and part < whole else share} of {whole:,}"


# Failures.


def _failures(findings: Findings) -> Iterator[Markup]:
    if findings.by_requirement:
        yield element("h2", "Failed requirements")
        yield _counted("without a valid answer")
        yield _groups("requirement", findings.by_requirement)
    if findings.by_error:
        yield element("h2", "Errors")
        yield _counted("that ended with the error")
        yield _groups("error", findings.by_error)


def _counted(which: str) -> Markup:
    text = f"“items” are those {which}, “attempts” include those that a later attempt repaired."
    return element("p", text, class_="lead")


def _groups(kind: str, groups: Mapping[str, Group]) -> Markup:
    shown = most_frequent(groups)
    rows = [
        [
            _cut(group.name, _MAX_NAME_CHARS),
            f"{group.items:,}",
            f"{group.attempts:,}",
            _links(group),
            _cut(group.example, _MAX_EXAMPLE_CHARS) if group.example != group.name else "",
        ]
        for group in shown
    ]
    content = table((kind, "items", "attempts", "examples", "why"), rows, f"Failures by {kind}")
    left_out = len(groups) - MAX_SHOWN_GROUPS
    more = [element("p", f"{left_out:,} more are in the journal.", class_="lead")] if left_out > 0 else []
    return joined(content, *more)


def _links(group: Group) -> Markup:
    links = [item_link(item) for item in group.examples]
    return joined(*[part for link in links for part in (link, " ")][:-1])


def _slowest(findings: Findings) -> Iterator[Markup]:
    slowest = sorted(findings.slowest, key=lambda entry: (-entry[0], -entry[1]))
    if slowest:
        rows = [
            [item_link(item), short_time(elapsed_s), item.status, f"{item.attempts:,}"]
            for elapsed_s, _, item in slowest
        ]
        yield element("h2", "Slowest items")
        yield table(("item", "time", "status", "attempts"), rows, "Slowest items")


# Interruptions.


def _interruptions(findings: Findings) -> Iterator[Markup]:
    # By process before time, because clocks differ and are set back.
    entries = [((one.number, 0.0), _process_row(one, findings)) for one in findings.processes]
    entries += [((number, pause.began_s), _pause_row(number, pause)) for number, pause in findings.pauses]
    if len(entries) <= 1:
        return
    rows = [row for _, row in sorted(entries, key=lambda entry: entry[0])]
    yield element("h2", "Processes and pauses")
    columns = ("at", "what", "for", "answered", "why")
    yield table(columns, rows[:_MAX_INTERRUPTIONS], "Processes and pauses")
    if len(rows) > _MAX_INTERRUPTIONS:
        yield element("p", f"{len(rows) - _MAX_INTERRUPTIONS:,} more are in the journal.", class_="lead")


def _process_row(process: Process, findings: Findings) -> list[str]:
    lasted = "—" if process.ended_s is None else long_time(max(process.ended_s - process.started_s, 0.0))
    last = process.number == findings.processes[-1].number
    unknown = "in progress, or killed" if last else "killed, or could not record its end"
    ended = process.status if process.ended_s is not None else unknown
    why = f"{ended}: {process.error}" if process.error else ended
    return [clock_time(process.started_s), f"process {process.number}", lasted, f"{process.outcomes:,}", why]


_PAUSE_ENDS: Final[Mapping[str | None, str]] = {
    "answered": "until the backend answered",
    "grace spent": "until the grace was spent",
}


def _pause_row(number: int, pause: Pause) -> list[str]:
    lasted = "—" if pause.ended_s is None else long_time(max(pause.ended_s - pause.began_s, 0.0))
    unknown = "end unknown" if pause.ended_s is None else "until the process ended"
    why = f"{_cut(pause.error_type, _MAX_NAME_CHARS)}, {_PAUSE_ENDS.get(pause.ending, unknown)}"
    return [clock_time(pause.began_s), f"pause of process {number}", lasted, "", why]


# Attempts and settings.


def _attempts(findings: Findings) -> Iterator[Markup]:
    shown = findings.shown
    if shown:
        descriptions = [one["description"] for one in findings.fingerprint["requirements"]]
        known = len(findings.fingerprint.get("context", ())) + 1
        yield element("h2", "Attempts")
        yield element("p", "Only of the items above. The journal has all attempts, but not the prompts.", class_="lead")
        yield from (show_item(item, descriptions, known) for item in shown)


def _settings(findings: Findings) -> Iterator[Markup]:
    described = findings.fingerprint
    strategy: Mapping[str, Any] = described.get("strategy", {})
    settings = [f"{name} {strategy[name]}" for name in ("loop_budget", "concurrency_budget") if name in strategy]
    rows = [
        ["run", findings.run_id],
        ["strategy", f"{str(strategy.get('class', '')).rpartition('.')[2]} ({', '.join(settings)})"],
        ["model", str(described.get("model") or "unknown")],
    ]
    rows += [["requirement", one["description"]] for one in described["requirements"][:MAX_SHOWN_GROUPS]]
    rows += [[name, str(value)] for name, value in described.get("options", {}).items()]
    yield element("h2", "Settings of the run")
    yield table(("setting", "value"), _short(rows), "Settings")


def _short(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[_cut(cell, _MAX_EXAMPLE_CHARS) for cell in row] for row in rows]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
