"""Scenarios for every contender. Standard library only, because the peers' environments import this too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

ANSWER = "x"
QUESTION = "Write something."
REQUIREMENT = "It must be good."


@dataclass(frozen=True)
class Scenario:
    """One `sample()` call: `depth` is `loop_budget`, `breadth` is `concurrency_budget`."""

    depth: int
    breadth: int
    passing: bool = False
    multi_turn: bool = False
    turns: int = 0  # questions and answers that the conversation already has

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

        A passing call asks all of its subsamples once: each of them is waiting for its answer when the first one comes.
        """
        return self.breadth if self.passing else self.depth * self.breadth


@dataclass
class Tally:
    """Counts the requests to a contender's backend. Every round is checked."""

    requests: int = 0


Checkpoint = Callable[[], Awaitable[object]]
"""What a backend waits for before it answers: one turn of the event loop, when time is measured."""

Call = Callable[[], Awaitable[bool]]
"""One `sample()` call, which says whether it succeeded."""

Prepare = Callable[[Scenario, Tally, Checkpoint], Call]
"""What a contender has to provide. What it makes here is not part of the measurement."""
