"""
The record of every request of a run, in columns.

A request takes about 60 bytes, so that a million fit into memory. The generator writes the recording, worker processes
send theirs to the main process, and the report is built from nothing else.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, TypeAlias, cast

import attrs

from sampling.load.model._stall import Stall
from sampling.load.model._workload import Answered, Arrival

__all__ = [
    "ANSWERED",
    "COLUMNS",
    "OTHER_OPERATIONS",
    "OUTCOMES",
    "SERIES",
    "Levels",
    "Outcome",
    "Recording",
    "Tally",
    "UserEnd",
]

Outcome: TypeAlias = Literal["valid", "invalid", "failed", "cancelled"]
"""The outcome of a request. Valid and invalid ones were answered, so they count as succeeded."""

UserEnd: TypeAlias = Literal["completed", "cancelled", "horizon", "budget"]
"""The end of a user of a closed loop: no requests left to draw, cancelled, out of time, or out of budget."""

USER_ENDS: tuple[UserEnd, ...] = ("completed", "cancelled", "horizon", "budget")
OUTCOMES: tuple[Outcome, ...] = ("valid", "invalid", "failed", "cancelled")
ANSWERED: tuple[Outcome, ...] = ("valid", "invalid")
_CODES: dict[Outcome, int] = {outcome: code for code, outcome in enumerate(OUTCOMES)}

COLUMNS: Mapping[str, str] = {
    "index": "q",
    "user": "i",
    "operation": "h",
    "outcome": "b",
    "requests": "i",
    "input_tokens": "i",
    "output_tokens": "i",
    "intended_s": "d",
    "sent_s": "d",
    "first_token_s": "d",
    "done_s": "d",
    "longest_gap_s": "f",
}
"""The columns of the samples, with their `array` type codes. Times are seconds from the start of the run."""

SERIES: Mapping[str, tuple[str, str, tuple[Outcome, ...]]] = {
    "latency": ("intended_s", "done_s", ANSWERED),
    "service_time": ("sent_s", "done_s", ANSWERED),
    "time_to_first_token": ("intended_s", "first_token_s", ANSWERED),
    "time_to_valid": ("intended_s", "done_s", ("valid",)),
}
"""The series that are the time between two stamps of a request: start, end, and outcomes that count."""

OTHER_OPERATIONS = "(other operations)"
"""The name under which the operations beyond the first thousand are reported together."""

_MOST_OPERATIONS = 1_000
_PLAIN = (
    "error_messages",
    "backoffs",
    "operations",
    "active_users",
    "cost",
    "ended_s",
    "drained_s",
    "exhausted",
    "interrupted",
)
_NANOSECOND = 1e-9
NO_USER = -1
_MOST_COUNT = 2**31 - 1
"""The largest number that fits into a column of tokens or requests."""

_MOST_COST = 1e12
_LONGEST_GAP_S = 1e9


def _number(value: object) -> float | None:
    """Return a number of any type as a float, or None for anything else, including text."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(cast("SupportsFloat", value))
    except Exception:  # noqa: BLE001 - numbers of other libraries raise what they like
        return None


@attrs.define
class Tally:
    """
    Counts of arrivals and outcomes.

    They always add up: scheduled = dropped + admitted, and admitted = succeeded + failed + cancelled + in flight.
    """

    scheduled: int = 0
    dropped: int = 0
    admitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def in_flight(self) -> int:
        """Requests that are sent and not yet answered."""
        return self.admitted - self.succeeded - self.failed - self.cancelled

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        for field in attrs.fields(Tally):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@attrs.define
class Levels:
    """The number of requests in flight, sampled every `every_s` seconds."""

    every_s: float
    until_s: float = math.inf
    """The end of the sampling. Nothing reads the levels of the drain."""

    values: "array[int]" = attrs.field(factory=lambda: array("i"))
    peak: int = 0
    _level: int = 0

    def change(self, now_s: float, by: int) -> None:
        """Change the level, and record the old one until now."""
        self.advance(now_s)
        self._level += by
        self.peak = max(self.peak, self._level)

    def advance(self, now_s: float) -> None:
        """Record the level at all sampling times up to now."""
        until_s = min(now_s, self.until_s)
        while len(self.values) * self.every_s < until_s:
            self.values.append(self._level)

    def add(self, other: "Levels") -> None:
        """Add the levels of another worker. Both have the same sampling times."""
        shorter, longer = sorted((self.values, other.values), key=len)
        self.values = array("i", longer)
        for number, value in enumerate(shorter):
            self.values[number] += value
        # An upper bound: the workers need not have had their peaks at the same time.
        self.peak += other.peak


