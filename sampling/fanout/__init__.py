"""
Sample many items: with bounded concurrency, in order, and resumable.

`fan_out` returns all outcomes, `open_fan_out` streams them.
See `sampling.fanout.journal` to resume a run after a crash, and `sampling.fanout.ray` to run it on a cluster.
"""

from sampling.fanout._arguments import Items, OnError, OnFailure
from sampling.fanout._fan_out import fan_out, open_fan_out
from sampling.fanout._run import FanOut, RunStatus
from sampling.fanout.engines import FanOutEngine, LocalEngine, SampleItem, Work
from sampling.fanout.items import (
    FanOutEvent,
    FanOutFinished,
    FanOutResult,
    FanOutStarted,
    FanOutStatus,
    Item,
    ItemFinished,
    ItemOutcome,
    ItemStatus,
)

__all__ = [
    "FanOut",
    "FanOutEngine",
    "FanOutEvent",
    "FanOutFinished",
    "FanOutResult",
    "FanOutStarted",
    "FanOutStatus",
    "Item",
    "ItemFinished",
    "ItemOutcome",
    "ItemStatus",
    "Items",
    "LocalEngine",
    "OnError",
    "OnFailure",
    "RunStatus",
    "SampleItem",
    "Work",
    "fan_out",
    "open_fan_out",
]
