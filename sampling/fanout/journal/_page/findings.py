"""Read the data of a run's page, in bounded memory."""

import math
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

import attrs

from sampling._json import bounded as bounded_json
from sampling.errors import JournalDamaged
from sampling.fanout.journal._notes import read_notes
from sampling.fanout.journal._page.timeline import Durations, Interval, Timeline
from sampling.fanout.journal._pauses import PAUSE, Pause
from sampling.fanout.journal._records import describe_requirement, padded_validation
from sampling.fanout.journal._schema import IS_INTERRUPTED, SAMPLED_AGAIN, sums_of
from sampling.fanout.journal._store import (
    ALL_OUTCOMES,
    OutcomeRow,
    all_outcomes,
    connect_to_read,
    former_outcomes,
    run_of,
)

__all__ = ["Findings", "Group", "Process", "ShownItem", "read_findings"]

_MAX_SLOWEST: Final = 10
_MAX_EXAMPLES: Final = 3
_MAX_GROUPS: Final = 500
"""The maximum number of kinds of failures. A run has few, but a check may have a description per answer."""

_CLOCK_TOLERANCE_S: Final = 1.0
"""How far a clock may go back without a remark. It is corrected by less all the time."""

_LATEST_S: Final = 32_503_680_000.0
"""The year 3000. A later time counts as damage."""


@attrs.frozen
class ShownItem:
    """An item whose attempts are shown."""

    index: int
    key: str
    status: str
    attempts: int
    """The number of attempts. The record of an item whose call raised has none of them."""

    record: Mapping[str, Any]


@attrs.define
class Group:
    """The failures of one kind."""

    name: str
    items: int = 0
    """The number of items that have no valid answer, for this reason among others."""

    attempts: int = 0
    """The number of attempts that failed, also of items that have a valid answer."""

    example: str = ""
    without_answer: list[ShownItem] = attrs.field(factory=list[ShownItem])
    """Some of the items that have no valid answer."""

    repaired: list[ShownItem] = attrs.field(factory=list[ShownItem])
    """Some of the items in which an attempt failed, and was not the reason for the outcome."""

    @property
    def examples(self) -> list[ShownItem]:
        """The items to look at."""
        return self.without_answer or self.repaired


@attrs.frozen(kw_only=True)
class Process:
    """One process that worked on the run."""

    number: int
    started_s: float
    ended_s: float | None
    status: str
    error: str | None
    items: int | None
    outcomes: int
    """The number of outcomes that it recorded, with those that were replaced later."""


@attrs.define(kw_only=True)
class Findings:
    """The data of a run's page."""

    run_id: str
    created_s: float
    fingerprint: Mapping[str, Any]
    processes: list[Process]
    pauses: list[tuple[int, Pause]]
    interrupted: int
    billed_twice: int
    replaced: int
    input_tokens: int
    output_tokens: int
    cost: float
    attempts: int
    requests: int
    counts: dict[str, int] = attrs.field(factory=lambda: {"succeeded": 0, "failed": 0, "errored": 0})
    timeline: Timeline = attrs.field(factory=Timeline)
    durations: Durations = attrs.field(factory=Durations)
    unplaced: int = 0
    """The number of outcomes whose time is not known."""

    last_s: float = 0.0
    """The latest time of an outcome."""

    by_requirement: dict[str, Group] = attrs.field(factory=dict[str, Group])
    by_error: dict[str, Group] = attrs.field(factory=dict[str, Group])
    slowest: list[tuple[float, int, ShownItem]] = attrs.field(factory=list[tuple[float, int, ShownItem]])

    def interval_at(self, moment_s: float) -> Interval:
        """Return the interval of a wall-clock time. One before the start counts as the start."""
        return self.timeline.at(max(moment_s - self.created_s, 0.0))

    def spend(self, moment_s: float | None, tokens: int, cost: float) -> None:
        """Count what was spent at this wall-clock time, if it is known."""
        if moment_s is not None and (tokens or cost):
            self.last_s = max(self.last_s, moment_s)
            interval = self.interval_at(moment_s)
            interval.tokens += tokens
            interval.cost += cost

    @property
    def ended(self) -> int:
        """The number of items that have an outcome."""
        return sum(self.counts.values())

    @property
    def total(self) -> int | None:
        """The number of items, if it is known."""
        known = [process.items for process in self.processes if process.items is not None]
        given = self.fingerprint.get("items")
        # The latest, because a run that continues after a change may have fewer items.
        return known[-1] if known else given if isinstance(given, int) else None

    @property
    def status(self) -> str:
        """The status that the last process recorded."""
        return self.processes[-1].status if self.processes else "running"

    @property
    def span_s(self) -> float:
        """The time from the start to the last known event."""
        known = [process.ended_s or process.started_s for process in self.processes]
        waited = [pause.ended_s or pause.began_s for _, pause in self.pauses]
        return max([self.last_s, *known, *waited, self.created_s]) - self.created_s

    @property
    def clock_was_set_back(self) -> bool:
        """Whether a process began or ended before something that happened earlier."""
        times = [self.created_s]
        for process in self.processes:
            times += [process.started_s, *([] if process.ended_s is None else [process.ended_s])]
        return any(later < earlier - _CLOCK_TOLERANCE_S for earlier, later in pairwise(times))

    @property
    def shown(self) -> list[ShownItem]:
        """The items whose attempts are shown, each once, in their order."""
        items = [item for _, _, item in self.slowest]
        for group in (*most_frequent(self.by_requirement), *most_frequent(self.by_error)):
            items += group.examples
        return [item for _, item in sorted({item.index: item for item in items}.items())]


