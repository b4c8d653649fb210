"""Backends behind an extra: what their import costs, and the error if the extra is not installed."""

import subprocess
import sys

import pytest

NAMES = [
    pytest.param(
        "from sampling import AnthropicBackend", "AnthropicBackend", "anthropic", ["httpx2"], id="anthropic-front-door"
    ),
    pytest.param(
        "from sampling.backends.anthropic import AnthropicBackend", "AnthropicBackend", "anthropic", ["httpx2"]
    ),
    pytest.param("from sampling import GeminiBackend", "GeminiBackend", "gemini", ["httpx2"], id="gemini-front-door"),
    pytest.param("from sampling.backends.gemini import GeminiBackend", "GeminiBackend", "gemini", ["httpx2"]),
    pytest.param("from sampling import OpenAIBackend", "OpenAIBackend", "openai", ["httpx2"], id="front-door"),
    pytest.param("from sampling.backends.openai import OpenAIBackend", "OpenAIBackend", "openai", ["httpx2"]),
    pytest.param("from sampling.backends.openai import OpenAIEmbeddings", "OpenAIEmbeddings", "openai", ["httpx2"]),
    pytest.param(
        "from sampling import LlamaBackend", "LlamaBackend", "llama", ["xllamacpp", "httpx2"], id="llama-front-door"
    ),
    pytest.param("from sampling.backends.llama import LlamaBackend", "LlamaBackend", "llama", ["xllamacpp", "httpx2"]),
]


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603


@pytest.mark.parametrize(("statement", "name", "extra", "packages"), NAMES)
def test_importing_a_backend_imports_no_optional_package(statement, name, extra, packages):
    """A program pays for the HTTP client or llama.cpp when it constructs a backend."""
    done = run(f"{statement}\nimport sys\nprint(sorted({{'httpcore2', 'httpx2', 'xllamacpp'}} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [("", False), (", transport='httpcore2'", True), (", public_only=True", True), (", trust_env=True", True)],
)
def test_constructing_a_backend_imports_httpcore2_only_if_it_is_needed(arguments, imported):
    """It is imported before the first request, for a proxy, for public_only, or if the caller wants it."""
    done = run(
        "import os; os.environ['HTTPS_PROXY'] = 'http://proxy.example:3128'\n"
        "from sampling import OpenAIBackend\nimport sys\n"
        f"OpenAIBackend('https://api.example/v1'{arguments})\nprint('httpcore2' in sys.modules)"
    )
    assert (done.stdout.strip(), done.stderr) == (str(imported), "")


@pytest.mark.parametrize(("statement", "name", "extra", "packages"), NAMES)
def test_importing_a_backend_without_its_extra_names_what_to_install(statement, name, extra, packages):
    """The error is raised at import, names the class that was imported, and has the command to run."""
    for package in packages:
        done = run(f"import sys; sys.modules[{package!r}] = None\n{statement}")
        last_line = done.stderr.splitlines()[-1]
        assert last_line.startswith("sampling.errors.MissingExtra: ")
        assert f'{name} needs the package {package!r}: pip install "sampling[{extra}]"' in last_line
