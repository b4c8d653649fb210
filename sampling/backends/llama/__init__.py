"""GGUF models on this machine, run by llama.cpp. Needs the extra `llama`."""

from typing import TYPE_CHECKING

from sampling._lazy import lazy_attributes

if TYPE_CHECKING:
    from sampling.backends.llama._backend import LlamaBackend

__all__ = ["LlamaBackend"]

# The questions of the embedded model in `models` need no llama.cpp.
__getattr__ = lazy_attributes(__name__, {"LlamaBackend": "sampling.backends.llama._backend"})
