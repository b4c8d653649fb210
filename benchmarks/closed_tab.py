"""
Measure how soon a closed tab frees a model.

The example of a web service runs in uvicorn, its page in Chromium, and the model in llama.cpp. In every round, a new
tab asks a question, all lanes grow, and the tab is closed. The clock starts before the browser is told to close the
tab, and stops when llama.cpp reports no busy slot. The time contains that of the last report.
A client that only closes its connection shows how much of the time is not the browser's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

from benchmarks.report import Check, Row, Section, Settings, shout
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.testing.gguf_model import write_tiny_gguf
from tests.llama_slots import LlamaSlots
from tests.load.browser import CHROMIUM, NOT_INSTALLED, Browser, chromium
from tests.web_service import LANES, ask, serving_llama, wait_until, wait_until_all_grow

ROUNDS = 20
QUESTION = "Tell me about rivers."
CONTEXT_TOKENS = 65_536
TARGET_MS = 100


def run(settings: Settings) -> list[Section]:
    """Close a tab again and again."""
    if CHROMIUM is None:
        shout(f"a closed tab is NOT MEASURED: {NOT_INSTALLED}")
        return [_section([], [])]
    with (
        TemporaryDirectory() as folder,
        LlamaServer(_endless(Path(folder))) as model,
        serving_llama(model) as url,
        chromium() as browser,
    ):
        slots = LlamaSlots(model.address, model.api_key.reveal())
        rounds = 3 if settings.quick else ROUNDS
        tabs = [_close_tab(browser, url, slots) for _ in range(rounds)]
        return [_section(tabs, [_close_connection(url, slots) for _ in range(rounds)])]


def _endless(folder: Path) -> LlamaSettings:
    """Return the settings of a model whose answers only its context limits."""
    model = write_tiny_gguf(folder / "tiny.gguf")
    return LlamaSettings(model, slots=LANES, context_tokens=CONTEXT_TOKENS, threads=1)


def _close_tab(browser: Browser, url: str, slots: LlamaSlots) -> float:
    ask(browser, url, QUESTION)
    wait_until_all_grow(browser)
    elapsed_s = _until_free(browser.close_tab, slots)
    browser.open_tab()
    return elapsed_s


def _close_connection(url: str, slots: LlamaSlots) -> float:
    connection = HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/ask?" + urlencode({"question": QUESTION}))
    with connection.getresponse() as response:
        while slots.busy() < LANES:
            response.read1()
        return _until_free(lambda: (response.close(), connection.close()), slots)


def _until_free(leave: Callable[[], object], slots: LlamaSlots) -> float:
    started = time.perf_counter()
    leave()
    wait_until(lambda: slots.busy() == 0, pause_s=0.0)
    return time.perf_counter() - started


def _section(tabs_s: list[float], connections_s: list[float]) -> Section:
    rows = (_row("a tab of Chromium is closed", tabs_s), _row("a client closes its connection", connections_s))
    return Section(f"From leaving the web service to the last of {LANES} slots of llama.cpp being free", "ms", rows)


def _row(name: str, times_s: list[float]) -> Row:
    times_ms = [1_000 * time_s for time_s in times_s]
    values = {"median": median(times_ms) if times_ms else None}
    check = Check("max", max(times_ms, default=None), TARGET_MS)
    return Row(f"{name}, {len(times_ms)} times", values, (check,), {"times_ms": times_ms})
