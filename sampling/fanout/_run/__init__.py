"""
One run of a fan-out.

`FanOut` starts the items, `_slots` limits them, and `_ending` decides how the run ends.
"""

from sampling.fanout._run._ending import RunStatus
from sampling.fanout._run._fan_out_run import FanOut

__all__ = ["FanOut", "RunStatus"]
