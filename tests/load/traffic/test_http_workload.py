"""HTTP for load: little work for each request, on real sockets, against servers that behave and that do not."""

import socket
import ssl
from contextlib import suppress

import anyio
import pytest
import trustme
from anyio.streams.tls import TLSListener

from sampling import Timeout
from sampling.errors import ConnectFailed, ConnectionLost, MalformedResponse, ServerError
from sampling.load import Arrival, ClosedLoop, HttpWorkload, OpenLoop, run_load
from sampling.testing.servers import HostileServer, OpenAIServer, Reply, Step

BODY = b'{"model": "any", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def chat(server, **settings) -> HttpWorkload:
    return HttpWorkload(f"{server.url}/chat/completions", BODY, **settings)


@pytest.mark.anyio
async def test_it_posts_over_connections_that_are_kept_open():
    """Thirty requests of three users, over three connections, each with its first token."""
    async with OpenAIServer(Reply(["Hel", "lo"])) as server, chat(server) as workload:
        report = await run_load(workload, ClosedLoop(users=3, requests=30))
        assert (30, {}, 30) == (report.succeeded, report.errors, report.time_to_first_token.count)
        assert (30, 3) == (len(server.requests), len(workload._client._pool.connections))


@pytest.mark.anyio
async def test_another_status_than_200_is_a_failure():
    """Another status is a failure, and the connection is reused."""
    async with OpenAIServer(Reply(status=500)) as server, chat(server) as workload:
        report = await run_load(workload, ClosedLoop(users=1, requests=5))
        assert {"ServerError": 5} == report.errors


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([Step.RESET], ConnectionLost),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"], ConnectionLost),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhi"], MalformedResponse),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-6\r\n"], MalformedResponse),
        ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], MalformedResponse),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"], MalformedResponse),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n"], ConnectionLost),
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"], ServerError),
    ],
)
@pytest.mark.anyio
async def test_a_server_that_misbehaves_gives_a_typed_error(script, error):
    """Never an untyped one, and never a request that counts as answered."""
    async with HostileServer(script) as server, chat(server) as workload:
        with pytest.raises(error):
            await workload(Arrival(0, 0.0))


@pytest.mark.anyio
async def test_an_answer_that_never_ends_has_a_timeout():
    """The timeout covers the whole response."""
    script = [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", Step.HANG]
    async with HostileServer(script) as server, chat(server, timeout_s=0.1) as workload:
        with pytest.raises(Timeout, match=r"no whole answer within 0.1 s"):
            await workload(Arrival(0, 0.0))


@pytest.mark.anyio
async def test_a_connection_that_was_closed_meanwhile_is_replaced():
    """Servers may close between two requests."""
    async with HostileServer([OK]) as server, chat(server) as workload:
        report = await run_load(workload, OpenLoop(rate=20, requests=3))
        assert 3 == report.succeeded


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_a_failed_connect():
    """Nothing was sent."""
    async with HttpWorkload("http://127.0.0.1:9/v1", BODY) as workload:
        with pytest.raises(ConnectFailed):
            await workload(Arrival(0, 0.0))


@pytest.mark.anyio
async def test_it_opens_itself():
    """A workload outside of `async with` sends all the same, and can be closed afterwards."""
    async with HostileServer([OK]) as server:
        workload = chat(server)
        report = await run_load(workload, OpenLoop(rate=20, requests=3))
        await workload.__aexit__(None, None, None)
    assert 3 == report.succeeded


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"url": "ftp://host"}, ValueError, "url must begin with http:// or https://"),
        ({"url": "http://user:secret@host/"}, ValueError, "must not hold a user or a password"),
        ({"body": "text"}, TypeError, "body must be bytes"),
        ({"headers": {"x": "a\r\nb: c"}}, ValueError, "printable ASCII"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be > 0"),
    ],
)
def test_bad_input_is_refused(settings, error, says):
    """Bad arguments are errors before anything is sent, and show no secret."""
    with pytest.raises(error, match=says) as caught:
        HttpWorkload(**{"url": "http://127.0.0.1:1/", "body": b"", **settings})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.anyio
async def test_a_slow_resolver_is_no_latency_of_the_server(tls, monkeypatch):
    """The name is resolved once, when the workload is opened, also with TLS, whose certificate is for the name."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def record(host, *args, **kwargs):
        if host in ("localhost", b"localhost"):
            asked.append("localhost")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", record)
    authority = trustme.CA()
    server_context, client_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server_context)
    authority.configure_trust(client_context)

    async def serve(stream):
        async with stream:
            # Opening the workload tries the address, and sends nothing.
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.receive()
                await stream.send(OK.replace(b"content", b"connection: close\r\ncontent"))

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = plain.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - this is not Django
    listener = TLSListener(plain, server_context, standard_compatible=False) if tls else plain
    url = f"http{'s' if tls else ''}://localhost:{port}/"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        async with HttpWorkload(url, BODY, ssl_context=client_context if tls else None) as workload:
            resolved = len(asked)
            report = await run_load(workload, ClosedLoop(users=1, requests=3))
        tasks.cancel_scope.cancel()
    assert (3, {}) == (report.succeeded, report.errors)
    assert resolved == len(asked) > 0
