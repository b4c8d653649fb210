"""Servers that speak OpenAI's API. Needs the extra `openai`."""

from typing import TYPE_CHECKING

from sampling._lazy import lazy_attributes
from sampling._openai_generation import OpenAIGeneration, ToolCall

if TYPE_CHECKING:
    from sampling.backends.openai._backend import OpenAIBackend
    from sampling.backends.openai._embeddings import OpenAIEmbeddings

__all__ = ["OpenAIBackend", "OpenAIEmbeddings", "OpenAIGeneration", "ToolCall"]

# Adapters read answers of this API, too, and must not need an HTTP client for it.
__getattr__ = lazy_attributes(
    __name__,
    {
        "OpenAIBackend": "sampling.backends.openai._backend",
        "OpenAIEmbeddings": "sampling.backends.openai._embeddings",
    },
)
