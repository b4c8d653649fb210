"""The HTTP client on real sockets: TLS, addresses, large bodies, slow readers, and connections that end."""

import errno
import socket
import ssl
import traceback
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
import trustme
from anyio.streams.tls import TLSListener

from sampling._http import dialling
from sampling._http.client import NativeTransport
from sampling._http.connection import MAX_BUFFERED_BYTES, READ_BYTES
from sampling._http.dialling import MAX_AT_ONCE, Turns
from sampling._http.wire import WireRequest
from sampling.backends.http._httpcore import HttpcoreTransport
from sampling.errors import AuthenticationFailed, BadRequest, ConnectFailed, ConnectionLost, MalformedResponse
from sampling.testing.servers import HostileServer, Pause, Step

KEY = "sk-canary-canary-canary"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def transport(**settings):
    settings = {"max_connections": 10, "connect_timeout_s": 20.0, **settings}
    return NativeTransport(**{"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), **settings})


def post(url, body=b"{}", on_sent=lambda: None, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WireRequest(url, {"authorization": KEY, **named}, body, on_sent)


async def read_all(response):
    parts = []
    while data := await response.read():
        parts.append(data)
    return b"".join(parts)


async def ask(client, request):
    response = await client.open(request)
    try:
        return response.status, await read_all(response)
    finally:
        await response.aclose()


class Tls:
    """A TLS server that answers each request with its number on the connection, and counts handshakes."""

    def __init__(self, authority, host="127.0.0.1"):
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(host).configure_cert(self.context)
        self.resumed = []
        self.body = None

    async def __aenter__(self):
        plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.url = f"https://127.0.0.1:{plain.extra(anyio.abc.SocketAttribute.local_port)}/v1"  # noqa: S610
        self._listener = TLSListener(plain, self.context, standard_compatible=False)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._listener.serve, self._serve)
        return self

    async def __aexit__(self, *error):
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*error)
        await self._listener.aclose()

    async def _serve(self, stream):
        self.resumed.append(stream.extra(anyio.streams.tls.TLSAttribute.ssl_object).session_reused)  # noqa: S610
        async with stream:
            while True:
                try:
                    data = await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                body = self.body or str(data.count(b"POST")).encode()
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def refuse(stream, context):
    """Do the handshake of a server, send the alert that ends it, and read the rest, so that the alert is not lost."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    refused = False
    async with stream:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                incoming.write(await stream.receive())
                try:
                    if not refused:
                        tls.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    refused = True
                if outgoing.pending:
                    await stream.send(outgoing.read())


async def strict_server(authority):
    """Return the context manager of a server that trusts only clients of its own authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    @asynccontextmanager
    async def serve():
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lambda stream: refuse(stream, context))
            yield f"https://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"  # noqa: S610
            tasks.cancel_scope.cancel()

    return serve()


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


class TestTls:
    async def test_connections_are_kept_and_new_ones_go_on_with_the_session(self, anyio_backend, authority):
        """A second connection needs no certificate, which is most of the work of a handshake."""
        client = transport(ssl_context=trusting(authority))
        async with Tls(authority) as server:
            for _ in range(2):
                assert await ask(client, post(server.url)) == (200, b"1")
            assert server.resumed == [False]
            first, second = await client.open(post(server.url)), await client.open(post(server.url))
            assert server.resumed == [False, True]
            for response in (first, second):
                assert await read_all(response) == b"1"
                await response.aclose()
            await client.aclose()

    @pytest.mark.parametrize("host", ["name.example", "name.example."])
    async def test_the_dot_that_ends_a_name_is_not_in_its_certificate(
        self, anyio_backend, authority, monkeypatch, host
    ):
        """It tells DNS to look for the name nowhere else, as many names in a cluster do."""
        look_up, looked_up = anyio.getaddrinfo, []

        async def found(name, port, **settings):
            looked_up.append(name)
            return await look_up("127.0.0.1", port, **settings)

        monkeypatch.setattr(anyio, "getaddrinfo", found)
        client = transport(ssl_context=trusting(authority))
        async with Tls(authority, "name.example") as server:
            assert await ask(client, post(server.url.replace("127.0.0.1", host))) == (200, b"1")
            await client.aclose()
        assert looked_up == [host]

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
    @pytest.mark.parametrize("make", [NativeTransport, HttpcoreTransport])
    async def test_a_refused_client_certificate_is_fatal(self, anyio_backend, authority, make, version):
        """With TLS 1.3, the server refuses it after the handshake, and another try would be refused as well."""
        trusted = trusting(authority)
        trusted.maximum_version = version
        trustme.CA().issue_cert("client.example").configure_cert(trusted)
        client = make(ssl_context=trusted, max_connections=10, connect_timeout_s=20.0)
        async with await strict_server(authority) as url:
            with pytest.raises(AuthenticationFailed, match="does not accept this client") as raised:
                await ask(client, post(url))
            await client.aclose()
        assert not raised.value.retryable
        assert "load_cert_chain" in raised.value.hint

    async def test_a_missing_client_certificate_is_fatal(self, anyio_backend, authority):
        """The error says what the client lacks, not that the connection broke."""
        client = transport(ssl_context=trusting(authority))
        async with await strict_server(authority) as url:
            with pytest.raises(AuthenticationFailed, match="CERTIFICATE_REQUIRED"):
                await ask(client, post(url))
            await client.aclose()

    async def test_a_large_answer_arrives_whole(self, anyio_backend, authority):
        """Records and reads do not end at the same bytes."""
        client = transport(ssl_context=trusting(authority))
        async with Tls(authority) as server:
            server.body = bytes(range(256)) * 4_000
            assert await ask(client, post(server.url)) == (200, server.body)
            await client.aclose()


