"""Run in virtual time until a signal."""

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sampling.cli._signals import stop_signals

__all__ = ["run_virtual_until_signal"]

T = TypeVar("T")

# The default horizon is 12 days of virtual time. A longer run would count as deadlocked.
_HORIZON_S = 1e9


def run_virtual_until_signal(
    run: Callable[[], Awaitable[T]], stop: Callable[[], object]
) -> tuple[T, signal.Signals | None]:
    """
    Run in virtual time, and return the result and the signal that stopped it, if any.

    A signal that stops a command calls `stop`, and the run returns what it has. A virtual loop waits for no signals,
    so a flag is looked at between two steps of tasks.
    """
    # It imports trio's test kit, which takes longer than the rest of the command line.
    from sampling._virtual_time import run_virtual  # noqa: PLC0415

    received: list[signal.Signals] = []
    passed_on: list[signal.Signals] = []

    def receive(number: int, _frame: object) -> None:
        if not received:
            received.append(signal.Signals(number))
        elif signal.Signals(number).name != "SIGHUP":
            raise KeyboardInterrupt  # the second one ends at once

    def pass_on() -> None:
        if received and not passed_on:
            passed_on.extend(received)
            stop()

    before = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        result = run_virtual(run, horizon_s=_HORIZON_S, on_step=pass_on)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return result, received[0] if received else None
