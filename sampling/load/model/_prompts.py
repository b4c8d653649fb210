"""Generated prompts, with lengths from a distribution and prefixes that several prompts share."""

import math
import random

import attrs

from sampling._arguments import check_int, check_number
from sampling.load.model._seeds import derive_seed
from sampling.load.model._workload import Arrival

__all__ = ["Lengths", "RandomPrompts"]

# Short common words are one token each, with the space before them, in the vocabularies of most models.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city name team minute idea body back parent "
    "face level office door health person art war history party result change morning reason research girl guy "
    "moment air teacher force"
)
_WORDS = tuple(_TEXT.split())


@attrs.frozen
class Lengths:
    """
    A distribution of lengths, in tokens.

    Without `stdev` all lengths are the mean. With it they are normal, rounded, and cut off at `least` and `most`.
    """

    mean: float
    stdev: float = attrs.field(default=0.0, kw_only=True)
    least: int = attrs.field(default=1, kw_only=True)
    most: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_number("mean", self.mean, above=0)
        check_number("stdev", self.stdev, least=0)
        check_int("least", self.least, least=1)
        if self.most is not None:
            check_int("most", self.most, least=self.least)

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        return self._limited(rng.gauss(self.mean, self.stdev) if self.stdev else self.mean)

    def __str__(self) -> str:
        if not self.stdev:
            return f"{self._limited(self.mean)} tokens"
        limits = f"at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"{self.mean:.15g} tokens (stdev {self.stdev:.15g}, {limits})"

    def _limited(self, length: float) -> int:
        return int(min(max(round(length), self.least), math.inf if self.most is None else self.most))


class RandomPrompts:
    """
    Prompts of random words, for `strategy_workload`.

    `strategy_workload(strategy, RandomPrompts(Lengths(512, stdev=128)), None, backend)` sends them. A prompt depends
    only on the seed of its arrival, so a rerun sends the same prompts. Lengths are about right: a word is one token in
    most vocabularies, and the usage in the report is exact.
    """

    def __init__(self, tokens: Lengths | int, *, shared_prefix_tokens: int = 0, prefixes: int = 1) -> None:
        """
        Check the lengths.

        Args:
            tokens: The length of a prompt, with its prefix.

            shared_prefix_tokens: The length of a prefix that several prompts share, like a system prompt.
                A server with a prefix cache answers them faster.

            prefixes: The number of different prefixes. Each prompt gets one of them at random.
        """
        self._lengths = tokens if isinstance(tokens, Lengths) else Lengths(check_int("tokens", tokens, least=1))
        self._shared = check_int("shared_prefix_tokens", shared_prefix_tokens, least=0)
        self._count = check_int("prefixes", prefixes, least=1)
        # Made when first used: many long prefixes would take a while, and a short run uses few of them.
        self._prefixes: dict[int, list[str]] = {}

    def __call__(self, arrival: Arrival) -> str:
        """Return the prompt of an arrival."""
        # A generator of its own, so that the other draws of the arrival stay as they are.
        rng = random.Random(derive_seed(arrival.seed, "prompt"))  # noqa: S311 - traffic is no secret
        prefix = self._prefix(rng.randrange(self._count))
        # At least one word is the prompt's own, so that no two prompts are one question.
        return " ".join([*prefix, *_words(rng, max(self._lengths.draw(rng) - len(prefix), 1))])

    def __str__(self) -> str:
        shared = f", {self._count} shared prefix{'' if self._count == 1 else 'es'} of {self._shared} tokens"
        return f"random prompts of {self._lengths}{shared if self._shared else ''}"

    def _prefix(self, number: int) -> list[str]:
        if number not in self._prefixes:
            rng = random.Random(derive_seed(0, "prefix", number))  # noqa: S311 - traffic is no secret
            self._prefixes[number] = _words(rng, self._shared)
        return self._prefixes[number]


def _words(rng: random.Random, count: int) -> list[str]:
    return rng.choices(_WORDS, k=count)