class TestAddresses:
    async def test_ipv6(self, anyio_backend):
        """The host is in brackets, in the URL and in the Host header."""
        received = []

        async def serve(stream):
            async with stream:
                received.append(await stream.receive())
                await stream.send(OK)

        try:
            listener = await anyio.create_tcp_listener(local_host="::1")
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610
        client = transport()
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            assert await ask(client, post(f"http://[::1]:{port}/v1")) == (200, b"hi")
            assert b"\r\nHost: [::1]:%d\r\n" % port in received[0]
            await client.aclose()
            tasks.cancel_scope.cancel()

    async def test_an_address_that_does_not_answer_holds_nobody_up(self, anyio_backend, monkeypatch):
        """Happy eyeballs: the next address is tried while the first one is silent."""
        monkeypatch.setattr(dialling, "NEXT_ADDRESS_S", 0.01)
        real, tried = dialling._reach, []

        async def reach(address):
            tried.append(address.address[0])
            if address.address[0] == "192.0.2.1":
                await anyio.sleep_forever()
            return await real(address)

        monkeypatch.setattr(dialling, "_reach", reach)
        async with HostileServer([OK]) as server:
            monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(server.port, "192.0.2.1", "127.0.0.1"))
            client = transport()
            assert await ask(client, post(f"http://somewhere.example:{server.port}/v1")) == (200, b"hi")
            await client.aclose()
        assert tried == ["192.0.2.1", "127.0.0.1"]

    async def test_if_no_address_answers_the_first_failure_is_told(self, anyio_backend, monkeypatch):
        """If no address connects, the first failure is reported, and the next request resolves again."""
        lookups = []

        async def reach(address):
            await anyio.lowlevel.checkpoint()
            raise OSError(errno.ECONNREFUSED if address.address[0] == "192.0.2.1" else errno.ENETUNREACH, "no")

        monkeypatch.setattr(dialling, "_reach", reach)
        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(80, "192.0.2.1", "192.0.2.2", seen=lookups))
        client = transport()
        for _ in range(2):
            with pytest.raises(ConnectFailed, match="Errno 111"):
                await client.open(post("http://somewhere.example/v1"))
        assert len(lookups) == 2
        assert "Connections: 0 active, 0 idle" in repr(client)


def resolving_to(port, *addresses, seen=None):
    async def getaddrinfo(host, *_, **__):
        await anyio.lowlevel.checkpoint()
        if seen is not None:
            seen.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo


