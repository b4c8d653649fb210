"""`sampling map`: the real command, mostly as a process of its own, with real signals, against a server on loopback."""

import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.cli._app import run
from sampling.cli._prompts import Prompts
from sampling.fanout.journal import export
from sampling.testing.servers import OpenAIServer, Reply

KEY = "sk-canary-0123456789"


@pytest.fixture
def server():
    """A server that speaks OpenAI's protocol, and remembers what it was asked."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer(echo)) as running:
        yield running


def asked(request) -> str:
    """Return the prompt of a request."""
    return next(message["content"] for message in request.json()["messages"] if message["role"] == "user")


def echo(request, **settings) -> Reply:
    """Repeat the prompt."""
    return Reply([f"echo {asked(request)}"], **settings)


@pytest.fixture
def prompts(tmp_path) -> Callable[[int], Path]:
    """`prompts(n)` writes a file of n prompts, `say 0` and so on, with the keys `k0` and so on."""

    def write(count: int, extra: str = "") -> Path:
        path = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"key": f"k{number}", "prompt": f"say {number}"}) for number in range(count)]
        path.write_text("".join(f"{line}\n" for line in lines) + extra)
        return path

    return write


def command(server, *arguments: object) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "sampling", "map", "--backend", f"openai:any@{server.url}", *map(str, arguments)]


def finished(arguments: list[str], **settings) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    done = subprocess.run(  # noqa: S603
        arguments, env=environment, capture_output=True, text=True, timeout=120, check=False, **settings
    )
    assert KEY not in done.stdout + done.stderr
    return done


def started(arguments: list[str], stderr: int = subprocess.PIPE) -> subprocess.Popen:
    """Start a command."""
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True)  # noqa: S603


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another process to get somewhere."""
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError


def lines_of(path: Path) -> list[dict]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def keys_of(path: Path) -> list[str]:
    """Whose answers were written."""
    return [line["key"] for line in lines_of(path)]


# A run.


def test_answers_are_in_the_order_of_the_file(server, prompts, tmp_path):
    """F2: answers are in the order of the input, and the exit code is 0 if all are valid."""
    server.reply = lambda request: echo(request, interval_s=0.3 if asked(request) == "say 0" else 0.0)
    out = tmp_path / "answers.jsonl"

    done = finished(command(server, prompts(12), "--out", out, "--price", "1/2", "--require", "regex:echo say .*"))

    assert (0, "") == (done.returncode, done.stdout)
    assert [(f"k{n}", "succeeded", f"echo say {n}") for n in range(12)] == [
        (line["key"], line["status"], line["text"]) for line in lines_of(out)
    ]
    assert "completed: 12 of 12 prompts (12 succeeded)" in done.stderr
    assert {1.2e-05} == {round(line["cost"], 9) for line in lines_of(out)}
    export(f"{out}.journal", tmp_path / "exported.jsonl")
    assert (tmp_path / "exported.jsonl").read_text() == out.read_text()


def test_without_a_file_for_them_answers_go_to_the_output(server, tmp_path):
    """Plain lines on stdin become JSON lines on stdout, with the line number as key."""
    done = finished(command(server, "-", "--text", "--system", "Be brief."), input="one\n\n two \n")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("1", "echo one"), ("3", "echo  two ")] == [(row["key"], row["text"]) for row in rows]
    assert {"system"} == {request.json()["messages"][0]["role"] for request in server.requests}
    assert [] == list(tmp_path.iterdir())


def test_a_row_has_the_same_columns_with_and_without_a_journal(server, prompts, tmp_path):
    """Whoever reads the answers need not know how they were made."""
    finished(command(server, prompts(1), "--out", tmp_path / "with.jsonl"))
    finished(command(server, prompts(1), "--out", tmp_path / "without.jsonl", "--no-journal"))

    [kept], [written] = lines_of(tmp_path / "with.jsonl"), lines_of(tmp_path / "without.jsonl")
    changing = {"elapsed_s": None, "sampling_id": None}
    assert list(kept) == list(written)
    assert {**kept, **changing} == {**written, **changing}


def test_prompts_without_a_valid_answer_are_exit_code_1(server, prompts, tmp_path):
    """Each prompt is asked up to the depth, in one conversation."""
    out = tmp_path / "answers.jsonl"
    arguments = ("--require", "regex:echo say [02].*", "--strategy", "multi-turn", "--depth", "2", "--out", out)

    done = finished(command(server, prompts(3), *arguments))

    assert 1 == done.returncode
    assert ["succeeded", "failed", "succeeded"] == [line["status"] for line in lines_of(out)]
    assert {"say 0": 1, "say 1": 2, "say 2": 1} == Counter(asked(request) for request in server.requests)


