"""
Run code from a model. A script, never imported.

It runs in a separate process, and sets its resource limits before it reads that code.
`answer.py`, and optionally `tests.py`, are in the working directory.
The file `token` is created only after both have run to the end,
so that code that exits early does not count as code that passed.
"""

import resource
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

MAX_OPEN_FILES = 64


def main(cpu_s: str, memory_bytes: str, file_bytes: str, token: str) -> None:
    """
    Set the limits and run the files.

    An exception ends the process with a nonzero exit code.
    """
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, int(cpu_s))
    limit(resource.RLIMIT_AS, int(memory_bytes))
    limit(resource.RLIMIT_FSIZE, int(file_bytes))
    limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    limit(resource.RLIMIT_NPROC, 0)
    sys.excepthook = print_error
    answer, tests = Path("answer.py"), Path("tests.py")
    # With tests, the answer is a module: code under `if __name__ == "__main__"` must not run.
    module = ModuleType("answer" if tests.exists() else "__main__")
    sys.modules[module.__name__] = module
    run(answer, module)
    if tests.exists():
        run(tests, module)
    sys.stdout.flush()
    Path(token).touch()


def limit(which: int, most: int) -> None:
    """Lower the soft and the hard limit."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError):  # macOS does not limit memory
        resource.setrlimit(which, (most, most))


def run(path: Path, module: ModuleType) -> None:
    """
    Run a file in a module.

    `sys.exit()` is fine, unless its code reports a failure.
    """
    try:
        exec(compile(path.read_text("utf-8"), path.name, "exec"), module.__dict__)  # noqa: S102 - what this process is for
    except SystemExit as end:
        if end.code not in {None, 0}:
            sys.stderr.write(f"{path.name} ended with sys.exit({end.code!r})\n")
            raise


def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """
    Print a traceback without the frames of this file.

    They would confuse the model, which gets the traceback as a reason.
    """
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main(*sys.argv[1:])