def deaf_listener():
    """A socket whose connections have little room for what their server does not read."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


class Deaf:
    """A server that answers the first bytes of a request. It reads on only if told so."""

    def __init__(self, listener, answer, *, reads_on=False):
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self.gone = anyio.Event()
        self.received = 0
        self._listener = listener
        self._answer = answer
        self._reads_on = reads_on

    async def accept(self):
        await anyio.wait_readable(self._listener)
        connection, _ = self._listener.accept()
        await anyio.wait_readable(connection)
        self.received += len(connection.recv(1_000))
        connection.sendall(self._answer)
        return connection

    async def serve(self):
        with await self.accept() as connection:
            while self._reads_on:
                await anyio.wait_readable(connection)
                data = connection.recv(1_000_000)
                self.received += len(data)
                if not data:
                    return
            await self.gone.wait()


class TestBodies:
    async def test_a_large_request_is_sent_whole(self, anyio_backend):
        """The socket takes it in parts."""
        body = bytes(range(256)) * 40_000
        sent = []
        async with HostileServer([OK]) as server:
            client = transport()
            assert await ask(client, post(server.url, body, lambda: sent.append(1))) == (200, b"hi")
            await client.aclose()
            assert server.requests[0].body == body
        assert sent == [1]

    async def test_a_server_that_refuses_a_large_request_early_is_heard(self, anyio_backend):
        """It answers and closes before the request is whole."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610

        async def serve(stream):
            async with stream:
                await stream.receive()
                await stream.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                await stream.send_eof()
                # The rest is read, or the answer would be lost in a reset.
                while True:
                    try:
                        await stream.receive()
                    except anyio.EndOfStream:
                        return

        client = transport()
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            assert await ask(client, post(f"http://127.0.0.1:{port}/", bytes(5_000_000))) == (413, b"")
            assert "Connections: 0 active, 0 idle" in repr(client)
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("status", [413, 500])
    async def test_a_server_that_refuses_a_large_request_need_not_read_on(self, anyio_backend, status):
        """The rest is not sent, and the connection is not used again, whose server would take it for the rest."""
        client = transport()
        refusal = b"HTTP/1.1 %d .\r\ncontent-length: 0\r\n\r\n" % status
        with deaf_listener() as listener, anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                server = Deaf(listener, refusal)
                tasks.start_soon(server.serve)
                assert await ask(client, post(server.url, bytes(20_000_000))) == (status, b"")
                assert "Connections: 0 active, 0 idle" in repr(client)
                server.gone.set()

    async def test_a_server_that_answers_early_gets_the_whole_request(self, anyio_backend):
        """Only a refusal means that it does not want the rest."""
        client = transport()
        with deaf_listener() as listener, anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                server = Deaf(listener, OK, reads_on=True)
                tasks.start_soon(server.serve)
                assert await ask(client, post(server.url, bytes(20_000_000))) == (200, b"hi")
                await client.aclose()
        assert server.received > 20_000_000

    async def test_closing_the_transport_ends_a_request_that_is_being_sent(self, anyio_backend):
        """Whoever waits for room to send it gets an error, and not silence."""
        client = transport()

        async def want(url):
            with pytest.raises(ConnectionLost):
                await client.open(post(url, bytes(20_000_000)))
            server.gone.set()

        with deaf_listener() as listener, anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                server = Deaf(listener, b"")
                tasks.start_soon(want, server.url)
                with await server.accept():
                    await anyio.wait_all_tasks_blocked()
                    await client.aclose()
                    await server.gone.wait()

    async def test_what_nobody_reads_stays_with_the_system(self, anyio_backend):
        """A server that sends faster than the caller reads fills no memory."""
        size = 8_000_000
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
        async with HostileServer([head + bytes(size)]) as server:
            client = transport()
            response = await client.open(post(server.url))
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.05)
            assert len(await response.read()) <= MAX_BUFFERED_BYTES + 2 * READ_BYTES
            assert len(await read_all(response)) > size / 2
            await response.aclose()
            await client.aclose()

    async def test_informational_responses_are_passed_over(self, anyio_backend):
        """They come before the answer."""
        hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        async with HostileServer([hints, Pause(0.01), OK]) as server:
            client = transport()
            assert await ask(client, post(server.url)) == (200, b"hi")
            await client.aclose()


