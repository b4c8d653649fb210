"""Requirements for Python code: it parses, or it runs."""

import ast
import os
import secrets
import signal
import subprocess
import sys
import warnings
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
from sampling._engine.validation import limiter_of_this_loop
from sampling._text import unfenced
from sampling.requirements import Requirement, Validation, Verdict

__all__ = ["python_parses", "python_runs"]

MAX_SOURCE_CHARS = 50_000
"""Maximum length of code, because Python's parser has no timeout."""

_SCRIPT = Path(__file__).with_name("_run_python.py")
_MAX_FILE_BYTES = 1_000_000
_MAX_QUOTED_CHARS = 1_000
_QUEUE_TIMEOUT_S = 600.0
"""Maximum time to wait for a free processor. It does not count against the timeout of the code."""

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
    in an empty directory, with an empty environment and Python's isolated mode,
    with limits on time, memory, file size, open files and processes. Leftover processes are killed.
    This contains accidents, such as endless loops, memory leaks and stray files.
    It is not a sandbox: malicious code can read your files and use the network.
    If that is a risk, run your program in a container or a virtual machine.

    Args:
        tests: Python that runs after the answer, in the same module, such as `assert add(1, 2) == 3`.
            Then the answer is a module, not a script: code under `if __name__ == "__main__"` does not run.

        expected_output: The text that it must print, without surrounding whitespace. None accepts any output.

        timeout_s: Maximum wall-clock time. The limit on processor time is a little higher.

        memory_mb: Maximum memory, at least 64. Ignored on systems that can't limit it, such as macOS.

        python: The Python interpreter to run it with.

    It needs a POSIX system.
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
                await anyio.to_thread.run_sync(_write, Path(directory.name), code, self.tests)
                return await self._run(Path(directory.name))
            finally:
                # Remove the directory even if the call was cancelled.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(directory.cleanup)

    async def _run(self, directory: Path) -> Validation:
        # The name is random, so that the code can't create the file by accident.
        token = directory / secrets.token_hex(16)
        process = await self._start(directory, token)
        async with process:
            try:
                with anyio.move_on_after(self.timeout_s) as timeout:
                    await process.wait()
            finally:
                _kill_group(process)
        if timeout.cancelled_caught:
            return Validation(False, f"the code took longer than {self.timeout_s:g} s: make it faster, or make it end")
        return await anyio.to_thread.run_sync(self._verdict, directory, token, process.returncode)

    async def _start(self, directory: Path, token: Path) -> Process:
        # One second more than the wall-clock timeout, so that the timeout comes first: it has the better reason.
        limits = (ceil(self.timeout_s) + 1, self.memory_bytes, _MAX_FILE_BYTES, token)
        # Write output to files: leftover child processes would keep a pipe open.
        with (directory / "stdout").open("wb") as stdout, (directory / "stderr").open("wb") as stderr:
            return await anyio.open_process(
                [self.python, "-I", "-B", "-X", "utf8", str(_SCRIPT), *map(str, limits)],
                cwd=directory / "work",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # A process group of its own, so that one signal reaches its children, too.
                start_new_session=True,
            )

    def _verdict(self, directory: Path, token: Path, returncode: int | None) -> Validation:
        if returncode != 0:
            stderr = _read(directory / "stderr").strip()[-_MAX_QUOTED_CHARS:]
            return Validation(False, f"the code failed: {stderr or _describe_exit(returncode)}")
        if not token.exists():
            return Validation(False, "the code ended the process itself, before it and its tests had run to their end")
        if self.expected_output is None:
            return Validation(True)
        printed, wanted = _read(directory / "stdout").strip(), self.expected_output.strip()
        return Validation(
            printed == wanted,
            f"the code prints {printed[:_MAX_QUOTED_CHARS]!r}, and should print {wanted[:_MAX_QUOTED_CHARS]!r}",
        )


def _write(directory: Path, code: str, tests: str) -> None:
    work = directory / "work"
    work.mkdir()
    (work / "answer.py").write_text(code, "utf-8", "replace")
    if tests:
        (work / "tests.py").write_text(tests, "utf-8", "replace")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")


def _kill_group(process: Process) -> None:
    """Kill a process and its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _describe_exit(returncode: int | None) -> str:
    if returncode == -signal.SIGKILL:
        return "it was killed, because it used too much processor time or memory"
    return f"it ended with exit code {returncode} and printed no error"
