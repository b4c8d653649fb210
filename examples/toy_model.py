"""
A stand-in for a language model, so that the examples run without a key and a network.

It is not a model. It knows some rivers, and breaks each rule at random, with a seed. It breaks a rule less often once
the prompt mentions it. It shows how sampling works, but not how often real models fail or how well they learn from
feedback.
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
"""The rules that the toy breaks at random."""


class ToyModel:
    """A seeded model: the same prompt, subsample and attempt get the same answer."""

    def __init__(self, *, seed: int = 0, careful: float = 0.5, teachable: float = 0.9, word_s: float = 0.0) -> None:
        self._seed = seed
        self._careful = careful
        """The probability to keep a rule that is not in the prompt."""
        self._teachable = teachable
        """The probability to keep a rule that is in the prompt."""
        self._word_s = word_s
        """The approximate time for a word."""

    async def generate(self, request: Request) -> Generation:
        """Answer word by word."""
        asked = "\n".join(message.text for message in request.messages)
        die = random.Random(f"{self._seed} {asked} {request.subsample} {request.attempt}")  # noqa: S311 - a toy's die
        words = self._answer(asked, die).split(" ")
        prompt_tokens = len(asked) // 4
        pace_s = self._word_s * die.uniform(0.5, 2.0)
        await anyio.sleep(pace_s)
        for spoken in range(1, len(words) + 1):
            # Report after every word: a cancelled request never returns its usage.
            report_usage(Usage(prompt_tokens, 2 * spoken))
            await anyio.sleep(pace_s)
        return Generation(" ".join(words), Usage(prompt_tokens, 2 * len(words)), model="toy")

    def _answer(self, asked: str, die: random.Random) -> str:
        def keeps(rule: Requirement) -> bool:
            return die.random() < (self._teachable if rule.description in asked else self._careful)

        rivers = die.sample(RIVERS, 3 if keeps(THREE) else 4)
        rivers.sort(reverse=not keeps(SORTED))
        return ", ".join(rivers) + ("" if keeps(BARE) else ".")
