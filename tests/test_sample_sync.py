"""Calls from code without an event loop: connections that stay open, and limits over threads."""

import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from sampling import Generation, Limited, OpenAIBackend, RejectionSamplingStrategy, Retrying
from sampling.strategy import keep_open
from sampling.testing.servers import OpenAIServer, Reply

strategy = RejectionSamplingStrategy()


@pytest.fixture
def server():
    """A server in a thread of its own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(Reply(["hello"]))) as running,
    ):
        yield running


class TestKeepOpen:
    @pytest.mark.parametrize("wrap", [lambda backend: backend, Retrying])
    def test_calls_share_a_connection(self, server, wrap):
        """Five calls take one connection inside of the block, and five without it."""
        backend = wrap(OpenAIBackend(server.url, model="m"))
        with keep_open(backend) as kept:
            assert ["hello"] * 5 == [strategy.sample_sync("hi", None, kept).text for _ in range(5)]
        assert 1 == server.connections
        for _ in range(5):
            strategy.sample_sync("hi", None, backend)
        assert 6 == server.connections

    def test_threads_share_it(self, server):
        """Calls of four threads run in one event loop, and their connections are used again."""
        with (
            keep_open(OpenAIBackend(server.url, model="m", max_connections=2)) as backend,
            ThreadPoolExecutor(4) as threads,
        ):
            results = list(threads.map(lambda _: strategy.sample_sync("hi", None, backend).text, range(20)))
        assert ["hello"] * 20 == results
        assert server.connections <= 2

    def test_the_end_of_the_block_leaves_no_thread(self):
        """Its thread ends with it, after an error too."""
        before = threading.active_count()
        with pytest.raises(ZeroDivisionError), keep_open(hello) as backend:  # noqa: PT012
            strategy.sample_sync("hi", None, backend)
            raise ZeroDivisionError
        assert before == threading.active_count()
        assert "hello" == strategy.sample_sync("hi", None, hello).text

    def test_an_interrupt_ends_the_call(self):
        """Ctrl-C in the calling thread cancels the call in the other one."""
        cancelled = threading.Event()

        async def slow(request):
            os.kill(os.getpid(), 2)
            try:
                await anyio.sleep(3600)
            finally:
                cancelled.set()

        with pytest.raises(KeyboardInterrupt), keep_open(slow) as backend:
            strategy.sample_sync("hi", None, backend)
        assert cancelled.is_set()

    def test_a_forked_child_makes_its_own_connections(self, server):
        """The thread of the parent is not there, so a call in the child must not wait for it."""
        with keep_open(OpenAIBackend(server.url, model="m")) as backend:
            strategy.sample_sync("hi", None, backend)
            child = os.fork()
            if child == 0:
                os._exit(0 if strategy.sample_sync("hi", None, backend).text == "hello" else 1)
            assert 0 == os.waitpid(child, 0)[1]
            assert "hello" == strategy.sample_sync("hi", None, backend).text
        assert 2 == server.connections

    @pytest.mark.parametrize("leave", ["pass", "raise SystemExit", "import sys; sys.exit()"])
    def test_a_forked_child_can_leave_the_block(self, leave):
        """It closes nothing, because nothing of it is open there, and the parent goes on."""
        program = f"""
            with keep_open(hello) as backend:
                child = os.fork()
                if child == 0:
                    {leave}
                else:
                    assert os.waitpid(child, 0)[1] == 0
                    assert strategy.sample_sync("hi", None, backend).text == "hello"
            assert child == 0 or strategy.sample_sync("hi", None, backend).text == "hello"
        """
        assert "" == output_of(program)

    @pytest.mark.parametrize(
        "forgotten", ["held = keep_open(hello); held.__enter__()", "ExitStack().enter_context(keep_open(hello))"]
    )
    def test_a_process_ends_although_the_block_never_did(self, forgotten):
        """In silence, and before and after calls of `atexit`."""
        program = f"""
            import atexit
            from contextlib import ExitStack
            atexit.register(strategy.sample_sync, "hi", None, hello)
            {forgotten}
            atexit.register(strategy.sample_sync, "hi", None, hello)
            assert strategy.sample_sync("hi", None, hello).text == "hello"
        """
        assert "" == output_of(program)

    def test_a_loop_that_cannot_start_is_an_error(self, monkeypatch):
        """And not a wait without end."""

        def fail(_):
            raise OSError(24, "too many open files")

        monkeypatch.setattr(anyio, "run", fail)
        with pytest.raises(OSError, match="too many open files"), keep_open(hello):
            pass

    def test_misuse_is_named(self):
        """A backend is kept open once, outside of event loops, and is a backend."""

        async def inside():
            with keep_open(hello):
                pass

        with pytest.raises(RuntimeError, match="write `async with backend` instead"):
            anyio.run(inside)
        with keep_open(hello), pytest.raises(RuntimeError, match="kept open already"), keep_open(hello):
            pass
        with pytest.raises(TypeError, match="backend must be"), keep_open("no"):
            pass


async def hello(request):
    """Answer at once."""
    await anyio.lowlevel.checkpoint()
    return "hello"


def output_of(program):
    """What a program writes, warnings included, until it has ended with success."""
    start = "import os\nfrom sampling.strategy import keep_open\nfrom tests.test_sample_sync import hello, strategy\n"
    # From Python 3.12 on, a fork warns if there are threads.
    strict = ["-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *strict, "-c", start + dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own program
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout + ended.stderr


def test_threads_share_the_limits_of_a_layer():
    """1,200 calls of eight threads, each with an event loop of its own, never exceed the limit."""
    lock = threading.Lock()
    running = most = 0

    async def backend(request):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        await anyio.sleep(0.0001)
        with lock:
            running -= 1
        return Generation("hello")

    limited = Limited(backend, max_in_flight=3, requests_per_s=1_000_000, adaptive=True)
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda _: strategy.sample_sync("hi", None, limited).text, range(1_200))
        assert {"hello"} == set(results)
    assert most <= 3
    assert (0, 0) == (limited.statistics.in_flight, limited.statistics.waiting)


def test_the_rate_holds_over_event_loops():
    """Each `sample_sync` runs an event loop of its own, and the rate does not begin anew with it."""
    loop_time = []

    async def timed(request):
        loop_time.append(time.monotonic())
        return await hello(request)

    limited = Limited(timed, requests_per_s=50)
    for _ in range(4):
        strategy.sample_sync("hi", None, limited)
    gaps = [later - earlier for earlier, later in itertools.pairwise(loop_time)]
    assert all(gap > 0.015 for gap in gaps), gaps
