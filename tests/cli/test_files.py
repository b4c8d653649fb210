"""Output files: when they are refused, and how they are replaced."""

import errno
import os
import stat
from pathlib import Path

import pytest

from sampling.cli._app import run
from sampling.cli._files import is_same_file, replacing

LOAD = ("load", "--backend", "simulated", "--virtual", "--rate", "2", "--duration", "5s")
PLAN = ("plan", "--pass-rate", "60%", "--ttft", "100ms", "--per-token", "10ms", "--rate", "1", "--requests", "100",
        "--depths", "1", "--breadths", "1", "--slo", "p50=60s")  # fmt: skip
SEARCH = ("capacity", "--backend", "simulated", "--virtual", "--steps", "1", "--slo", "p50=9s", "--hold", "5s")


@pytest.mark.parametrize("arguments", [LOAD, PLAN, SEARCH], ids=lambda arguments: arguments[0])
def test_a_file_that_exists_is_replaced_only_if_told(arguments, tmp_path, capsys):
    """The exit code is 2 before anything is sent. --force replaces it."""
    out = tmp_path / "r.json"
    out.write_text("precious")
    assert 2 == run([*arguments, "--out", str(out)])
    err = capsys.readouterr().err
    assert "already exists: add --force to replace it, or choose another name" in err
    assert "precious" == out.read_text()
    run([*arguments, "--out", str(out), "--force"])
    assert out.read_text().startswith("{")
    assert [out] == list(tmp_path.iterdir())


@pytest.mark.parametrize("link", [os.symlink, os.link, None])
def test_what_is_read_is_never_written(link, tmp_path, capsys):
    """Input files are not overwritten through links, nor with --force."""
    found = tmp_path / "found.json"
    assert 0 == run([*LOAD, "--out", str(found), "--samples"])
    before, out = found.read_bytes(), found
    if link is not None:
        out = tmp_path / "out.json"
        link(found, out)
    like = ("plan", "--like", str(found), "--rate", "1", "--slo", "p50=9s", "--out", str(out), "--force")
    for arguments in (("report", str(found), "--out", str(out), "--force"), like):
        capsys.readouterr()
        assert 2 == run(arguments)
        assert "which is never overwritten: choose another name" in capsys.readouterr().err
    assert before == found.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*LOAD, "--out", "{0}/a.json", "--out", "{0}/./a.json"], "is given twice"),
        ([*LOAD, "--out", "{0}/no/a.json"], "there is no directory"),
        ([*LOAD, "--out", "{0}/dir.json"], "is a directory: give a file name"),
        ([*SEARCH, "--journal", "{0}/j.csv", "--out", "{0}/j.csv"], "is the journal, which is never overwritten"),
        ([*SEARCH, "--journal", "{0}/no/j"], "--journal: there is no directory"),
        (["load", "--rate", "1", "--requests", "1", "--questions", "{0}/q.csv", "--backend", "simulated",
          "--out", "{0}/q.csv", "--force"], "is the file of questions, which is never overwritten"),
        (["map", "{0}/q.csv", "--backend", "simulated", "--out", "."], "'.' is a directory: give a file name"),
        (["demo", "--svg", "{0}/q.csv"], "--svg: "),
        (["map", "{0}/q.csv", "--backend", "simulated", "--journal", "."], "--journal: '.' is a directory: give a"),
        (["export", "{0}/dir.json", "--out", "{0}/a.csv"], "is a directory: give the journal of a `sampling map`"),
        (["export", "{0}/none", "--out", "{0}/a.csv"], "there is no journal"),
        (["export", "{0}/q.csv", "--out", "{0}/q.csv", "--force"], "is the journal, which is never overwritten"),
        (["export", "{0}/q.csv", "--out", "{0}/a.xlsx"], "--out must end in .jsonl, .csv, .parquet"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_found_out_before(arguments, complaint, tmp_path, capsys, monkeypatch):
    """One line, exit code 2, and nothing is changed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "q.csv").write_text("Hi?\n")
    assert 2 == run([argument.format(tmp_path) for argument in arguments])
    err = capsys.readouterr().err
    assert 1 == err.count("\n")
    assert complaint in err
    assert ["dir.json", "q.csv"] == sorted(path.name for path in tmp_path.iterdir())
    assert "Hi?\n" == (tmp_path / "q.csv").read_text()


@pytest.mark.parametrize("name", ["loop.json", f"{'x' * 300}.json", "closed/x.json"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["map", "p.txt", "--text", "--backend", "simulated", "--out"],
        ["map", "p.txt", "--text", "--backend", "simulated", "--journal"],
        [*LOAD, "--out"],
        ["demo", "--svg"],
    ],
)
def test_a_path_that_the_system_refuses_is_one_line(arguments, name, tmp_path, capsys, monkeypatch):
    """A link to itself, a name that is too long, and a directory that may not be entered. Nothing is sent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("Hi\n")
    (tmp_path / "loop.json").symlink_to("loop.json")
    real_stat = Path.stat

    def refuse(path: Path, **settings):
        if "closed" in path.parts[:-1]:  # root may enter every directory
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_stat(path, **settings)

    monkeypatch.setattr(Path, "stat", refuse)
    assert 2 == run([*arguments, name])
    err = capsys.readouterr().err
    assert 1 == err.count("\n")
    assert "can't" in err


def test_a_journal_is_exported_by_a_command(tmp_path, capsys):
    """`sampling export` writes the reasons of every failure."""
    (tmp_path / "p.txt").write_text("Hi\n")
    out = tmp_path / "a.jsonl"
    arguments = ["map", str(tmp_path / "p.txt"), "--text", "--backend", "simulated", "--require", "one-of:a,b"]
    assert 1 == run([*arguments, "--out", str(out)])
    assert 0 == run(["export", f"{out}.journal", "--out", str(tmp_path / "a.csv")])
    assert "wrote 1 answers to" in capsys.readouterr().err
    assert "answer with one of a, b" in (tmp_path / "a.csv").read_text()


# Replacing.


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    """A failure leaves the old one, and nothing beside it. The mode of a file is kept."""
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(UnicodeEncodeError), replacing(path) as temporary:
        temporary.write_text("ne\ud800", "utf-8")
    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert ("new", 0o640, [path]) == (path.read_text(), stat.S_IMODE(path.stat().st_mode), list(tmp_path.iterdir()))


def test_a_link_stays_one(tmp_path):
    """The file behind the link is replaced."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert ("new", True) == (target.read_text(), link.is_symlink())
    assert is_same_file(link, target)


def test_a_device_is_written_to_and_not_replaced():
    """`--out /dev/null` must not make a file of it."""
    with replacing(Path("/dev/null")) as temporary:
        temporary.write_text("new")
    assert Path("/dev/null").is_char_device()
