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
    proxy = (proxies.get(parts.scheme) or proxies.get("all") or "").strip()
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not proxy or _is_bypassed(host, port, proxies.get("no", "")):
        return None
    if "://" not in proxy:
        # As curl and others do.
        proxy = f"http://{proxy}"
    scheme = _scheme(proxy)
    if scheme is None:
        # Raised here, because the message of the other error may hold a part of the password.
        raise ValueError(
            "the proxy in the environment must be a URL with a host, such as http://proxy.example:3128. "
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


def _is_bypassed(host: str, port: int, no_proxy: str) -> bool:
    # An entry of NO_PROXY may have a port.
    if proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return True
    # What curl, Go and others also read, and the standard library does not.
    return any(_matches(entry, host, port) for entry in no_proxy.replace(",", " ").lower().split())


def _matches(entry: str, host: str, port: int) -> bool:
    """Return whether an entry names the host: as a network, in brackets, or with a star for its subdomains."""
    if "/" in entry:
        return _is_in_network(host, entry)
    if entry.startswith("["):
        return entry in {f"[{host}]", f"[{host}]:{port}"}
    domain = entry.removeprefix("*")
    if entry == domain:
        return entry.rstrip(".") in {host, f"{host}:{port}"}
    return domain.startswith(".") and (host.endswith(domain) or f"{host}:{port}".endswith(domain))


def _is_in_network(host: str, entry: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
