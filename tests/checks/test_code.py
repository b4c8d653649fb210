"""Row 77: code from a model runs in a limited process of its own, and leaves nothing behind."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy, checks
from sampling.checks._directories import remove
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
        ("def f(): return 1", {"tests": "import sys\nassert f() == 1\nsys.exit(0)"}),
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
        ("def f(): raise SystemExit", {"tests": "assert f() == 1"}, "answer.py ended its tests with sys.exit()"),
        ("import sys\ndef f(): sys.exit(0)", {"tests": "for _ in f, f: _()\nassert 0"}, "answer.py ended its tests"),
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
        "assert resource.getrlimit(resource.RLIMIT_NPROC)[0] > 0\n"
        "assert sys.argv == ['answer.py'], sys.argv\n"
        "assert resource.getrlimit(resource.RLIMIT_CPU) == (11, 11)\n"
    )
    result = await sample(code)
    assert result.success, result.best.complaints


THREADS = "import threading\nthread = threading.Thread(target=print, args=['hi'])\nthread.start()\nthread.join()"
POOL = "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(4) as pool: list(pool.map(abs, range(9)))"
CHILD = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', '6*7'], check=True).returncode)"


@pytest.mark.parametrize("code", [THREADS, POOL, CHILD, "import asyncio\nasyncio.run(asyncio.to_thread(print, 1))"])
async def test_threads_and_processes_work_for_every_user(code):
    """The limit on processes and threads leaves room for correct programs, also if the user is not root."""
    result = await sample(code)
    assert result.success, result.best.complaints


async def test_numpy_works_for_every_user():
    """It starts threads when it is imported, and needs memory for each of them."""
    pytest.importorskip("numpy")
    result = await sample("import numpy\nprint(numpy.arange(6).reshape(2, 3) @ numpy.ones(3))", timeout_s=60)
    assert result.success, result.best.complaints


SEARCH = """
import gc, os, pathlib, re, sys
found = []
def look(text):
    found.extend(re.findall("xyz" + "zy-[0-9]+", str(text)))
frame = sys._getframe()
while frame:
    look(frame.f_locals); look(frame.f_globals); frame = frame.f_back
look(sys.argv); look(sys.orig_argv); look(os.environ); look(gc.get_objects())
for name in ("cmdline", "environ"):
    for pid in ("self", os.getppid()):
        look(pathlib.Path(f"/proc/{pid}/{name}").read_text())
for folder, _, files in os.walk(os.path.dirname(os.getcwd())):
    for file in files:
        if file != "answer.py":
            look(pathlib.Path(folder, file).read_text())
def secret():
    return found[0] if found else None
"""


async def test_an_answer_cannot_find_its_tests():
    """They are in no argument, file, variable or frame while the answer runs."""
    result = await sample(SEARCH, tests="assert secret() == 'xyzzy-42', secret()", timeout_s=60)
    assert not result.success
    assert "AssertionError: None" in result.best.complaints[0]


@pytest.mark.parametrize(
    "code",
    [
        "import sys, os\nfor name in sys.argv[1:]: open(name, 'a').close()\nos._exit(0)",
        "import sys, os\nfor name in sys.orig_argv[1:]: open(name, 'a').close()\nos._exit(0)",
        "import os\nos._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'.' * 17)\n    except OSError: pass\nos._exit(0)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass",
    ],
)
async def test_an_answer_cannot_pass_without_its_tests(code):
    """Neither by ending early, nor by what it finds in its arguments or open files, nor by killing its parent."""
    assert not (await sample(code, tests="assert False", timeout_s=20)).success


def processes_below(folder):
    """Return the processes whose working directory is in a folder. Those of other users can't be read."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((process / "cwd").readlink()).startswith(str(folder)):
                found.append(process.name)
    return [pid for pid in found if is_running(pid)]