MAX_SHOWN_GROUPS: Final = 12


def most_frequent(groups: Mapping[str, Group]) -> list[Group]:
    """Return the groups that a page shows, the one with the most items first."""
    return sorted(groups.values(), key=lambda group: (-group.items, -group.attempts, group.name))[:MAX_SHOWN_GROUPS]


def read_findings(journal: Path) -> Findings:
    """Read the journal of a run, which may be in progress. Nothing is written."""
    with connect_to_read(journal) as database:
        # One transaction, so that all numbers are of the same moment.
        database.execute("BEGIN")
        try:
            findings = _read_totals(database, journal)
            for row in all_outcomes(database, journal):
                _Reading(findings, row).read()
            _add_former_spending(database, journal, findings)
        except JournalDamaged:
            raise
        except (ValueError, KeyError, AttributeError, TypeError, IndexError, OverflowError) as problem:
            raise JournalDamaged(f"{journal} is damaged: {problem}") from problem
    return findings


def _read_totals(database: Connection, journal: Path) -> Findings:
    run_id, created_s, fingerprint = run_of(database, journal)
    used = "input_tokens", "output_tokens", "cost", "attempts", "requests"
    found = database.execute(f"SELECT {sums_of(used)} FROM {ALL_OUTCOMES}").fetchone()  # noqa: S608 - ours
    others = sums_of(f"other_{name}" for name in used)
    unrecorded = database.execute(f"SELECT {others} FROM lives").fetchone()  # noqa: S608 - ours
    tokens_in, tokens_out, cost, attempts, requests = (a + b for a, b in zip(found, unrecorded, strict=True))
    processes = list(_processes(database))
    return Findings(
        run_id=run_id,
        created_s=created_s,
        fingerprint=bounded_json.loads(fingerprint),
        processes=processes,
        pauses=list(_pauses(database, journal, processes)),
        interrupted=_number(database, f"SELECT count(DISTINCT item) FROM intents WHERE {IS_INTERRUPTED}"),  # noqa: S608 - ours
        billed_twice=_number(database, f"SELECT count(*) FROM ({SAMPLED_AGAIN})"),  # noqa: S608 - ours
        replaced=_number(database, "SELECT count(*) FROM replaced"),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cost=cost,
        attempts=attempts,
        requests=requests,
    )


def _number(database: Connection, query: str) -> int:
    (number,) = database.execute(query).fetchone()
    return int(number)


def _processes(database: Connection) -> Iterator[Process]:
    by_process = dict(database.execute(f"SELECT life, count(*) FROM {ALL_OUTCOMES} GROUP BY life").fetchall())  # noqa: S608 - ours
    columns = "life, started_s, ended_s, status, error, items"
    for number, started_s, ended_s, status, error, items in database.execute(
        f"SELECT {columns} FROM lives ORDER BY life"  # noqa: S608 - ours
    ):
        yield Process(
            number=number,
            started_s=started_s,
            ended_s=ended_s,
            status=status,
            error=error,
            items=items,
            outcomes=by_process.get(number, 0),
        )


def _add_former_spending(database: Connection, journal: Path, findings: Findings) -> None:
    """Add what was spent on outcomes that are no longer shown, and on items without an outcome."""
    for row in former_outcomes(database, journal):
        record = bounded_json.loads(row.record)
        finished_s = _finish_of(record, _seconds(record.get("elapsed_s")))
        findings.spend(finished_s, row.input_tokens + row.output_tokens, row.cost)
    # A process records the rest of its spending when it ends.
    for ended_s, tokens, cost in database.execute(
        "SELECT coalesce(ended_s, started_s), other_input_tokens + other_output_tokens, other_cost FROM lives"
    ):
        findings.spend(ended_s, tokens, cost)


