"""Layers: backends that wrap a backend, and stack in any order."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sampling._lazy import lazy_attributes

if TYPE_CHECKING:
    from sampling._engine.scope import count_request, reserve_request
    from sampling.backends.layers._cached import AnswerStore, Cached, FileStore, MemoryStore
    from sampling.backends.layers._fallback import Fallback
    from sampling.backends.layers._layer import Layer
    from sampling.backends.layers._limited import Limited, LimitedStatistics
    from sampling.backends.layers._priced import Priced
    from sampling.backends.layers._replay import Recorded, Replayed
    from sampling.backends.layers._retrying import Retrying
    from sampling.backends.layers._tool_loop import ToolLoop

__all__ = [
    "AnswerStore",
    "Cached",
    "Fallback",
    "FileStore",
    "Layer",
    "Limited",
    "LimitedStatistics",
    "MemoryStore",
    "Priced",
    "Recorded",
    "Replayed",
    "Retrying",
    "ToolLoop",
    "count_request",
    "reserve_request",
]

# `import sampling` needs `Layer` alone, and should not pay for the rest.
__getattr__: Callable[[str], Any] = lazy_attributes(
    __name__,
    {
        "AnswerStore": "sampling.backends.layers._cached",
        "Cached": "sampling.backends.layers._cached",
        "Fallback": "sampling.backends.layers._fallback",
        "FileStore": "sampling.backends.layers._cached",
        "Layer": "sampling.backends.layers._layer",
        "Limited": "sampling.backends.layers._limited",
        "LimitedStatistics": "sampling.backends.layers._limited",
        "MemoryStore": "sampling.backends.layers._cached",
        "Priced": "sampling.backends.layers._priced",
        "Recorded": "sampling.backends.layers._replay",
        "Replayed": "sampling.backends.layers._replay",
        "Retrying": "sampling.backends.layers._retrying",
        "ToolLoop": "sampling.backends.layers._tool_loop",
        "count_request": "sampling._engine.scope",
        "reserve_request": "sampling._engine.scope",
    },
)
