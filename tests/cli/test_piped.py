"""The installed command as a process of its own: what is on stdout, in files, and in its exit code."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.load import LoadReport, read_report
from sampling.testing.servers import OpenAIServer, Reply

KEY = "sk-canary-0123456789"
BUSY = Reply(status=429, headers={"retry-after": "0"}, error={"error": {"message": "slow down"}})
_SCRIPT = Path(sys.executable).with_name("sampling")
COMMAND = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-m", "sampling"]
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def server():
    """A server that is too busy for the first two requests, and then answers `yes`."""

    def reply(_request) -> Reply:
        return BUSY if len(running.requests) <= 2 else Reply(["yes", " it", " is"])

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer(reply)) as running:
        yield running


def backend(server) -> tuple[str, str]:
    return "--backend", f"openai:any@{server.url}"


def started(*arguments: object, **settings) -> subprocess.Popen:
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "COLUMNS": "200", "PYTHONPATH": ROOT}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], env=environment, **settings)  # noqa: S603


def finished(*arguments: object, stdin: str = "", **settings) -> subprocess.CompletedProcess:
    with started(*arguments, stdin=subprocess.PIPE, **settings) as process:
        out, err = process.communicate(stdin, timeout=120)
    assert "Traceback" not in err
    assert KEY not in f"{out}{err}"
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def one_line(text: str) -> str:
    assert 1 == text.count("\n"), text
    return text.rstrip("\n")


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"key": "k{number}", "prompt": "say {number}"}}\n' for number in range(4)))
    return path


# stdout has the result, and nothing else.


def test_an_answer_is_all_that_sample_prints(server):
    """Retries and the summary are on stderr, and the question may come from stdin."""
    done = finished("sample", "-", *backend(server), stdin="Is it?\n")
    assert (0, "yes it is\n") == (done.returncode, done.stdout)
    assert "note: request_retried tries=1" in done.stderr
    assert "success in " in done.stderr
    assert ["Is it?"] == [message["content"] for message in server.requests[-1].json()["messages"]]


def test_rows_are_all_that_map_prints(server, prompts, tmp_path):
    """stdout has only rows, even if a run resumes or retries."""
    arguments = ("map", prompts, *backend(server), "--journal", tmp_path / "j", "-k", "1")
    first = finished(*arguments, "--budget-requests", "4")
    second = finished(*arguments, "--resume")
    assert (1, 0) == (first.returncode, second.returncode)
    rows = [json.loads(line) for line in second.stdout.splitlines()]
    assert ["k0", "k1", "k2", "k3"] == [row["key"] for row in rows]
    assert "k0" == json.loads(first.stdout.splitlines()[0])["key"]
    assert "note: request_retried" in first.stderr
    assert len(server.requests) == sum(row["requests"] for row in rows)


@pytest.mark.parametrize("journal", [False, True])
def test_the_pipe_behind_dev_stdout_is_an_output(journal, server, prompts, tmp_path):
    """R16: the link leads to a pipe, which has no name to write a file beside."""
    more = ["--journal", tmp_path / "run.journal"] if journal else []
    result = finished("map", prompts, *backend(server), "--out", "/dev/stdout", *more)
    assert 0 == result.returncode, result.stderr
    assert ["succeeded"] * 4 == [json.loads(line)["status"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.csv"])
def test_prompts_are_read_from_a_named_pipe(name, server, tmp_path):
    """A pipe, such as that of `<(command)`, can be read only once, and prompts are checked before they are sent."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    text = "prompt\nfirst\nsecond\n" if name.endswith(".csv") else '"first"\n"second"\n'
    with started("map", pipe, *backend(server)) as process:
        pipe.write_text(text)
        out, err = process.communicate(timeout=120)
    assert 0 == process.returncode, err
    assert 2 == len(out.splitlines())


@pytest.mark.parametrize("name", ["load", "capacity"])
def test_a_report_is_all_that_a_load_test_prints(name, server, tmp_path):
    """Output of the workload does not go to stdout."""
    (tmp_path / "shop.py").write_text(
        "print('imported')\n"
        "async def chat(arrival):\n    print('asked')\n"
        "import structlog\nstructlog.get_logger('sampling').warning('careful')\n"
    )
    traffic = {
        "load": ("--rate", "100", "--requests", "40"),
        "capacity": ("--steps", "50", "--slo", "p95=30s", "--warmup", "0s", "--hold", "1s", "--cooldown", "0s"),
    }[name]
    done = finished(name, "--workload", "shop:chat", *traffic, cwd=tmp_path)
    assert ("40 due" if name == "load" else "per second") in done.stdout, done.stderr
    assert [] == re.findall(r"imported|asked|careful|warning|sending", done.stdout)
    assert {"imported", "asked", "warning: careful"} <= set(done.stderr.splitlines())


