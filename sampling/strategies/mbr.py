"""Draw many, keep the one that is most like all the others."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from sampling._arguments import check_number, shown, wrong_type
from sampling._similarity import Similarity, rouge_l
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._draws import OpenDraws
from sampling.strategies._tally import count_votes
from sampling.strategies.similarity import EmbeddingSimilarity
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MBRStrategy"]

T = TypeVar("T")


class MBRStrategy(BaseSamplingStrategy):
    """
    Draw `concurrency_budget` answers, and keep the one that is most like all the others: minimum Bayes risk.

    It is for answers that no two draws word in the same way: a summary, a translation, a piece of code.
    `similarity(a, b)` is any function of two texts; ROUGE-L by default, or an `EmbeddingSimilarity`.
    Valid answers outrank invalid ones. A draw that fails takes no part, and spoils nothing.
    A tie goes to the lowest iteration.

    A draw that is still open may turn out to be more like all the others than any so far, so nearly always
    all are made. But if so many are word for word the same that nothing can be closer to the rest, the call ends.

    Each subsample is one draw, and has `loop_budget` attempts to come to a valid answer.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    concurrency_budget: int = 5
    """How many are drawn."""

    similarity: Similarity | EmbeddingSimilarity = staticmethod(rouge_l)

    relaxation: float | None = None
    """
    How far d = 1 - similarity is from a metric: an r for which d(a, c) - d(b, c) <= r * d(a, b), always.

    When same answers are more than r times as many as all the others can be, nothing can be closer to the rest than
    they are. It is 1 for a metric, and 4 for ROUGE-L. None if there is none, or it is not known: then all are drawn.
    """

    def __init__(
        self,
        similarity: Similarity | EmbeddingSimilarity | None = None,
        *,
        relaxation: float | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """Take how alike two texts are, and what the base takes; None keeps the default."""
        self._take(similarity=similarity, relaxation=relaxation)
        if self.similarity is rouge_l and self.relaxation is None:
            self.relaxation = _OF_ROUGE_L
        super().__init__(**settings)
        if isinstance(self.similarity, EmbeddingSimilarity):
            self.requirements = (*self.requirements, self.similarity.requirement)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not callable(self.similarity):
            raise wrong_type("similarity", self.similarity, "a callable of two texts, or an EmbeddingSimilarity")
        if self.relaxation is not None:
            check_number("relaxation", self.relaxation, least=1)

    def settled(self, progress: Progress[T]) -> bool:
        """Stop when so many are the same that they stay closest to all, whatever the others say."""
        if self.relaxation is None:
            return False
        valid = [one for one in progress.slices if one.valid]
        ended = frozenset[int]() if self.deterministic else progress.ended
        still_open = OpenDraws.after(progress.slices, progress.loop_budget, progress.concurrency_budget, ended).count
        most = max((standing.votes for standing in count_votes(valid, _text_of).standings), default=0)
        return most > self.relaxation * (len(valid) - most + still_open)

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose the slice that is most like all the others; of equals, the lowest iteration."""
        by_iteration = sorted(slices, key=lambda one: one.iteration)
        return max(by_iteration, key=_Likeness(by_iteration, self._compare))

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose by merit; of those of equal merit, the one that is most like all the others."""
        best = max((one.passed, one.score) for one in slices)
        return self.select([one for one in slices if (one.passed, one.score) == best])

    def _compare(self, one: Slice[Any], other: Slice[Any]) -> float:
        similarity = self.similarity
        if isinstance(similarity, EmbeddingSimilarity):
            return similarity(one, other)
        return similarity(_text_of(one), _text_of(other))


_OF_ROUGE_L = 4.0
"""
ROUGE-L is F = 2 * common / (m + n), and 1 - F is no metric. But d = 2 * (m + n - 2 * common) / (2 * (m + n - common))
is one (the Steinhaus transform of the distance by insertions and deletions), and 1 - F = d / (2 - d).
From the triangle inequality of d follows (1 - F(a, c)) - (1 - F(b, c)) <= 4 * (1 - F(a, b)).
"""


class _Likeness:
    """How much a slice is like all the others together. What is compared once is not compared again."""

    def __init__(self, slices: Sequence[Slice[Any]], compare: Callable[[Slice[Any], Slice[Any]], float]) -> None:
        self._slices = slices
        self._compare = compare
        self._known: dict[tuple[str, str], float] = {}

    def __call__(self, one: Slice[Any]) -> float:
        return math.fsum([self._of(one, other) for other in self._slices if other is not one])

    def _of(self, one: Slice[Any], other: Slice[Any]) -> float:
        pair = _text_of(one), _text_of(other)
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = _number(self._compare(one, other))
        return known


def _number(likeness: object) -> float:
    if isinstance(likeness, bool) or not isinstance(likeness, int | float) or not math.isfinite(likeness):
        raise TypeError(f"similarity must return a finite number, got {shown(likeness)}")
    return likeness


def _text_of(one: Slice[Any]) -> str:
    return one.text or ""
