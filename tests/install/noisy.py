"""A program that gives the library every reason to log, and writes nothing itself. It needs the extra `openai`."""

import logging
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import anyio

from sampling import OpenAIBackend, RejectionSamplingStrategy, Retrying, fan_out
from sampling.hooks import Hooks, LoopStarted
from sampling.testing.servers import OpenAIServer, Reply


def block(_event: LoopStarted) -> None:
    """Block the event loop."""
    time.sleep(0.3)


def fail(_event: LoopStarted) -> None:
    """Raise, as a broken hook does."""
    raise ValueError("this hook is broken")


class BusyServer:
    """A server on loopback in a thread of its own, which answers every second request with 429."""

    def __init__(self) -> None:
        self.url = ""
        self._started = threading.Event()
        self._requests = 0
        threading.Thread(target=anyio.run, args=[self._serve], daemon=True).start()
        self._started.wait()

    async def _serve(self) -> None:
        async with OpenAIServer(self._reply) as server:
            self.url = server.url
            self._started.set()
            await anyio.sleep_forever()

    def _reply(self, _request: object) -> Reply:
        self._requests += 1
        return Reply(status=429, headers={"retry-after": "0"}) if self._requests % 2 else Reply(["yes"])


async def run_twice(backend: OpenAIBackend, journal: Path) -> None:
    """Let a run die in the middle, and resume it."""
    asked = 0

    async def model(request: object) -> str:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise ConnectionError("the line is dead")
        return (await backend.generate(request)).text

    run = partial(
        fan_out, RejectionSamplingStrategy(), list("abcd"), None, Retrying(model, backoff_s=0.01), journal=journal
    )
    try:
        await run(max_concurrency=1)
    except ConnectionError:
        await run(max_concurrency=1)


def main() -> None:
    if "standard" in sys.argv:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(module)s %(message)s")
    server = BusyServer()
    hooks = Hooks()
    hooks.on(LoopStarted)(block)
    hooks.on(LoopStarted)(fail)
    strategy = RejectionSamplingStrategy(loop_budget=3, hooks=hooks)
    strategy.sample_sync("hi", None, OpenAIBackend(server.url, model="m"))
    strategy.sample_sync("hi", None, Retrying(OpenAIBackend(server.url, model="m"), backoff_s=0.01))
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run_twice, OpenAIBackend(server.url, model="m"), Path(folder) / "run.db")


if __name__ == "__main__":
    main()
