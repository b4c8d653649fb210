"""Scenarios for every contender. Standard library only, because the environments of the peers import this, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

ANSWER = "x"
QUESTION = "Write something."
REQUIREMENT = "It must be good."


@dataclass(frozen=True)
class Scenario:
    """One `sample()` call. `depth` is `loop_budget`, `breadth` is `concurrency_budget`."""

    depth: int
    breadth: int
    passing: bool = False
    multi_turn: bool = False
    turns: int = 0  # number of earlier questions and answers in the conversation

    @property
    def name(self) -> str:
        """The name of the scenario in the table."""
        words = [f"{self.depth}×{self.breadth}"]
        words += ["multi-turn"] if self.multi_turn else []
        words += ["passing" if self.passing else "failing"]
        words += [f"after {self.turns:,} turns"] if self.turns else []
        return " ".join(words)

    @property
    def attempts(self) -> int:
        """The number of requests per call.

        A passing call makes one request per subsample, because all of them have started when the first answer comes.
        """
        return self.breadth if self.passing else self.depth * self.breadth


@dataclass
class Tally:
    """Counts the requests to a contender's backend. Every round is checked."""

    requests: int = 0


Checkpoint = Callable[[], Awaitable[object]]
"""Waits before the backend answers. When time is measured, it is one turn of the event loop."""

Call = Callable[[], Awaitable[bool]]
"""Makes one `sample()` call, and returns whether it succeeded."""

Prepare = Callable[[Scenario, Tally, Checkpoint], Call]
"""Prepares the call of a contender. This is not part of the measurement."""