class Recording:
    """All data that a run records."""

    def __init__(self, levels_every_s: float, levels_until_s: float = math.inf) -> None:
        self.columns: dict[str, array[Any]] = {name: array(code) for name, code in COLUMNS.items()}
        self.dropped_s: array[float] = array("d")
        """Times of the ticks that found the in-flight pool full."""

        self.missed_s: array[float] = array("d")
        """Times of the ticks that passed while the machine or the event loop stood still."""

        self.stalls: list[Stall] = []
        """Times when code blocked the event loop, from the start of the run, including the warm-up."""

        self.tally: Tally = Tally()
        self.warmup: Tally = Tally()
        self.levels: Levels = Levels(levels_every_s, levels_until_s)
        self.errors: Counter[str] = Counter()
        self.error_messages: dict[str, str] = {}
        self.operations: list[str] = []
        self._operation_numbers: dict[str, int] = {}
        self.ignored: Counter[str] = Counter()
        """Number of invalid values in answers that were ignored, by name."""

        self.backoffs: int = 0
        """Number of times a user of a closed loop waited longer, because its requests failed at once."""

        self.user_ends: Counter[str] = Counter()
        self.active_users: int = 0
        """Number of users that had sent a request when the measurement began."""

        self.cost: float = 0.0
        self.ended_s: float = 0.0
        """The time when the last arrival was due or the run was stopped. The drain comes after."""

        self.drained_s: float = 0.0
        self.exhausted: bool = False
        """True if the workload ran out of requests early."""

        self.interrupted: bool = False

    def __len__(self) -> int:
        return len(self.columns["done_s"])

    def add(
        self, arrival: Arrival, *, sent_s: float, first_s: float, done_s: float, outcome: Outcome, answer: Answered
    ) -> None:
        """Record one request."""
        columns = self.columns
        columns["index"].append(arrival.index)
        columns["user"].append(NO_USER if arrival.user is None else arrival.user)
        columns["operation"].append(self._checked_operation(arrival.operation))
        columns["outcome"].append(_CODES[outcome])
        columns["requests"].append(self._count("requests", answer.requests, 1))
        columns["input_tokens"].append(self._count("input_tokens", answer.input_tokens, 0))
        columns["output_tokens"].append(self._count("output_tokens", answer.output_tokens, 0))
        columns["intended_s"].append(arrival.intended_s)
        columns["sent_s"].append(sent_s)
        columns["first_token_s"].append(first_s)
        columns["done_s"].append(done_s)
        columns["longest_gap_s"].append(self._checked_gap(arrival.longest_gap_s))
        if answer.cost is not None:
            self.cost += self._checked_cost(answer.cost)

    def _count(self, name: str, value: object, unknown: int) -> int:
        """Return a count of an answer. A missing or invalid one is unknown."""
        if type(value) is int and 0 <= value <= _MOST_COUNT:
            return value
        if value is None:
            return unknown
        whole = _number(value)
        if whole is not None and whole.is_integer() and 0 <= whole <= _MOST_COUNT:
            return int(whole)
        self.ignored[name] += 1
        return unknown

    def _checked_cost(self, value: object) -> float:
        cost = _number(value)
        if cost is not None and 0 <= cost <= _MOST_COST:
            return cost
        self.ignored["cost"] += 1
        return 0.0

    def _checked_gap(self, value: object) -> float:
        """Return a time between tokens, or NaN if it is unknown or invalid."""
        gap_s = _number(value)
        if gap_s is not None and 0 <= gap_s <= _LONGEST_GAP_S:
            return gap_s
        if gap_s is None or gap_s == gap_s:  # noqa: PLR0124 - not NaN
            self.ignored["time_between_tokens"] += 1
        return math.nan

    def _checked_operation(self, name: object) -> int:
        if name is None or isinstance(name, str):
            return self._operation(name)
        self.ignored["operation"] += 1
        return -1

    def _operation(self, name: str | None) -> int:
        if name is None:
            return -1
        number = self._operation_numbers.get(name)
        if number is not None:
            return number
        if len(self.operations) >= _MOST_OPERATIONS and name != OTHER_OPERATIONS:
            return self._operation(OTHER_OPERATIONS)
        self.name_operations([*self.operations, name])
        return len(self.operations) - 1

    def name_operations(self, names: Sequence[str]) -> None:
        """Set the names of the operations, by number."""
        self.operations = list(names)
        self._operation_numbers = {name: number for number, name in enumerate(self.operations)}

    def count_error(self, error: Exception, message: str) -> None:
        """Count a failure by type. The first message of each type is kept."""
        name = type(error).__name__
        self.errors[name] += 1
        self.error_messages.setdefault(name, message)

    # Reading.

    def times(
        self, start: str, end: str, *, outcomes: Sequence[Outcome] = OUTCOMES, operation: str | None = None
    ) -> Iterator[float]:
        """
        Yield the time from one stamp to another.

        Only for requests with these outcomes that have both stamps.
        """
        for _, took in self.due_and_took(start, end, outcomes=outcomes, operation=operation):
            yield took

    def due_and_took(
        self, start: str, end: str, *, outcomes: Sequence[Outcome] = OUTCOMES, operation: str | None = None
    ) -> Iterator[tuple[float, float]]:
        """Yield when each request was due, and the time from one stamp to another."""
        wanted = {_CODES[outcome] for outcome in outcomes}
        number = None if operation is None else self._operation_numbers[operation]
        names = ("outcome", "operation", "intended_s", start, end)
        for code, kind, due, started, ended in zip(*(self.columns[name] for name in names), strict=True):
            if code in wanted and (number is None or kind == number) and ended == ended:  # noqa: PLR0124 - not NaN
                took = ended - started
                # The event loop may wake slightly before or after the scheduled time: below 1 ns counts as 0.
                yield due, took if took > _NANOSECOND else 0.0

    def values(self, series: str, operation: str | None = None) -> Iterator[float]:
        """Yield the values of a series of the report, for the answered requests that have one."""
        if series in SERIES:
            start, end, outcomes = SERIES[series]
            return self.times(start, end, outcomes=outcomes, operation=operation)
        return self._gaps(operation) if series == "time_between_tokens" else self._times_per_token(operation)

    def _answered_rows(self, operation: str | None, *names: str) -> Iterator[tuple[Any, ...]]:
        number = None if operation is None else self._operation_numbers[operation]
        wanted = {_CODES[outcome] for outcome in ANSWERED}
        for code, kind, *row in zip(*(self.columns[name] for name in ("outcome", "operation", *names)), strict=True):
            if code in wanted and (number is None or kind == number):
                yield tuple(row)

    def _gaps(self, operation: str | None) -> Iterator[float]:
        for (gap,) in self._answered_rows(operation, "longest_gap_s"):
            if gap == gap:  # noqa: PLR0124 - not NaN
                yield gap

    def _times_per_token(self, operation: str | None) -> Iterator[float]:
        """Yield the average time per token after the first. Only a single request has one."""
        names = ("requests", "output_tokens", "first_token_s", "done_s")
        for requests, tokens, first, done in self._answered_rows(operation, *names):
            if requests == 1 and tokens > 1 and first == first:  # noqa: PLR0124 - not NaN
                yield max(done - first, 0.0) / (tokens - 1)

    def by_operation(self) -> "Iterator[tuple[str, Recording]]":
        """Yield the requests of each operation. One pass for all, because there may be a thousand of them."""
        rows: list[list[int]] = [[] for _ in self.operations]
        numbers: array[int] = self.columns["operation"]
        for row, number in enumerate(numbers):
            if number >= 0:
                rows[number].append(row)
        for name, chosen in zip(self.operations, rows, strict=True):
            part = Recording(self.levels.every_s)
            part.columns = {
                column: array(COLUMNS[column], map(values.__getitem__, chosen))
                for column, values in self.columns.items()
            }
            yield name, part

    def outcomes(self) -> dict[Outcome, int]:
        """Count the requests by outcome."""
        counts = Counter(self.columns["outcome"])
        return {outcome: counts[code] for outcome, code in _CODES.items()}

    # Merging.

    def merge(self, other: "Recording") -> None:
        """Add the recording of another worker."""
        names = [self._operation(name) for name in other.operations]
        for name, column in other.columns.items():
            if name != "operation":
                self.columns[name].extend(column)
        for number in other.columns["operation"]:
            self.columns["operation"].append(number if number < 0 else names[number])
        self.dropped_s.extend(other.dropped_s)
        self.missed_s.extend(other.missed_s)
        self.stalls = sorted([*self.stalls, *other.stalls], key=lambda stall: stall.at_s)
        self.tally.add(other.tally)
        self.warmup.add(other.warmup)
        self.levels.add(other.levels)
        self.errors.update(other.errors)
        self.ignored.update(other.ignored)
        self.backoffs += other.backoffs
        for name, message in other.error_messages.items():
            self.error_messages.setdefault(name, message)
        self.user_ends.update(other.user_ends)
        self.active_users += other.active_users
        self.cost += other.cost
        self.ended_s = max(self.ended_s, other.ended_s)
        self.drained_s = max(self.drained_s, other.drained_s)
        self.exhausted |= other.exhausted
        self.interrupted |= other.interrupted

    # Transfer between processes.

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """Return a JSON-compatible header, and the columns as raw bytes."""
        arrays = self._arrays()
        head = {
            "sizes": [len(column) * column.itemsize for column in arrays],
            "stalls": [attrs.asdict(stall) for stall in self.stalls],
            "tally": attrs.asdict(self.tally),
            "warmup": attrs.asdict(self.warmup),
            "levels": {"every_s": self.levels.every_s, "peak": self.levels.peak},
            "errors": dict(self.errors),
            "ignored": dict(self.ignored),
            "user_ends": dict(self.user_ends),
            **{name: getattr(self, name) for name in _PLAIN},
        }
        return head, b"".join(column.tobytes() for column in arrays)

    @classmethod
    def unpack(cls, head: Mapping[str, Any], body: bytes) -> "Recording":
        """
        Rebuild a recording from the result of `pack`.

        Both must run on the same machine, because the numbers are raw bytes.
        """
        recording = cls(head["levels"]["every_s"])
        recording.levels.peak = head["levels"]["peak"]
        recording.stalls = [Stall.from_dict(stall) for stall in head["stalls"]]
        recording.tally = Tally(**head["tally"])
        recording.warmup = Tally(**head["warmup"])
        recording.errors = Counter(head["errors"])
        recording.ignored = Counter(head["ignored"])
        recording.user_ends = Counter(head["user_ends"])
        for name in _PLAIN:
            setattr(recording, name, head[name])
        recording.name_operations(recording.operations)
        start = 0
        for column, size in zip(recording._arrays(), head["sizes"], strict=True):
            column.frombytes(body[start : start + size])
            start += size
        return recording

    def _arrays(self) -> "list[array[Any]]":
        return [*self.columns.values(), self.dropped_s, self.missed_s, self.levels.values]