def test_plans_and_reports_are_all_that_is_printed(tmp_path):
    """`wrote …` is on stderr, and a report is read from stdin."""
    flags = ("--pass-rate", "60%", "--ttft", "100ms", "--per-token", "10ms", "--rate", "1", "--requests", "100")
    made = finished("plan", *flags, "--slo", "p50=60s", "--out", tmp_path / "p.json")
    assert (0, f"wrote {tmp_path / 'p.json'}\n") == (made.returncode, made.stderr)
    shown = finished("report", "-", "--out", tmp_path / "p.csv", stdin=(tmp_path / "p.json").read_text())
    assert (0, made.stdout, f"wrote {tmp_path / 'p.csv'}\n") == (shown.returncode, shown.stdout, shown.stderr)


def test_a_reader_that_leaves_loses_no_report(tmp_path):
    """`sampling load … | head -1`: the files are written, and the exit code is that of the run."""
    reader, writer = os.pipe()
    os.close(reader)
    out = tmp_path / "r.json"
    traffic = ("--backend", "simulated", "--virtual", "--rate", "2", "--duration", "20s", "--slo", "p95=60s")
    done = finished("load", *traffic, "--out", out, stdout=writer)
    os.close(writer)
    assert (0, f"wrote {out}") == (done.returncode, one_line(done.stderr))
    assert isinstance(read_report(out), LoadReport)


def test_a_reader_that_leaves_loses_no_chart(tmp_path):
    """The demo goes on to the end, and its exit code is that of a demo that was read."""
    pytest.importorskip("xllamacpp")
    with started("demo", "--questions", "1", "--svg", tmp_path / "chart.svg", stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert (0, True) == (process.wait(timeout=120), (tmp_path / "chart.svg").exists())


def test_a_reader_that_leaves_stops_what_would_still_be_paid_for(server, tmp_path):
    """`sampling map … | head -1` sends no further prompts once stdout is closed."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"say {number}\n" for number in range(200)))
    with started("map", prompts, "--text", *backend(server), "-k", "1") as process:
        assert "1" == json.loads(process.stdout.readline())["key"]
        process.stdout.close()
        _, err = process.communicate(timeout=60)
    assert 1 == process.returncode
    assert "stdout was closed by its reader" in err
    assert "Traceback" not in err
    assert len(server.requests) < 100


# Full disks.


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))


def test_on_a_full_disk_the_journal_has_the_answers_and_the_command_goes_on(server, prompts, tmp_path):
    """One line with what is saved and what to run, which then writes the answers without asking again."""
    out = tmp_path / "answers.jsonl"
    out.symlink_to("/dev/full")
    arguments = ("map", prompts, *backend(server), "--out", out, "--journal", tmp_path / "j")
    full = finished(*arguments)
    asked = len(server.requests)
    assert 1 == full.returncode
    complaint = full.stderr.splitlines()[-1]
    assert f"sampling: {out} could not be written: No space left on device. All answers are kept in" in complaint
    assert complaint.endswith("--resume")
    assert Path("/dev/full").is_char_device()

    out.unlink()
    again = finished(*complaint.partition("run: sampling ")[2].split())
    assert (0, asked) == (again.returncode, len(server.requests))
    assert 4 == len(out.read_text().splitlines())


def test_answers_that_the_journal_has_no_room_for_are_saved_elsewhere(server, tmp_path):
    """They were paid for. It is not claimed that all answers are kept, and each is in one of the two files."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(f'"say {number}"\n' for number in range(300)))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    full = finished("map", prompts, *backend(server), "--out", out, preexec_fn=limit)
    assert 1 == full.returncode
    assert "all answers are kept" not in full.stderr.lower()
    assert "all other answers are kept. Resume with:" in full.stderr
    said = re.search(r"(\d+) answers could not be stored, .* They are saved in (\S+)", full.stderr)
    saved = [json.loads(line)["text"] for line in Path(said[2]).read_text().splitlines()]
    assert ["yes it is"] * int(said[1]) == saved
    # Two were refused at first.
    assert len(server.requests) - 2 == len(saved) + len(out.read_text().splitlines())


def test_without_a_journal_the_rows_until_then_are_kept(server, prompts, tmp_path):
    """They are whole, and the line says where they are."""
    out = tmp_path / "answers.jsonl"
    full = finished("map", prompts, *backend(server), "--out", out, "--no-journal", preexec_fn=limit_file_size)
    assert 1 == full.returncode
    assert "could not be written: File too large. The first 2 answers are in" in full.stderr.splitlines()[-1]
    assert not out.exists()
    kept = [json.loads(line) for line in Path(f"{out}.part").read_text().splitlines()]
    assert ["k0", "k1"] == [row["key"] for row in kept]


def test_a_report_that_cannot_be_written_is_saved_elsewhere(tmp_path):
    """The traffic was paid for. The line has the command that writes the report when there is room."""
    out = tmp_path / "r.json"
    out.symlink_to("/dev/full")
    traffic = ("--backend", "simulated", "--virtual", "--rate", "2", "--duration", "20s")
    done = finished("load", *traffic, "--out", out)
    assert 1 == done.returncode
    complaint = one_line(done.stderr)
    assert f"{out} could not be written: No space left on device. The report is saved in" in complaint
    out.unlink()
    assert 0 == finished(*complaint.partition("run: sampling ")[2].split()).returncode
    assert isinstance(read_report(out), LoadReport)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["map", "--help"], ["demo", "--questions", "1"]])
