"""Reports as files: what is written comes back, and what is no report is refused by name."""

import copy
import csv
import io
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from sampling.load import LoadReport, Plan, ServerModel, Slo, load_table, plan, read_report, write_report
from sampling.load.capacity._answer import CSV_COLUMNS
from sampling.load.report._files import Report
from sampling.usage import Price
from tests.load.reports import capacity_answer, closed_report, evil_report, load_report


def small_plan() -> Plan:
    server = ServerModel(slots=4, time_to_first_token_s=0.1, time_per_token_s=0.01, pass_probability=0.7)
    return plan(
        server, rate=1, slo=Slo(validity_rate=0.9), price=Price(1, 2), depths=(1, 2), breadths=(1,), requests=200
    )


@pytest.mark.parametrize("make", [load_report, closed_report, evil_report, capacity_answer, small_plan])
def test_what_is_written_as_json_comes_back(make, tmp_path):
    """Whole: what is written again is the same to the byte."""
    report = make()
    write_report(report, tmp_path / "report.json")
    again = read_report(tmp_path / "report.json")
    assert type(report) is type(again)
    assert report.to_json() == again.to_json()
    assert [tmp_path / "report.json"] == list(tmp_path.iterdir())


def test_single_requests_are_written_only_if_wanted(tmp_path):
    """They are most of a file, and only `calibrate` needs them."""
    write_report(load_report(), tmp_path / "small.json")
    write_report(load_report(), tmp_path / "large.json", samples=True)
    assert read_report(tmp_path / "small.json").samples is None
    assert len(load_report().samples) == len(read_report(tmp_path / "large.json").samples)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<html>", "r.json is not JSON: give the .json of a report, not its page or its CSV"),
        ("[1, 2]", "r.json is not a report of sampling"),
        (
            '{"schema": "locust/1"}',
            "its schema must be one of sampling.load/1, sampling.populations/1, sampling.capacity/1, sampling.plan/1",
        ),
        ('{"schema": 7}', "got 7"),
        ("{}", "got None"),
        (
            '{"schema": "sampling.load/2"}',
            "newer version (sampling.load/2) than this one reads (sampling.load/1)",
        ),
        ('{"schema": "sampling.capacity/0"}', "older version (sampling.capacity/0)"),
        ('{"schema": "sampling.load/1"}', "says it is a sampling.load/1 but is damaged"),
        ('{"schema": "sampling.load/1", "profile": 3}', "damaged"),
        ("[" * 100_000, "r.json is not JSON"),
    ],
)
def test_what_is_no_report_is_refused_with_what_to_do(text, complaint, tmp_path):
    """Foreign, newer, older and damaged files are told apart."""
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is what is tested
        read_report(path)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_counts_that_do_not_add_up_are_damage(tmp_path):
    """O5: a report that was edited by hand does not pass for one that was measured."""
    found = json.loads(load_report().to_json())
    found["dropped"] += 1
    (tmp_path / "r.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match=r"damaged.*scheduled = dropped \+ admitted"):
        read_report(tmp_path / "r.json")


def places(found: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where there is a value in parsed JSON, in lists only at their start."""
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(found, dict):
        parts = found.items()
    elif isinstance(found, list):
        parts = list(enumerate(found))[:2]
    for key, value in parts:
        yield (*path, key)
        yield from places(value, (*path, key))


def damaged(found: Any, path: tuple[str | int, ...], value: object) -> Any:
    changed = copy.deepcopy(found)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def show(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "r.csv")
    if isinstance(report, Plan):
        report.render()
        return
    write_report(report, tmp_path / "r.html")
    assert load_table(report) if isinstance(report, LoadReport) else report.render()


@pytest.mark.parametrize("value", ["x", [None], {}, 10**400], ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("make", [load_report, closed_report, evil_report, capacity_answer, small_plan])
def test_a_value_of_another_type_is_damage_or_does_no_harm(make, value, tmp_path):
    """R14: it is found when the file is read, by name, and not in the middle of a table or a page."""
    whole = json.loads(make().to_json() if isinstance(make(), Plan) else make().to_json(samples=True))
    chosen = random.Random(repr(value)).sample(sorted(places(whole), key=repr), 8)
    refused = 0
    for path in chosen:
        (tmp_path / "r.json").write_text(json.dumps(damaged(whole, path, value)), encoding="utf-8")
        try:
            report = read_report(tmp_path / "r.json")
        except ValueError:
            refused += 1
        else:
            show(report, tmp_path)
    assert refused


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("latency", "p90"), "</script>"),
        (("timeline", 0, "latency", "p50"), [None]),
        (("backoffs",), "x"),
        (("ignored",), [None]),
        (("about",), [None]),
        (("duration_s",), True),
        (("samples", "user", 1), 10**30),
        (("samples", "outcome", 1), 9),
        (("samples", "operation", 0), 3),
        (("samples", "done_s"), [1.0]),
    ],
    ids=repr,
)
def test_a_damaged_value_is_named(path, value, tmp_path):
    """R14: text for a number, a number that does not fit, samples that do not fit to each other."""
    whole = json.loads(load_report().to_json(samples=True))
    (tmp_path / "r.json").write_text(json.dumps(damaged(whole, path, value)), encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged"):
        read_report(tmp_path / "r.json")


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    """The error names the missing file."""
    with pytest.raises(ValueError, match=r"can't read .*nowhere.json"):
        read_report(tmp_path / "nowhere.json")


@pytest.mark.parametrize("make", [load_report, capacity_answer])
def test_csv_has_one_row_a_run_in_the_same_columns(make, tmp_path):
    """R8: runs and steps of searches go into one sheet."""
    write_report(make(), tmp_path / "r.csv")
    header, *rows = csv.reader(io.StringIO((tmp_path / "r.csv").read_text("utf-8")))
    assert list(CSV_COLUMNS) == header
    assert len(rows) == (len(capacity_answer().steps) if make is capacity_answer else 1)
    assert {len(header)} == {len(row) for row in rows}


def test_another_ending_is_refused(tmp_path):
    """An unknown extension is refused before anything is written."""
    with pytest.raises(ValueError, match=r"written as .csv, .html, .json, got the file name .*r\.pdf"):
        write_report(load_report(), tmp_path / "r.pdf")
    assert [] == list(tmp_path.iterdir())


def test_a_page_of_a_plan_is_refused(tmp_path):
    """A plan can't be written as HTML."""
    with pytest.raises(TypeError, match=r"\.json or \.csv"):
        write_report(small_plan(), tmp_path / "p.html")


def test_the_table_of_a_run_shows_that_its_counts_add_up():
    """O5, and what to know before believing the numbers."""
    report = load_report()
    table = load_table(report)
    assert f"{report.scheduled} due = {report.dropped} dropped + {report.admitted} sent" in table
    assert "latency (from due)" in table
    assert "closed loop: users wait" in load_table(closed_report())


def test_the_name_of_an_operation_does_not_change_the_terminal():
    """A workload may take names from what a server sends, so control characters in them are escaped."""
    report = evil_report()
    (operation, *_) = report.operations.values()
    table = load_table(attrs.evolve(report, operations={"a\x1b[31m\nb": operation}))
    assert r"a\x1b[31m\nb: latency" in table
    assert "\x1b" not in table