CHILDREN = "import os, time\nif os.fork() == 0: time.sleep(600)"
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("../started", "w").close()
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists("../started"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "code", ["import os, time\nif os.fork() == 0: time.sleep(600)", DAEMON], ids=["child", "daemon"]
)
async def test_what_it_leaves_running_is_killed(temporary, code):
    """All of its processes are, even if the code itself succeeded, and even those in a session of their own."""
    result = await sample(code)
    assert result.success, result.best.complaints
    assert [] == processes_below(temporary)


BOMB = "import os, time\nfor _ in range(9): os.fork()\ntime.sleep(600)"
SESSIONS = (
    "import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n"
)
# Small stacks, because by default those of 90 threads exceed the memory first.
THREAD_BOMB = """
import threading, time
threading.stack_size(65536)
for _ in range(90):
    threading.Thread(target=time.sleep, args=[600]).start()
"""
HOGS = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(os.urandom(1000)) * 50_000
        time.sleep(600)
time.sleep(600)
"""


MANY_FILES = "for number in range(10_000): open(str(number), 'w').close()"
LARGE_FILES = "for number in range(150): open(str(number), 'wb').write(bytes(900_000))"
NESTED = "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        # On a busy machine, the limit of the system may come before the supervisor looks.
        (BOMB, "it started more than 64 processes and threads|Resource temporarily unavailable"),
        (SESSIONS, "it started more than 64 processes and threads|Resource temporarily unavailable"),
        (THREAD_BOMB, "it started more than 64 processes and threads|can't start new thread"),
        (HOGS, "its processes used more than 128 MB of memory together"),
        ("x = bytearray(200_000_000)", "MemoryError"),
        ("while True: print('a' * 10_000)", "File too large"),
        (MANY_FILES, "it wrote more than 1,000 files and directories"),
        (LARGE_FILES, "it wrote more than 100 MB of files"),
        (NESTED, "it wrote more than 1,000 files and directories"),
        (
            "import subprocess\nwhile True: subprocess.run(['/bin/echo', 'a' * 10_000], check=True)",
            "died with <Signals.SIGXFSZ",
        ),
    ],
    ids=["bomb", "sessions", "threads", "hogs", "hog", "flood", "files", "large files", "nested", "flood of a child"],
)
async def test_the_limits_hold_for_all_processes_together(temporary, code, words):
    """A fork bomb, memory in many processes, endless output and files end the code, and leave nothing."""
    result = await sample(code, memory_mb=128, timeout_s=60)
    assert not result.success
    assert re.search(words, result.best.complaints[0])
    assert [] == processes_below(temporary)


async def test_links_and_a_few_files_are_fine():
    """The files behind a link do not count."""
    result = await sample("import os\nos.symlink('/', 'root')\nos.mkfifo('pipe')\nopen('a', 'w').write('x')")
    assert result.success, result.best.complaints


def test_a_directory_is_removed_however_deeply_others_are_nested_in_it(tmp_path):
    """Before Python 3.14, shutil raises a RecursionError, and removes nothing."""
    directory = tempfile.TemporaryDirectory(dir=tmp_path)
    where = os.open(directory.name, os.O_RDONLY)
    for number in range(3_000):
        for name in (f"{number}", "beside"):
            os.mkdir(name, dir_fd=where)
        os.symlink("..", "link", dir_fd=where)
        below = os.open(f"{number}", os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = below
    os.close(where)
    remove(directory)
    assert [] == list(tmp_path.iterdir())


async def test_nothing_runs_on_when_the_program_is_killed(tmp_path):
    """After `kill -9` of the program, the code and its processes end, too."""
    file = tmp_path / "pid"
    code = f"import os, time\nos.fork()\nopen({str(file)!r}, 'a').write('.')\ntime.sleep(600)"
    program = f"import anyio\nfrom sampling import checks\nanyio.run(checks.python_runs(timeout_s=600).check, {code!r})"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    async with await anyio.open_process([sys.executable, "-c", program], env=environment) as process:
        await until(lambda: file.exists() and file.read_text() == "..")
        process.kill()
        await process.wait()
    await until(lambda: not processes_below(tmp_path))
    for folder in tmp_path.glob("sampling-*"):
        shutil.rmtree(folder)


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
