"""Validate the base URL and find the API key, once per backend."""

import os
import re
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

import attrs

from sampling._arguments import check_items, check_str
from sampling._redaction import Secret

__all__ = ["ANTHROPIC", "AZURE", "GEMINI", "OPENAI", "Address", "Provider", "embedded_address", "resolve_address"]

_ENDPOINT_PATHS = ("/chat/completions", "/completions", "/responses", "/messages")
_HOST_NAME = re.compile(r"(?i)[a-z\d_-]{1,63}(\.[a-z\d_-]{1,63})*\.?")
# Resolvers accept 2130706433, 0x7f.1 and 127.0x0.1 as 127.0.0.1, which would bypass the checks of IP addresses.
# A host whose last part is a number is no name.
_ENDS_IN_NUMBER = re.compile(r"(?i)(?:.*\.)?(?:\d+|0x[\da-f]*)\.*")


@attrs.frozen
class Provider:
    """The variables of the environment that hold the address, the key and the model of a provider."""

    name: str
    telemetry_name: str
    """The value of `gen_ai.provider.name` in OpenTelemetry's conventions."""

    url_variable: str
    key_variable: str
    model_variable: str
    default_url: str | None = None
    other_key_variable: str | None = None
    """Another variable for the key, which is read if the first one is not set."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables for the key, the first one first."""
        return (self.key_variable, *([self.other_key_variable] if self.other_key_variable else []))


OPENAI = Provider(
    "OpenAI's API", "openai", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "https://api.openai.com/v1"
)
ANTHROPIC = Provider(
    "Anthropic's API",
    "anthropic",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_MODEL",
    "https://api.anthropic.com",
)
AZURE = Provider("Azure", "azure.ai.openai", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "OPENAI_MODEL")
GEMINI = Provider(
    "the Gemini API",
    "gcp.gemini",
    "GOOGLE_GEMINI_BASE_URL",
    "GEMINI_API_KEY",
    "GEMINI_MODEL",
    "https://generativelanguage.googleapis.com",
    "GOOGLE_API_KEY",
)


@attrs.frozen
class Address:
    """A validated base_url and the key for it."""

    base_url: str
    key: Secret | None
    key_source: str
    """The origin of the key, in words, for the repr."""


def resolve_address(
    base_url: object,
    api_key: object,
    *,
    send_env_key: bool,
    allow_http: bool,
    allowed_hosts: Collection[str] | None = None,
    environment: Mapping[str, str] | None = None,
    provider: Provider = OPENAI,
) -> Address:
    """
    Return the address and key from the arguments and the environment.

    The key of the environment is sent only to the address of the environment. An address that the caller passes
    may come from configuration or from a user, and anyone who controls it would receive the key.
    """
    environment = os.environ if environment is None else environment
    name, url = "base_url", base_url
    if url is None and environment.get(provider.url_variable):
        name, url = provider.url_variable, environment[provider.url_variable]
    if url is None and provider.default_url is None:
        raise ValueError(f"no address for {provider.name}: pass base_url=… or set {provider.url_variable}")
    address = check_base_url(name, provider.default_url if url is None else url, allow_http=allow_http)
    if allowed_hosts is not None:
        _check_allowed(name, address, allowed_hosts)
    if api_key is not None:
        return Address(address, _key("api_key", api_key), "given")
    keys = {name: key for name in provider.key_variables if (key := environment.get(name, "").strip())}
    variable, found = next(iter(keys.items()), (" or ".join(provider.key_variables), ""))
    if found and (base_url is None or send_env_key):
        return Address(address, _key(variable, found), "from the environment")
    if url is None:
        raise ValueError(
            f"no key for {provider.name}: pass api_key=…, set {variable}, or pass the base_url of another server"
        )
    return Address(address, None, f"withheld: {variable} is not sent to a given base_url" if found else "none")


