"""The programs of other libraries on the pages "Coming from …" run, and give the same answer as ours."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.parts import ToolCall
from sampling.testing.servers import OpenAIServer, ReceivedRequest, Reply

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"
UV = Path(sys.executable).with_name("uv")
THEIR_CODE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(600)


def first_in_miles() -> Callable[[ReceivedRequest], Reply]:
    """Answer in miles to the first request, and in kilometres later, in the form that each library asks for."""
    asked = count()

    def reply(request: ReceivedRequest) -> Reply:
        body = request.json()
        km = 1233 if next(asked) else 766
        answer = f'{{"name": "Rhine", "km": {km}}}'
        if body.get("tools"):
            return Reply([], tool_calls=[ToolCall(f"call_{km}", body["tools"][0]["function"]["name"], answer)])
        if "[[ ## " in str(body["messages"]):
            return Reply(["[[ ## name ## ]]\nRhine\n\n", f"[[ ## km ## ]]\n{km}\n\n", "[[ ## completed ## ]]"])
        return Reply([answer])

    return reply


def python_with(package: str | None, folder: Path) -> Path:
    """Return a Python that has the package: this one, or one of an environment of its own."""
    if package is None:
        return Path(sys.executable)
    if not UV.exists():
        pytest.skip("uv is not in the environment: make setup installs it")
    environment = folder / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)  # noqa: S603
    install = [UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", package]
    subprocess.run(install, check=True)  # noqa: S603
    return environment / "bin" / "python"


# Libraries that need older versions of what the tests use get an environment of their own.
@pytest.mark.parametrize(
    ("page", "package", "printed"),
    [
        ("coming-from-instructor.md", "instructor", "River(name='Rhine', km=1233)"),
        ("coming-from-pydantic-ai.md", None, "River(name='Rhine', km=1233)"),
        ("coming-from-dspy.md", "dspy", "1233"),
    ],
)
def test_their_program_runs(tmp_path, page, package, printed):
    """The first answer breaks the rule, so each library asks again."""
    program = tmp_path / "program.py"
    program.write_text("\n".join(THEIR_CODE.findall((DOCS / page).read_text("utf-8"))), "utf-8")
    python = python_with(package, tmp_path)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(first_in_miles())) as server,
    ):
        env = {
            **os.environ,
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_BASE": server.url,
            "OPENAI_API_KEY": "not-a-key",
            "DSPY_CACHEDIR": str(tmp_path / "cache"),
        }
        done = subprocess.run(  # noqa: S603 - our own pages
            [python, program], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert printed in done.stdout, done.stderr[-3000:]
        assert 2 <= len(server.requests)


def test_our_side_of_the_load_test_runs():
    """The command on the page for guidellm and locust comes to an answer, on a server that holds every step."""
    text = (DOCS / "coming-from-guidellm-and-locust.md").read_text("utf-8")
    [line] = re.findall(r"^\$ sampling (capacity .*)$", text, re.MULTILINE)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer()) as server:
        words = shlex.split(line.replace("http://127.0.0.1:8000/v1", server.url))
        # Shorter than on the page, and so with fewer answers than p95 wants.
        words += ["--warmup", "0s", "--hold", "3s", "--cooldown", "0s", "--rate-tolerance", "90%"]
        done = subprocess.run(  # noqa: S603 - the command on the page
            [sys.executable, "-m", "sampling", *words], capture_output=True, text=True, check=False, timeout=250
        )
    assert done.returncode in {0, 1}, done.stderr
    assert re.search(r"\b32\b", done.stdout), done.stdout + done.stderr
