"""Draw several answers and keep the best by score."""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar, Unpack, cast

from sampling._arguments import check_number, check_str, wrong_type
from sampling._engine.judge import Judge, Scored
from sampling.errors import BadVerdict
from sampling.requirements import Check, Requirement, Validation, View
from sampling.results import Slice
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["BestOfNStrategy", "Score"]

T = TypeVar("T")

Score: TypeAlias = Callable[[str], float | Awaitable[float]] | Callable[[str, View], float | Awaitable[float]]
"""A function that rates an answer, higher is better: `score(text)` or `score(text, view)`, sync or async."""


class BestOfNStrategy(BaseSamplingStrategy):
    """
    Draw several answers and keep the valid one that scores highest.

    Use it when you have a score: a reward model, a judge, or a test that counts.
    The score comes from a function or a reward model (`score(text)` or `score(text, view)`, sync or async),
    from a sentence that a model rates ("is easy to read"), or from a requirement with a score.
    Without one, the scores of all requirements are added up.

    Scoring is part of the validation, after all code checks passed.
    So the score is on the slice, and its cost counts against the budget.
    If scoring raises an error, the answer is invalid, and the error is on the result.
    The lowest iteration wins a tie.

    Each of `concurrency_budget` subsamples is one draw with `loop_budget` attempts. The call makes all draws,
    unless one scores at least `enough`: then the others are cancelled.
    See `BaseSamplingStrategy` for the cost of breadth.
    """

    concurrency_budget: int = 4
    """Number of draws."""

    enough: float | None = None
    """A score that ends the call. None makes all draws."""

    _scoring: Requirement | None = None

    def __init__(
        self,
        score: Score | Requirement | str | None = None,
        *,
        enough: float | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the score and the settings of `BaseSamplingStrategy`.

        None keeps a default.
        """
        self._take(enough=enough)
        super().__init__(**settings)
        if score is not None:
            self._scoring = _as_scoring(score)
            self.requirements: Sequence[Requirement] = (*self.requirements, self._scoring)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.enough is not None:
            check_number("enough", self.enough)

    def done(self, slices: Sequence[Slice[T]]) -> bool:
        """Stop when a valid answer scores at least `enough`."""
        # `done` runs after every attempt, so the earlier slices were not enough.
        newest = slices[-1]
        return self.enough is not None and newest.valid and self.score_of(newest) >= self.enough

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """
        Return the slice with the highest score.

        The lowest iteration wins a tie.
        """
        return max(slices, key=lambda one: (self.score_of(one), -one.iteration))

    def score_of(self, one: Slice[Any]) -> float:
        """Return the score, or minus infinity if there is none."""
        if self._scoring is None:
            return one.score
        return next(
            (v.score for v in one.validations if v.requirement is self._scoring and v.score is not None), _NO_SCORE
        )


_NO_SCORE = float("-inf")
_MAX_POINTS = 10


def _as_scoring(score: object) -> Requirement:
    if isinstance(score, Requirement):
        return score
    if isinstance(score, str):
        judge = Judge(check_str("score", score, empty=False), Scored(at_least=0, out_of=_MAX_POINTS))
        return Requirement(score, check=judge, judged=True)
    if not callable(score):
        raise wrong_type("score", score, "a callable that takes the text, a sentence, or a Requirement with a score")
    # A requirement inspects the signature and describes the function, for any check.
    described = Requirement("has a score", check=cast("Check", score))

    async def give_score(text: str, view: View) -> Validation:
        value: Any = score(text, view) if described.takes_view else score(text)
        if isawaitable(value):
            value = await value
        if value is None:
            raise BadVerdict("score must return a number, got None")
        return Validation(True, score=value)

    # Judged requirements run last, so an answer that failed a code check costs no scoring.
    return Requirement(described.description, check=give_score, judged=True)
