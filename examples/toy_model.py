"""
A toy that stands in for a language model, so that the examples run without a key and without a network.

It is no model: it knows some rivers, forgets the rules it was given as a seeded die decides,
and forgets them less often once it is told which one it broke. What it is good for is to show how sampling works;
what it says about how often real models fail, or learn from being told, is nothing.
"""

import random

import anyio

from sampling import Generation, Request, Requirement, Usage, report_usage

__all__ = ["BARE", "REQUIREMENTS", "SORTED", "THREE", "ToyModel"]

RIVERS = ("Danube", "Ebro", "Elbe", "Loire", "Main", "Oder", "Po", "Rhine", "Seine", "Tagus", "Thames", "Vistula")


def _has_three(text: str) -> bool:
    return text.count(",") == 2


def _is_sorted(text: str) -> bool:
    rivers = text.rstrip(".").split(", ")
    return rivers == sorted(rivers)


def _has_no_full_stop(text: str) -> bool:
    return not text.endswith(".")


THREE = Requirement("exactly three rivers, comma separated", _has_three)
SORTED = Requirement("the rivers in alphabetical order", _is_sorted)
BARE = Requirement("no full stop at the end", _has_no_full_stop)

REQUIREMENTS = (THREE, SORTED, BARE)
"""The rules that the toy breaks."""


class ToyModel:
    """Answers word by word, as seeded: the same question in the same place of a call gets the same answer."""

    def __init__(self, *, seed: int = 0, careful: float = 0.5, teachable: float = 0.9, word_s: float = 0.0) -> None:
        self._seed = seed
        self._careful = careful
        """How likely it keeps a rule that it was not reminded of."""
        self._teachable = teachable
        """How likely it keeps one that it was."""
        self._word_s = word_s
        """About how long a word takes."""

    async def generate(self, request: Request) -> Generation:
        """Answer, and say all along what has been used by then: who is cancelled never gets to return it."""
        asked = "\n".join(message.content for message in request.messages)
        die = random.Random(f"{self._seed} {asked} {request.subsample} {request.attempt}")  # noqa: S311 - a toy's die
        words = self._answer(asked, die).split(" ")
        prompt_tokens = len(asked) // 4
        pace_s = self._word_s * die.uniform(0.5, 2.0)
        await anyio.sleep(pace_s)
        for spoken in range(1, len(words) + 1):
            report_usage(Usage(prompt_tokens, 2 * spoken))
            await anyio.sleep(pace_s)
        return Generation(" ".join(words), Usage(prompt_tokens, 2 * len(words)), model="toy")

    def _answer(self, asked: str, die: random.Random) -> str:
        def keeps(rule: Requirement) -> bool:
            return die.random() < (self._teachable if rule.description in asked else self._careful)

        rivers = die.sample(RIVERS, 3 if keeps(THREE) else 4)
        rivers.sort(reverse=not keeps(SORTED))
        return ", ".join(rivers) + ("" if keeps(BARE) else ".")
