"""The proxy that the environment names for a server."""

from importlib.util import find_spec
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
    if not proxy or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return None
    if "://" not in proxy:
        # As curl and others do.
        proxy = f"http://{proxy}"
    scheme = urlsplit(proxy).scheme
    if scheme not in {"http", "https", "socks5", "socks5h"}:
        raise ValueError(f"the proxy in the environment must be http://, https:// or socks5://, got {scheme!r}")
    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise ImportError('the proxy in the environment is a SOCKS proxy: pip install "httpx2[socks]"')
    return Secret(proxy)
