"""`import sampling` imports the four core packages, their own dependencies, and nothing else."""

import json
import subprocess
import sys

import pytest

# anyio imports its own parts, and what they need, when they are used.
CORE = "import anyio.lowlevel, anyio.to_thread, attrs, structlog, tenacity; from anyio import CancelScope, run"
OPTIONAL = ("httpcore2", "httpx2", "matplotlib", "mellea", "pydantic", "ray", "rich", "trio", "typer", "xllamacpp")


def modules_after(statements: str) -> set[str]:
    """Return all modules that a new interpreter has loaded after these statements."""
    program = f"{statements}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    # -P: what lies in the working directory is not what is installed.
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def ours() -> set[str]:
    return modules_after("import sampling")


@pytest.fixture(scope="module")
def theirs() -> set[str]:
    return modules_after(CORE)


def packages(modules: set[str]) -> set[str]:
    """Return the top-level names that are not in the standard library."""
    return {module.partition(".")[0] for module in modules} - sys.stdlib_module_names


def test_it_imports_no_package_but_the_core_ones(ours, theirs):
    """Only `sampling` itself is added to what the four core packages import."""
    assert packages(ours) - packages(theirs) == {"sampling"}


@pytest.mark.parametrize("package", OPTIONAL)
def test_it_imports_no_optional_package(ours, theirs, package):
    """Optional packages are not imported even if installed, except rich, which structlog imports."""
    assert package not in packages(ours) - packages(theirs)


def test_a_call_runs_where_no_optional_package_is_installed():
    """The core, the test doubles and the logging hooks need only the four core packages."""
    modules = modules_after(f"""
import sys
from importlib.machinery import PathFinder

class NothingOptional(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = NothingOptional

from sampling import RejectionSamplingStrategy
from sampling.telemetry import logging_hooks
from sampling.testing import ScriptedBackend
strategy = RejectionSamplingStrategy(hooks=logging_hooks())
assert strategy.sample_sync("hi", None, ScriptedBackend(["yes"])).success
""")
    assert not packages(modules) & set(OPTIONAL)


def test_it_does_not_look_for_plugins_yet(ours, theirs):
    """importlib.metadata takes longer to import than the library, so the first call does it."""
    assert "importlib.metadata" not in ours - theirs


def test_it_does_not_import_an_event_loop(ours, theirs):
    """The event loop is detected when a call runs: trio users don't need asyncio, nor the reverse."""
    assert "anyio._backends._asyncio" not in ours
    assert "anyio._backends._trio" not in ours
    assert "asyncio" not in ours - theirs


def test_it_leaves_out_what_only_some_need(ours):
    """Testing, telemetry, backends, load and the command line are imported on first use."""
    parts = {module.removeprefix("sampling.").partition(".")[0] for module in ours if module.startswith("sampling.")}
    assert not parts & {"cli", "load", "telemetry", "testing"}
    backends = {module.removeprefix("sampling.backends.") for module in ours if module.startswith("sampling.backends.")}
    # What budget forcing is made of; none of it asks anyone.
    assert backends <= {"layers", "layers._layer"}


def test_it_leaves_out_strategies_that_nobody_asked_for():
    """A strategy is imported on first use, and what anyio needs to run tasks with the first call."""
    modules = modules_after("from sampling import RejectionSamplingStrategy")
    loaded = {module for module in modules if module.startswith("sampling.strategies.")}
    assert loaded == {"sampling.strategies.rejection"}
    assert not modules & {"anyio._core._tasks", "anyio.from_thread", "typing_extensions", "_hashlib"}


@pytest.mark.parametrize("backend", ["AnthropicBackend", "GeminiBackend", "OpenAIBackend"])
def test_a_backend_is_imported_without_an_http_client(backend):
    """The client is imported when a backend is made, if it is needed at all."""
    modules = modules_after(f"from sampling import {backend}")
    assert not packages(modules) & {"httpcore2", "httpx2", "h11"}
    assert "asyncio.base_events" not in modules - modules_after("import sampling")


@pytest.mark.parametrize("module", ["sampling.testing", "sampling.telemetry"])
def test_the_doubles_and_the_log_hooks_need_no_extra(module, theirs):
    """`sampling.testing` imports trio if it is installed, and no other extra."""
    with_trio = modules_after("import trio.testing")
    assert packages(modules_after(f"import {module}")) - packages(theirs | with_trio) == {"sampling"}
