"""Choose the transport of a backend, and import what it needs only then."""

import os
import re
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from sampling._arguments import wrong_type
from sampling._http.client import NativeTransport
from sampling._redaction import Secret
from sampling.backends.http._transport import Transport

__all__ = ["TransportLike", "default_transport"]

TransportLike: TypeAlias = Callable[[], Transport] | Literal["native", "httpcore2"] | None
"""A function that creates transports, or the name of one of ours. None chooses."""

DEFAULT: Literal["native", "httpcore2"] = "native"

_HASHED_CERTIFICATE = re.compile(r"[0-9a-f]{8}\.\d+")


def default_transport(
    base_url: str,
    transport: TransportLike = None,
    *,
    max_connections: int,
    connect_timeout_s: float,
    ssl_context: ssl.SSLContext | None = None,
    trust_env: bool = False,
    public_only: bool = False,
) -> Callable[[], Transport]:
    """
    Return a function that creates transports for a server.

    The native one can neither use a proxy nor check addresses for `public_only`. Where one of them applies, httpcore2
    is used.
    """
    if transport is not None and transport not in {"native", "httpcore2"}:
        if isinstance(transport, str):
            raise ValueError(f"transport must be 'native', 'httpcore2', a callable or None, got {transport!r}")
        if not callable(transport):
            raise wrong_type("transport", transport, "'native', 'httpcore2', a callable or None")
        return transport
    proxy = _proxy_for(base_url) if trust_env else None
    needs_httpcore = public_only or proxy is not None
    if transport == "native" and needs_httpcore:
        raise ValueError("transport='native' can't use a proxy or public_only: leave transport out")
    context = ssl_context or _ssl_context_for(base_url, trust_env=trust_env)
    if not needs_httpcore and (transport or DEFAULT) == "native":
        return partial(
            NativeTransport,
            ssl_context=context,
            max_connections=max_connections,
            connect_timeout_s=connect_timeout_s,
        )
    # It is slow to import, and few programs need it.
    from sampling.backends.http._httpcore import HttpcoreTransport  # noqa: PLC0415

    return partial(
        HttpcoreTransport,
        ssl_context=context,
        max_connections=max_connections,
        connect_timeout_s=connect_timeout_s,
        proxy=proxy,
        public_only=public_only,
    )


def _proxy_for(url: str) -> Secret | None:
    # It imports the HTTP client of the standard library.
    from sampling.backends.http._proxy import proxy_from_environment  # noqa: PLC0415

    return proxy_from_environment(url)


def _ssl_context_for(url: str, *, trust_env: bool) -> ssl.SSLContext:
    """
    Return the context to verify a server with.

    It is empty for http, because loading authorities is slow.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if url.startswith("http:"):
        return context
    if not (trust_env and {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys()) and _load_system_authorities(context):
        return context
    # It also knows the certificates of macOS and Windows.
    import httpx2  # noqa: PLC0415

    return httpx2.create_ssl_context(trust_env=trust_env)


def _load_system_authorities(context: ssl.SSLContext) -> bool:
    """Load the authorities of a Unix system, and return whether there are any."""
    if sys.platform in {"win32", "darwin"}:
        return False
    # Not `load_default_certs`, which reads the environment.
    paths = ssl.get_default_verify_paths()
    cafile = paths.openssl_cafile if Path(paths.openssl_cafile).is_file() else None
    capath = paths.openssl_capath if _has_certificates(Path(paths.openssl_capath)) else None
    if cafile is None and capath is None:
        return False
    context.load_verify_locations(cafile, capath)
    return True


def _has_certificates(folder: Path) -> bool:
    return folder.is_dir() and any(_HASHED_CERTIFICATE.fullmatch(file.name) for file in folder.iterdir())