def test_a_stdout_that_is_full_is_one_line(arguments, monkeypatch):
    """A full disk behind stdout is reported in one line, with an exit code other than 0."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # without a buffer, nothing is left to write at the exit
    with Path("/dev/full").open("w") as full:
        done = finished(*arguments, stdout=full)
    assert 1 == done.returncode
    assert "sampling: the system refused: No space left on device" == one_line(done.stderr)


def test_an_answer_that_stdout_has_no_room_for_is_saved_elsewhere(server, tmp_path, monkeypatch):
    """It was paid for. Where no other file can be written either, it is on stderr."""
    for folder, where in ((tmp_path, "The answer is saved in "), (tmp_path / "none", "The answer is:\n")):
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(sys.modules[__name__], "COMMAND", [sys.executable, "-c", _WITHOUT_OTHER_FOLDERS])
        with Path("/dev/full").open("w") as full:
            done = finished("sample", "Hi", *backend(server), stdout=full)
        assert 1 == done.returncode
        before, found, after = done.stderr.partition(where)
        assert found, done.stderr
        assert "sampling: stdout could not be written: No space left on device. " in before
        shown = after.splitlines()[0]
        assert "yes it is" == (shown if folder.name == "none" else Path(shown).read_text().rstrip("\n"))


_WITHOUT_OTHER_FOLDERS = """
import os, tempfile
tempfile.gettempdir = lambda: os.environ["TMPDIR"]
from sampling.cli import main
main()
"""
"""The command, with no folder for temporary files but TMPDIR."""


def test_a_stderr_that_is_full_does_not_change_the_exit_code(prompts, tmp_path, monkeypatch):
    """The log of a night may be on the disk that is full. The answers are written, and the exit code says so."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # without a buffer, nothing is left to write at the exit
    out = tmp_path / "answers.jsonl"
    with (
        Path("/dev/full").open("w") as full,
        started("map", prompts, "--backend", "simulated:1", "--out", out, stderr=full) as process,
    ):
        assert 0 == process.wait(timeout=120)
    assert 4 == len(out.read_text().splitlines())


TRAFFIC = {
    "load": ("load", "--backend", "simulated", "--virtual", "--rate", "2", "--duration", "20s"),
    "capacity": ("capacity", "--backend", "simulated", "--virtual", "--steps", "1", "--slo", "p95=60s"),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_a_report_that_stdout_has_no_room_for_is_saved_elsewhere(name):
    """`sampling load … > /full/disk`, without --out: the line has the command that shows the report."""
    with Path("/dev/full").open("w") as full:
        done = finished(*TRAFFIC[name], stdout=full)
    assert 1 == done.returncode
    complaint = done.stderr.splitlines()[-1]
    assert "sampling: stdout could not be written: No space left on device. The report is saved in" in complaint
    shown = finished(*complaint.partition("run: sampling ")[2].split())
    assert (0, "") == (shown.returncode, shown.stderr)
    assert shown.stdout


def test_a_report_in_a_file_is_not_saved_twice_when_stdout_is_full(tmp_path):
    """The line says where it is."""
    out = tmp_path / "r.json"
    with Path("/dev/full").open("w") as full:
        done = finished(*TRAFFIC["load"], "--out", out, stdout=full)
    assert 1 == done.returncode
    assert done.stderr.splitlines()[-1].endswith(f"The report is in {out}")
    assert isinstance(read_report(out), LoadReport)


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,), (2,)])
def test_closed_streams_are_as_good_as_the_null_device(closed, server, prompts, tmp_path):
    """
    A service manager may start a command without stdin, stdout or stderr.

    Files that the command opens must not get their numbers, or what goes to stdout would be written into them.
    """

    def close() -> None:
        for number in closed:
            os.close(number)

    out = tmp_path / "a.jsonl"
    done = finished("map", prompts, *backend(server), "--out", out, preexec_fn=close)
    assert (0, 4) == (done.returncode, len(out.read_text().splitlines()))
    done = finished("sample", "Is it?", *backend(server), preexec_fn=close)
    assert (0, "" if 1 in closed else "yes it is\n") == (done.returncode, done.stdout)


