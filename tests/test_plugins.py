"""Plugins: hooks of installed distributions, which these tests build and install."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from sampling._plugins import installed_hooks

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "1.0"

[project.entry-points."sampling.plugins"]
{entry_points}

[tool.hatch.build.targets.wheel]
include = ["{module}.py"]
"""

WITNESS = """
from sampling import Hooks, IterationFinished, LoopFinished

seen = []
ready_made = Hooks()


@ready_made.on(IterationFinished)
async def finished(event):
    seen.append(f"plugin: {event.slice.outcome}")


def register(hooks):
    @hooks.on(LoopFinished)
    def over(event):
        seen.append(f"plugin: {event.success}")
"""

PROGRAM = """
import json, sys
import anyio
from sampling import Hooks, IterationFinished, RejectionSamplingStrategy
from sampling.errors import PluginFailed
from sampling.testing import ScriptedBackend

try:
    import witness
    seen = witness.seen
except ImportError:
    seen = []


async def main():
    mine = Hooks()
    mine.on(IterationFinished)(lambda event: seen.append("call"))
    strategy = RejectionSamplingStrategy(loop_budget=2)
    strategy.hooks.on(IterationFinished)(lambda event: seen.append("strategy"))
    backend = ScriptedBackend(["no", "yes"])
    await strategy.sample("hi", None, backend, [lambda text: text == "yes"], hooks=mine)


failures = []
for loop in ("asyncio", "trio"):
    try:
        anyio.run(main, backend=loop)
    except PluginFailed as error:
        failures.append([str(error), type(error.__cause__).__name__, *error.__notes__])
print(json.dumps({"seen": seen, "failures": failures}))
"""

FIRED = ["plugin: invalid", "strategy", "call", "plugin: valid", "strategy", "call", "plugin: True"]
SILENT = ["strategy", "call"] * 2


def installer() -> list[str]:
    """Return the command that installs a distribution: uv if available, because it is faster, else pip."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable, "--offline"]
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]


def run(command: list[str], **kwargs) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **kwargs)  # noqa: S603
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def install(tmp_path_factory):
    """`install(distribution, module, code, entry_points)` installs a distribution and returns its folder."""

    def install_it(distribution: str, module: str, code: str, **entry_points: str) -> Path:
        folder = tmp_path_factory.mktemp(module)
        source, target = folder / "source", folder / "installed"
        source.mkdir()
        named = "\n".join(f'{name} = "{value}"' for name, value in entry_points.items())
        pyproject = PYPROJECT.format(distribution=distribution, module=module, entry_points=named)
        (source / "pyproject.toml").write_text(pyproject, encoding="utf-8")
        (source / f"{module}.py").write_text(dedent(code), encoding="utf-8")
        run([*installer(), "--no-deps", "--no-build-isolation", "--target", str(target), str(source)], cwd=folder)
        return target

    return install_it


@pytest.fixture(scope="module")
def witness(install) -> Path:
    """A working plugin, with a `Hooks` object and a function as entry points."""
    return install(
        "sampling-witness", "witness", WITNESS, ready_made="witness:ready_made", by_function="witness:register"
    )


@pytest.fixture(scope="module")
def broken(install) -> Path:
    """A plugin that can't be loaded, for a different reason in each test."""
    return install("sampling-broken", "broken", "register = None", cracked="broken:register")


def sample_with(*installed: Path, plugins: str | None = None) -> dict:
    """Make a call on each loop in a process with these distributions, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "SAMPLING_PLUGINS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, installed))
    if plugins is not None:
        environment["SAMPLING_PLUGINS"] = plugins
    return json.loads(run([sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM], env=environment))


def test_a_plugin_fires_before_the_hooks_of_the_strategy_and_of_the_call(witness):
    """Both kinds of entry point receive their events, on asyncio and trio."""
    assert sample_with(witness) == {"seen": FIRED * 2, "failures": []}


def test_plugins_can_be_left_out(witness):
    """SAMPLING_PLUGINS=off disables all plugins, and no other hooks."""
    assert sample_with(witness, plugins="off") == {"seen": SILENT * 2, "failures": []}


@pytest.fixture
def found(monkeypatch, witness):
    """`found(value)` returns the number of plugin hooks when SAMPLING_PLUGINS is `value`."""
    monkeypatch.syspath_prepend(str(witness))

    def find(value: str) -> int:
        monkeypatch.setenv("SAMPLING_PLUGINS", value)
        installed_hooks.cache_clear()
        return len(installed_hooks())

    yield find
    installed_hooks.cache_clear()
    sys.modules.pop("witness", None)


@pytest.mark.parametrize(
    ("value", "hooks"), [("OFF", 0), ("0", 0), ("false", 0), ("no", 0), ("", 2), ("on", 2), ("1", 2)]
)
def test_only_a_clear_no_leaves_them_out(found, value, hooks):
    """An empty or affirmative SAMPLING_PLUGINS changes nothing."""
    assert found(value) == hooks


@pytest.mark.parametrize(
    ("code", "cause", "says"),
    [
        ("import no_such_package", "ModuleNotFoundError", "no_such_package"),
        ("def register(hooks): raise RuntimeError('not today')", "RuntimeError", "not today"),
        ("register = None", "TypeError", "a plugin must be a Hooks object or a function of one, got None"),
        ("", "AttributeError", "register"),
    ],
    ids=["does not import", "raises", "is of another type", "is not there"],
)
def test_a_broken_plugin_is_named_with_its_distribution(broken, witness, code, cause, says):
    """Every call fails with the same error, which says how to fix or disable the plugin."""
    (broken / "broken.py").write_text(code, encoding="utf-8")
    told = sample_with(witness, broken)
    assert told["seen"] == []
    assert len(told["failures"]) == 2
    for message, raised, *notes in told["failures"]:
        assert message.startswith("plugin 'cracked' (broken:register) of sampling-broken can't be loaded: ")
        assert says in message
        assert raised == cause
        assert any("SAMPLING_PLUGINS=off" in note for note in notes)


def test_a_broken_plugin_can_be_left_out(broken):
    """The hint of the error works."""
    assert sample_with(broken, plugins="off") == {"seen": SILENT * 2, "failures": []}