def test_a_page_about_the_run_is_written(server, prompts, tmp_path):
    """`--report` writes it after the answers, and `sampling export` writes the same from the journal."""
    out, page, later = tmp_path / "a.jsonl", tmp_path / "run.html", tmp_path / "later.html"
    done = finished(command(server, prompts(3), "--out", out, "--report", page))
    assert (0, "") == (done.returncode, done.stdout)
    assert f"wrote {page}" in done.stderr
    assert "3 of 3 items have a valid answer" in page.read_text("utf-8")
    assert 0 == run(["export", f"{out}.journal", "--out", str(later)])
    assert page.read_bytes() == later.read_bytes()
    again = finished(command(server, prompts(3), "--out", out, "--report", page, "--resume"))
    assert 0 == again.returncode
    assert "by 2 processes" in page.read_text("utf-8")


def test_a_page_that_can_not_be_written_loses_no_answer(server, prompts, tmp_path):
    """The answers are there, and the command that writes the page is named."""
    out, page = tmp_path / "a.jsonl", tmp_path / "run.html"
    page.symlink_to("/dev/full")
    done = finished(command(server, prompts(2), "--out", out, "--report", page))
    assert 1 == done.returncode
    assert "No space left on device" in done.stderr
    assert f"sampling export {out}.journal --out {page}" in done.stderr
    assert 2 == len(lines_of(out))


def test_a_journal_is_no_report(server, prompts, tmp_path, capsys):
    """`sampling report` says which command has the page of a journal."""
    out = tmp_path / "a.jsonl"
    finished(command(server, prompts(1), "--out", out))
    assert 2 == run(["report", f"{out}.journal"])
    assert "sampling export" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        ("UPDATE outcomes SET record = '[]'", "has a wrong checksum. Restore it from a backup"),
        ("PRAGMA user_version = 99", "is a journal of version 99: this library reads up to version"),
    ],
    ids=["damaged", "too new"],
)
@pytest.mark.parametrize("suffix", ["csv", "html"])
def test_a_journal_that_can_not_be_read_is_refused(harm, complaint, suffix, server, prompts, tmp_path, capsys):
    """One line says what is wrong with the file, once, and what to do."""
    out = tmp_path / "a.jsonl"
    finished(command(server, prompts(1), "--out", out))
    with closing(sqlite3.connect(f"{out}.journal")) as database, database:
        (trigger,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'outcomes_are_final'").fetchone()
        for statement in ("DROP TRIGGER outcomes_are_final", harm, trigger):
            database.execute(statement)
    assert 2 == run(["export", f"{out}.journal", "--out", str(tmp_path / f"a.{suffix}")])
    told = capsys.readouterr().err
    assert complaint in told
    assert 1 == told.count("is damaged") + told.count("Upgrade sampling")


def test_failed_prompts_can_be_asked_again(server, prompts, tmp_path):
    """F18: --resume --retry-failed asks failed and errored prompts, and no others."""
    out = tmp_path / "answers.jsonl"
    refusal = Reply(status=400, error={"error": {"message": "no"}})
    replies = {"say 1": Reply(["nonsense"]), "say 3": refusal}
    server.reply = lambda request: replies.get(asked(request)) or echo(request)
    flags = ("--require", "regex:echo .*", "--on-error", "continue", "--out", out, "--max-requests", "4")
    assert 1 == finished(command(server, prompts(5), *flags)).returncode
    assert ["succeeded", "failed", "succeeded", "errored", "succeeded"] == [row["status"] for row in lines_of(out)]
    server.reply = echo
    server.requests.clear()

    done = finished(command(server, prompts(5), *flags, "--resume", "--retry-failed"))

    assert 0 == done.returncode, done.stderr
    assert ["say 1", "say 3"] == sorted(map(asked, server.requests))
    assert ["succeeded"] * 5 == [row["status"] for row in lines_of(out)]


def test_a_halt_ends_the_answers_with_the_prompt_that_halted(server, prompts, tmp_path):
    """F5: what had finished after it is in the journal, and not among the answers."""
    server.reply = lambda request: echo(request, interval_s=0.4 if asked(request) == "say 2" else 0.0)
    out = tmp_path / "answers.jsonl"

    done = finished(
        command(server, prompts(9), "--out", out, "--on-failure", "halt", "--require", "regex:echo say [^2]")
    )

    assert 1 == done.returncode
    assert ["k0", "k1", "k2"] == keys_of(out)
    assert "halted: 3 of 9 prompts" in done.stderr


def test_a_recorded_outcome_that_ends_every_resume_is_told(server, prompts, tmp_path):
    """The same command would end there again, so another is named: one that asks the prompt again, or passes it."""
    advice = "a recorded outcome ends every resume: add --retry-failed to ask that prompt again, or --on-error continue"
    refusal = Reply(status=400, error={"error": {"message": "no"}})
    server.reply = lambda request: refusal if asked(request) == "say 1" else echo(request)
    arguments = command(server, prompts(3), "--out", tmp_path / "answers.jsonl", "-k", "1")
    halted = finished([*arguments, "--on-error", "halt"])
    assert (1, 1) == (halted.returncode, halted.stderr.count(advice)), halted.stderr
    server.requests.clear()

    again = finished([*arguments, "--resume"])
    assert (1, 1, []) == (again.returncode, again.stderr.count(advice), server.requests), again.stderr
    passed = finished([*arguments, "--resume", "--on-error", "continue"])
    assert (1, 0) == (passed.returncode, passed.stderr.count(advice)), passed.stderr
    assert ["k0", "k1", "k2"] == keys_of(tmp_path / "answers.jsonl")
    server.reply = echo
    assert 0 == finished([*arguments, "--resume", "--retry-failed"]).returncode


def test_an_error_ends_the_run_and_what_was_answered_is_kept(server, prompts, tmp_path):
    """F7: one line says that the key was refused, and another has the command that resumes."""
    refusal = Reply(status=401, error={"error": {"message": "no"}})
    server.reply = lambda request: refusal if asked(request) == "say 3" else echo(request)
    out = tmp_path / "answers.jsonl"

    done = finished(command(server, prompts(6), "--out", out, "-k", "1"))

    assert 1 == done.returncode
    assert ["k0", "k1", "k2"] == keys_of(out)
    assert "ended by an error: AuthenticationFailed" in done.stderr
    assert "Traceback" not in done.stderr
    server.reply = echo
    assert 0 == finished(command(server, prompts(6), "--out", out, "-k", "1", "--resume")).returncode
    assert [f"k{number}" for number in range(6)] == keys_of(out)
    assert {1, 2} == set(Counter(asked(request) for request in server.requests).values())


def test_the_summary_of_a_run_that_failed_counts_what_is_written(server, prompts, tmp_path):
    """F7: answers to prompts after the one that raised are not delivered, but the file has them."""
    busy = Reply(status=429, headers={"retry-after": "0.01"}, error={"error": {"message": "slow down"}})
    refusal = Reply(status=401, error={"error": {"message": "no"}})

    def reply(request) -> Reply:
        if asked(request) == "say 0":
            return refusal if any(asked(other) == "say 3" for other in server.requests) else busy
        return Reply(["…"], endless=True, interval_s=0.1) if asked(request) == "say 3" else echo(request)

    server.reply = reply
    out = tmp_path / "answers.jsonl"

    done = finished(command(server, prompts(4), "--out", out, "-k", "2", "--retries", "1000"))

    assert 1 == done.returncode
    assert ["k1", "k2"] == keys_of(out)
    assert "failed: 2 of 4 prompts (2 succeeded)" in done.stderr


# Interruptions.


def test_a_killed_run_goes_on_where_it_was(server, prompts, tmp_path):
    """F11, I13: SIGKILL, and the same command with --resume: every answer once, in order, few asked twice."""
    server.reply = lambda request: echo(request, interval_s=0.02)
    out = tmp_path / "answers.jsonl"
    arguments = (prompts(60), "--out", out, "--max-concurrency", "4")
    process = started(command(server, *arguments))
    wait_until(lambda: server.completed >= 20)
    process.kill()
    process.communicate()
    assert not out.exists()

    done = finished(command(server, *arguments, "--resume"))

    assert 0 == done.returncode
    assert [f"k{number}" for number in range(60)] == keys_of(out)
    assert len(server.requests) <= 60 + 4


def test_ctrl_c_lets_what_is_in_flight_finish_and_says_how_to_go_on(server, prompts, tmp_path):
    """Row 60: after Ctrl-C nothing new starts, the exit code is 130, and the printed command asks only the rest."""
    server.reply = lambda request: echo(request, interval_s=0.5)
    out = tmp_path / "answers.jsonl"
    process = started(command(server, prompts(12), "--out", out, "-k", "4"))
    wait_until(lambda: len(server.requests) == 4)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)

    assert (130, 4) == (process.returncode, len(server.requests))
    assert ["k0", "k1", "k2", "k3"] == keys_of(out)
    assert "SIGINT: nothing new is started" in told
    assert "stopped: 4 of 12 prompts (4 succeeded)" in told
    go_on = told.splitlines()[-1].split()
    server.reply = echo
    assert 0 == finished([sys.executable, "-m", *go_on]).returncode
    assert (12, [f"k{number}" for number in range(12)]) == (len(server.requests), keys_of(out))


