"""Settings that every backend for an HTTP API takes."""

import ssl
from collections.abc import Collection, Mapping
from typing import TypedDict

from sampling.backends._structured import Structured
from sampling.backends.http._default_transport import TransportLike

__all__ = ["SYNONYMS", "HttpSettings"]

SYNONYMS = {
    "client": "transport",
    "default_headers": "headers",
    "extra_headers": "headers",
    "http_client": "transport",
    "proxies": "trust_env",
    "proxy": "trust_env",
    "timeout": "timeout_s",
    "verify": "ssl_context",
}
"""Names that other libraries use for these settings."""


class HttpSettings(TypedDict, total=False):
    """Keyword arguments that every backend for an HTTP API takes."""

    timeout_s: float
    """The seconds for a whole request, from waiting for a connection to the last byte of the answer. 600 by default."""

    connect_timeout_s: float
    """The seconds for connecting. 10 by default."""

    max_connections: int
    """The maximum number of connections. Further requests wait. 100 by default."""

    max_request_bytes: int
    """The maximum size of a request. A longer one raises `RequestTooLarge` and is not sent. 32 MiB by default."""

    max_response_bytes: int
    """The maximum size of a response. A longer one raises `ResponseTooLarge`. 32 MiB by default."""

    headers: Mapping[str, str] | None
    """Headers of every request. Their values are kept secret, like the key."""

    send_env_key: bool
    """Send the key of the environment to the given base_url."""

    allow_http: bool
    """Accept http:// for other machines."""

    allowed_hosts: Collection[str] | None
    """The only hosts that base_url may name. Set it for a base_url that comes from others."""

    public_only: bool
    """
    Connect only to public addresses. The connection goes to the address that was checked, so a name that resolves to
    your own network a moment later (DNS rebinding) does not get through.
    """

    trust_env: bool
    """Use the proxies and the certificate authorities that the environment names."""

    ssl_context: ssl.SSLContext | None
    """The context to verify an https server with, instead of the authorities of the system."""

    drop_unsupported: bool
    """
    Drop options that the API does not support, with a warning. By default they raise `Unsupported`.
    """

    structured: Structured
    """
    How to ask for an answer that matches `Options.schema`. "native" gives it to the server, and is the default.
    "tool" makes the model call a tool whose arguments are the answer. "prompt" puts it into the last message, for
    servers that can do neither.
    """

    transport: TransportLike
    """
    `"httpcore2"` to send requests with that library, as is done where a proxy or `public_only` applies anyway, or a
    function that creates a transport of your own.
    """
