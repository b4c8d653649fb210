"""
The package as it is installed: a wheel in a bare environment, with only the extras that a page names.

The development environment has every extra and every tool, so it can't show that a dependency is missing.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe.py")
NOISY = Path(__file__).with_name("noisy.py")
UV = Path(sys.executable).with_name("uv")
PYRIGHT = Path(sys.executable).with_name("pyright")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INSTALL_LINE = re.compile(r"pip install \"?(?:sampling|\.)(?:\[(?P<extras>[a-z0-9,]+)\])?\"?(?![\w\[])")
CORE = {"anyio", "attrs", "structlog", "tenacity"}

pytestmark = [
    pytest.mark.skipif(not UV.exists(), reason="uv is not in the environment: make setup installs it"),
    pytest.mark.timeout(600),
]


def documented_extras() -> list[str]:
    """Return the extras of every install line in README and docs, "" for the bare core."""
    lines = {found["extras"] or "" for page in PAGES for found in INSTALL_LINE.finditer(page.read_text("utf-8"))}
    return sorted(lines | {""})


def uv(*args: str | Path, **env: str) -> None:
    subprocess.run([UV, *args], check=True, env={**os.environ, **env}, cwd=ROOT)  # noqa: S603 - our own arguments


def clean_environment() -> dict[str, str]:
    """Return the environment without what would let the checkout shine through."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    return folder


@pytest.fixture(scope="session")
def wheel(built) -> Path:
    [found] = built.glob("*.whl")
    return found


class Installed:
    """A fresh environment with the wheel and some extras, and nothing else."""

    def __init__(self, folder: Path, wheel: Path, extras: str, *options: str) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
        what = f"{wheel}[{extras}]" if extras else str(wheel)
        uv("pip", "install", "--quiet", *options, what, VIRTUAL_ENV=str(folder / "venv"))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, outside of the checkout."""
        return subprocess.run(  # noqa: S603 - our own commands
            [self.bin / command[0], *command[1:]],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=clean_environment(),
            check=False,
        )

    def probe(self) -> dict[str, str]:
        done = self.run("python", str(PROBE))
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert str(self.folder) in report["file"], "the checkout was imported, not what is installed"
        return report["found"]


@pytest.fixture(scope="session")
def bare(tmp_path_factory, wheel) -> Installed:
    return Installed(tmp_path_factory.mktemp("bare"), wheel, "")


def test_the_core_alone_installs_the_four_packages_and_what_they_need(bare):
    """`pip install sampling` brings no more than the documentation says."""
    listed = json.loads(bare.run("python", "-c", LIST_REQUIREMENTS).stdout)
    assert set(listed) == CORE


LIST_REQUIREMENTS = """
import json, re
from importlib.metadata import requires
print(json.dumps([re.match(r"[\\w-]+", line)[0] for line in requires("sampling") if "extra ==" not in line]))
"""


def test_in_the_bare_core_everything_imports_or_names_its_extra(bare):
    """No module fails with anything but `MissingExtra`, and `sampling`, `load` and `fanout` need none."""
    found = bare.probe()
    broken = {name: what for name, what in found.items() if what != "ok" and not what.startswith("extra ")}
    assert {} == broken
    needs_nothing = ("sampling", "sampling.load", "sampling.fanout", "sampling.strategies", "sampling.checks")
    assert {"ok"} == {found[name] for name in (*needs_nothing, "sampling.testing", "sampling.telemetry")}


@pytest.mark.parametrize("extras", [extras for extras in documented_extras() if extras])
def test_an_install_line_brings_what_it_promises(tmp_path, wheel, bare, extras):
    """With the extras of a line, everything that named one of them imports, and the rest still names its own."""
    installed = Installed(tmp_path, wheel, extras)
    promised = {f"extra {extra}" for extra in extras.split(",")}
    before, found = bare.probe(), installed.probe()
    broken = {name: what for name, what in found.items() if what != "ok" and not what.startswith("extra ")}
    assert {} == broken
    assert {} == {name: what for name, what in found.items() if what in promised and before[name] in promised}


def test_the_lowest_versions_that_are_allowed_work(tmp_path, wheel):
    """The package works with the oldest versions that pyproject.toml allows."""
    installed = Installed(tmp_path, wheel, "cli,gemini,openai,pydantic", "--resolution", "lowest-direct")
    broken = {name: what for name, what in installed.probe().items() if what != "ok" and not what.startswith("extra ")}
    assert {} == broken
    assert installed.run("sampling", "--help").returncode == 0
    done = installed.run("python", "-W", "error", str(NOISY))
    assert (0, "") == (done.returncode, done.stdout)


def test_the_command_line_alone_starts(tmp_path, wheel):
    """`sampling[cli]`: help of every command, and one call on the simulated server."""
    installed = Installed(tmp_path, wheel, "cli")
    for command in ("", "sample", "demo", "map", "load", "capacity", "plan", "report"):
        done = installed.run("sampling", *command.split(), "--help")
        assert (0, "") == (done.returncode, done.stderr)
    done = installed.run("sampling", "sample", "hello", "--backend", "simulated")
    assert done.returncode == 0, done.stderr


def test_without_the_command_line_the_command_says_what_to_install(bare):
    """One line, and no traceback."""
    done = bare.run("sampling", "--help")
    assert done.returncode == 2
    assert 'pip install "sampling[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is only in .venv")
def test_every_public_name_has_a_type(tmp_path, wheel):
    """`pyright --verifytypes` finds no symbol whose type another type checker could infer differently."""
    installed = Installed(tmp_path, wheel, "cli,gemini,mellea,openai,otel,prometheus,pydantic,trio")
    env = {**clean_environment(), "VIRTUAL_ENV": str(installed.bin.parent)}
    env["PATH"] = f"{installed.bin}{os.pathsep}{env['PATH']}"
    command = [PYRIGHT, "--ignoreexternal", "--verifytypes", "sampling"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)  # noqa: S603
    assert "Type completeness score: 100%" in done.stdout, done.stdout


def test_the_distributions_hold_what_they_should(built, wheel):
    """The wheel has the package with its model and `py.typed`, and no tests. The sdist can be built again."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {"sampling/py.typed", "sampling/backends/llama/models/arithmetic.gguf"} <= set(names)
    assert not [name for name in names if not name.startswith(("sampling/", "sampling-"))]
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "sampling/py.typed"} <= held
