"""Anthropic's Messages API. Needs the extra `anthropic`."""

from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes
from sampling.backends.http._extras import require_extra

if TYPE_CHECKING:
    from sampling.backends.anthropic._backend import AnthropicBackend

__all__ = ["AnthropicBackend"]

_HOMES = {"AnthropicBackend": "sampling.backends.anthropic._backend"}

_lazy = lazy_attributes(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require_extra(name, "anthropic", "httpx2")
    return _lazy(name)
