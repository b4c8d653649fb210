"""The default transport: proxies of the environment, and connections to public addresses only."""

import socket
import ssl

import anyio
import httpcore2
import pytest

from sampling import Message, Request
from sampling._http.wire import WireRequest
from sampling.backends.http import _httpcore
from sampling.backends.http._httpcore import HttpcoreTransport, _Network
from sampling.backends.http._proxy import proxy_from_environment
from sampling.backends.openai import OpenAIBackend
from sampling.errors import BackendError, ConnectFailed, ConnectionLost, FatalError
from sampling.testing.servers import HostileServer

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def environment(monkeypatch):
    """Set variables, in an environment without any proxy."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return lambda **variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


class Connection(httpcore2.AsyncNetworkStream):
    """A connection that names itself."""

    def get_extra_info(self, info):
        return self


CONNECTION = Connection()


class TestProxy:
    @pytest.mark.parametrize("given", ["http://", "http://u:hunter2@proxy.example:port", "http://[::1", "proxy:99999"])
    def test_a_proxy_without_a_host_or_with_a_bad_port_is_refused(self, environment, given):
        """At construction, and without its password in the message."""
        environment(HTTPS_PROXY=given)
        with pytest.raises(ValueError, match="URL with a host") as caught:
            proxy_from_environment("https://api.example/v1")
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "given", ["proxy.example:3128", "http://proxy.example:3128", " http://proxy.example:3128\n"]
    )
    def test_a_proxy_needs_no_scheme(self, environment, given):
        """A proxy without a scheme is an http proxy, as for curl."""
        environment(HTTPS_PROXY=given)
        assert "http://proxy.example:3128" == proxy_from_environment("https://api.example/v1").reveal()

    @pytest.mark.parametrize(
        ("no_proxy", "url", "bypassed"),
        [
            ("api.example:8443", "https://api.example:8443/v1", True),
            ("api.example:8443", "https://api.example/v1", False),
            ("api.example:443", "https://api.example/v1", True),
            ("api.example", "https://api.example:8443/v1", True),
            (".example", "https://api.example/v1", True),
            ("::1", "https://[::1]:8443/v1", True),
            ("other.example", "https://api.example/v1", False),
            ("*", "https://api.example/v1", True),
            ("10.0.0.0/8", "https://10.1.2.3/v1", True),
            ("10.0.0.0/8,192.168.0.0/16", "https://11.1.2.3/v1", False),
            ("10.0.0.0/8", "https://api.example/v1", False),
            ("fd00::/8", "https://[fd00::1]/v1", True),
            ("/8, no/network", "https://10.1.2.3/v1", False),
            ("[::1]", "https://[::1]:8443/v1", True),
            ("[::1]:8443", "https://[::1]:8443/v1", True),
            ("[::1]:8443", "https://[::1]/v1", False),
            ("*.example", "https://api.example/v1", True),
            ("*.example:8443", "https://api.example:8443/v1", True),
            ("*.example:8443", "https://api.example/v1", False),
            ("*.example", "https://notexample/v1", False),
            ("other.example api.example", "https://api.example/v1", True),
            ("API.Example", "https://api.example./v1", True),
            ("pi.example", "https://api.example/v1", False),
        ],
    )
    def test_hosts_of_no_proxy_are_connected_to_directly(self, environment, no_proxy, url, bypassed):
        """An entry is a host, a domain, a network, or a host with a port."""
        environment(HTTPS_PROXY="http://proxy.example:3128", NO_PROXY=no_proxy)
        assert bypassed is (proxy_from_environment(url) is None)

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    async def test_a_proxy_that_cannot_connect_may_be_able_to_later(self, environment, anyio_backend, status):
        """Row 8: the connection failed, as it would without the proxy."""
        error = await through_proxy(environment, f"HTTP/1.1 {status} .\r\ncontent-length: 0\r\n\r\n".encode())
        assert isinstance(error, ConnectFailed)
        assert not error.maybe_billed

    @pytest.mark.parametrize("status", [403, 407])
    async def test_a_proxy_that_refuses_goes_on_to_refuse(self, environment, anyio_backend, status):
        """It is not asked again."""
        error = await through_proxy(environment, f"HTTP/1.1 {status} .\r\ncontent-length: 0\r\n\r\n".encode())
        assert isinstance(error, FatalError)
        assert "proxy" in str(error)

    @pytest.mark.parametrize(
        ("raised", "kind"),
        [
            (httpcore2.ProxyError("Proxy Server could not connect: General SOCKS server failure."), ConnectFailed),
            (httpcore2.ProxyError("Proxy Server could not connect: Host unreachable."), ConnectFailed),
            (httpcore2.ProxyError("Proxy Server could not connect: Connection refused."), ConnectFailed),
            (httpcore2.ProxyError("Proxy Server could not connect: TTL expired."), ConnectFailed),
            (httpcore2.ProxyError("Proxy Server could not connect: Connection not allowed by ruleset."), FatalError),
            (httpcore2.ProxyError("Invalid username/password"), FatalError),
            (type("ProtocolError", (Exception,), {"__module__": "socksio.exceptions"})("Malformed reply"), FatalError),
        ],
    )
    async def test_errors_of_a_socks_proxy_have_a_type(self, anyio_backend, raised, kind):
        """Also those of the package that reads its replies, such as those of a proxy that speaks HTTP."""

        async def fail(request):
            await anyio.lowlevel.checkpoint()
            raise raised

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = HttpcoreTransport(ssl_context=context, max_connections=1, connect_timeout_s=1.0)
        transport._pool.handle_async_request = fail
        with pytest.raises(BackendError) as caught:
            await transport.open(WireRequest("https://api.example/v1", {}, b"", lambda: None))
        assert type(caught.value) is kind
        await transport.aclose()

    async def test_other_errors_are_not_translated(self, anyio_backend):
        """They are defects, which nobody should retry."""

        async def fail(request):
            await anyio.lowlevel.checkpoint()
            raise ZeroDivisionError

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = HttpcoreTransport(ssl_context=context, max_connections=1, connect_timeout_s=1.0)
        transport._pool.handle_async_request = fail
        with pytest.raises(ZeroDivisionError):
            await transport.open(WireRequest("https://api.example/v1", {}, b"", lambda: None))
        await transport.aclose()


def test_a_connection_that_tls_has_ended_is_lost_and_not_malformed():
    """Row 24: its server waits for the client to end it, too, so that it looks as if it were idle, and is used."""
    said = "can't handle event type ConnectionClosed when role=SERVER and state=SEND_RESPONSE"
    assert type(_httpcore._translate(httpcore2.RemoteProtocolError(said))) is ConnectionLost


async def through_proxy(environment, answer):
    """The error of a request through a proxy that answers like this."""
    async with HostileServer([answer]) as proxy:
        environment(HTTPS_PROXY=f"http://127.0.0.1:{proxy.port}")
        async with OpenAIBackend("https://api.example/v1", "k", model="m", trust_env=True) as backend:
            with pytest.raises(BackendError) as caught:
                await backend.generate(Request((Message("user", "hi"),)))
    return caught.value


class TestPublicOnly:
    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.0.0.1",
            "169.254.169.254",
            "::1",
            "fe80::1%eth0",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "::7f00:1",
        ],
    )
    async def test_other_addresses_are_refused(self, anyio_backend, monkeypatch, address):
        """An IPv4 address inside of an IPv6 address counts as what it is."""
        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(address))
        with pytest.raises(FatalError, match="not public"):
            await _Network(public_only=True).connect_tcp("api.example", 443, timeout=1.0)

    async def test_if_one_address_does_not_answer_the_next_one_is_tried(self, anyio_backend, monkeypatch):
        """A host may have an address that can't be reached, such as an IPv6 one."""
        tried = []

        class Network:
            async def connect_tcp(self, host, port, timeout, local_address, socket_options):
                await anyio.lowlevel.checkpoint()
                tried.append((host, round(timeout, 1)))
                if host != "1.1.1.1":
                    raise httpcore2.ConnectError
                return CONNECTION

        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to("2606:4700::1111", "8.8.8.8", "1.1.1.1"))
        public = _Network(public_only=True)
        public._inner = Network()
        stream = await public.connect_tcp("api.example", 443, timeout=3.0)
        assert stream.get_extra_info("socket") is CONNECTION
        assert ["2606:4700::1111", "8.8.8.8", "1.1.1.1"] == [host for host, _ in tried]
        assert 1.0 == tried[0][1]

    async def test_if_none_answers_the_last_error_is_raised(self, anyio_backend, monkeypatch):
        """It is the error of a connection, which is transient."""
        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to("127.0.0.1"))
        monkeypatch.setattr(_httpcore, "_is_public", lambda address: True)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            with pytest.raises(httpcore2.ConnectError):
                await _Network(public_only=True).connect_tcp("api.example", closed.getsockname()[1], timeout=5.0)


def resolving_to(*addresses):
    """A resolver with these addresses."""

    async def getaddrinfo(host, port, **_):
        await anyio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo
