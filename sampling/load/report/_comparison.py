"""Compare two reports."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import attrs

from sampling._arguments import check_number
from sampling._text import aligned
from sampling.load.capacity._answer import CapacityAnswer, Step
from sampling.load.model._about import DETAILS_OF_A_RUN
from sampling.load.model._populations_report import PopulationsReport
from sampling.load.model._report import LoadReport
from sampling.load.model._units import format_seconds, format_share

__all__ = ["Change", "Comparison", "compare"]

Trend: TypeAlias = Literal["better", "worse", "same", "unknown"]


@attrs.frozen
class Change:
    """One number, before and after."""

    name: str
    before: float | None
    after: float | None
    trend: Trend
    show: Callable[[float], str] = attrs.field(repr=False, eq=False)

    @property
    def factor(self) -> float | None:
        """The ratio of after to before, if it exists."""
        return self.after / self.before if self.before and self.after is not None else None

    def cells(self) -> list[str]:
        """Return the change as a table row."""
        before, after = ("—" if value is None else self.show(value) for value in (self.before, self.after))
        by = "" if self.factor is None else f"{(self.factor - 1) * 100:+.1f}%"
        return [self.name, before, after, by, "" if self.trend == "same" else self.trend]


@attrs.frozen(kw_only=True)
class Comparison:
    """The changes from one report to another."""

    changes: tuple[Change, ...]
    tolerance: float
    """Relative changes up to this size count as the same."""

    remarks: tuple[str, ...] = ()
    """Differences in how the two were measured."""

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes for the worse."""
        return tuple(change for change in self.changes if change.trend == "worse")

    @property
    def better(self) -> tuple[Change, ...]:
        """The changes for the better."""
        return tuple(change for change in self.changes if change.trend == "better")

    @property
    def exit_code(self) -> int:
        """1 if anything got worse, 0 otherwise."""
        return 1 if self.worse else 0

    def render(self) -> str:
        """Return the changes and a summary as a table."""
        rows = [["", "before", "after", "change", ""], *(change.cells() for change in self.changes)]
        return "\n".join([*aligned(rows), "", *(f"note: {remark}" for remark in self.remarks), str(self)])

    def __str__(self) -> str:
        if not self.worse and not self.better:
            return f"the same, within {format_share(self.tolerance)}"
        parts = [("worse", self.worse), ("better", self.better)]
        return "; ".join(
            f"{len(changes)} {trend}: {', '.join(change.name for change in changes)}"
            for trend, changes in parts
            if changes
        )


_Comparable: TypeAlias = LoadReport | PopulationsReport | CapacityAnswer


def compare(before: _Comparable, after: _Comparable, *, tolerance: float = 0.05) -> Comparison:
    """
    Compare two reports, and list the changes.

    Raise `ValueError` for reports that measure different things: an open and a closed loop, a run and a capacity
    search, or searches with different limits.

    Args:
        before: The baseline.

        after: The report to judge.

        tolerance: Relative changes up to this size count as the same. Shares (errors, validity, drops) are compared by
            their absolute difference, with a tenth of this tolerance: 0.05 allows half a percentage point.
    """
    if check_number("tolerance", tolerance, least=0) >= 1:
        raise ValueError(f"tolerance is a share and must be < 1, got {tolerance}")
    if isinstance(before, LoadReport) and isinstance(after, LoadReport):
        return _compare_runs(before, after, tolerance)
    if isinstance(before, PopulationsReport) and isinstance(after, PopulationsReport):
        return _compare_populations(before, after, tolerance)
    if isinstance(before, CapacityAnswer) and isinstance(after, CapacityAnswer):
        return _compare_answers(before, after, tolerance)
    kinds = [_kind(report) for report in (before, after)]
    raise ValueError(f"can't compare {kinds[0]} with {kinds[1]}: they measure different things")


def _kind(report: object) -> str:
    if isinstance(report, LoadReport):
        return "a load run"
    if isinstance(report, PopulationsReport):
        return "a run of several populations"
    return "a capacity search" if isinstance(report, CapacityAnswer) else f"a {type(report).__name__}"


@attrs.frozen
class _Classifier:
    """A classifier of changes as better, worse or the same."""

    tolerance: float

    def number(
        self, name: str, before: float | None, after: float | None, *, less_is_better: bool, floor: float = 0.0
    ) -> Change:
        """Compare two numbers by their ratio. Differences up to `floor` are noise."""
        show: Callable[[float], str] = format_seconds if less_is_better else _four_digits
        return self._change(name, before, after, max(self.tolerance * (before or 0.0), floor), less_is_better, show)

    def share(self, name: str, before: float | None, after: float | None, *, less_is_better: bool) -> Change:
        """Compare two shares by their difference. The ratio of small shares is noise."""
        return self._change(name, before, after, self.tolerance / 10, less_is_better, format_share)

    def _change(
        self,
        name: str,
        before: float | None,
        after: float | None,
        within: float,
        less_is_better: bool,  # noqa: FBT001 - as its callers have it
        show: Callable[[float], str],
    ) -> Change:
        trend: Trend = "same"
        if before is None or after is None:
            trend = "same" if before is after else "unknown"
        elif abs(after - before) > within:
            trend = "better" if (after < before) is less_is_better else "worse"
        return Change(name, before, after, trend, show)


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


_TIMER_S = 0.001
"""Differences within the precision of a timer are ignored."""