def test_a_second_ctrl_c_cancels_what_is_in_flight(server, prompts, tmp_path):
    """The server sees its clients go."""
    server.reply = lambda request: echo(request, interval_s=0.05, endless=True)
    process = started(command(server, prompts(6), "--out", tmp_path / "answers.jsonl", "-k", "3"))
    wait_until(lambda: len(server.requests) >= 3)
    process.send_signal(signal.SIGINT)
    assert "nothing new is started" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert (130, 3) == (process.returncode, len(server.requests))
    wait_until(lambda: server.disconnects == 3)


@pytest.mark.usefixtures("default_hangup")
def test_a_dropped_connection_lets_what_is_in_flight_finish(server, prompts, tmp_path):
    """
    Row 60: its terminal is gone, and SIGHUP comes from the system and from the shell. The answers are written.
    """
    server.reply = lambda request: echo(request, interval_s=0.5)
    out = tmp_path / "answers.jsonl"
    terminal, its_side = pty.openpty()
    process = started(command(server, prompts(12), "--out", out, "-k", "4"), stderr=its_side)
    os.close(its_side)
    wait_until(lambda: len(server.requests) == 4)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)

    assert (129, 4) == (process.returncode, len(server.requests))
    assert ["k0", "k1", "k2", "k3"] == keys_of(out)


