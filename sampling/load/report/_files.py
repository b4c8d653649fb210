"""
Write and read reports.

They are written as JSON, CSV or HTML, and read from JSON.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from sampling._arguments import short_repr
from sampling._json.bounded import loads
from sampling.load.capacity._answer import CapacityAnswer, Step, csv_text
from sampling.load.model._populations_report import PopulationsReport
from sampling.load.model._report import LoadReport
from sampling.load.model._verdict import with_verdict
from sampling.load.planning._plan import Plan
from sampling.load.report._comparison import Comparison
from sampling.load.report._page import render_html

__all__ = ["FORMATS", "Report", "format_of", "load_csv", "read_report", "write_report"]

Report: TypeAlias = LoadReport | PopulationsReport | CapacityAnswer | Plan
"""A report that can be written to a file."""

_Kind: TypeAlias = type[LoadReport] | type[PopulationsReport] | type[CapacityAnswer] | type[Plan]
_KINDS: Mapping[str, _Kind] = {
    kind.schema.partition("/")[0]: kind for kind in (LoadReport, PopulationsReport, CapacityAnswer, Plan)
}
_SCHEMA = re.compile(r"(?P<kind>[a-z.-]+)/(?P<version>[0-9]{1,6})")


def load_csv(report: LoadReport | PopulationsReport) -> str:
    """
    Return a run as CSV, with one row for each population.

    The columns are those of a capacity search, so that both fit into one sheet.
    """
    reports = report.populations.values() if isinstance(report, PopulationsReport) else [report]
    return csv_text([_as_step(each) for each in reports])


def _as_step(report: LoadReport) -> Step:
    report = report if report.verdict is not None else with_verdict(report)
    return Step(
        target_rate=float(report.target_rate or report.profile.users or 0),
        achieved_rate=report.achieved_rate,
        verdict=report.verdict or "INCONCLUSIVE",
        reasons=("no SLO was given",) if report.verdict is None else report.reasons,
        confidence=report.confidence,
        seed=report.seed,
        report=report,
    )


def _plan_csv(plan: Plan) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(plan.columns)
    writer.writerows(plan.rows())
    return text.getvalue()


def _csv(report: Report) -> str:
    if isinstance(report, LoadReport | PopulationsReport):
        return load_csv(report)
    return csv_text(report.steps) if isinstance(report, CapacityAnswer) else _plan_csv(report)


def _page(report: Report, comparison: Comparison | None = None) -> str:
    if isinstance(report, Plan):
        raise TypeError("a plan can be written as .json or .csv, not as .html")
    return render_html(report, comparison=comparison)


FORMATS: Mapping[str, Callable[[Report], str]] = {
    ".csv": _csv,
    ".html": _page,
    ".json": lambda report: report.to_json() + "\n",
}
"""The writers of reports, by file extension."""


def format_of(path: str | Path) -> str:
    """
    Return the format of a path, by its extension.

    Raise `ValueError` if it is not a format of reports.
    """
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"a report is written as {', '.join(FORMATS)}, got the file name {short_repr(str(path))}")
    return ending


def write_report(
    report: Report, path: str | Path, *, samples: bool = False, comparison: Comparison | None = None
) -> None:
    """
    Write a report as JSON, CSV or HTML.

    The file extension decides. The file is replaced atomically.

    Args:
        report: A `LoadReport`, a `PopulationsReport`, a `CapacityAnswer` or a `Plan`.

        path: A path with the extension .json, .csv or .html.

        samples: Include every request in JSON, which `calibrate` needs.

        comparison: The result of `compare` with an earlier report, for the page.
    """
    target = Path(path)
    ending = format_of(target)
    text = _page(report, comparison) if ending == ".html" else FORMATS[ending](report)
    if samples and ending == ".json" and not isinstance(report, Plan):
        text = f"{report.to_json(samples=True)}\n"
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read_report(path: str | Path) -> Report:
    """
    Read a `LoadReport`, `PopulationsReport`, `CapacityAnswer` or `Plan` from a JSON file.

    Raise `ValueError` if the file is not a report, or has an unknown version.
    """
    name = Path(path).name
    try:
        found: Any = loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"can't read {str(path)!r}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{name} is not JSON: give the .json of a report, not its page or its CSV") from None
    kind = _kind_of(found, name)
    try:
        return kind.from_dict(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{name} says it is a {kind.schema} but is damaged: {type(error).__name__}: {error}") from None


def _kind_of(found: Any, name: str) -> _Kind:
    schema: Any = cast("Mapping[str, Any]", found).get("schema") if isinstance(found, Mapping) else None
    parts = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    if parts is None or parts["kind"] not in _KINDS:
        known = ", ".join(kind.schema for kind in _KINDS.values())
        raise ValueError(
            f"{name} is not a report of sampling: its schema must be one of {known}, got {short_repr(schema)}"
        )
    kind = _KINDS[parts["kind"]]
    ours, theirs = int(kind.schema.partition("/")[2]), int(parts["version"])
    if theirs > ours:
        raise ValueError(
            f"{name} is of a newer version ({schema}) than this one reads ({kind.schema}): upgrade sampling"
        )
    if theirs < ours:
        raise ValueError(f"{name} is of an older version ({schema}) than this one reads ({kind.schema}): run it again")
    return kind
