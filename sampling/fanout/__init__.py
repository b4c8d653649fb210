"""Many items: bounded, in order, resumable."""

from sampling.fanout._arguments import Items, OnError, OnFailure
from sampling.fanout._fan_out import fan_out, open_fan_out
from sampling.fanout._run import FanOut
from sampling.fanout.engines import FanOutEngine, LocalEngine, SampleItem, Work
from sampling.fanout.items import FanOutFinished, FanOutResult, FanOutStarted, Item, ItemFinished, ItemOutcome

__all__ = [
    "FanOut",
    "FanOutEngine",
    "FanOutFinished",
    "FanOutResult",
    "FanOutStarted",
    "Item",
    "ItemFinished",
    "ItemOutcome",
    "Items",
    "LocalEngine",
    "OnError",
    "OnFailure",
    "SampleItem",
    "Work",
    "fan_out",
    "open_fan_out",
]