def _pauses(database: Connection, journal: Path, processes: Sequence[Process]) -> Iterator[tuple[int, Pause]]:
    """Yield the pauses with the numbers of their processes, by their beginning."""
    ends = {process.number: process.ended_s for process in processes}
    found = [Pause.from_note(note) for note in read_notes(database, journal, "WHERE kind = ?", (PAUSE,))]
    for number, pause in sorted(found, key=lambda entry: entry[1].began_s):
        # A process that is stopped in a pause records only its own end.
        ended_s = ends.get(number) if pause.ended_s is None else pause.ended_s
        yield number, attrs.evolve(pause, ended_s=ended_s)


class _Reading:
    """The reading of one outcome."""

    def __init__(self, findings: Findings, row: OutcomeRow) -> None:
        self._findings = findings
        self._row = row
        self._record: Mapping[str, Any] = bounded_json.loads(row.record)
        self._descriptions = [one["description"] for one in findings.fingerprint["requirements"]]

    def read(self) -> None:
        """Add the outcome to the findings."""
        findings, status = self._findings, self._row.status
        findings.counts[status] += 1
        elapsed_s = _seconds(self._record.get("elapsed_s"))
        self._place(elapsed_s)
        if elapsed_s is not None:
            findings.durations.add(elapsed_s)
            self._keep_if_slow(elapsed_s)
        if "error" in self._record:
            self._add_error(self._record["error"], status)
        else:
            self._add_attempts()

    def _place(self, elapsed_s: float | None) -> None:
        """Count the outcome where it was on the timeline."""
        findings, row = self._findings, self._row
        finished_s = _finish_of(self._record, elapsed_s)
        if finished_s is None:
            findings.unplaced += 1
            return
        findings.last_s = max(findings.last_s, finished_s)
        findings.spend(finished_s, row.input_tokens + row.output_tokens, row.cost)
        interval = findings.interval_at(finished_s)
        setattr(interval, row.status, getattr(interval, row.status) + 1)
        if elapsed_s is not None:
            interval.durations.add(elapsed_s)

    def _keep_if_slow(self, elapsed_s: float) -> None:
        slowest = self._findings.slowest
        # By the lower index among equals, so that a page of the same journal is the same.
        # A run that was stopped while it continued after a change may have two outcomes with the same index.
        rank = (elapsed_s, -self._row.item)
        if len(slowest) == _MAX_SLOWEST:
            if rank <= slowest[0][:2]:
                return
            del slowest[0]
        insort(slowest, (*rank, self._shown), key=itemgetter(0, 1))

    @property
    def _shown(self) -> ShownItem:
        row = self._row
        return ShownItem(row.item, row.key, row.status, row.attempts, self._record)

    def _add_error(self, error: Mapping[str, Any], status: str) -> None:
        self._count(self._findings.by_error, error["type"], error["message"], ended=status == "errored")
        for other in self._record.get("others", ()):
            self._count(self._findings.by_error, other["type"], other["message"], ended=False)

    def _add_attempts(self) -> None:
        findings, record = self._findings, self._record
        unsuccessful = self._row.status != "succeeded"
        requirements: dict[str, str] = {}
        for attempt in record["attempts"]:
            for name, reason in self._failed(attempt.get("validations", ())):
                self._count(findings.by_requirement, name, reason, ended=unsuccessful and name not in requirements)
                requirements[name] = reason
            if attempt["outcome"] == "errored" and "error" in attempt:
                error = record["errors"][attempt["error"]]
                self._count(findings.by_error, error["type"], error["message"], ended=False)

    def _failed(self, validations: Sequence[Sequence[Any]]) -> Iterator[tuple[str, str]]:
        for position, passed, reason, _, _, name in map(padded_validation, validations):
            if not passed:
                described = name or describe_requirement(position, self._descriptions)
                yield described, reason or described

    def _count(self, groups: dict[str, Group], name: str, example: str, *, ended: bool) -> None:
        if name not in groups and len(groups) >= _MAX_GROUPS:
            name, example = "others", ""
        group = groups.setdefault(name, Group(name, example=example))
        group.attempts += 1
        group.items += ended
        examples = group.without_answer if ended else group.repaired
        is_new = not examples or examples[-1].index != self._row.item
        if is_new and len(examples) < _MAX_EXAMPLES:
            examples.append(self._shown)


def _finish_of(record: Mapping[str, Any], elapsed_s: float | None) -> float | None:
    """Return the time when an item ended. An id of a call begins with the time of its start."""
    if "finished_s" in record:
        return _moment(record["finished_s"])
    try:
        started_s = int(record["sampling_id"][:16], 16) / 1e9
    except (KeyError, TypeError, ValueError):
        return None
    return _moment(started_s + (elapsed_s or 0.0))


def _moment(seconds: Any) -> float | None:
    return seconds if isinstance(seconds, int | float) and 0 < seconds < _LATEST_S else None


def _seconds(seconds: Any) -> float | None:
    is_time = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0
    return float(seconds) if is_time else None
