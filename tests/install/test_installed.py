"""
The package as it is installed: a wheel in a bare environment, with only the extras that a page names.

The development environment has every extra and every tool, so it can't show that a dependency is missing.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.testing.servers import OpenAIServer, ReceivedRequest, Reply

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe.py")
USES = Path(__file__).with_name("uses.py")
NOISY = Path(__file__).with_name("noisy.py")
UV = Path(sys.executable).with_name("uv")
PYRIGHT = Path(sys.executable).with_name("pyright")
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
INSTALL_LINE = re.compile(r"pip install \"?(?:sampling|\.)(?:\[(?P<extras>[a-z0-9,]+)\])?\"?(?![\w\[])")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
COLLECTIONS = {"all", "smollm2"}
"""The extras that only bring others, or a model that has to be compiled with its dependencies."""

CORE = {"anyio", "attrs", "structlog", "tenacity"}

pytestmark = [
    pytest.mark.skipif(not UV.exists(), reason="uv is not in the environment: make setup installs it"),
    pytest.mark.timeout(600),
]


def documented_lines() -> list[str]:
    """Return the extras of every install line in README and docs, and every extra by itself."""
    lines = {found["extras"] or "" for page in PAGES for found in INSTALL_LINE.finditer(page.read_text("utf-8"))}
    in_order = {",".join(sorted(line.split(","))) for line in lines if line}
    return sorted(in_order | EXTRAS.keys() - COLLECTIONS)


def readme_blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def readme_command(start: str) -> list[str]:
    """Return the words of the command in README that begins like this."""
    [line] = [
        line for block in readme_blocks("console") for line in block.splitlines() if line.startswith(f"$ {start}")
    ]
    return shlex.split(line.removeprefix("$ "), comments=True)


def uv(*args: str | Path, **env: str) -> None:
    # As pip does, trust the certificates of the system. `make` sets this too.
    env = {"UV_SYSTEM_CERTS": "true", **os.environ, **env}
    subprocess.run([UV, *args], check=True, env=env, cwd=ROOT)  # noqa: S603 - our own arguments


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

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, outside of the checkout, with pipes."""
        return subprocess.run(  # noqa: S603 - our own commands
            [self.bin / command[0], *command[1:]],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**clean_environment(), **env},
            check=False,
        )

    def probe(self) -> dict[str, str]:
        """Import everything and use every extra. Return "ok", the missing extra or the error for each."""
        imports, uses = self.run("python", str(PROBE)), self.run("python", str(USES))
        assert (0, 0) == (imports.returncode, uses.returncode), imports.stderr + uses.stderr
        report = json.loads(imports.stdout)
        assert str(self.folder) in report["file"], "the checkout was imported, not what is installed"
        return {**report["found"], **json.loads(uses.stdout)}


def broken(found: dict[str, str]) -> dict[str, str]:
    """Return what neither works nor names the extra that it needs."""
    return {name: what for name, what in found.items() if what != "ok" and not what.startswith("extra ")}


@pytest.fixture(scope="session")
def bare(tmp_path_factory, wheel) -> Installed:
    return Installed(tmp_path_factory.mktemp("bare"), wheel, "")


@pytest.fixture(scope="session")
def found_in_bare(bare) -> dict[str, str]:
    return bare.probe()


def test_the_core_alone_installs_the_four_packages_and_what_they_need(bare):
    """`pip install sampling` brings no more than the documentation says."""
    listed = json.loads(bare.run("python", "-c", LIST_REQUIREMENTS).stdout)
    assert set(listed) == CORE


LIST_REQUIREMENTS = """
import json, re
from importlib.metadata import requires
print(json.dumps([re.match(r"[\\w-]+", line)[0] for line in requires("sampling") if "extra ==" not in line]))
"""


