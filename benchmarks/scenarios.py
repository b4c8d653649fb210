"""What every contender is asked to do. Standard library only: the peers' environments import it too."""

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
        """How the scenario is called in the table."""
        words = [f"{self.depth}×{self.breadth}"]
        words += ["multi-turn"] if self.multi_turn else []
        words += ["passing" if self.passing else "failing"]
        words += [f"after {self.turns:,} turns"] if self.turns else []
        return " ".join(words)

    @property
    def attempts(self) -> int:
        """How often one call asks the backend.

        A passing call asks all of its subsamples once: each of them is waiting for its answer when the first one comes.
        """
        return self.breadth if self.passing else self.depth * self.breadth


@dataclass
class Tally:
    """How often the backend was asked: every contender's backend counts, and every round is checked."""

    requests: int = 0


Checkpoint = Callable[[], Awaitable[object]]
"""What a backend waits for before it answers: one turn of the event loop, when time is measured."""

Call = Callable[[], Awaitable[bool]]
"""One `sample()` call, which says whether it succeeded."""

Prepare = Callable[[Scenario, Tally, Checkpoint], Call]
"""What a contender has to provide. What it makes here is not part of the measurement."""
