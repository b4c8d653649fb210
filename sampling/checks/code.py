"""Requirements for Python code: it parses, or it runs."""

import ast
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import attrs
from anyio.abc import Process
from anyio.lowlevel import RunVar

from sampling._arguments import check_int, check_number, check_str
from sampling._event_loop import limiter_of_this_loop
from sampling._text import unfenced
from sampling.checks._directories import remove
from sampling.requirements import Requirement, Validation, Verdict

__all__ = ["python_imports", "python_parses", "python_runs"]

MAX_SOURCE_CHARS = 50_000
"""Maximum length of code, because Python's parser has no timeout."""

_SCRIPT = Path(__file__).with_name("_run_python.py")
_MAX_FILE_BYTES = 1_000_000
_MAX_QUOTED_CHARS = 1_000
_QUEUE_TIMEOUT_S = 600.0
"""Maximum time to wait for a free processor. It does not count against the timeout of the code."""

_END_TIMEOUT_S = 10.0
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Keep numerical libraries from starting a thread for each processor, which takes much of the memory."""

_processors: RunVar[anyio.CapacityLimiter] = RunVar("sampling_python_processes")


def python_parses() -> Requirement:
    """
    Require Python that parses.

    It checks the first ``` block, or the whole answer if there is none. Nothing is run.
    `Action("…", checks.unfenced)` makes the code alone the value of the result.
    """
    return Requirement("is Python that parses", _parses)


def _parses(text: str) -> Verdict:
    problem = _syntax_problem(unfenced(text))
    return problem is None, problem


def python_imports(*allowed: str) -> Requirement:
    """
    Require Python that imports only these modules.

    It checks the first ``` block, or the whole answer if there is none. Nothing is run.
    A name allows its submodules, too. Imports by other means, such as `__import__` and `importlib`, are refused.
    This checks only the imports that the code declares. It does not make the code safe to run.
    """
    names = [check_str("a name of python_imports()", name, empty=False) for name in allowed]
    listed = ", ".join(names) or "nothing"

    def imports_allowed(text: str) -> Verdict:
        code = unfenced(text)
        problem = _syntax_problem(code)
        if problem is not None:
            return False, problem
        found = {name for node in ast.walk(ast.parse(code)) for name in _imported(node)}
        refused = sorted(name for name in found if not any(f"{name}.".startswith(f"{one}.") for one in names))
        return not refused, f"it imports {', '.join(refused)}: import {listed} only"

    return Requirement(f"imports {listed} only", imports_allowed)


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a statement or call imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "." * node.level + (node.module or "")
    elif isinstance(node, ast.Name) and node.id in {"__import__", "__builtins__", "__loader__"}:
        yield node.id
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"exec", "eval"}:
        yield f"{node.func.id}()"


def _syntax_problem(code: str) -> str | None:
    if not code.strip():
        return "there is no code: answer with Python in a ``` block"
    if len(code) > MAX_SOURCE_CHARS:
        return f"the code is longer than {MAX_SOURCE_CHARS:,} characters: make it shorter"
    try:
        with warnings.catch_warnings():
            # A SyntaxWarning, such as for an invalid escape, is about the model's code, not about this program.
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        line = (error.text or "").strip()[:80]
        return f"the code does not parse: {error.msg} at line {error.lineno}{f', {line!r}' if line else ''}"
    except (ValueError, MemoryError, RecursionError) as error:
        return f"the code does not parse: {'it is nested too deeply' if not isinstance(error, ValueError) else error}"
    return None


def python_runs(
    *,
    tests: str = "",
    expected_output: str | None = None,
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    python: str = sys.executable,
) -> Requirement:
    """
    Require Python that runs to the end.

    It runs the first ``` block, or the whole answer if there is none, in a separate process:
    in an empty directory, with an environment of its own and Python's isolated mode,
    with limits on time, memory, files, open files, processes and threads. Leftover processes are killed.
    This contains accidents, such as endless loops, memory leaks, fork bombs and stray files.
    The tests are not on disk, and not in the process until the answer has run.
    It is not a sandbox: malicious code can read your files, use the network, and deceive tests that it runs with.
    If that is a risk, run your program in a container or a virtual machine.

    Args:
        tests: Python that runs after the answer, in the same module, such as `assert add(1, 2) == 3`.
            Then the answer is a module, not a script: code under `if __name__ == "__main__"` does not run.

        expected_output: The text that it must print, without surrounding whitespace. None accepts any output.

        timeout_s: Maximum wall-clock time. The limit on processor time is a little higher.

        memory_mb: Maximum memory of each process and of all together, at least 64. macOS can't limit it.

        python: The Python interpreter to run it with.

    A file has at most 1 MB. The directory has at most 1,000 files and directories with 100 MB. These two are checked
    fifty times a second, so that a burst may exceed them before it is stopped.

    It needs a POSIX system. The limit on processes and threads, 64 together, needs Linux.
    """
    if os.name != "posix":
        raise NotImplementedError("python_runs() needs a POSIX system, because others can't limit a process")
    check_str("tests", tests)
    if expected_output is not None:
        check_str("expected_output", expected_output)
    seconds = check_number("timeout_s", timeout_s, above=0)
    runner = _Runner(
        tests=tests,
        expected_output=expected_output,
        timeout_s=seconds,
        memory_bytes=check_int("memory_mb", memory_mb, least=64) * 1_000_000,
        python=check_str("python", python, empty=False),
    )
    if tests and (problem := _syntax_problem(tests)) is not None:
        raise ValueError(f"tests must be Python, got {tests[:80]!r}: {problem}")
    description = "is Python that passes its tests" if tests else "is Python that runs"
    if expected_output is not None:
        description += " and prints the expected output"
    # The requirement may wait for a processor first, and only the code has the shorter timeout.
    return Requirement(description, runner.check, timeout_s=seconds + _QUEUE_TIMEOUT_S)


@attrs.frozen(kw_only=True)
class _Runner:
    """Run code in a separate process."""

    tests: str
    expected_output: str | None
    timeout_s: float
    memory_bytes: int
    python: str

    async def check(self, text: str) -> Validation:
        """Run the code as soon as a processor is free."""
        code = unfenced(text)
        problem = _syntax_problem(code)
        if problem is not None:
            return Validation(False, problem)
        # More processes than processors would make correct code exceed its timeout.
        async with limiter_of_this_loop(_processors, os.cpu_count() or 1):
            directory = TemporaryDirectory(prefix="sampling-", ignore_cleanup_errors=True)
            try:
                await anyio.to_thread.run_sync(_write, Path(directory.name), code)
                return await self._run(Path(directory.name))
            finally:
                # Remove the directory even if the call was cancelled.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove, directory)

    async def _run(self, directory: Path) -> Validation:
        process = await self._start(directory)
        report = b""
        async with process:
            try:
                with anyio.move_on_after(self.timeout_s) as timeout:
                    report = await self._supervise(process)
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
        if timeout.cancelled_caught:
            return Validation(False, f"the code took longer than {self.timeout_s:g} s: make it faster, or make it end")
        return await anyio.to_thread.run_sync(self._verdict, directory, report.decode())

    async def _start(self, directory: Path) -> Process:
        work = str(directory / "work")
        # One second more than the wall-clock timeout, so that the timeout comes first: it has the better reason.
        limits = (ceil(self.timeout_s) + 1, self.memory_bytes, _MAX_FILE_BYTES, int(bool(self.tests)))
        with (directory / "stderr").open("wb") as stderr:
            return await anyio.open_process(
                [self.python, "-I", "-B", "-X", "utf8", str(_SCRIPT), *map(str, limits)],
                cwd=work,
                env={"HOME": work, "TMPDIR": work, **_ONE_THREAD},
                stderr=stderr,
                # A session of its own, so that Ctrl-C in a terminal does not reach it.
                start_new_session=True,
            )

    async def _supervise(self, process: Process) -> bytes:
        """Send the tests, and return the report of the supervisor, which is empty if it was killed."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        tests = self.tests.encode("utf-8", "replace")
        report = b""
        with suppress(anyio.BrokenResourceError):
            await process.stdin.send(len(tests).to_bytes(8, "big") + tests)
        async for piece in process.stdout:
            report += piece
        return report

    def _verdict(self, directory: Path, report: str) -> Validation:
        status, passed, problem = (report or " 0 ").split(" ", 2)
        if problem:
            return Validation(False, f"the code failed: {problem}")
        if status not in {"", "0"}:
            stderr = _read(directory / "stderr").strip()[-_MAX_QUOTED_CHARS:]
            return Validation(False, f"the code failed: {stderr or _describe_exit(int(status))}")
        if passed != "1":
            return Validation(False, "the code ended the process itself, before it and its tests had run to their end")
        if self.expected_output is None:
            return Validation(True)
        printed, wanted = _read(directory / "stdout").strip(), self.expected_output.strip()
        return Validation(
            printed == wanted,
            f"the code prints {printed[:_MAX_QUOTED_CHARS]!r}, and should print {wanted[:_MAX_QUOTED_CHARS]!r}",
        )


def _write(directory: Path, code: str) -> None:
    work = directory / "work"
    work.mkdir()
    (work / "answer.py").write_text(code, "utf-8", "replace")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")


async def _end(process: Process) -> None:
    """End the supervisor, which ends all processes of the code."""
    if process.stdin is not None:
        await process.stdin.aclose()
    with anyio.move_on_after(_END_TIMEOUT_S):
        await process.wait()
        return
    with suppress(ProcessLookupError):
        process.kill()


def _describe_exit(returncode: int) -> str:
    if returncode in {-signal.SIGKILL, -signal.SIGXCPU}:
        return "it was killed, because it used too much processor time or memory"
    return f"it ended with exit code {returncode} and printed no error"
