"""
Journals that earlier versions of the code wrote are read, shown, exported and resumed.

Each archive in `fixtures` is named for the version of its tables and the format of its fingerprint. It has two journals
of the run in `older_run`: a finished one, and one whose process was killed while it asked for the fifth item. No code
that wrote version 1 or 3 was ever in use. To add one, call `older_run.run` with `backend()` and `backend(kill=True)`.
Python 3.11 wrote all of them.
"""

import json
import re
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest

from sampling import Journal, Usage
from sampling.errors import JournalMismatch
from sampling.fanout.journal import export
from sampling.fanout.journal._description import FORMAT
from sampling.fanout.journal._schema import VERSION
from tests.fanout.journal import older_run
from tests.faults.journals import InlineJournal, rows

ARCHIVES = sorted(Path(__file__).with_name("fixtures").glob("version-*-format-*.zip"))

same_python = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the code of the parser is compared")


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.stem)
def folder(request, tmp_path):
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def resume(run, path, **journal):
    """Resume, and return the result and the questions that were asked."""
    asked = []
    result = run(partial(older_run.run, InlineJournal(path, **journal), older_run.backend(asked=asked)))
    return result, asked


def check_all(result):
    """Check that every outcome is there, as if one process had made all of them."""
    assert ["yes", "no", None, "yes", "yes!", "yes"] == [one.result and one.result.value for one in result.outcomes]
    assert ["no", "yes"] == [one.text for one in result.outcomes[3].result.attempts]
    assert "broken" == str(result.outcomes[2].error)
    assert Usage(21, 14, 1.75) == result.usage


def test_every_earlier_version_and_format_is_among_them():
    """F17: a change of the tables or of the fingerprint needs a journal from before."""
    found = [re.findall(r"\d+", archive.stem) for archive in ARCHIVES]
    assert {2, 4, *range(5, VERSION)} <= {int(version) for version, _ in found}
    assert {*range(1, FORMAT)} <= {int(number) for _, number in found}


def test_a_reader_changes_nothing(folder, tmp_path_factory):
    """F20: a summary, an export and a page are made of a copy, and of the log of a killed process."""
    before, out = contents(folder), tmp_path_factory.mktemp("out") / "out.jsonl"
    finished, killed = Journal(folder / "finished.db"), Journal(folder / "killed.db")
    for journal, expected in [(finished, ("completed", 4, 1, 1, 0)), (killed, ("running", 2, 1, 1, 1))]:
        found = journal.summary()
        assert expected == (found.status, found.succeeded, found.failed, found.errored, found.interrupted)
        assert sum(expected[1:4]) == export(journal.path, out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert ["yes", "no", None, "yes", "yes", "yes"][: len(lines)] == [line["text"] for line in lines]
        assert f"{expected[1]} of 6 items have a valid answer" in journal.to_html()
    assert before == contents(folder)


@same_python
def test_a_finished_run_is_resumed(folder, run):
    """F11, F17: every outcome comes back, and nothing is asked."""
    result, asked = resume(run, folder / "finished.db")
    check_all(result)
    assert [] == asked
    assert [(VERSION,)] == rows(folder / "finished.db", "PRAGMA user_version")


@same_python
@pytest.mark.parametrize("on_change", ["refuse", "continue"])
def test_a_killed_run_is_resumed(folder, run, on_change):
    """F11, F17: only what has no outcome is asked, and the item in flight may be billed twice."""
    result, asked = resume(run, folder / "killed.db", on_change=on_change)
    check_all(result)
    assert ["4", "5"] == asked
    assert (4,) == result.maybe_billed_twice == Journal(folder / "killed.db").summary().maybe_billed_twice


@pytest.mark.parametrize("name", ["finished.db", "killed.db"])
def test_a_change_is_seen(folder, run, monkeypatch, name):
    """F16: a digest of an older format is compared, and not taken for equal."""
    monkeypatch.setattr(older_run, "ITEMS", [("k0", "another question"), *older_run.ITEMS[1:]])
    with pytest.raises(JournalMismatch, match=r"item 0 \('k0'\): differs from the recorded item"):
        resume(run, folder / name)


@same_python
@pytest.mark.parametrize("name", ["finished.db", "killed.db"])
def test_items_are_asked_again(folder, run, name):
    """F18: the earlier outcomes of a failed and an errored item stay in the file."""
    asked = []
    backend = older_run.backend(asked=asked)
    run(partial(older_run.run, InlineJournal(folder / name), backend, retry={"failed", "errored"}))
    assert {"1", "2"} <= set(asked)
    assert [(2,)] == rows(folder / name, "SELECT count(*) FROM replaced")
