"""The example of a web service in a process of its own, with its page in a real browser."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sampling.backends.llama._server import LlamaServer
from tests.load.browser import Browser

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "web_service"
LANES = 4


@contextmanager
def serving(base_url: str, key: str = "not-a-key", model: str = "a-model") -> Iterator[str]:
    """Run the example with uvicorn for a model at this address, and yield its own address."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLE), "--port", "0", "app:app"]
    env = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key, "OPENAI_MODEL": model}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            assert server.stderr is not None
            lines = []
            while not (found := re.search(r"running on (http://\S+)", "".join(lines))):
                line = server.stderr.readline()
                assert line, "".join(lines)
                lines.append(line)
            yield found[1]
        finally:
            server.kill()


def serving_llama(server: LlamaServer) -> AbstractContextManager[str]:
    """Run the example for a llama.cpp server, and yield its address."""
    return serving(server.base_url, server.api_key.reveal(), server.settings.model)


def wait_until(is_true: Callable[[], object], pause_s: float = 0.01) -> None:
    """Wait for another process. The timeout of the test ends it if that never comes."""
    while not is_true():
        time.sleep(pause_s)


def ask(browser: Browser, url: str, question: str) -> None:
    """Open the page and ask a question."""
    browser.open(url, width=1280)
    browser.evaluate(f"document.forms[0].question.value = {question!r}; document.forms[0].requestSubmit()")


def lane_texts(browser: Browser) -> list[str]:
    """Return the text of every lane on the page."""
    return browser.evaluate("[...document.querySelectorAll('.lane div')].map(lane => lane.textContent)")


def failure(browser: Browser) -> str:
    """Return what the page says about a call that failed."""
    return browser.evaluate("document.getElementById('failure').textContent")


def lane_outcomes(browser: Browser) -> list[str]:
    """Return the outcome of every lane on the page."""
    return browser.evaluate("[...document.querySelectorAll('.lane')].map(lane => lane.className.split(' ')[1])")


def wait_until_all_grow(browser: Browser) -> None:
    """Wait until the page shows all lanes, and each of them longer than before."""
    wait_until(lambda: len(lane_texts(browser)) == LANES)
    before = lane_texts(browser)
    wait_until(lambda: all(len(now) > len(then) for now, then in zip(lane_texts(browser), before, strict=True)))
