"""Draw several answers and keep the most typical one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, cast

from sampling._arguments import check_number, short_repr, wrong_type
from sampling._text.similarity import Similarity, rouge_l
from sampling.protocols import Progress
from sampling.requirements import Requirement
from sampling.results import Slice
from sampling.strategies._draws import OpenDraws
from sampling.strategies._tally import count_votes
from sampling.strategies.similarity import EmbeddingSimilarity
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MBRStrategy"]

T = TypeVar("T")


class MBRStrategy(BaseSamplingStrategy):
    """
    Draw several answers and keep the most typical one.

    That is the answer with the highest similarity to all others: minimum Bayes risk.
    Use it when no two draws have the same wording: for a summary, a translation, or code.
    `similarity(a, b)` is any function of two texts, or an `EmbeddingSimilarity`. The default is ROUGE-L.
    Valid answers outrank invalid ones. A failed draw is left out, and the others still count.
    The lowest iteration wins a tie.

    Each of `concurrency_budget` subsamples is one draw with `loop_budget` attempts.
    The call nearly always makes all draws, because an open draw may be more similar to the others than any so far.
    It ends early if so many answers are identical that no other can be closer to the rest.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    concurrency_budget: int = 5
    """Number of draws."""

    similarity: Similarity | EmbeddingSimilarity = staticmethod(rouge_l)

    relaxation: float | None = None
    """
    A factor r such that d(a, c) - d(b, c) <= r * d(a, b) always holds for d = 1 - similarity.

    If identical answers outnumber all others, open draws included, by more than r to 1, no answer can be
    closer to the rest, and the call ends. It is 1 for a metric and 4 for ROUGE-L.
    None means that no such factor is known: then all draws are made.
    """

    def __init__(
        self,
        similarity: Similarity | EmbeddingSimilarity | None = None,
        *,
        relaxation: float | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the similarity and the settings of `BaseSamplingStrategy`.

        None keeps a default.
        """
        self._take(similarity=similarity, relaxation=relaxation)
        if self.similarity is rouge_l and self.relaxation is None:
            self.relaxation = _ROUGE_L_RELAXATION
        super().__init__(**settings)
        if isinstance(self.similarity, EmbeddingSimilarity):
            self.requirements: Sequence[Requirement] = (*self.requirements, self.similarity.requirement)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not callable(self.similarity):
            raise wrong_type("similarity", self.similarity, "a callable of two texts, or an EmbeddingSimilarity")
        if self.relaxation is not None:
            check_number("relaxation", self.relaxation, least=1)

    def settled(self, progress: Progress[T]) -> bool:
        """Stop when identical answers are sure to win."""
        if self.relaxation is None:
            return False
        valid = [one for one in progress.slices if one.valid]
        # In a deterministic call nothing may depend on when a draw failed.
        ended = frozenset[int]() if self.deterministic else progress.ended
        still_open = OpenDraws.after(progress.slices, progress.loop_budget, progress.concurrency_budget, ended).count
        most = max((standing.votes for standing in count_votes(valid, _text_of).standings), default=0)
        return most > self.relaxation * (len(valid) - most + still_open)

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Return the slice most similar to the others.

        The lowest iteration wins a tie.
        """
        by_iteration = sorted(slices, key=lambda one: one.iteration)
        return max(by_iteration, key=_TotalSimilarity(by_iteration, self._compare))

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Return the slice with the most merit.

        Among equals, the one most similar to the others wins.
        """
        best = max((one.passed, one.score) for one in slices)
        return self.select([one for one in slices if (one.passed, one.score) == best])

    def _compare(self, one: Slice[Any], other: Slice[Any]) -> float:
        similarity = self.similarity
        if isinstance(similarity, EmbeddingSimilarity):
            return similarity(one, other)
        return similarity(_text_of(one), _text_of(other))


_ROUGE_L_RELAXATION = 4.0
"""
ROUGE-L is F = 2 * common / (m + n), where 1 - F is not a metric. d = 2 * (m + n - 2 * common) / (2 * (m + n - common))
is one (the Steinhaus transform of the distance by insertions and deletions), and 1 - F = d / (2 - d).
From the triangle inequality of d follows (1 - F(a, c)) - (1 - F(b, c)) <= 4 * (1 - F(a, b)).
"""


class _TotalSimilarity:
    """
    The sum of the similarities of a slice to all others.

    Each pair of texts is compared once, because a similarity may be slow.
    """

    def __init__(self, slices: Sequence[Slice[Any]], compare: Callable[[Slice[Any], Slice[Any]], float]) -> None:
        self._slices = slices
        self._compare = compare
        self._cached: dict[tuple[str, str], float] = {}

    def __call__(self, one: Slice[Any]) -> float:
        return math.fsum([self._of(one, other) for other in self._slices if other is not one])

    def _of(self, one: Slice[Any], other: Slice[Any]) -> float:
        pair = _text_of(one), _text_of(other)
        cached = self._cached.get(pair)
        if cached is None:
            cached = self._cached[pair] = _checked(self._compare(one, other))
        return cached


def _checked(similarity: object) -> float:
    try:
        number = float(cast("Any", similarity))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise TypeError(f"similarity must return a finite number, got {short_repr(similarity)}")
    return number


def _text_of(one: Slice[Any]) -> str:
    return one.text or ""
