"""The example of a web service: lanes in a browser, and nothing goes on when the browser leaves."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.testing.servers import OpenAIServer, Reply
from tests.load.browser import CHROMIUM, NOT_INSTALLED, chromium

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "web_service"
LANES = 4
NEVER_S = 3600.0
GROWING = Reply(["Rivers ", "flow. "], endless=True, interval_s=0.01)
SILENT = Reply(["no"], interval_s=NEVER_S)


@pytest.fixture
def model():
    """Start a stand-in for the model, in a thread of its own."""
    with start_blocking_portal() as portal, ExitStack() as stack:

        def start(reply):
            return stack.enter_context(portal.wrap_async_context_manager(OpenAIServer(reply)))

        yield start


@contextmanager
def serving(model: OpenAIServer) -> Iterator[str]:
    """Run the example with uvicorn in a process of its own, and yield its address."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLE), "--port", "0", "app:app"]
    env = {**os.environ, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "not-a-key"}
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


def wait_until(is_true) -> None:
    """Wait for another process. The timeout of the test ends it if that never comes."""
    while not is_true():
        time.sleep(0.01)


def lanes(connection: http.client.HTTPConnection) -> Iterator[dict]:
    """Yield the lanes of a call as they come."""
    connection.request("GET", "/ask?question=rivers")
    response = connection.getresponse()
    assert "text/event-stream" in response.headers["content-type"]
    kind = ""
    for line in iter(response.readline, b""):
        name, _, value = line.decode().strip().partition(": ")
        kind = value if name == "event" else kind
        if name == "data":
            yield {"kind": kind, "data": json.loads(value)}


def test_the_page_shows_the_code():
    """The recipe in the documentation is the example, and has fewer than 30 lines of code."""
    page = (EXAMPLE.parent.parent / "docs" / "how-to" / "serve-to-a-browser.md").read_text("utf-8")
    code = (EXAMPLE / "app.py").read_text("utf-8")
    assert code in page
    body = code.partition("strategy = ")[2]
    assert len([line for line in body.splitlines() if line.strip()]) < 30


def test_the_first_valid_lane_wins_and_the_others_end(model):
    """The browser gets the text of the winner, and the outcome of every lane."""
    asked = iter([SILENT] * (LANES - 1) + [Reply(["Rivers ", "flow."])])
    server = model(lambda request: next(asked))
    with serving(server) as url, closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        events = list(lanes(connection))
    assert {"kind": "end", "data": "Rivers flow."} == events[-1]
    outcomes = {event["data"]["lane"]: event["data"]["outcome"] for event in events[:-1]}
    assert ["cancelled"] * (LANES - 1) + ["valid"] == sorted(outcomes.values())


def test_a_client_that_leaves_stops_all_requests(model):
    """The model sees the connections of all lanes close."""
    server = model(GROWING)
    with serving(server) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        growing = {event["data"]["lane"] for event, _ in zip(lanes(connection), range(200), strict=False)}
        assert set(range(LANES)) == growing
        assert 0 == server.disconnects
        connection.close()
        wait_until(lambda: server.disconnects == LANES)


@pytest.mark.skipif(CHROMIUM is None, reason=NOT_INSTALLED)
def test_a_browser_shows_lanes_growing_and_leaving_the_page_stops_them(model):
    """A real page in a real browser."""
    server = model(GROWING)
    with serving(server) as url, chromium() as browser:
        browser.open(url, width=1280)
        browser.evaluate("document.forms[0].requestSubmit()")
        texts = "[...document.querySelectorAll('.lane div')].map(lane => lane.textContent.length)"
        wait_until(lambda: len(browser.evaluate(texts)) == LANES)
        before = browser.evaluate(texts)
        wait_until(lambda: all(now > then for now, then in zip(browser.evaluate(texts), before, strict=True)))
        assert [] == browser.complaints
        browser.call("Page.navigate", url="about:blank")
        wait_until(lambda: server.disconnects == LANES)
