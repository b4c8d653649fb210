"""Google's Gemini API. Needs the extra `gemini`."""

from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes
from sampling.backends.http._extras import require_extra

if TYPE_CHECKING:
    from sampling.backends.gemini._backend import GeminiBackend

__all__ = ["GeminiBackend"]

_lazy = lazy_attributes(__name__, {"GeminiBackend": "sampling.backends.gemini._backend"})


def __getattr__(name: str) -> Any:
    if name == "GeminiBackend":
        require_extra(name, "gemini", "httpx2")
    return _lazy(name)