def test_nohup_keeps_a_run_going(server, prompts, tmp_path):
    """It makes a command ignore SIGHUP, so that nothing has to be resumed after a connection has dropped."""
    server.reply = lambda request: echo(request, interval_s=0.2)
    out = tmp_path / "answers.jsonl"
    ignoring = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    process = started([sys.executable, "-c", ignoring, *command(server, prompts(6), "--out", out, "-k", "2")])
    wait_until(lambda: len(server.requests) == 2)
    process.send_signal(signal.SIGHUP)
    _, told = process.communicate(timeout=60)

    assert (0, 6) == (process.returncode, len(keys_of(out))), told


def test_the_grace_time_ends(server, prompts, tmp_path):
    """Row 60: SIGTERM cancels what takes longer than --grace, with exit code 143."""
    server.reply = lambda request: echo(request, endless=asked(request) == "say 1", interval_s=0.05)
    out = tmp_path / "answers.jsonl"
    process = started(command(server, prompts(2), "--out", out, "-k", "2", "--grace", "0.3"))
    wait_until(lambda: server.completed == 1 and len(server.requests) == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert (143, ["k0"]) == (process.returncode, keys_of(out))


def test_a_file_that_is_changed_during_the_run_is_reported(server, prompts, tmp_path):
    """The file is read again as prompts start, so those of a part that was cut off are not asked."""
    path = prompts(1_000)
    lines = path.read_text()
    out = tmp_path / "answers.jsonl"

    def cut_off(request) -> Reply:
        path.write_text("")
        return echo(request)

    server.reply = cut_off
    done = finished(command(server, path, "--out", out, "-k", "2"))
    assert 1 == done.returncode
    assert f"{path} was changed during the run, so prompts may be missing. To ask those" in done.stderr

    server.reply = echo
    path.write_text(lines)
    done = finished(command(server, path, "--out", out, "-k", "64", "--resume", "--accept-changes"))
    assert (0, [f"k{number}" for number in range(1_000)]) == (done.returncode, keys_of(out)), done.stderr
    assert "was changed" not in done.stderr


def test_prompts_that_are_typed_end_with_one_ctrl_d(server):
    """As for other programs. What is typed at a terminal is read as it comes."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(  # noqa: S603
        command(server, "-", "--text"), stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(terminal)
    os.write(ours, b"one\ntwo\n\x04")
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(ours)
    assert (0, 2) == (process.returncode, len(out.splitlines())), err


def test_prompts_from_a_pipe_are_not_reported_as_changed(server, prompts):
    """A pipe is copied to be read twice, and the copy is complete before it is checked."""
    done = finished(command(server, "-"), input=prompts(2).read_text())

    assert (0, 2) == (done.returncode, len(done.stdout.splitlines()))
    assert "changed" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_files_are_written_says_how_to_get_them(number, code, server, prompts, tmp_path):
    """R16: the answers are kept, the exit code is that of the signal, and no temporary file is left."""
    program = f"""
import os
from sampling.cli import _map_run, main

write_rows = _map_run.write_rows

def interrupted(path, rows):
    def first():
        os.kill(os.getpid(), {int(number)})
        yield from rows
    write_rows(path, first())

_map_run.write_rows = interrupted
main()
"""
    out = tmp_path / "answers.jsonl"
    done = finished([sys.executable, "-c", program, *command(server, prompts(2), "--out", out)[3:]])

    assert (code, False) == (done.returncode, out.exists()), done.stderr
    assert "interrupted before all files were written: all answers are kept. Resume with:" in done.stderr
    assert [] == list(tmp_path.glob(".sampling-*"))
    go_on = done.stderr.splitlines()[-1].split()
    assert 0 == finished([sys.executable, "-m", *go_on]).returncode
    assert (2, ["k0", "k1"]) == (len(server.requests), keys_of(out))


@pytest.mark.parametrize("keeps_journal", [True, False])
def test_answers_after_a_prompt_that_hangs_are_written_and_counted(server, prompts, tmp_path, keeps_journal):
    """What finished after a prompt that was cancelled was paid for, and a run without a journal can't ask the rest."""
    server.reply = lambda request: echo(request, endless=asked(request) == "say 1", interval_s=0.05)
    out = tmp_path / "answers.jsonl"
    flags = ["--out", out] if keeps_journal else []
    process = started(command(server, prompts(4), *flags, "-k", "4", "--grace", "0.1"))
    wait_until(lambda: server.completed == 3 and len(server.requests) == 4)
    process.send_signal(signal.SIGTERM)
    answers, told = process.communicate(timeout=60)

    found = keys_of(out) if keeps_journal else [json.loads(line)["key"] for line in answers.splitlines()]
    assert (143, ["k0", "k2", "k3"]) == (process.returncode, found)
    assert "stopped: 3 of 4 prompts (3 succeeded)" in told


# Answers that can't be written.


def test_answers_that_a_full_stdout_has_no_room_for_are_saved(server, prompts):
    """Row 61: without a journal, those in flight are paid for as well, and a message says where they all are."""
    server.reply = lambda request: echo(request, interval_s=0.3)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(  # noqa: S603
            command(server, prompts(12), "-k", "4"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = re.search(r"(\d+) answers could not be written\. They are saved in (\S+)", done.stderr)
    assert said is not None, done.stderr
    assert "sampling: stdout could not be written: No space left on device" in done.stderr
    assert [f"k{number}" for number in range(len(server.requests))] == keys_of(Path(said[2]))
    assert (1, len(server.requests)) == (done.returncode, int(said[1]))
    assert len(server.requests) < 12


@pytest.mark.parametrize("fault", ["the part is a directory", "the directory is deleted"])
def test_answers_without_a_journal_that_have_no_place_are_one_line(server, prompts, tmp_path, fault):
    """Row 61: it may be noticed before the first request, or after the last one."""
    server.reply = lambda request: echo(request, interval_s=0.3)
    directory = tmp_path / "answers"
    directory.mkdir()
    if fault == "the part is a directory":
        (directory / "a.jsonl.part").mkdir()
    process = started(command(server, prompts(2), "--out", directory / "a.jsonl", "--no-journal"))
    if fault == "the directory is deleted":
        wait_until(lambda: len(server.requests) == 2)
        shutil.rmtree(directory)
    _, told = process.communicate(timeout=60)

    assert 1 == process.returncode
    assert "Traceback" not in told
    assert "a.jsonl could not be written: " in told.splitlines()[-1]


def test_no_answers_are_said_to_be_kept_in_a_journal_that_is_gone(server, prompts, tmp_path):
    """F11: the message says what is missing, and what to do about it."""
    server.reply = lambda request: echo(request, interval_s=0.3)
    directory = tmp_path / "journals"
    directory.mkdir()
    flags = ["--journal", directory / "run.db", "--out", tmp_path / "answers.jsonl", "-k", "2"]
    process = started(command(server, prompts(6), *flags))
    wait_until(lambda: len(server.requests) >= 3)
    directory.rename(tmp_path / "elsewhere")
    _, told = process.communicate(timeout=60)

    assert 1 == process.returncode
    assert "answers are kept" not in told
    assert "FileNotFoundError" not in told
    assert f"the journal {directory / 'run.db'} is gone. Move it back. Resume with:" in told
    (tmp_path / "elsewhere").rename(directory)
    assert 0 == finished(command(server, prompts(6), *flags, "--resume")).returncode
    assert [f"k{number}" for number in range(6)] == keys_of(tmp_path / "answers.jsonl")


# What it may cost.


def test_a_budget_ends_the_run_and_a_larger_one_goes_on(server, prompts, tmp_path):
    """I10: not one request more than allowed, in both runs together."""
    out = tmp_path / "answers.jsonl"
    arguments = (prompts(12), "--out", out, "-k", "2")

    done = finished(command(server, *arguments, "--budget-requests", "5"))

    assert (1, 5) == (done.returncode, len(server.requests))
    assert "halted: 5 of 12 prompts (5 succeeded)" in done.stderr  # the rest was not asked, so it has not failed
    assert "the budget is spent" in done.stderr
    assert [f"k{number}" for number in range(5)] == keys_of(out)
    assert 0 == finished(command(server, *arguments, "--budget-requests", "12", "--resume")).returncode
    assert (12, [f"k{number}" for number in range(12)]) == (len(server.requests), keys_of(out))


def test_a_dry_run_shows_the_most_that_it_can_take_and_asks_nothing(prompts, capsys, tmp_path):
    """Row 79: --dry-run prints requests, tokens and cost, sends nothing and makes no file."""
    arguments = ["map", str(prompts(10)), "--backend", "openai:any", "--strategy", "multi-turn", "--depth", "3"]
    arguments += ["--breadth", "2", "--max-tokens", "100", "--price", "1/2", "--out", str(tmp_path / "a"), "--dry-run"]

    assert 0 == run(arguments)

    told = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in capsys.readouterr().out.splitlines()}
    # 6 attempts a prompt; the prompt is 2 tokens; a second and a third attempt have 1 and 2 answers in front of them.
    assert "60" == told["requests"]
    assert f"{10 * (6 * 2 + 2 * 3 * 200):,}" == told["input tokens"]
    assert "6,000" == told["output tokens"]
    assert "0.0241" == told["cost"]
    assert ["prompts.jsonl"] == [path.name for path in tmp_path.iterdir()]


def test_a_dry_run_needs_no_model(prompts, capsys, monkeypatch):
    """Row 79: it asks none, so the command of the documentation works without --backend and without SmolLM2."""
    monkeypatch.setattr("sampling.cli._specs.smollm2_is_installed", lambda: False)
    assert 0 == run(["map", str(prompts(1)), "--max-tokens", "400", "--price", "0.25/2", "--dry-run"])
    assert "Nothing was sent." in capsys.readouterr().out
    assert 2 == run(["map", str(prompts(1)), "--batch", "--dry-run"])
    assert "--batch needs --backend openai:MODEL or anthropic:MODEL" in capsys.readouterr().err


def test_a_dry_run_without_a_limit_says_that_there_is_none(prompts, capsys):
    """An answer may be as long as the model likes, so no number would be true."""
    assert 0 == run(["map", str(prompts(1)), "--backend", "openai:any", "--price", "1/2", "--dry-run"])
    out = capsys.readouterr().out
    assert 2 == out.count("no limit")
    assert "set --max-tokens" in out


# What is refused, before anything is asked.


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "x"', "not JSON: Expecting ',' delimiter"),
        ('{"prompt": "x', "not JSON: Unterminated string starting at character 11"),
        ('{"promt": "x"}', 'no field "prompt"; found "promt"'),
        ('{"prompt": 3}', 'the field "prompt" must be a string, and is a number'),
        ('{"prompt": " "}', 'the field "prompt" is empty'),
        ('{"prompt": "x", "key": [1]}', 'the field "key" must be a string or a whole number, and is an array'),
        ('{"prompt": "x", "key": true}', "and is true or false"),
        ('{"prompt": "x", "key": ""}', 'the field "key" is empty'),
        ('{"prompt": "x", "prompt": "y"}', "the same key twice"),
        ('{"prompt": "\\ud800"}', "half a character"),
        ("[1]", "neither an object nor a string, but an array"),
        ("null", "neither an object nor a string, but null"),
        ("[" * 100_000, "nested deeper"),
        ("{'prompt': 'x'}", "not JSON"),
    ],
)
def test_a_broken_line_is_named_by_its_number(server, prompts, tmp_path, capsys, line, problem):
    """A bad line ends the run with exit code 2 before any request, and --skip-bad reports it and goes on."""
    path = prompts(2, f"{line}\n\n" + '"as a string"\n')
    arguments = ["map", str(path), "--backend", f"openai:any@{server.url}"]

    assert 2 == run([*arguments, "--out", str(tmp_path / "answers.jsonl")])

    err = capsys.readouterr().err
    assert f"{path}, line 3: " in err
    assert problem in err
    assert [] == server.requests
    assert ["prompts.jsonl"] == [path.name for path in tmp_path.iterdir()]

    assert 0 == run([*arguments, "--skip-bad"])
    out, err = capsys.readouterr()
    assert ["k0", "k1", "5"] == [json.loads(row)["key"] for row in out.splitlines()]
    assert f"{path}, line 3: " in err
    assert "skipped 1 bad line(s), 3 prompts left" in err


