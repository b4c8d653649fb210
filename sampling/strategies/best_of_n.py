"""Draw several, keep the one with the highest score."""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar, Unpack, cast

from sampling._arguments import check_number, check_str, shown, wrong_type
from sampling._engine.judge import Judge, Scored
from sampling.errors import BadVerdict
from sampling.requirements import Check, Requirement, Validation, View
from sampling.results import Slice
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["BestOfNStrategy", "Score"]

T = TypeVar("T")

Score: TypeAlias = Callable[[str], float | Awaitable[float]] | Callable[[str, View], float | Awaitable[float]]
"""How good an answer is, higher is better: `score(text)` or `score(text, view)`, sync or async."""


class BestOfNStrategy(BaseSamplingStrategy):
    """
    Draw `concurrency_budget` answers, and keep the valid one with the highest score.

    The score comes from a function or a reward model (`score(text)` or `score(text, view)`, sync or async),
    from a model that judges how well a sentence is met ("is easy to read"), or from a requirement that gives one.
    It is asked for answers that passed all code checks, as part of their validation: so it is on the slice,
    and what it costs counts against the budget.
    Without one, the scores of the requirements count, all together.
    An answer whose score can't be had is invalid, with the error on the result. A tie goes to the lowest iteration.

    Each subsample is one draw, and has `loop_budget` attempts to come to a valid answer.
    All draws are made, unless one has a score that is `enough`: then the others are cancelled.
    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    concurrency_budget: int = 4
    """How many are drawn."""

    enough: float | None = None
    """The score that ends the call; None draws them all."""

    _scoring: Requirement | None = None

    def __init__(
        self,
        score: Score | Requirement | str | None = None,
        *,
        enough: float | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """Take how good an answer is, what is good enough, and what the base takes; None keeps the default."""
        self._take(enough=enough)
        super().__init__(**settings)
        if score is not None:
            self._scoring = _as_scoring(score)
            self.requirements = (*self.requirements, self._scoring)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.enough is not None:
            check_number("enough", self.enough)

    def done(self, slices: Sequence[Slice[T]]) -> bool:
        """Stop when an answer is good enough."""
        newest = slices[-1]
        return self.enough is not None and newest.valid and self.score_of(newest) >= self.enough

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose the highest score; of equals, the lowest iteration."""
        return max(slices, key=lambda one: (self.score_of(one), -one.iteration))

    def score_of(self, one: Slice[Any]) -> float:
        """Return the score of a slice; minus infinity if there should be one and is none."""
        if self._scoring is None:
            return one.score
        return next((v.score for v in one.validations if v.requirement is self._scoring and v.score is not None), _NONE)


_NONE = float("-inf")
_POINTS = 10


def _as_scoring(score: object) -> Requirement:
    if isinstance(score, Requirement):
        return score
    if isinstance(score, str):
        judge = Judge(check_str("score", score, empty=False), Scored(at_least=0, out_of=_POINTS))
        return Requirement(score, check=judge, judged=True)
    if not callable(score):
        raise wrong_type("score", score, "a callable that takes the text, a sentence, or a Requirement with a score")
    described = Requirement("has a score", check=cast("Check", score))

    async def give_score(text: str, view: View) -> Validation:
        value: Any = score(text, view) if described.takes_view else score(text)
        if isawaitable(value):
            value = await value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadVerdict(f"score must return a number, got {shown(value)}")
        return Validation(True, score=value)

    # Judged, so that nothing is paid for the score of an answer that failed already.
    return Requirement(described.description, check=give_score, judged=True)