def _compare_runs(before: LoadReport, after: LoadReport, tolerance: float) -> Comparison:
    if before.model != after.model:
        raise ValueError(
            f"can't compare a report of the {before.model} loop with one of the {after.model} loop: "
            "in a closed loop users wait for slow answers, so its latencies mean something else"
        )
    changes = tuple(change for change in _run_changes(before, after, _Classifier(tolerance)) if _has_value(change))
    return Comparison(changes=changes, tolerance=tolerance, remarks=tuple(_remarks(before, after)))


def _compare_populations(before: PopulationsReport, after: PopulationsReport, tolerance: float) -> Comparison:
    """Compare the populations that both have."""
    changes: list[Change] = []
    remarks: list[str] = []
    for name in sorted({*before.populations, *after.populations}):
        both = before.populations.get(name), after.populations.get(name)
        if both[0] is None or both[1] is None:
            remarks.append(f"population {name!r} is only in the one {'after' if both[0] is None else 'before'}")
            continue
        found = _compare_runs(both[0], both[1], tolerance)
        changes += [attrs.evolve(change, name=f"{name}: {change.name}") for change in found.changes]
        remarks += [f"{name}: {remark}" for remark in found.remarks]
    return Comparison(changes=tuple(changes), tolerance=tolerance, remarks=tuple(remarks))


def _has_value(change: Change) -> bool:
    return change.before is not None or change.after is not None


_SERIES = (
    ("", "latency"),
    ("first token ", "time_to_first_token"),
    ("per output token ", "time_per_output_token"),
    ("between tokens ", "time_between_tokens"),
    ("valid answer ", "time_to_valid"),
)


def _run_changes(before: LoadReport, after: LoadReport, classify: _Classifier, prefix: str = "") -> Iterator[Change]:
    for name, series in _SERIES:
        for percent in (50, 95, 99):
            times = [getattr(report, series).at(percent) for report in (before, after)]
            yield classify.number(f"{prefix}{name}p{percent}", *times, less_is_better=True, floor=_TIMER_S)
    yield classify.share(f"{prefix}errors", before.error_rate, after.error_rate, less_is_better=True)
    yield classify.share(f"{prefix}valid", before.validity_rate, after.validity_rate, less_is_better=False)
    yield classify.share(f"{prefix}dropped", _dropped(before), _dropped(after), less_is_better=True)
    yield classify.number(f"{prefix}goodput", before.goodput, after.goodput, less_is_better=False)
    yield classify.number(f"{prefix}answers/s", before.answered_rate, after.answered_rate, less_is_better=False)
    costs = [report.cost / report.valid if report.cost and report.valid else None for report in (before, after)]
    change = classify.number(f"{prefix}cost per valid answer", *costs, less_is_better=True)
    yield attrs.evolve(change, show=_four_digits)


def _dropped(report: LoadReport) -> float | None:
    return report.dropped / report.scheduled if report.scheduled else None


def _workload_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the measured workloads."""
    for name in sorted({*before, *after} - {*DETAILS_OF_A_RUN}):
        if before.get(name) != after.get(name):
            yield f"not the same thing: {name} was {before.get(name)!r} and is {after.get(name)!r}"


def _remarks(before: LoadReport, after: LoadReport) -> Iterator[str]:
    yield from _workload_differences(before.about, after.about)
    theirs, ours = before.profile.to_dict(), after.profile.to_dict()
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name):
            yield f"{name} was {theirs.get(name)!r} and is {ours.get(name)!r}"
    if before.slo != after.slo:
        yield f"the SLO was {before.slo} and is {after.slo}"
    for name, report in (("before", before), ("after", after)):
        if report.client_limited:
            yield f"{name}: client-limited, {report.client_limit}"
        if report.blocked is not None:
            yield f"{name}: {report.blocked}"
        if report.interrupted:
            yield f"{name}: interrupted"


def _compare_answers(before: CapacityAnswer, after: CapacityAnswer, tolerance: float) -> Comparison:
    if before.axis != after.axis:
        raise ValueError(f"can't compare a search over {before.axis} with one over {after.axis}: use the same axis")
    if before.slo != after.slo:
        raise ValueError(
            f"can't compare what holds {before.slo} with what holds {after.slo}: use the same --slo for both searches"
        )
    classify = _Classifier(tolerance)
    changes = [
        classify.number(f"max {before.axis}", before.max_rate or 0.0, after.max_rate or 0.0, less_is_better=False)
    ]
    theirs, ours = _by_target(before), _by_target(after)
    for target in sorted({*theirs} & {*ours}):
        both = theirs[target].report, ours[target].report
        if theirs[target].verdict == "PASS" and both[0] is not None and both[1] is not None:
            found = _run_changes(both[0], both[1], classify, f"at {target:g}: ")
            changes += [change for change in found if _has_value(change) and change.name.endswith(_AT_STEPS)]
    missing = sorted({*theirs} ^ {*ours})
    remarks = [*_workload_differences(before.about, after.about)]
    remarks += [f"steps that only one of them has: {', '.join(f'{target:g}' for target in missing)}"] if missing else []
    return Comparison(changes=tuple(changes), tolerance=tolerance, remarks=tuple(remarks))


_AT_STEPS = (": p50", ": p95", ": p99", "errors", ": valid")
"""Endings of the change names that are compared for each step."""


def _by_target(answer: CapacityAnswer) -> dict[float, Step]:
    return {step.target_rate: step for step in answer.steps}