def test_what_is_no_text_is_named_by_its_line(tmp_path, capsys):
    """A file in another encoding: the line, and where in it."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfgood\nb\xe4d\n")
    assert 2 == run(["map", str(path), "--text", "--backend", "simulated"])
    assert "line 2: not UTF-8 at byte 1" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("flags", [[], ["--text"]])
def test_a_file_in_utf_16_is_named_as_such(tmp_path, capsys, encoding, flags):
    """PowerShell writes such files. Every other line of them would be one more riddle."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('\ufeff"a"\n"b"\n'.encode(encoding))
    assert 2 == run(["map", str(path), *flags, "--backend", "simulated"])
    err = capsys.readouterr().err
    assert f"{path}, line 1: UTF-16, as some tools on Windows write it: save the file as UTF-8" in err
    assert "has 1 bad line(s)" in err


@pytest.mark.parametrize("suffix", [".csv", ".html", ".parquet"])
def test_answers_are_not_written_under_the_name_of_another_format(prompts, tmp_path, capsys, suffix):
    """A table of JSON lines would be found out after the run is paid for."""
    out = tmp_path / f"answers{suffix}"
    assert 2 == run(["map", str(prompts(1)), "--backend", "simulated", "--out", str(out)])
    lines = tmp_path / "answers.jsonl"
    advice = f"use --out {lines}, and then sampling export {lines}.journal --out {out}"
    assert advice in capsys.readouterr().err
    assert ["prompts.jsonl"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.jsonl"], "can't read nowhere.jsonl: No such file"),
        (["{prompts}", "--price", "3"], "--price must be IN/OUT, such as 0.15/0.60"),
        (["{prompts}", "--price", "-1/2"], "the input price of --price must be >= 0"),
        (["{prompts}", "--budget-cost", "5"], "--budget-cost needs --price"),
        (["{prompts}", "--resume"], "--resume needs the --out"),
        (["{prompts}", "--out", "a", "--retry-failed"], "--retry-failed needs --resume"),
        (["{prompts}", "--out", "a", "--no-journal", "--resume"], "--no-journal and --resume exclude each other"),
        (["{prompts}", "--report", "r.html"], "--report is made from a journal"),
        (["{prompts}", "--out", "a", "--no-journal", "--report", "r.html"], "--report is made from a journal"),
        (["{prompts}", "--out", "a", "--report", "r.pdf"], "--report must end in .html"),
        (["{prompts}", "--out", "r.html", "--report", "r.html"], "is the file of --out"),
        (["{prompts}", "--on-error", "shrug"], "--on-error"),
        (["{prompts}", "--max-concurrency", "0"], "--max-concurrency"),
        (["{prompts}", "--ray-address", "auto"], "--ray-address needs --actors"),
        (["{prompts}", "--actors", "4", "--max-requests", "2"], "--max-requests must be at least --actors"),
        (["{prompts}", "--require", "rejex:x"], "--require"),
        (["{prompts}", "--out", "{prompts}"], "is the file of prompts, which is never overwritten"),
        (["{prompts}", "--out", "{prompts}", "--force"], "is the file of prompts, which is never overwritten"),
        (["{prompts}", "--journal", "{prompts}"], "is the file of prompts, which is never overwritten"),
        (["{prompts}", "--out", "a", "--journal", "a"], "is the journal, which is never overwritten"),
        (["{prompts}", "--out", "-"], "without --out, the answers go to stdout"),
        (["{prompts}", "--out", "no/such/a"], "there is no directory 'no/such'"),
        (["{prompts}", "--model", "m"], "No such option: --model"),
        (["{prompts}", "--model", "m"], "The model is part of --backend openai:MODEL"),
        (["{prompts}", "--base-url", "u"], "The address is part of --backend openai:MODEL@URL"),
        (["{prompts}", "--out", "nowhere.jsonl", "--resume"], "--resume: there is no journal nowhere.jsonl.journal"),
    ],
)
def test_a_wrong_flag_is_exit_code_2_and_says_what_is_right(prompts, capsys, arguments, complaint):
    """A wrong flag ends the command before anything is sent."""
    path = str(prompts(1))
    assert 2 == run(["map", *[argument.format(prompts=path) for argument in arguments], "--backend", "simulated"])
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("prompt\nHi\n\nHo\n", [("2", "Hi"), ("4", "Ho")]),
        ("key,prompt\na,Hi\nb,Ho\n", [("a", "Hi"), ("b", "Ho")]),
        ("\ufeffprompt;key;more\r\n1,5;a;x\r\n", [("a", "1,5")]),
        ("key\tprompt\na\tHi, you\n", [("a", "Hi, you")]),
        ('prompt,key\n"two\nlines, ""quoted""",7\n', [("7", 'two\nlines, "quoted"')]),
    ],
)
def test_a_table_is_read_by_the_names_in_its_first_row(tmp_path, table, found):
    """With the separators of spreadsheets, and twice, because a run reads the file again."""
    path = tmp_path / "prompts.CSV"
    path.write_bytes(table.encode())
    with Prompts(path) as prompts:
        assert [(prompt.key, prompt.text) for prompt in prompts.check()] == found == list(prompts)
        assert 0 == prompts.bad_count


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (b"id,text\n1,Hi\n", 'line 2: no field "prompt"; found "id", "text"'),
        (b"prompt,key\nHi, you,1\n", "line 2: 3 fields, but the first row has 2: quote a text with a comma"),
        (b"prompt,key\nHi,\n", 'line 2: the field "key" is empty'),
        (b"prompt,key,prompt\nHi,1,Ho\n", 'line 1: two columns "prompt": rename or delete one'),
        (b"prompt\nHi\nh\xe4\n", "not UTF-8: save the file as CSV in UTF-8"),
        (b'prompt\n"Hi\n', "line 2: not CSV: unexpected end of data"),
    ],
)
def test_a_broken_row_of_a_table_is_named_by_its_line(tmp_path, capsys, table, problem):
    """A row without a prompt, a comma without quotes, another encoding, and a quote that is not closed."""
    path = tmp_path / "prompts.csv"
    path.write_bytes(table)
    assert 2 == run(["map", str(path), "--backend", "simulated"])
    assert problem in capsys.readouterr().err