def _check_allowed(name: str, address: str, allowed_hosts: Collection[str]) -> None:
    hosts = check_items("allowed_hosts", allowed_hosts, "a list of host names")
    host = urlsplit(address).hostname or ""
    if host.rstrip(".") not in {check_str("an item of allowed_hosts", one).lower().rstrip(".") for one in hosts}:
        raise ValueError(f"{name} must be on one of the allowed_hosts ({', '.join(hosts) or 'none'}), got {host!r}")


def _key(name: str, value: object) -> Secret:
    """Return a key if it fits into a header."""
    # Error messages never show it.
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got a {type(value).__name__}")
    key = value.strip()
    if not key:
        raise ValueError(f"{name} must not be empty. Leave it out for a server that needs no key")
    for position, character in enumerate(key):
        if not "!" <= character <= "~":
            raise ValueError(
                f"{name} contains U+{ord(character):04X} at position {position}, which no key does: "
                "was something else pasted with it?"
            )
    return Secret(key)


def check_base_url(name: str, value: object, *, allow_http: bool) -> str:
    """Return a base_url without its trailing slash if it is safe to send a key to."""
    # No message shows the value before it is known to hold no password.
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got a {type(value).__name__}")
    check_str(name, value, empty=False)
    if not value.isascii() or not value.isprintable() or " " in value or "\\" in value:
        raise ValueError(f"{name} must be printable ASCII without spaces (write an international host name as xn--…)")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{name} is not a URL: {error}") from None
    if "@" in parts.netloc:
        raise ValueError(f"{name} must not contain a user name or password. Pass the key as api_key=…")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise ValueError(f"{name} must not have a query or a fragment. Pass parameters in Options(extra=…)")
    if parts.scheme not in {"http", "https"}:
        # The first argument of other clients is the model.
        advice = "" if "://" in value or "/" in value else ". The name of a model is passed as model=…"
        raise ValueError(
            f"{name} must begin with https:// (or http://, for a server on this machine), got {value!r}{advice}"
        )
    if not parts.hostname or port == 0:
        raise ValueError(f"{name} must name a host, such as 'https://api.example.com/v1', got {value!r}")
    _check_host(name, parts, allow_http=allow_http)
    return _without_slash(name, value)


def _check_host(name: str, parts: SplitResult, *, allow_http: bool) -> None:
    host = parts.hostname or ""
    try:
        ip = ip_address(host)
    except ValueError:
        if _ENDS_IN_NUMBER.fullmatch(host):
            raise ValueError(f"{name} must name a host or a whole IP address, got the number {host!r}") from None
        if not _HOST_NAME.fullmatch(host):
            raise ValueError(f"{name} must name a host, such as 'https://api.example.com/v1', got {host!r}") from None
        is_loopback = host == "localhost"
    else:
        ip = embedded_address(ip)
        is_loopback = ip.is_loopback
        if ip.is_link_local or ip.is_multicast:
            # 169.254.169.254 returns the credentials of cloud machines.
            raise ValueError(f"{name} must not be a link-local or multicast address, got {host!r}")
    if parts.scheme == "http" and not is_loopback and not allow_http:
        raise ValueError(
            f"{name} must be https://, except on 127.0.0.1: over http the key and the messages can be read by others, "
            f"got http://{host}. Pass allow_http=True if the network is your own"
        )


# Of translators, and the obsolete form without a prefix.
_WITH_IPV4 = [IPv6Network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")]


def embedded_address(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(ip, IPv4Address) or ip.is_loopback or ip.is_unspecified:
        return ip
    if any(ip in network for network in _WITH_IPV4):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo = None if ip.teredo is None else ip.teredo[1]
    return ip.ipv4_mapped or ip.sixtofour or teredo or ip


def _without_slash(name: str, url: str) -> str:
    url = url.rstrip("/")
    for path in _ENDPOINT_PATHS:
        if url.endswith(path):
            raise ValueError(f"{name} must end before {path!r}, which is added to it, got {url!r}")
    return url
