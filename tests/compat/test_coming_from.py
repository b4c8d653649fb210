"""The programs of other libraries on the pages "Coming from …" run, and give the same answer as ours."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

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
            function = {"name": body["tools"][0]["function"]["name"], "arguments": answer}
            call = {"id": f"call_{km}", "type": "function", "function": function}
            return whole({"content": None, "tool_calls": [call]}, "tool_calls")
        if "[[ ## " in str(body["messages"]):
            return whole(
                {"content": f"[[ ## name ## ]]\nRhine\n\n[[ ## km ## ]]\n{km}\n\n[[ ## completed ## ]]"}, "stop"
            )
        return whole({"content": answer}, "stop")

    return reply


def whole(message: dict, finish_reason: str) -> Reply:
    """Return an answer that is not streamed, because none of these programs asks for a stream."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    head = {"id": "loopback", "object": "chat.completion", "created": 1, "model": "loopback"}
    # A `Reply` of status 200 is a stream.
    return Reply(status=201, error={**head, "choices": [choice], "usage": usage})


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
