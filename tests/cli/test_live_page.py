"""`sampling load --live-port`: figures of a run while it goes on."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import pytest

from sampling.cli._app import run as run_command
from sampling.cli._live_page import LivePage, serving_live_page
from sampling.load import Arrival, LoadRun, OpenLoop
from sampling.testing import run_virtual
from tests.load.browser import CHROMIUM, NOT_INSTALLED, Browser, chromium

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=NOT_INSTALLED)


def figures_of(page: str) -> dict[str, str]:
    """Return the large figures of a page, by name."""
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)<small>", page))


async def quick(arrival: Arrival) -> None:
    await anyio.sleep(0.2)
    if arrival.index % 2:
        raise OSError("<no>")


def test_the_page_shows_the_figures_so_far(run):
    """In the middle of a run and after it. The page reloads itself without a script."""

    async def watch() -> list[str]:
        load = LoadRun(quick, OpenLoop(rate=10, duration_s=10))
        page, pages = LivePage(load, "a <test>"), []

        async def look(at_s: float) -> None:
            await anyio.sleep(at_s)
            pages.append(page.render())

        async with anyio.create_task_group() as group:
            group.start_soon(look, 5.05)
            await load.run()
        pages.append(page.render())
        return pages

    during, after = run(watch)
    assert figures_of(during) | {"answered": "25", "sent": "51", "dropped": "0"} == figures_of(during)
    assert figures_of(after) | {"answered": "50", "errors": "50%", "p50": "200ms", "sent": "100"} == figures_of(after)
    assert 'http-equiv="refresh"' in during
    assert "<script" not in during
    assert "a &lt;test&gt;" in during


def test_the_page_and_the_metrics_are_served_and_nothing_is_left(capsys):
    """The page is served on this machine only, while the block runs."""
    load = LoadRun(quick, OpenLoop(rate=10, duration_s=1))
    with serving_live_page(load, 0, "here") as page:
        address = page.address
        run_virtual(load.run)
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as response:  # noqa: S310
            assert "A load test is running" in response.read().decode()
        with urllib.request.urlopen(f"{address}metrics") as response:  # noqa: S310
            assert 'sampling_load_scheduled_total{model="open",population=""} 10.0' in response.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{address}other")  # noqa: S310
        refused.value.close()
        port = address.rstrip("/").rpartition(":")[2]
        with (
            pytest.raises(ValueError, match=f"--live-port {port} can't be used"),
            serving_live_page(load, int(port), ""),
        ):
            pass
    assert not any(thread.name == "sampling live page" for thread in threading.enumerate())
    assert ("", "") == tuple(capsys.readouterr())


def test_a_port_and_virtual_time_contradict_each_other(capsys):
    """R16: exit code 2."""
    assert 2 == run_command(
        ["load", "--virtual", "--backend", "simulated", "--rate", "1", "--requests", "1", "--live-port", "0"]
    )
    assert "--live-port and --virtual contradict each other" in capsys.readouterr().err


# A real process, and a real browser.


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `sampling load` with a live page, and yield its process and the address of the page."""
    command = [sys.executable, "-m", "sampling", "load", "--live-port", "0", "--rate", "20", *arguments]
    with subprocess.Popen(  # noqa: S603 - our own command line
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        found = re.match(r"live figures: (\S+),", process.stderr.readline())
        assert found
        try:
            yield process, found[1]
        finally:
            process.kill()


SENT = (
    "Number([...document.querySelectorAll('dt')].find(d => d.innerText == 'sent')?.nextSibling.firstChild.data ?? -1)"
)


def wait_for(browser: Browser, expression: str) -> None:
    """Wait until a page that reloads itself has something."""
    found = False
    while not found:
        time.sleep(0.1)
        # The browser refuses an answer while it goes to the next page.
        with suppress(AssertionError):
            found = browser.evaluate(f"Boolean({expression})")


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_sees_the_figures_move_and_then_the_report(width):
    """The page of a real run reloads itself, fits the window, and ends as the report, which stays open."""
    arguments = ("--backend", "simulated", "--duration", "6s", "--slo", "error=1%")
    with running(*arguments) as (process, address), chromium() as browser:
        browser.open(address, width=width, scheme="dark" if width == 390 else "light")
        assert "A load test is running" == browser.evaluate("document.title")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        first = browser.evaluate(SENT)
        wait_for(browser, f"{SENT} > {first}")
        wait_for(browser, "document.title == '20 requests per second'")
        stdout, stderr = process.communicate(timeout=60)
        assert (0, True) == (process.returncode, "PASS" in stdout), stderr
        assert "120 requests sent" in browser.evaluate("document.querySelector('.lead').innerText")
        assert [] == browser.complaints


def test_readers_that_hang_or_leave_change_nothing(tmp_path):
    """Some send half a request, some read nothing, some go away: all is sent, and nothing is printed."""
    arguments = ("--backend", "simulated", "--duration", "2s", "--max-in-flight", "1000")
    with running(*arguments) as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        readers = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for number, reader in enumerate(readers):
            reader.sendall(b"GET / HT" if number % 3 else b"GET /metrics HTTP/1.1\r\n\r\n" * 50)
        for reader in readers[:20]:
            # It is reset instead of closed, with unread bytes in the buffer.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reader.close()
        stdout, stderr = process.communicate(timeout=60)
        for reader in readers[20:]:
            reader.close()
    assert (0, True) == (process.returncode, "40 due = 0 dropped + 40 sent" in stdout), stderr
    assert "Traceback" not in stderr
    assert "Exception" not in stderr


def test_a_signal_ends_a_run_with_a_page(tmp_path):
    """R16: the exit code is 130, and the report is written."""
    out = tmp_path / "r.json"
    with running("--backend", "simulated", "--duration", "10m", "-o", str(out)) as (process, address):
        sent = "0"
        while sent == "0":
            with urllib.request.urlopen(address) as response:  # noqa: S310
                sent = figures_of(response.read().decode())["sent"]
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (130, True) == (process.returncode, out.exists()), stderr
