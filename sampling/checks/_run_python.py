"""
Run code from a model. A script, never imported.

There are two processes. The supervisor runs none of that code: it watches the limits that no system call sets,
and ends whatever the code started. The worker, its child, lowers its own limits and runs `answer.py`.
The tests and a random token are sent to the worker only after the answer has run to its end, and the worker returns
the token after the tests. So the answer finds neither of them, and code that exits early does not count as passed.

The supervisor reads the tests from stdin, and ends everything when stdin is closed: the caller is gone.
Its report on stdout is one line: the exit code of the worker, 1 if the token came back, and a limit that was exceeded.
"""

import linecache
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

MAX_OPEN_FILES = 64
MAX_TASKS = 64
"""Maximum number of processes and threads of the code."""

MAX_FILES = 1_000
MAX_FILES_BYTES = 100_000_000
"""Maximum number and total size of the files and directories in the directory of the code."""

SPARE_TASKS = 256
"""Room for tasks of the same user, which count against the same limit, and which others may start meanwhile."""

POLL_S = 0.02
SEND_TIMEOUT_S = 5.0
"""The worker reads at once, unless the code in it lied about its end."""

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36


def main(cpu_s: str, memory_bytes: str, file_bytes: str, with_tests: str) -> None:
    """Start the worker, and become the supervisor or the worker."""
    prctl(SET_CHILD_SUBREAPER, 1)
    tasks = count_tasks_of_this_user()
    ours, theirs = socket.socketpair()
    worker = os.fork()
    if worker:
        theirs.close()
        Supervisor(worker, ours, int(memory_bytes)).run()
        return
    ours.close()
    prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.setpgid(0, 0)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, int(cpu_s))
    limit(resource.RLIMIT_AS, int(memory_bytes))
    limit(resource.RLIMIT_FSIZE, int(file_bytes))
    limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if tasks is not None:
        limit(resource.RLIMIT_NPROC, tasks + SPARE_TASKS)
    redirect(0, os.devnull, os.O_RDONLY)
    redirect(1, "../stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    run_files(theirs, with_tests=with_tests == "1")


# The worker.


def run_files(channel: socket.socket, *, with_tests: bool) -> None:
    """Run the answer and its tests. An exception ends the process with a nonzero exit code."""
    sys.argv = ["answer.py"]
    sys.excepthook = print_error
    # With tests, the answer is a module: code under `if __name__ == "__main__"` must not run.
    module = ModuleType("answer" if with_tests else "__main__")
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules[module.__name__] = module
    # Bound here, because the answer may replace functions of these modules.
    send, receive, flush = channel.sendall, channel.recv, sys.stdout.flush
    run("answer.py", Path("answer.py").read_text("utf-8"), module)
    send(b".")
    received = [receive(65_536)]
    while received[-1]:
        received.append(receive(65_536))
    message = b"".join(received)
    token, tests = message[:16], message[16:].decode("utf-8", "replace")
    if with_tests:
        linecache.cache["tests.py"] = (len(tests), None, tests.splitlines(keepends=True), "tests.py")
        run("tests.py", tests, module)
    flush()
    send(token)


def run(name: str, code: str, module: ModuleType) -> None:
    """
    Run code in a module.

    `sys.exit()` is fine, unless its code reports a failure, or the answer calls it while its tests run.
    """
    try:
        exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what this process is for
    except SystemExit as end:
        if end.code not in {None, 0}:
            sys.stderr.write(f"{name} ended with sys.exit({end.code!r})\n")
            raise
        if name != "answer.py" and any(
            frame.f_code.co_filename == "answer.py" for frame, _ in traceback.walk_tb(end.__traceback__)
        ):
            sys.exit("answer.py ended its tests with sys.exit()")


def limit(which: int, most: int) -> None:
    """Lower the soft and the hard limit."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError):  # macOS does not limit memory
        resource.setrlimit(which, (most, most))


def redirect(descriptor: int, path: str, flags: int) -> None:
    """Open a file in the place of another one."""
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """
    Print a traceback without the frames of this file.

    They would confuse the model, which gets the traceback as a reason.
    """
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


# The supervisor.


class Supervisor:
    """Waits for the worker, and ends all processes that it started."""

    def __init__(self, worker: int, channel: socket.socket, memory_bytes: int) -> None:
        self._worker = worker
        self._channel = channel
        self._channel.setblocking(False)
        self._memory_bytes = memory_bytes
        self._token = os.urandom(16)
        self._watched: list[int | socket.socket] = [0, channel]
        self._received = b""
        self._status: int | None = None

    def run(self) -> None:
        """Wait for the end of the worker, end the rest, and write the report."""
        tests = self._read_tests()
        problem = ""
        while not problem and not self._has_ended():
            problem = self._step(tests) or exceeded_limit(self._memory_bytes)
        # On a busy machine, the worker may start too many processes and end between two looks.
        problem = problem or exceeded_limit(self._memory_bytes)
        self._read_channel()
        self._kill_all()
        passed = int(self._received == b"." + self._token)
        os.write(1, f"{self._status} {passed} {problem}".encode())

    def _read_tests(self) -> bytes:
        with os.fdopen(os.dup(0), "rb", buffering=0) as stdin:
            wanted = int.from_bytes(stdin.read(8) or b"", "big")
            read = bytearray()
            while len(read) < wanted and (piece := stdin.read(wanted - len(read))):
                read += piece
        return bytes(read)

    def _step(self, tests: bytes) -> str:
        """Wait for an event, or for the next look at the limits."""
        ready, _, _ = select.select(self._watched, [], [], POLL_S)
        if 0 in ready:
            return "the caller is gone"
        if self._channel in ready:
            self._read_channel()
            if self._received == b".":
                self._send(self._token + tests)
        return ""

    def _send(self, message: bytes) -> None:
        self._channel.settimeout(SEND_TIMEOUT_S)
        with suppress(OSError):
            self._channel.sendall(message)
            self._channel.shutdown(socket.SHUT_WR)
        self._channel.setblocking(False)

    def _read_channel(self) -> None:
        try:
            piece = self._channel.recv(64)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._received += piece
        if not piece and self._channel in self._watched:
            self._watched.remove(self._channel)

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._worker, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def _kill_all(self) -> None:
        """Kill all descendants. Orphans are children of this process, so that none escapes."""
        for _ in range(2_000):
            with suppress(ProcessLookupError, PermissionError):
                # One call for the whole group, which not even a fork bomb outruns.
                os.killpg(self._worker, signal.SIGKILL)
            for pid in descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not self._reap():
                return
            time.sleep(0.002)

    def _reap(self) -> bool:
        """Collect ended children. Return True if there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == self._worker:
                self._status = os.waitstatus_to_exitcode(status)
            if not pid:
                return True


def prctl(option: int, value: int) -> None:
    """Call prctl, which only Linux has."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - some builds of Python have none

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def count_tasks_of_this_user() -> int | None:
    """Return the number of processes and threads of this user, or None where it can't be known."""
    total = 0
    with suppress(OSError):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if process.stat().st_uid == os.getuid():
                    total += count_tasks(int(process.name))
    return total or None


def descendants() -> list[int]:
    """Return the children of this process, and theirs. Without /proc there are none to be found."""
    found = [os.getpid()]
    for parent in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 - fast
                with suppress(OSError):
                    found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text("ascii").split())
    return found[1:]


