"""The report of a run with several populations."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from sampling._json.bounded import loads
from sampling.load.model._report import LoadReport, Verdict
from sampling.load.model._schema import check_schema
from sampling.load.model._units import format_share

__all__ = ["PopulationsReport", "Total"]


@attrs.frozen(kw_only=True)
class Total:
    """
    The counts of all populations together.

    There are no latencies, because those of an open and of a closed loop measure different things.
    """

    scheduled: int
    admitted: int
    dropped: int
    missed: int
    succeeded: int
    failed: int
    cancelled: int
    valid: int
    invalid: int
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float
    good: int | None
    """Valid answers within the SLO of their population, or None if a population has no SLO."""

    duration_s: float
    """Length of the longest measurement."""

    @classmethod
    def of(cls, reports: Mapping[str, LoadReport]) -> "Total":
        """Add the counts of reports."""
        summed = [field.name for field in attrs.fields(cls) if field.name not in ("good", "duration_s")]
        numbers: dict[str, Any] = {name: sum(getattr(report, name) for report in reports.values()) for name in summed}
        good = [report.good for report in reports.values()]
        return cls(
            **numbers,
            good=None if None in good else sum(number or 0 for number in good),
            duration_s=max(report.duration_s for report in reports.values()),
        )

    @property
    def achieved_rate(self) -> float:
        """Requests sent per second."""
        return self.admitted / self.duration_s if self.duration_s else 0.0

    @property
    def error_rate(self) -> float | None:
        """Share of sent requests that failed or stayed unanswered, or None if nothing was sent."""
        return (self.failed + self.cancelled) / self.admitted if self.admitted else None

    @property
    def validity_rate(self) -> float | None:
        """Share of answers that were valid, or None if there were no answers."""
        return self.valid / self.succeeded if self.succeeded else None

    @property
    def goodput(self) -> float | None:
        """Valid answers within the SLO of their population per second, or None if a population has no SLO."""
        return None if self.good is None or not self.duration_s else self.good / self.duration_s


@attrs.frozen(kw_only=True)
class PopulationsReport:
    """The reports of all populations of a run, by name, and their total."""

    schema: ClassVar[str] = "sampling.populations/1"

    seed: int
    """The seed of the run. Each population has its own, which depends only on this and on its name."""

    populations: Mapping[str, LoadReport]

    @property
    def total(self) -> Total:
        """The counts of all populations together."""
        return Total.of(self.populations)

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of a population: TRIP, INCONCLUSIVE, PASS, or None if no population has an SLO."""
        found = {report.verdict for report in self.populations.values()}
        verdicts: tuple[Verdict, ...] = ("TRIP", "INCONCLUSIVE", "PASS")
        return next((verdict for verdict in verdicts if verdict in found), None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of all populations, each with the name of its population."""
        return tuple(f"{name}: {reason}" for name, each in self.populations.items() for reason in each.reasons)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings to read before relying on the numbers, each with the name of its population."""
        return tuple(f"{name}: {note}" for name, each in self.populations.items() for note in each.notes)

    @property
    def interrupted(self) -> bool:
        """True if the run was stopped."""
        return any(report.interrupted for report in self.populations.values())

    def to_dict(self, *, samples: bool = False) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary. It contains every request if `samples` is true."""
        return {
            "schema": self.schema,
            "seed": self.seed,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "total": attrs.asdict(self.total),
            "populations": {name: report.to_dict(samples=samples) for name, report in self.populations.items()},
        }

    def to_json(self, *, samples: bool = False) -> str:
        """Return the report as JSON for `from_json`. It contains every request if `samples` is true."""
        return json.dumps(self.to_dict(samples=samples), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "PopulationsReport":
        """Rebuild a report from the result of `to_dict`. The total and the verdict are computed again."""
        check_schema(found, cls.schema, "report of populations")
        reports = {name: LoadReport.from_dict(report) for name, report in found["populations"].items()}
        return cls(seed=found["seed"], populations=reports)

    @classmethod
    def from_json(cls, text: str) -> "PopulationsReport":
        """Read a report from JSON."""
        return cls.from_dict(loads(text))

    def __str__(self) -> str:
        total = self.total
        parts = [
            f"{len(self.populations)} populations: {total.admitted:,} of {total.scheduled:,} sent in "
            f"{total.duration_s:g} s, {total.achieved_rate:.4g}/s"
        ]
        if total.error_rate:
            parts.append(f"errors {format_share(total.error_rate)}")
        parts += [str(self.verdict)] if self.verdict is not None else []
        return " · ".join([*parts, *self.reasons[:2]])
