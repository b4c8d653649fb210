"""
Run code from a model: the script of a process of its own, never imported.

It limits itself before it reads a line of that code. `answer.py`, and `tests.py` if there is one, lie in the
working directory; the file that `token` names is written only after both have run to their end,
so that code which ends the process early is not mistaken for code that passed.
"""

import resource
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

MAX_OPEN_FILES = 64


def main(cpu_s: str, memory_bytes: str, file_bytes: str, token: str) -> None:
    """Set the limits and run what is there; whatever it raises ends the process with an exit code that is not 0."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, int(cpu_s))
    limit(resource.RLIMIT_AS, int(memory_bytes))
    limit(resource.RLIMIT_FSIZE, int(file_bytes))
    limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    limit(resource.RLIMIT_NPROC, 0)
    sys.excepthook = tell
    answer, tests = Path("answer.py"), Path("tests.py")
    # With tests, what the answer does only when it is run as a script is not wanted.
    module = ModuleType("answer" if tests.exists() else "__main__")
    sys.modules[module.__name__] = module
    run(answer, module)
    if tests.exists():
        run(tests, module)
    sys.stdout.flush()
    Path(token).touch()


def limit(which: int, most: int) -> None:
    """Lower a limit for good."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError):  # macOS does not limit memory
        resource.setrlimit(which, (most, most))


def run(path: Path, module: ModuleType) -> None:
    """Run a file in a module; that it ends by `sys.exit()` is fine, unless it says that something failed."""
    try:
        exec(compile(path.read_text("utf-8"), path.name, "exec"), module.__dict__)  # noqa: S102 - what this process is for
    except SystemExit as end:
        if end.code not in {None, 0}:
            sys.stderr.write(f"{path.name} ended with sys.exit({end.code!r})\n")
            raise


def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback without the frames of this file, which are none of the model's business."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main(*sys.argv[1:])
