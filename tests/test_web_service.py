"""The example of a web service: lanes in a browser, and nothing goes on when the browser leaves."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.testing.gguf_model import write_tiny_gguf
from sampling.testing.servers import OpenAIServer, Reply
from tests.llama_slots import LlamaSlots
from tests.load.browser import CHROMIUM, NOT_INSTALLED, chromium
from tests.web_service import (
    EXAMPLE,
    LANES,
    ask,
    failure,
    lane_outcomes,
    lane_texts,
    serving,
    serving_llama,
    wait_until,
    wait_until_all_grow,
)

ENDLESS = 65_536
"""Tokens of an answer that takes minutes."""

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
    with serving(server.url) as url, closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        events = list(lanes(connection))
    winner = next(event["data"]["lane"] for event in events if event["data"]["outcome"] == "valid")
    assert {"kind": "end", "data": {"success": True, "lane": winner, "text": "Rivers flow."}} == events[-1]
    outcomes = {event["data"]["lane"]: event["data"]["outcome"] for event in events[:-1]}
    assert ["cancelled"] * (LANES - 1) + ["valid"] == sorted(outcomes.values())


def test_a_client_that_leaves_stops_all_requests(model):
    """The model sees the connections of all lanes close."""
    server = model(GROWING)
    with serving(server.url) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        growing = {event["data"]["lane"] for event, _ in zip(lanes(connection), range(200), strict=False)}
        assert set(range(LANES)) == growing
        assert 0 == server.disconnects
        connection.close()
        wait_until(lambda: server.disconnects == LANES)


@pytest.fixture(scope="module")
def browser():
    """Start a real browser."""
    if CHROMIUM is None:
        pytest.skip(NOT_INSTALLED)
    with chromium() as browser:
        yield browser


def test_a_browser_shows_the_winner(browser):
    """A real page in a real browser, with a real model: one lane wins, and the page shows its answer."""
    with LlamaServer(LlamaSettings(slots=LANES, context_tokens=1_024)) as model, serving_llama(model) as url:
        ask(browser, url, "What is 6 + 7?")
        wait_until(lambda: "winner" in lane_outcomes(browser))
        # Lanes that end at the same moment as the winner are valid, too.
        assert {"winner", "valid", "cancelled"} >= set(lane_outcomes(browser))
        assert 1 == lane_outcomes(browser).count("winner")
        assert re.search(r"\d", lane_texts(browser)[lane_outcomes(browser).index("winner")])
        assert "" == failure(browser)
        assert [] == browser.complaints


def test_a_browser_says_that_a_call_failed(browser, model):
    """The reason is in the log of the service, for it may name what a visitor must not know."""
    server = model(Reply(status=404, error={"error": {"message": "no such model: secret-7b"}}))
    with serving(server.url) as url:
        ask(browser, url, "Tell me about rivers.")
        wait_until(lambda: failure(browser))
        assert "secret-7b" not in browser.evaluate("document.body.textContent")


@pytest.mark.parametrize("leave", ["leave the page", "close the tab"])
def test_a_browser_that_leaves_frees_all_slots(browser, endless_model, leave):
    """All lanes grow in a real page, and llama.cpp stops all of them when their reader has gone."""
    slots = LlamaSlots(endless_model.address, endless_model.api_key.reveal())
    before = slots.tokens_generated()
    with serving_llama(endless_model) as url:
        ask(browser, url, "Tell me about rivers.")
        wait_until_all_grow(browser)
        assert LANES == slots.busy()
        if leave == "close the tab":
            browser.close_tab()
            browser.open_tab()
        else:
            browser.call("Page.navigate", url="about:blank")
        wait_until(lambda: slots.busy() == 0)
        # The service still runs, so the lanes have not ended with it.
        assert slots.tokens_generated() - before < LANES * ENDLESS / 2
        assert [] == browser.complaints


@pytest.fixture(scope="module")
def endless_model(tmp_path_factory):
    """Run llama.cpp with a model that never ends an answer, so that only its context limits it."""
    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with LlamaServer(LlamaSettings(path, slots=LANES, context_tokens=ENDLESS, threads=1)) as server:
        yield server
