"""A real Chromium without a window, driven by its own protocol through a pair of pipes: no driver, no download."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NOT_INSTALLED = "no Chromium: install it (apt-get install chromium) to have the page of a report looked at"

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """A browser and its current tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the browser wrote to its console, such as what the page's policy forbade."""

        self.requested: list[str] = []
        """The addresses of everything that was asked for."""

        self._tab = ""
        self.open_tab()

    def open_tab(self) -> None:
        """Open an empty tab, which everything that follows is about."""
        self._session = None
        self._tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=self._tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result, collecting events meanwhile."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path | str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Show a file or an address in a window of this size, in light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while (event := self._receive()).get("method") != "Page.loadEventFired":
            self._note(event)

    def close_tab(self) -> None:
        """Close the tab, as a user does."""
        self._session = None
        self.call("Target.closeTarget", targetId=self._tab)

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression is, in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from_browser, 1 << 20)
            assert piece, "the browser has gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(event["params"]["request"]["url"])


_BECOME_CHROMIUM = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""It reads its orders from file 3 and answers to file 4."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser with a fresh profile for as long as the block lasts."""
    assert CHROMIUM is not None, NOT_INSTALLED
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(  # noqa: S603 - the browser that was found
            [sys.executable, "-c", _BECOME_CHROMIUM, str(theirs_in), str(theirs_out), *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.terminate()
            process.wait(timeout=30)


def _pipe() -> tuple[int, int]:
    """Make a pipe whose ends are none of the files 3 and 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
