"""Decide how a run ends: its status, and the error to raise."""

import math
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from sampling.fanout._arguments import FanOutArguments
from sampling.fanout.items import ItemOutcome, StopReason

__all__ = ["Ending", "RunStatus"]

RunStatus: TypeAlias = Literal["running", "completed", "halted", "stopped", "failed"]
"""The state of a run. "stopped" means that it was left, drained or cancelled before its last item."""


@attrs.frozen
class _Terminal:
    """The item that ends a run early."""

    index: int
    error: BaseException | None
    """None for a halt."""


class Ending:
    """
    Collects everything that can end a run.

    It is synchronous: it decides, and the run acts.
    """

    def __init__(self, arguments: FanOutArguments) -> None:
        self._on_error = arguments.on_error
        self._on_failure = arguments.on_failure
        self._terminal: _Terminal | None = None
        self._crash: BaseException | None = None
        self.cancelled_from: float = math.inf
        """Items with this index or a higher one must not run."""

        self.cut_short = False
        """Whether an item that would have had an outcome was cancelled."""

        self.stop_reason: StopReason | None = None
        """The limit of the budget that ended the run."""

        self.raised: BaseException | None = None
        """The error that the reader of the outcomes has seen."""

        self.left_with: BaseException | None = None
        """The exception with which the caller's block was left."""

    @property
    def crash(self) -> BaseException | None:
        """An interrupt, or an error such as MemoryError. It takes precedence over every other error."""
        return self._crash

    @property
    def halted_by(self) -> int | None:
        """The index of the item that halted the run."""
        terminal = self._terminal
        return terminal.index if terminal is not None and terminal.error is None else None

    def reason(self, journal_failure: BaseException | None) -> str | None:
        """Return the type of the error that ended the run, the item that halted it, or the limit of the budget."""
        error = self.raised or self.error(journal_failure)
        if error is not None:
            # Only the type: the message may contain prompts or keys.
            return type(error).__name__
        return self.stop_reason if self.halted_by is None else f"item {self.halted_by}"

    def is_outcome(self, outcome: ItemOutcome[Any]) -> bool:
        """Return False if the item's error is raised instead."""
        return outcome.status != "errored" or self._on_error != "raise"

    def ends_run(self, outcome: ItemOutcome[Any]) -> bool:
        """Return whether the run ends with this outcome."""
        if outcome.status == "errored":
            return self._on_error != "continue"
        return outcome.status == "failed" and self._on_failure == "halt"

    def end_at(self, index: int, error: BaseException | None) -> bool:
        """
        End the run at an item.

        Return False if an item with a lower index ends it already: a sequential run would have ended there.
        """
        if self._terminal is not None and index >= self._terminal.index:
            return False
        self._terminal = _Terminal(index, error)
        return True

    def end_with_crash(self, error: BaseException) -> None:
        """Record the first crash."""
        if self._crash is None:
            self._crash = error

    def error(self, journal_failure: BaseException | None) -> BaseException | None:
        """Return the error to raise to the reader."""
        error = self._crash or journal_failure
        if error is None and self._terminal is not None:
            error = self._terminal.error
        return error

    def status(self, journal_failure: BaseException | None, *, exhausted: bool) -> RunStatus:
        """Return the final status of the run."""
        left_with = self.left_with
        if left_with is not None and (left_with is self.raised or not _only_leaves(left_with)):
            return "failed"
        if self._crash is not None or journal_failure is not None:
            return "failed"
        if self.cut_short:
            return "stopped"
        if self._terminal is not None:
            return "halted" if self._terminal.error is None else "failed"
        if self.stop_reason is not None:
            return "halted"
        return "completed" if exhausted else "stopped"


def _only_leaves(error: BaseException) -> bool:
    """Return whether an exception means that the block was left: it was cancelled, or its generator was closed."""
    return isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit))