def test_the_rows_after_a_broken_one_are_read(tmp_path, capsys):
    """`--skip-bad` skips the broken rows and no others. A quote that is not closed takes some lines with it."""
    path = tmp_path / "prompts.csv"
    path.write_bytes(b'key,prompt\na,"Hi\nb,Ho\nc,"Hu"\nd,h\xe4\ne,He\n"f"f,Ha\ng,' + b"y" * 200_000 + b"\n")
    assert 0 == run(["map", str(path), "--backend", "simulated:1", "--skip-bad"])
    out, err = capsys.readouterr()
    assert ["e", "g"] == [json.loads(line)["key"] for line in out.splitlines()]
    assert ["2", "5", "7"] == [line.partition("prompts.csv, line ")[2][:1] for line in err.splitlines()[:3]]
    assert "line 2: not CSV up to line 4: " in err
    assert "skipped 3 bad line(s), 2 prompts left" in err


def test_timeouts_are_one_reason(server, prompts):
    """The error of an item names it, and the summary counts them all."""
    server.reply = Reply(["x"], endless=True, interval_s=0.02)
    limits = ("--item-timeout", "0.1", "--on-error", "continue", "--outage-grace", "0")
    done = finished(command(server, prompts(3), *limits))
    assert 1 == done.returncode
    assert "\n  3 × Timeout: no result after 0.1 s\n" in done.stderr


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [*(("--item-timeout", wrong) for wrong in ("0", "-1", "nan", "inf")), ("--outage-grace", "inf")],
)
def test_a_timeout_that_is_no_time_is_refused(flag, wrong, prompts, capsys):
    """One line, before anything is sent."""
    assert 2 == run(["map", str(prompts(1)), "--backend", "simulated", flag, wrong])
    err = capsys.readouterr().err
    assert err.startswith(f"sampling: {flag} must be ")
    assert 1 == err.count("\n")