class TestReuse:
    async def test_a_request_that_asks_to_close_is_the_last_one(self, anyio_backend):
        """The connection is closed even if the server would keep it."""
        async with HostileServer([OK, Step.READ, OK]) as server:
            client = transport()
            for _ in range(2):
                assert await ask(client, post(server.url, connection="close")) == (200, b"hi")
            assert server.connections == 2

    async def test_a_body_that_was_not_read_closes_the_connection(self, anyio_backend):
        """The rest of it would be read as the next response."""
        async with HostileServer([OK, Step.READ, OK]) as server:
            client = transport()
            half = await client.open(post(server.url))
            half._connection.parser.ended = False
            await half.aclose()
            assert await half.read() == b""
            assert await ask(client, post(server.url)) == (200, b"hi")
            assert server.connections == 2
            await client.aclose()

    async def test_closing_the_transport_ends_requests_in_flight(self, anyio_backend):
        """Whoever waits for an answer gets an error, and not silence."""
        failed = []

        async def want(url):
            try:
                await client.open(post(url))
            except ConnectionLost as error:
                failed.append(error)

        async with HostileServer([Step.HANG]) as server:
            client = transport()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(want, server.url)
                with anyio.fail_after(20):
                    await server.until(lambda: len(server.requests) == 1)
                await anyio.wait_all_tasks_blocked()
                await client.aclose()
        assert len(failed) == 1

    async def test_closing_the_transport_ends_a_request_that_connects(self, anyio_backend, monkeypatch):
        """Its connection is not left open, and the transport has room for as many as before."""
        look_up, looking, known = anyio.getaddrinfo, anyio.Event(), anyio.Event()

        async def slow(host, port, **settings):
            looking.set()
            await known.wait()
            return await look_up("127.0.0.1", port, **settings)

        async def want(url):
            with pytest.raises(ConnectFailed, match="closed"):
                await client.open(post(url))

        monkeypatch.setattr(anyio, "getaddrinfo", slow)
        async with HostileServer([OK, Step.HANG]) as server:
            client = transport(max_connections=1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(want, f"http://name.example:{server.port}/v1")
                await looking.wait()
                await client.aclose()
                known.set()
            assert "Requests: 0 active, 0 queued | Connections: 0 active, 0 idle" in repr(client)
            assert server.requests == []
            with anyio.fail_after(20):
                await server.until(lambda: server.open == 0)


class TestRefusals:
    @pytest.mark.parametrize(
        "headers",
        [
            {"x": "a\r\nevil: b"},
            {"x": "a\nb"},
            {"x": "a\rb"},
            {"x": "a\0b"},
            {"x y": "a"},
            {"": "a"},
            {"x": "€"},
            {"content-length": "0"},
            {"transfer-encoding": "chunked"},
            {"host": "elsewhere.example"},
        ],
    )
    async def test_a_header_that_would_change_the_request_is_not_sent(self, anyio_backend, headers):
        """The error has no key, not even in the local variables of its frames."""
        async with HostileServer([OK]) as server:
            client = transport()
            with pytest.raises(BadRequest, match="header is not valid") as caught:
                await client.open(WireRequest(server.url, {"authorization": KEY, **headers}, b"", lambda: None))
            assert server.connections == 0
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        assert not [frame for frame in shown.stack if "test_client" not in frame.filename and KEY in str(frame.locals)]

    async def test_a_failure_names_no_bytes_of_the_server(self, anyio_backend):
        """They may hold the key."""
        async with HostileServer([b"HTTP/1.1 200 OK\r\n" + KEY.encode() + b"\r\n\r\n"]) as server:
            with pytest.raises(MalformedResponse) as caught:
                await transport().open(post(server.url))
        assert KEY not in str(caught.value)


async def test_not_too_many_connections_are_opened_at_once(anyio_backend, monkeypatch):
    """Servers drop what their queue has no room for, and a connection that hangs holds up nobody for ever."""
    turns = Turns()
    for _ in range(MAX_AT_ONCE):
        await turns.take()
    order = []

    async def want(name):
        await turns.take()
        order.append(name)

    async with anyio.create_task_group() as tasks:
        monkeypatch.setattr(dialling, "HOLD_S", 1e6)
        for name in "ab":
            tasks.start_soon(want, name)
            await anyio.wait_all_tasks_blocked()
        assert order == []
        turns.give_back()
        await anyio.wait_all_tasks_blocked()
        assert order == ["a"]
        monkeypatch.setattr(dialling, "HOLD_S", 0.001)
        tasks.start_soon(want, "c")
        while "c" not in order:  # noqa: ASYNC110 - the time of a timer is what is tested
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert order == ["a", "c"]
    assert not turns._waiting


async def test_connections_that_nobody_closes_are_one_warning(anyio_backend):
    """Connections that were left open are closed, with a single warning."""

    async def serve(stream):
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    await stream.send(OK)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"  # noqa: S610
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        client = transport()
        for response in [await client.open(post(url)) for _ in range(3)]:
            await read_all(response)
            await response.aclose()
        connections = client._pool.connections
        del response
        with pytest.warns(ResourceWarning) as warned:
            del client
        assert ["were left open (3)" in str(warning.message) for warning in warned] == [True]
        assert not any(connection.is_usable() for connection in connections)
        tasks.cancel_scope.cancel()
