"""The proxy that the environment names for a server."""

from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sampling._redaction import Secret

__all__ = ["proxy_from_environment"]


def proxy_from_environment(url: str) -> Secret | None:
    """
    Return the proxy of the environment for a URL, or None.

    It may contain a password.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # An entry of NO_PROXY may have a port.
    if not proxy or proxy_bypass(host) or proxy_bypass(f"{host}:{port}") or _is_in_network(host, proxies.get("no", "")):
        return None
    if "://" not in proxy:
        # As curl and others do.
        proxy = f"http://{proxy}"
    scheme = _scheme(proxy)
    if scheme is None:
        # Raised here, because the message of the other error may hold a part of the password.
        raise ValueError(
            "the proxy in the environment must be a URL such as http://proxy.example:3128. "
            "In a user name or a password, write / as %2F, : as %3A and @ as %40"
        )
    if scheme not in {"http", "https", "socks5", "socks5h"}:
        raise ValueError(f"the proxy in the environment must be http://, https:// or socks5://, got {scheme!r}")
    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise ImportError('the proxy in the environment is a SOCKS proxy: pip install "httpx2[socks]"')
    return Secret(proxy)


def _scheme(proxy: str) -> str | None:
    """Return the scheme of a proxy, or None if it names no host and port to connect to."""
    with suppress(ValueError):
        parts = urlsplit(proxy)
        if parts.hostname and parts.port != 0:
            return parts.scheme
    return None


def _is_in_network(host: str, no_proxy: str) -> bool:
    """Return whether a host is an address in a network of NO_PROXY, such as 10.0.0.0/8, which Python does not read."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        with suppress(ValueError):
            if "/" in entry and address in ip_network(entry.strip(), strict=False):
                return True
    return False