# Terminals.


def on_a_terminal(*arguments: object) -> str:
    """Run a command on a terminal, and return everything that it wrote there."""
    main, terminal = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(main, 65536)
            except OSError:
                return
            if not data:
                return
            seen.append(data)

    with started(*arguments, stdin=terminal, stdout=terminal, stderr=terminal, text=False) as process:
        os.close(terminal)
        reader = threading.Thread(target=read)
        reader.start()
        process.wait(timeout=60)
        reader.join(timeout=10)
    os.close(main)
    return b"".join(seen).decode()


def test_a_terminal_gets_no_control_characters_of_a_model_and_whole_lines(server):
    """Escapes are shown as text, and a notice is on a line of its own above the live display."""
    server.reply = lambda _: BUSY if len(server.requests) <= 2 else Reply(["\x1b]0;owned\x07", "red"])
    shown = on_a_terminal("sample", "Hi", *backend(server))
    assert "\\x1b]0;owned\\x07red" in shown
    assert "\x1b]0;owned" not in shown
    [line] = [line for line in shown.split("\n") if "request_retried" in line]
    # What was drawn before it is erased first.
    notice = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line.rpartition("\x1b[2K")[2])
    assert notice.startswith("note: request_retried tries=1")


def test_a_pipe_gets_the_bytes_as_they_are(server):
    """Programs that read it want the answer, not a picture of it."""
    server.reply = Reply(["\x1b[31mred", "\r\n"])
    with started("sample", "Hi", *backend(server), text=False) as process:
        out, _ = process.communicate(timeout=60)
    assert b"\x1b[31mred\r\n\n" == out


# Signals.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.usefixtures("default_hangup")
def test_a_signal_has_its_exit_code(number, code, server):
    """R16: also where there is nothing to write. The connections to the server are closed."""
    server.reply = Reply(["x"], endless=True, interval_s=0.02)
    with started("sample", "Hi", *backend(server)) as process:
        while not server.requests:
            assert None is process.poll()
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (code, "") == (process.returncode, out)
    assert "Traceback" not in err


@pytest.mark.parametrize("module", ["sampling.cli._app", "typer", "sampling.cli.sample"])
def test_ctrl_c_while_a_command_is_imported_prints_nothing(module):
    """The first moment of a command is spent on imports, and a traceback of them would say nothing to its user."""
    code = f"""
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from sampling.cli import main
main()
"""
    command = [sys.executable, "-c", code, "sample", "Hi", "--backend", "simulated"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)  # noqa: S603
    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)


# Counts.


def test_the_requests_of_a_row_are_those_that_the_server_counted(server, prompts, tmp_path):
    """
    Also of a prompt that raised: two attempts with three retries each are eight requests.

    The run does not wait for the server, which would ask the prompt again.
    """
    server.reply = lambda request: BUSY if "say 2" in request.body.decode() else Reply(["yes"])
    failing = ("--on-error", "continue", "--retries", "3", "--outage-grace", "0")
    flags = (*failing, "--depth", "2", "--require", "regex:yes")
    piped = finished("map", prompts, *backend(server), *flags)
    asked = Counter(request.json()["messages"][0]["content"] for request in server.requests)
    server.requests.clear()
    finished("map", prompts, *backend(server), *flags, "--out", tmp_path / "a.jsonl")
    for text in (piped.stdout, (tmp_path / "a.jsonl").read_text()):
        rows = [json.loads(line) for line in text.splitlines()]
        assert [1, 1, 8, 1] == [row["requests"] for row in rows] == list(map(asked.get, sorted(asked)))
        assert [1, 1, 2, 1] == [row["attempts"] for row in rows]
        assert "RateLimited" == rows[2]["failures"][0]["error_type"]
    assert "1 × RateLimited: " in piped.stderr
