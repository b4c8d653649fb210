"""The result of a capacity search."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

from sampling._json.bounded import loads
from sampling._text import aligned
from sampling.load.capacity._search import Bracket, Trial, find_bracket, find_confidence
from sampling.load.model._about import describe_briefly
from sampling.load.model._confidence import wilson
from sampling.load.model._profiles import ClosedLoop
from sampling.load.model._report import ANSWERED_SERIES, LoadReport, Operation
from sampling.load.model._schema import check_schema
from sampling.load.model._slo import Slo
from sampling.load.model._units import format_seconds, format_share, seconds_or_dash, share_or_dash
from sampling.load.model._verdict import Verdict

__all__ = ["CSV_COLUMNS", "Axis", "CapacityAnswer", "Step", "csv_row"]

Axis: TypeAlias = Literal["rate", "users"]
"""The quantity that the steps raise: arrivals per second, or users."""


@attrs.frozen(kw_only=True)
class Step:
    """One run of a capacity search."""

    target_rate: float
    """The target: arrivals per second, or users with `axis="users"`."""

    achieved_rate: float
    """Requests sent per second, or users that became active."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Reasons for a verdict other than PASS. A TRIP lists every broken limit."""

    why: Literal["ramp", "refine", "repeat"] = "ramp"
    """The purpose of the run: a step of the ramp, a bisection, or a repeat of an uncertain verdict."""

    edge: bool = False
    """True if another run could well have the opposite verdict."""

    confidence: float | None = None
    """The confidence of a PASS that every limit holds, or None if it can't be computed."""

    pause_s: float = 0.0
    """Length of the one pause of the server in which nothing was answered, or 0. A pause can trip any rate."""

    seed: int = 0
    warnings: tuple[str, ...] = ()
    report: LoadReport | None = None

    def to_dict(self, *, samples: bool = False) -> dict[str, Any]:
        """Return the step as a JSON-compatible dictionary."""
        found = {field.name: getattr(self, field.name) for field in attrs.fields(Step)}
        found["reasons"], found["warnings"] = list(self.reasons), list(self.warnings)
        found["report"] = None if self.report is None else self.report.to_dict(samples=samples)
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Step":
        """Rebuild a step from the result of `to_dict`."""
        known = {field.name: found[field.name] for field in attrs.fields(cls) if field.name in found}
        known["reasons"], known["warnings"] = tuple(found["reasons"]), tuple(found["warnings"])
        known["report"] = None if found["report"] is None else LoadReport.from_dict(found["report"])
        return cls(**known)

    @property
    def trial(self) -> Trial:
        """The part of the step that the search uses."""
        return Trial(self.target_rate, self.verdict, self.edge, self._held_s, self.confidence, self.pause_s > 0)

    @property
    def _held_s(self) -> float:
        """The planned length of the measurement."""
        profile = None if self.report is None else self.report.profile
        if isinstance(profile, ClosedLoop):
            return (profile.horizon_s or 0.0) - profile.warmup_s or 1.0
        return (profile and profile.duration_s) or 1.0