def test_in_the_bare_core_everything_imports_or_names_its_extra(found_in_bare):
    """No module fails with anything but `MissingExtra`, and `sampling`, `load` and `fanout` need none."""
    found = found_in_bare
    assert {} == broken(found)
    assert {extra: f"extra {extra}" for extra in EXTRAS.keys() - COLLECTIONS} == {
        extra: found[extra] for extra in EXTRAS.keys() - COLLECTIONS
    }
    needs_nothing = ("sampling", "sampling.load", "sampling.fanout", "sampling.strategies", "sampling.checks")
    assert {"ok"} == {found[name] for name in (*needs_nothing, "sampling.testing", "sampling.telemetry")}


@pytest.mark.parametrize("extras", documented_lines())
def test_an_install_line_brings_what_it_promises(tmp_path, wheel, found_in_bare, extras):
    """With the extras of a line, everything that named one of them works, and the rest still names its own."""
    installed = Installed(tmp_path, wheel, extras)
    promised = {f"extra {extra}" for extra in extras.split(",")}
    before, found = found_in_bare, installed.probe()
    assert {} == broken(found)
    assert {} == {name: what for name, what in found.items() if what in promised and before[name] in promised}
    assert {"ok"} == {found[extra] for extra in extras.split(",")}


def test_the_install_page_lists_every_extra():
    """Every extra is listed on the page about installing."""
    table = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    assert [] == sorted(extra for extra in EXTRAS if f"`{extra}`" not in table)


def test_the_lowest_versions_that_are_allowed_work(tmp_path, wheel):
    """The package works with the oldest versions that pyproject.toml allows."""
    installed = Installed(tmp_path, wheel, "cli,gemini,openai,pydantic", "--resolution", "lowest-direct")
    assert {} == broken(installed.probe())
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


def river(request: ReceivedRequest) -> Reply:
    """Answer the question of README: in miles at first, in kilometres when told that this is wrong."""
    return Reply([json.dumps({"name": "Rhine", "km": 766 if len(request.json()["messages"]) == 1 else 1233})])


@pytest.fixture
def server() -> Iterator[dict[str, str]]:
    """A stand-in for OpenAI on loopback, as environment variables."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer(river)) as running:
        yield {"OPENAI_BASE_URL": running.url, "OPENAI_API_KEY": "not-a-key"}


def test_the_example_of_the_readme_runs_with_its_install_line(tmp_path, wheel, server):
    """A program of its blocks prints what README shows, and nothing else."""
    installed = Installed(tmp_path, wheel, "openai,pydantic")
    body = textwrap.indent("\n".join(readme_blocks("python")), "    ")
    program = tmp_path / "program.py"
    program.write_text(f"import asyncio\n\n\nasync def main():\n{body}\n\nasyncio.run(main())\n", "utf-8")
    done = installed.run("python", "-W", "error", str(program), **server)
    assert (0, "") == (done.returncode, done.stderr)
    value, explained = readme_blocks("text")
    assert done.stdout.startswith(value)
    assert explained.splitlines()[-1] == done.stdout.splitlines()[-1]


def test_the_commands_of_the_readme_run_with_its_install_lines(tmp_path, wheel, server):
    """Both lines of "Try it without a key": a real model, a demo, and a file of prompts on a server."""
    pytest.importorskip("xllamacpp", reason="there is no wheel of llama.cpp for this Python")
    installed = Installed(tmp_path, wheel, "cli,llama")
    uv("pip", "install", "--quiet", *readme_command("pip install --no-deps")[2:], VIRTUAL_ENV=str(tmp_path / "venv"))
    asked = installed.run(*readme_command("sampling sample"))
    # A model this small may miss, and the command then says so. It must not fail in any other way.
    assert asked.returncode in {0, 1}, asked.stderr
    assert bool(asked.stdout.strip()) == (asked.returncode == 0)
    assert "Traceback" not in asked.stderr
    shown = installed.run("sampling", "demo", "--questions", "1")
    assert 0 == shown.returncode, shown.stderr
    (tmp_path / "prompts.jsonl").write_text('"Which river?"\n"How long?"\n', "utf-8")
    mapped = installed.run(*readme_command("sampling map"), **server)
    assert (0, "") == (mapped.returncode, mapped.stdout), mapped.stderr
    assert 2 == len((tmp_path / "answers.jsonl").read_text("utf-8").splitlines())


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