def exceeded_limit(memory_bytes: int) -> str:
    """Return the limit that all processes of the code together exceed, or an empty string."""
    processes = descendants()
    if sum(measure(count_tasks, pid) for pid in processes) > MAX_TASKS:
        return f"it started more than {MAX_TASKS} processes and threads"
    # Resident memory is cheap to read, but counts shared pages once for each process.
    resident = sum(measure(resident_bytes, pid) for pid in processes)
    if resident > memory_bytes and sum(measure(proportional_bytes, pid) for pid in processes) > memory_bytes:
        return f"its processes used more than {memory_bytes // 1_000_000} MB of memory together"
    return exceeded_file_limit(MAX_FILES, MAX_FILES_BYTES)


def exceeded_file_limit(most: int, most_bytes: int) -> str:
    """Return the limit that the files in the working directory exceed, or an empty string."""
    count, size, directories = 0, 0, ["."]
    for directory in directories:
        # The code may remove it, or nest directories until their path is too long.
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                else:
                    size += measure_file(entry)
                if count > most:
                    return f"it wrote more than {most:,} files and directories"
                if size > most_bytes:
                    return f"it wrote more than {most_bytes // 1_000_000} MB of files"
    return ""


def measure_file(entry: "os.DirEntry[str]") -> int:
    """Return the size of a file, 0 if it has been removed."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def measure(function: Callable[[int], int], pid: int) -> int:
    """Call a function that reads /proc, and return 0 for a process that has ended."""
    try:
        return function(pid)
    except (OSError, ValueError, IndexError):
        return 0


def count_tasks(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - fast


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def proportional_bytes(pid: int) -> int:
    """Return the resident memory, where a page that n processes share counts as 1/n."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
