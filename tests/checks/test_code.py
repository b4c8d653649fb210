"""Row 77: code from a model runs in a limited process of its own, and leaves nothing behind."""

import os
import tempfile
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy, checks
from sampling.testing import ScriptedBackend

pytestmark = pytest.mark.anyio

ADD = "Here you are:\n```python\ndef add(a, b):\n    return a + b\n```\n"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Return the directory for temporary files, and check that it is empty afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert [] == list(tmp_path.glob("sampling-*"))


async def sample(text, **settings):
    return await RejectionSamplingStrategy().sample(
        "q", None, ScriptedBackend([text]), [checks.python_runs(**settings)]
    )


def is_running(pid):
    try:
        # A process that has ended and whose parent has too is a zombie for whoever adopted it.
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition):
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another process does not set events
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("x = 1", {}),
        (ADD, {"tests": "assert add(1, 2) == 3"}),
        ("print(6 * 7)", {"expected_output": "42\n"}),
        ("import sys; print('ü'); sys.exit()", {"expected_output": "ü"}),
        ('def f(): return 1\nif __name__ == "__main__":\n    input()', {"tests": "assert f() == 1"}),
        ('if __name__ == "__main__":\n    print("main")', {"expected_output": "main"}),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'", {"tests": "assert A(1) == A(1)"}),
    ],
)
async def test_what_runs_to_its_end_passes(text, settings):
    """The code is a script or, with tests, a module."""
    assert (await sample(text, **settings)).success


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (
            "1 / 0",
            {},
            'File "answer.py", line 1, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero',
        ),
        (ADD, {"tests": "assert add(1, 2) == 4, 'no'"}, 'File "tests.py", line 1'),
        ("def f(:", {}, "the code does not parse: invalid syntax at line 1"),
        ("print(43)", {"expected_output": "42"}, "the code prints '43', and should print '42'"),
        ("import sys; sys.exit('bad')", {}, "answer.py ended with sys.exit('bad')"),
        ("raise KeyboardInterrupt", {}, "KeyboardInterrupt"),
        ("input()", {}, "EOFError"),
        ("import os; os._exit(0)", {"tests": "pass"}, "ended the process itself, before it and its tests"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", {}, "it ended with exit code -15"),
        ("x = [0] * 10**9", {}, "MemoryError"),
        ("open('x', 'w').write('a' * 2_000_000)", {}, "File too large"),
        ("print('a' * 2_000_000)", {}, "File too large"),
        ("files = [open('/dev/null') for _ in range(100)]", {}, "Too many open files"),
        ("while True: pass", {"timeout_s": 0.3}, "the code took longer than 0.3 s"),
    ],
)
async def test_what_does_not_is_told(text, settings, words):
    """The reason has the place and the problem, but no frames of the runner."""
    result = await sample(text, **settings)
    assert not result.success
    [complaint] = result.best.complaints
    assert words in complaint
    assert "_run_python" not in complaint
    assert () == result.errors


async def test_it_is_a_process_of_its_own_with_nothing_of_ours(monkeypatch):
    """It has no environment, no input, an empty directory, no core file, and its own process id."""
    monkeypatch.setenv("SAMPLING_CANARY", "secret")
    code = (
        "import os, resource, sys\n"
        f"assert os.getpid() != {os.getpid()}\n"
        "assert 'SAMPLING_CANARY' not in os.environ, os.environ\n"
        "assert os.listdir() == ['answer.py'], os.listdir()\n"
        "assert sys.flags.isolated and 'sampling' not in sys.modules\n"
        "assert sys.stdin.read() == ''\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "assert resource.getrlimit(resource.RLIMIT_NPROC) == (0, 0)\n"
        "assert resource.getrlimit(resource.RLIMIT_CPU) == (11, 11)\n"
    )
    result = await sample(code)
    assert result.success, result.best.complaints


async def test_what_it_leaves_running_is_killed(tmp_path):
    """The whole process group is killed, even if the code itself succeeded."""
    if os.geteuid() != 0:
        pytest.skip("only root may start processes there at all")
    child = tmp_path / "child"
    write = f"open({str(child)!r}, 'w').write(str(pid))"
    code = f"import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n{write}"
    assert (await sample(code)).success
    pid = int(child.read_text())
    await until(lambda: not is_running(pid))


@pytest.mark.parametrize("ends", ["cancelled", "timed out"])
async def test_a_process_does_not_outlive_its_check(tmp_path, ends):
    """Row 35, I6: it is killed after a cancellation and after a timeout, and its directory is removed."""
    file = tmp_path / "pid"
    code = f"import os, time\nopen({str(file)!r}, 'w').write(str(os.getpid()) + '.')\ntime.sleep(600)"
    timeout_s = 600 if ends == "cancelled" else 1.0
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: sample(code, timeout_s=timeout_s))
        await until(lambda: file.exists() and file.read_text().endswith("."))
        if ends == "cancelled":
            group.cancel_scope.cancel()
    assert not is_running(int(file.read_text()[:-1]))


async def test_a_python_that_is_not_there_fails_closed():
    """The validation has the error."""
    with capture_logs():
        result = await sample("x = 1", python="/nowhere/python")
    assert not result.success
    assert [FileNotFoundError] == [type(error) for error in result.errors]


async def test_no_more_run_at_once_than_there_are_processors(monkeypatch, tmp_path):
    """The others wait, and the wait does not count against their timeout."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    log = tmp_path / "log"
    write = f"print(what, file=open({str(log)!r}, 'a'))"
    code = f"import time\nfor what in ('in', 'out'):\n    {write}\n    time.sleep(0.02)"
    requirement = checks.python_runs()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(requirement.check, code)
    assert ["in", "out"] * 3 == log.read_text().split()
