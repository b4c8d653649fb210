"""GGUF models on this machine, run by llama.cpp. Needs the extra `llama`."""

from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes
from sampling.backends.http._extras import require_extra

if TYPE_CHECKING:
    from sampling.backends.llama._backend import LlamaBackend

__all__ = ["LlamaBackend"]

# Lazy, because the arithmetic questions in `models` need no llama.cpp.
_lazy = lazy_attributes(__name__, {"LlamaBackend": "sampling.backends.llama._backend"})


def __getattr__(name: str) -> Any:
    if name == "LlamaBackend":
        require_extra(name, "llama", "xllamacpp", "httpx2")
    return _lazy(name)
