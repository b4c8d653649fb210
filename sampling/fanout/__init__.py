"""Many items: bounded, in order, resumable."""

from sampling.fanout.arguments import Items, OnError, OnFailure
from sampling.fanout.call import fan_out, open_fan_out
from sampling.fanout.engines import FanOutEngine, LocalEngine, SampleItem, Work
from sampling.fanout.run import FanOut

__all__ = [
    "FanOut",
    "FanOutEngine",
    "Items",
    "LocalEngine",
    "OnError",
    "OnFailure",
    "SampleItem",
    "Work",
    "fan_out",
    "open_fan_out",
]
