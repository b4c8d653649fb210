"""Servers that speak the OpenAI API. Needs the extra `openai`."""

from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes
from sampling.backends.http._extras import require_extra
from sampling.messages import Generation as OpenAIGeneration
from sampling.parts import ToolCall

if TYPE_CHECKING:
    from sampling.backends.openai._backend import OpenAIBackend
    from sampling.backends.openai._embeddings import OpenAIEmbeddings

__all__ = ["OpenAIBackend", "OpenAIEmbeddings", "OpenAIGeneration", "ToolCall"]

_HOMES = {
    "OpenAIBackend": "sampling.backends.openai._backend",
    "OpenAIEmbeddings": "sampling.backends.openai._embeddings",
}

# Lazy, because the adapters parse responses of this API too and must not need an HTTP client for it.
_lazy = lazy_attributes(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require_extra(name, "openai", "httpx2")
    return _lazy(name)
