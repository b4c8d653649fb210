"""
Sample many items: with bounded concurrency, in order, and resumable.

`fan_out` returns all outcomes, `open_fan_out` streams them.
See `sampling.fanout.journal` to resume a run after a crash, `sampling.fanout.batch` for the batch APIs of providers,
and `sampling.fanout.ray` to run it on a cluster.
"""

from sampling.fanout._arguments import Items, OnError, OnFailure
from sampling.fanout._fan_out import fan_out, open_fan_out
from sampling.fanout._run import FanOut, RunStatus
from sampling.fanout.batch import BatchEngine, BatchProgress
from sampling.fanout.engines import EngineNotes, FanOutEngine, LocalEngine, Note, SampleItem, Work
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
    "BatchEngine",
    "BatchProgress",
    "EngineNotes",
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
    "Note",
    "OnError",
    "OnFailure",
    "RunStatus",
    "SampleItem",
    "Work",
    "fan_out",
    "open_fan_out",
]
