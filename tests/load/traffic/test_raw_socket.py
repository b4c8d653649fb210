"""A connection with nothing around its socket: whole messages, typed ends, and nothing left open."""

import socket
import struct

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from sampling.load.traffic._raw_socket import RawSocketStream, SocketAddress

BIG = b"0123456789abcdef" * 500_000


async def served(handle, talk):
    """Talk to a server that handles each connection so."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    address = SocketAddress.of("127.0.0.1", listener.extra_attributes[SocketAttribute.local_port]())
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        stream = await RawSocketStream.connect(address)
        async with stream:
            await talk(stream)
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_the_system_does_not_take_at_once_is_sent_all_the_same():
    """Eight megabytes, to a server that begins to read late, and sends them back."""
    read = anyio.Event()

    async def echo(stream: SocketStream) -> None:
        async with stream:
            await read.wait()
            taken = 0
            while taken < len(BIG):
                taken += len(await stream.receive())
            await stream.send(BIG)

    async def talk(stream: RawSocketStream) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.send, BIG)
            await anyio.wait_all_tasks_blocked()
            read.set()
        answer = b""
        while len(answer) < len(BIG):
            answer += await stream.receive()
        assert BIG == answer
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    await served(echo, talk)


@pytest.mark.anyio
async def test_a_connection_that_was_reset_is_broken():
    """In both directions: neither an end nor an untyped error."""

    async def reset(stream: SocketStream) -> None:
        raw = stream.extra_attributes[SocketAttribute.raw_socket]()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    async def talk(stream: RawSocketStream) -> None:
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"anyone?")

    await served(reset, talk)


@pytest.mark.anyio
async def test_nobody_at_the_other_end_is_an_os_error_and_leaves_nothing_open():
    """A socket that could not be connected is closed: a warning would be an error here."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        await RawSocketStream.connect(SocketAddress.of("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("::1", socket.AF_INET6),
        ("localhost", None),
        ("fe80::1%eth0", None),
        ("example.org", None),
    ],
)
def test_only_a_host_that_is_given_by_number_needs_nobody_to_be_asked(host, family):
    """A name may stand for many servers, and is looked up for each connection."""
    address = SocketAddress.of(host, 80)
    assert family == (None if address is None else address.family)
