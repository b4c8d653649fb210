"""Log lines go where the application sends them, and to stdout only if it says so."""

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

import sampling
from sampling import RejectionSamplingStrategy
from sampling._log import Logger
from sampling.telemetry import logging_hooks
from sampling.testing import ScriptedBackend

NOISY = Path(__file__).parent / "install" / "noisy.py"
WARNINGS = {"connections_not_reused", "hook_failed", "event_loop_blocked", "attempt_failed", "maybe_billed_twice"}


@pytest.fixture(autouse=True)
def _defaults():
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def run_program(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603


def test_no_module_has_a_logger_of_its_own():
    """Only `_log` knows where lines go, so that no line of another module goes to stdout."""
    package = Path(sampling.__file__).parent
    users = [path.name for path in package.rglob("*.py") if re.search(r"structlog\.(get|wrap)_logger\(", code_of(path))]
    assert ["_log.py"] == users


def code_of(path: Path) -> str:
    """Return the source without docstrings and comments."""
    return ast.unparse(WithoutDocstrings().visit(ast.parse(path.read_text("utf-8"))))


class WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def test_an_unconfigured_application_gets_warnings_on_stderr_and_nothing_else():
    """`sample_sync`, retries, a broken hook, and a resumed run leave stdout alone."""
    done = run_program(str(NOISY))
    assert (done.returncode, done.stdout) == (0, "")
    words = [line.split() for line in done.stderr.splitlines()]
    assert {name.rstrip(":").split(".")[0] for name, *_ in words} == {"sampling"}
    assert {event for _, event, *_ in words} == WARNINGS


def test_configured_standard_logging_gets_all_levels_and_the_place_of_the_call():
    """With `logging.basicConfig(level=INFO)`, retries are logged too, with the module that wrote the line."""
    done = run_program(str(NOISY), "standard")
    assert (done.returncode, done.stdout) == (0, "")
    written = {tuple(line.split()[:3]) for line in done.stderr.splitlines()}
    assert ("INFO", "_retrying", "request_retried") in written
    assert ("WARNING", "hooks", "hook_failed") in written
    assert WARNINGS <= {event for _, _, event in written}


HOOKS = """
from sampling import RejectionSamplingStrategy
from sampling.telemetry import logging_hooks
from sampling.testing import ScriptedBackend
RejectionSamplingStrategy(hooks=logging_hooks()).sample_sync("hi", None, ScriptedBackend(["yes"]))
"""


@pytest.mark.parametrize(
    ("before", "sign"),
    [
        ("", "[info     ] loop_started"),
        ("import logging\nlogging.basicConfig(level=logging.INFO)", "INFO:sampling:loop_started"),
    ],
)
def test_the_logging_hooks_write_every_line_to_stderr(before, sign):
    """They were asked for, so their lines appear without a configuration, but not on stdout."""
    done = run_program("-c", before + HOOKS)
    assert (done.returncode, done.stdout) == (0, "")
    assert sign in done.stderr
    assert 4 == len(done.stderr.splitlines())


def test_the_logging_hooks_follow_the_level_of_standard_logging():
    """An application that configured `logging` for warnings gets no lines at level info."""
    done = run_program("-c", "import logging\nlogging.basicConfig()" + HOOKS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_configured_structlog_gets_every_line(capsys):
    """The application chose its processors and its destination."""
    structlog.configure(processors=[lambda _logger, level, line: f"{level}: {line['event']} {line['tries']}"])
    Logger().info("request_retried", tries=1)
    Logger().warning("request_retried", tries=2)
    assert ("info: request_retried 1\nwarning: request_retried 2\n", "") == capsys.readouterr()


@pytest.mark.parametrize("configured", [True, False])
def test_capture_logs_sees_every_line(configured):
    """`structlog.testing.capture_logs` works whether structlog was configured or not."""
    if configured:
        structlog.configure(processors=[structlog.processors.JSONRenderer()])
    with capture_logs() as lines:
        Logger().info("seen", by="us")
        strategy = RejectionSamplingStrategy(hooks=logging_hooks())
        strategy.sample_sync("hi", None, ScriptedBackend(["yes"]))
    assert {"event": "seen", "by": "us", "log_level": "info"} == lines[0]
    assert "loop_finished" == lines[-1]["event"]


def test_stdout_stays_empty_after_capture_logs(capsys, caplog):
    """`capture_logs` leaves structlog configured with its defaults, which nobody chose."""
    with capture_logs():
        pass
    assert structlog.is_configured()
    Logger().warning("attempt_failed")
    assert ("", "") == capsys.readouterr()
    assert ["attempt_failed"] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_every_level_reaches_standard_logging(caplog, level):
    """The fields are in the message, where a percent sign is text and a line break is escaped."""
    caplog.set_level(logging.DEBUG)
    getattr(Logger("sampling.part"), level)("seen", share="100 %d", text="a\nb")
    [record] = caplog.records
    assert (level.upper(), "sampling.part") == (record.levelname, record.name)
    assert r"seen share='100 %d' text='a\nb'" == record.getMessage()
    assert "test_log" == record.module
