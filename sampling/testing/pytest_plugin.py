"""
A pytest plugin: cassettes as a fixture, and pass rates in the summary.

pytest loads it automatically if this library is installed. `-p no:sampling` turns it off.
"""

import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sampling.errors import MissingExtra

try:
    import pytest
except ImportError as _error:
    raise MissingExtra("the pytest plugin", "pytest", "pytest") from _error

if TYPE_CHECKING:
    from sampling.protocols import Backend, BackendLike

__all__ = ["OpenCassette", "cassette"]

OpenCassette: TypeAlias = "Callable[[BackendLike], Backend]"
"""The type of the fixture `cassette`."""

_PROPERTY = "sampling_pass_rate"
_passed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-cassettes`."""
    group = parser.getgroup("sampling", "sampling: answers of language models")
    group.addoption(
        "--record-cassettes",
        nargs="?",
        const="missing",
        choices=["missing", "all"],
        help="ask the real backend where a test has no cassette yet, and record its answers."
        " --record-cassettes=all records existing ones again. Requests may cost money.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether a test passed, because cassettes are kept only then."""
    report = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Generator[OpenCassette]:
    """
    Replay the answers of a backend: `backend = cassette(OpenAIBackend(…))`.

    The file is `cassettes/MODULE/TEST.jsonl` beside the test's module. `pytest --record-cassettes` records it.
    """
    # Imported here, because pytest imports plugins before anything can measure coverage.
    from sampling.backends.layers import Recorded, Replayed  # noqa: PLC0415

    mode: str | None = request.config.getoption("--record-cassettes")
    folder = request.path.parent / "cassettes" / request.path.stem
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    recorded: dict[Path, Path] = {}
    opened = 0

    def open_cassette(backend: "BackendLike") -> "Backend":
        nonlocal opened
        opened += 1
        path = folder / (f"{name}.jsonl" if opened == 1 else f"{name}-{opened}.jsonl")
        if mode == "all" or (mode == "missing" and not path.exists()):
            folder.mkdir(parents=True, exist_ok=True)
            recorded[path] = path.with_suffix(".recording")
            recorded[path].unlink(missing_ok=True)
            return Recorded(backend, recorded[path])
        if not path.exists():
            hint = f"Record it with: pytest --record-cassettes {request.node.nodeid!r}"
            pytest.fail(f"{path} does not exist. {hint}", pytrace=False)
        return Replayed(path)

    yield open_cassette
    # A failed test would always be replayed as a failure, so the old cassette stays.
    for path, recording in recorded.items():
        if request.node.stash.get(_passed, False):
            recording.replace(path)
        else:
            recording.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Collect the pass rates of a test in its properties, which also reach the JUnit file and pytest-xdist."""
    from sampling.testing import pass_rate  # noqa: PLC0415

    def observe(rate: pass_rate.PassRate) -> None:
        item.user_properties.append((_PROPERTY, str(rate)))

    pass_rate.observers.append(observe)
    try:
        return (yield)
    finally:
        pass_rate.observers.remove(observe)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the pass rates."""
    lines = [
        f"{report.nodeid}: {value}"
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if lines:
        terminalreporter.write_sep("=", "pass rates")
        for line in lines:
            terminalreporter.write_line(line)
