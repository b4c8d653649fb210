"""The cost of a request, in instructions, does not depend on the number of connections."""

import itertools
import ssl
import sys
from contextlib import contextmanager
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sampling._http.client import NativeTransport
from sampling._http.connection import _WaitingConnection
from sampling._http.wire import WireRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
POST = WireRequest("http://127.0.0.1:1/v1", {"authorization": "key"}, b"{}", lambda: None)


class FakeSocket:
    """A socket without a file descriptor, of which a process has few. It answers every request at once."""

    def __init__(self):
        self.unread = b""

    def send(self, data):
        self.unread = OK
        return len(data)

    def recv(self, size):
        if not self.unread:
            raise BlockingIOError
        data, self.unread = self.unread, b""
        return data

    def close(self):
        pass


class FakeTransport(NativeTransport):
    """The real transport, up to the socket."""

    def __init__(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__(ssl_context=context, max_connections=2_000, connect_timeout_s=1.0)

    async def _dial(self, origin):
        connection = _WaitingConnection(origin, FakeSocket(), None, self._lost)
        connection._wait_readable = lambda _: checkpoint()
        return connection


async def request(transport):
    response = await transport.open(POST)
    assert await response.read() == b"hi"
    await response.aclose()


async def instructions(function, *args):
    """Return how many instructions of the interpreter a call takes, with those of the event loop."""
    count = itertools.count()
    with counting(count):
        await function(*args)
    return next(count)


@contextmanager
def counting(count):
    """Call `next(count)` for every instruction."""
    if not hasattr(sys, "monitoring"):
        before = sys.gettrace()
        sys.settrace(partial(trace, count))
        try:
            yield
        finally:
            sys.settrace(before)
        return
    # From Python 3.12 on, `settrace` misses the instructions of frames.
    monitoring, tool = sys.monitoring, 4
    monitoring.use_tool_id(tool, "test_scaling")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, lambda *_: next(count))
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


def trace(count, frame, event, _):
    if event == "call":
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
    elif event == "opcode":
        next(count)
    return partial(trace, count)


async def cost(function, *, idle=0, busy=0):
    """Return the instructions of a call of `function` on a transport with so many connections."""
    transport = FakeTransport()
    open_ = [await transport.open(POST) for _ in range(idle + busy)]
    for response in open_[:idle]:
        await response.read()
        await response.aclose()
    assert f"Connections: {busy} active, {idle} idle" in repr(transport)
    # What is done once for all, such as caches, is done before.
    await function(transport)
    least = min([await instructions(function, transport) for _ in range(5)])
    await transport.aclose()
    return least


async def cancelled(transport):
    """Open a connection and close it before its response was read, as a loser does."""
    response = await transport.open(POST)
    await response.aclose()


@pytest.mark.parametrize("function", [request, cancelled])
@pytest.mark.parametrize("kind", ["idle", "busy"])
async def test_a_request_costs_the_same_with_ten_and_with_a_thousand_connections(anyio_backend, function, kind):
    """This holds for idle and busy connections, and for answers that are read and that are not."""
    few, many = [await cost(function, **{kind: number}) for number in (10, 1_000)]
    assert 100 < few < 20_000
    assert many <= 1.02 * few


async def test_a_request_that_waits_costs_the_same_behind_ten_and_behind_a_thousand(anyio_backend):
    """A full pool looks only at the first of those that wait."""
    costs = []
    for waiting in (10, 1_000):
        transport = FakeTransport()
        transport._pool._max = 1
        held = await transport.open(POST)
        async with anyio.create_task_group() as tasks:
            for _ in range(waiting):
                tasks.start_soon(request, transport)
            await anyio.wait_all_tasks_blocked()
            await held.read()
            costs.append(await instructions(held.aclose))
            tasks.cancel_scope.cancel()
    assert costs[1] <= 1.02 * costs[0]