def test_a_file_of_another_format_is_answered_with_the_formats(tmp_path, capsys):
    """Not one line is a prompt, so to skip the bad ones would not help."""
    path = tmp_path / "prompts.txt"
    path.write_text("Name a river\nName a city\n")
    assert 2 == run(["map", str(path), "--backend", "simulated"])
    assert "plain text is read with --text" in capsys.readouterr().err


def test_a_file_without_a_prompt_is_refused(tmp_path, capsys):
    """It is more likely a wrong file than nothing to do."""
    (tmp_path / "empty").write_text("\n\n")
    assert 2 == run(["map", str(tmp_path / "empty"), "--backend", "simulated"])
    assert "no prompts in" in capsys.readouterr().err


def test_answers_that_are_there_are_not_overwritten(server, prompts, tmp_path, capsys):
    """They were paid for: --resume, another name, or delete them."""
    out = tmp_path / "answers.jsonl"
    arguments = ["map", str(prompts(2)), "--backend", f"openai:any@{server.url}", "--out", str(out)]
    assert 0 == run(arguments)
    before = out.read_bytes()

    assert 2 == run(arguments)

    assert "already exists: add --resume" in capsys.readouterr().err
    assert (before, 2) == (out.read_bytes(), len(server.requests))


def spoil_version(journal: Path) -> None:
    """Make a journal look as if a newer version had written it."""
    with sqlite3.connect(journal) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        database.execute(f"PRAGMA user_version = {version + 1}")
    database.close()


