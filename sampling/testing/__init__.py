"""
Test code that samples, and your own strategies and backends.

Scripted backends, captured events, virtual time on asyncio and trio, seeded schedules, cancellation at every step,
and the invariants that hold after every call.
"""

from sampling._virtual_time import Deadlocked, Spinning, run_virtual
from sampling.testing.capture import CapturedEvents
from sampling.testing.conformance import RuleBroken, check_backend
from sampling.testing.invariants import InvariantBroken, Watch
from sampling.testing.pass_rate import PassRate, PassRateTooLow, assert_samples, assert_samples_sync
from sampling.testing.schedules import (
    BOTH_LOOPS,
    Exploration,
    NeverReached,
    Nondeterministic,
    Outcome,
    World,
    cancel_at_every_step,
    explore,
)
from sampling.testing.scripted import After, ScriptedBackend, ScriptExhausted

__all__ = [
    "BOTH_LOOPS",
    "After",
    "CapturedEvents",
    "Deadlocked",
    "Exploration",
    "InvariantBroken",
    "NeverReached",
    "Nondeterministic",
    "Outcome",
    "PassRate",
    "PassRateTooLow",
    "RuleBroken",
    "ScriptExhausted",
    "ScriptedBackend",
    "Spinning",
    "Watch",
    "World",
    "assert_samples",
    "assert_samples_sync",
    "cancel_at_every_step",
    "check_backend",
    "explore",
    "run_virtual",
]