@attrs.frozen(kw_only=True)
class CapacityAnswer:
    """
    The result of a capacity search.

    `max_rate` is always the target of a step that passed, below the first that tripped. A pass above a trip is luck.
    """

    schema: ClassVar[str] = "sampling.capacity/1"

    slo: Slo
    steps: tuple[Step, ...]
    """The steps in the order in which they ran. A rate may occur several times."""

    axis: Axis = "rate"
    refined: bool = False
    interrupted: bool = False
    about: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """The measured workload, backend and strategy, the versions, and the time."""

    @property
    def _bracket(self) -> Bracket:
        return find_bracket(step.trial for step in self.steps)

    @property
    def max_rate(self) -> float | None:
        """The highest target that passed below the first trip, or None if none passed."""
        return self._bracket.passed

    @property
    def first_trip(self) -> float | None:
        """The smallest target that tripped, or None if none did."""
        return self._bracket.tripped

    @property
    def next_limit(self) -> str | None:
        """The reasons of the first trip above `max_rate`, or None if nothing tripped."""
        tripped = self.first_trip
        reasons = [step.reasons for step in self.steps if step.target_rate == tripped and step.verdict == "TRIP"]
        return "; ".join(reasons[0]) if reasons else None

    @property
    def best(self) -> Step | None:
        """The last run at `max_rate` that passed."""
        passed = [step for step in self.steps if step.target_rate == self.max_rate and step.verdict == "PASS"]
        return passed[-1] if passed else None

    @property
    def confidence(self) -> float | None:
        """
        The confidence that the server sustains `max_rate`, within the precision of the search.

        It is computed from all runs at and below `max_rate`, and None if that is not possible. The precision is 2 % by
        default.
        """
        return find_confidence((step.trial for step in self.steps), self.max_rate)

    @property
    def passes(self) -> tuple[int, int]:
        """The numbers of passed and of conclusive runs at `max_rate`."""
        runs = [step.verdict for step in self.steps if step.target_rate == self.max_rate]
        return runs.count("PASS"), runs.count("PASS") + runs.count("TRIP")

    @property
    def repeatability(self) -> tuple[float, float]:
        """The 95 % confidence interval of the share of runs that pass."""
        return wilson(*self.passes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings to read before relying on the answer."""
        tripped = math.inf if self.first_trip is None else self.first_trip
        above = sorted(
            {step.target_rate for step in self.steps if step.verdict == "PASS" and step.target_rate > tripped}
        )
        notes = [f"passed above the first trip, which is luck: {', '.join(f'{rate:g}' for rate in above)}"]
        pauses = [
            f"{step.target_rate:g}: the server answered nothing for {format_seconds(step.pause_s)}, once"
            for step in self.steps
            if step.pause_s and step.verdict == "TRIP"
        ]
        warnings = [warning for step in self.steps for warning in step.warnings]
        return (*(notes if above else ()), *pauses, *warnings)

    @property
    def suggested_in_flight(self) -> int | None:
        """A suggested `max_in_flight` at `max_rate`. See `LoadReport.suggested_in_flight`."""
        return None if self.best is None or self.best.report is None else self.best.report.suggested_in_flight

    @property
    def exit_code(self) -> int:
        """0 if any step passed below the first trip, 1 otherwise."""
        return 0 if self.max_rate is not None else 1

    # Files.

    def to_dict(self, *, samples: bool = False) -> dict[str, Any]:
        """Return the answer as a JSON-compatible dictionary."""
        return {
            "schema": self.schema,
            "axis": self.axis,
            "slo": self.slo.to_dict(),
            "refined": self.refined,
            "interrupted": self.interrupted,
            "about": dict(self.about),
            "max_rate": self.max_rate,
            "first_trip": self.first_trip,
            "next_limit": self.next_limit,
            "confidence": self.confidence,
            "suggested_in_flight": self.suggested_in_flight,
            "steps": [step.to_dict(samples=samples) for step in self.steps],
        }

    def to_json(self, *, samples: bool = False) -> str:
        """Return the answer as JSON for `from_json`. It contains every request if `samples` is true."""
        return json.dumps(self.to_dict(samples=samples), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "CapacityAnswer":
        """Rebuild an answer from the result of `to_dict`. Derived values are computed from the steps."""
        check_schema(found, cls.schema, "capacity answer")
        return cls(
            slo=Slo.from_dict(found["slo"]),
            steps=tuple(Step.from_dict(step) for step in found["steps"]),
            axis=found["axis"],
            refined=found["refined"],
            interrupted=found["interrupted"],
            about=found.get("about", {}),
        )

    @classmethod
    def from_json(cls, text: str) -> "CapacityAnswer":
        """Read an answer from JSON."""
        return cls.from_dict(loads(text))

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with one row per step."""
        Path(path).write_text(csv_text(self.steps), encoding="utf-8")

    def render(self) -> str:
        """Return the steps and the answer as a table."""
        header = [_unit(self.axis), "reached", "verdict", "p50", "p95", "p99", "errors", "valid", "dropped", "lag p99"]
        lines = [header, *(_cells(step) for step in self.steps)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        notes = ["", *("  ".join(["", *step.reasons[:1]]).rstrip() for step in self.steps)]
        rows = [f"{row}{note}" for row, note in zip(table, notes, strict=True)]
        about = [f"measured: {describe_briefly(self.about)}"] if self.about else []
        notes_below = [f"note: {note}" for note in self.notes]
        return "\n".join([*rows, *_operation_rows(self.steps), "", *about, f"SLO: {self.slo}", *notes_below, str(self)])

    def __str__(self) -> str:
        cut = "interrupted: " if self.interrupted else ""
        unit = "users" if self.axis == "users" else "per second"
        if self.max_rate is None:
            return f"{cut}none passed{f': {self.next_limit}' if self.next_limit else ''}"
        sure = "" if self.confidence is None else f" (confidence {format_share(self.confidence)})"
        limit = f"; at {self.first_trip:g}: {self.next_limit}" if self.first_trip is not None else "; nothing tripped"
        return f"{cut}holds {self.max_rate:g} {unit}{sure}{limit}"


def _operation_rows(steps: Sequence[Step]) -> list[str]:
    """Return the latencies of each operation at each step."""
    rows = [
        [f"{step.target_rate:g}", name, str(operation.sent), *(seconds_or_dash(time) for time in _times(operation))]
        for step in steps
        if step.report is not None
        for name, operation in step.report.operations.items()
    ]
    return ["", *aligned([["", "operation", "sent", "p50", "p95", "p99"], *rows])] if rows else []


def _times(part: LoadReport | Operation) -> list[float | None]:
    return [part.latency.p50, part.latency.p95, part.latency.p99]


def _unit(axis: Axis) -> str:
    return "users" if axis == "users" else "rate"


def _cells(step: Step) -> list[str]:
    report = step.report
    numbers = ["—"] * 7
    if report is not None:
        numbers = [
            *(seconds_or_dash(time) for time in _times(report)),
            *(share_or_dash(share) for share in (report.error_rate, report.validity_rate)),
            str(report.dropped),
            seconds_or_dash(report.schedule_lag.p99),
        ]
    return [f"{step.target_rate:g}", f"{step.achieved_rate:.4g}", step.verdict, *numbers]


# The order of the CSV columns is stable, because people compare runs in spreadsheets.

CSV_COLUMNS = (
    "target_rate",
    "achieved_rate",
    "verdict",
    "reasons",
    "why",
    "confidence",
    "scheduled",
    "admitted",
    "dropped",
    "missed",
    "succeeded",
    "failed",
    "cancelled",
    "valid",
    "invalid",
    *(
        f"{series}_{number}_s"
        for series in ("latency", "service_time")
        for number in ("mean", "p50", "p90", "p95", "p99", "max")
    ),
    "time_to_first_token_p50_s",
    "time_to_first_token_p95_s",
    "time_to_first_token_p99_s",
    "schedule_lag_p99_s",
    "backlog_growth",
    "backlog_slope",
    "peak_in_flight",
    "operations",
    "error_rate",
    "validity_rate",
    "goodput",
    *(
        f"{series}_{number}_s"
        for series in ("time_per_output_token", "time_between_tokens")
        for number in ("p50", "p95", "p99")
    ),
    "model",
    "slo",
    "about",
    "population",
)
_SERIES = (*ANSWERED_SERIES, "schedule_lag")


def csv_row(step: Step) -> list[str]:
    """Return one step as a CSV row. Values that were not measured are empty."""
    found: dict[str, object] = {}
    if step.report is not None:
        found |= {name: getattr(step.report, name) for name in CSV_COLUMNS if hasattr(step.report, name)}
        for series in _SERIES:
            numbers = attrs.asdict(getattr(step.report, series))
            found |= {f"{series}_{name}_s": value for name, value in numbers.items()}
        found |= {
            "model": step.report.model,
            "population": step.report.about.get("population"),
            "slo": step.report.slo,
            "about": json.dumps(step.report.about, separators=(",", ":")) if step.report.about else None,
            "operations": json.dumps(_operation_numbers(step.report), separators=(",", ":")),
        }
    found |= {name: getattr(step, name) for name in ("target_rate", "achieved_rate", "verdict", "why", "confidence")}
    found["reasons"] = "; ".join(step.reasons)
    return ["" if found.get(name) is None else _field(found[name]) for name in CSV_COLUMNS]


def _operation_numbers(report: LoadReport) -> dict[str, Any]:
    """Return the numbers of each operation as JSON in one column, because operations differ between runs."""
    return {
        name: {
            "sent": operation.sent,
            "failed": operation.failed + operation.cancelled,
            "p50_s": operation.latency.p50,
            "p95_s": operation.latency.p95,
            "p99_s": operation.latency.p99,
        }
        for name, operation in report.operations.items()
    }


def _field(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def csv_text(steps: Sequence[Step], *, header: bool = True) -> str:
    """Return the steps as CSV text, with an optional header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(CSV_COLUMNS)
    writer.writerows(csv_row(step) for step in steps)
    return text.getvalue()