def spoil_bytes(journal: Path) -> None:
    """Damage a journal."""
    journal.write_bytes(b"x" * 5_000)


@pytest.mark.parametrize(
    ("spoil", "flags", "complaint"),
    [
        (None, ["--depth", "2"], 'strategy.loop_budget: was "1", is "2"'),
        (None, ["--require", "json"], "requirements"),
        (spoil_version, [], "is a journal of version"),
        (spoil_bytes, [], "journal"),
    ],
)
def test_a_journal_that_does_not_fit_is_refused(server, prompts, tmp_path, capsys, spoil, flags, complaint):
    """F11, rows 62 and 64: of another run, of a newer version, damaged: exit code 2, nothing asked or overwritten."""
    out = tmp_path / "answers.jsonl"
    arguments = ["map", str(prompts(2)), "--backend", f"openai:any@{server.url}", "--out", str(out)]
    assert 0 == run(arguments)
    before = out.read_bytes()
    if spoil is not None:
        spoil(Path(f"{out}.journal"))
    capsys.readouterr()

    assert 2 == run([*arguments, "--resume", *flags])

    assert complaint in capsys.readouterr().err
    assert (before, 2) == (out.read_bytes(), len(server.requests))


def test_changes_can_be_accepted(server, prompts, tmp_path, capsys):
    """Row 64: with a flag of its own, named in the error, the answers that are there are kept."""
    out = tmp_path / "answers.jsonl"
    arguments = ["map", str(prompts(2)), "--backend", f"openai:any@{server.url}", "--out", str(out)]
    assert 0 == run(arguments)
    assert 2 == run([*arguments, "--resume", "--depth", "2"])
    assert "--accept-changes" in capsys.readouterr().err

    assert 0 == run([*arguments, "--resume", "--depth", "2", "--accept-changes"])

    assert 2 == len(server.requests)


def test_a_run_that_is_going_on_is_not_disturbed(server, prompts, tmp_path):
    """Row 63: a second process is refused, with the first one's number, and the first goes on undisturbed."""
    server.reply = lambda request: echo(request, interval_s=0.05, endless=True)
    arguments = (prompts(2), "--out", tmp_path / "answers.jsonl")
    process = started(command(server, *arguments))
    wait_until(lambda: len(server.requests) == 2)

    second = finished(command(server, *arguments, "--resume"))

    assert 2 == second.returncode
    assert str(process.pid) in second.stderr
    assert None is process.poll()
    process.kill()
    process.communicate()


def test_its_help_teaches(capsys):
    """The help shows the line format, resuming, Ctrl-C, exit codes and examples."""
    assert 0 == run(["map", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for word in (
        '{"key": ..., "prompt": ...}',
        "--resume",
        "Ctrl-C",
        "130 interrupted by Ctrl-C",
        "--dry-run",
        "Examples:",
    ):
        assert word in told
