"""Create the default transport, and import its HTTP client only then."""

import ssl
from collections.abc import Callable
from functools import partial

from sampling.backends.http._transport import Transport

__all__ = ["default_transport"]


def default_transport(
    base_url: str,
    *,
    max_connections: int,
    connect_timeout_s: float,
    ssl_context: ssl.SSLContext | None = None,
    trust_env: bool = False,
    public_only: bool = False,
) -> Callable[[], Transport]:
    """Return a function that creates transports for a server."""
    # httpcore2 is slow to import, and a program may import a backend without ever constructing one.
    from sampling.backends.http._httpcore import (  # noqa: PLC0415
        HttpcoreTransport,
        proxy_from_environment,
        ssl_context_for,
    )

    return partial(
        HttpcoreTransport,
        ssl_context=ssl_context or ssl_context_for(base_url, trust_env=trust_env),
        max_connections=max_connections,
        connect_timeout_s=connect_timeout_s,
        proxy=proxy_from_environment(base_url) if trust_env else None,
        public_only=public_only,
    )
