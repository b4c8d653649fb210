"""Draw several answers and keep the most frequent one."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, Unpack, cast

from sampling._arguments import check_bool, check_number, short_repr, wrong_type
from sampling._engine.validation import is_defect
from sampling._log import Logger
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._draws import OpenDraws
from sampling.strategies._tally import Poll, count_votes
from sampling.strategies.keys import Key, exact
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MajorityVotingStrategy", "Weight"]

T = TypeVar("T")

Weight: TypeAlias = Literal["score", "logprobs"] | Callable[[Slice[Any]], float]
"""The weight of a vote: a function of its slice, or the name of a ready-made one."""

_log = Logger()


class MajorityVotingStrategy(BaseSamplingStrategy):
    """
    Draw several answers and keep the most frequent one.

    Use it when there is no check, and answers can be compared: numbers, labels, fields.
    Each of up to `concurrency_budget` subsamples is one draw with `loop_budget` attempts. Its valid answer votes.
    Valid answers outrank any number of invalid ones. A failed draw does not vote, and the others still count.
    The answer with the lowest iteration wins a tie, so the outcome does not depend on speed.

    The vote ends when its outcome can no longer change. With a `certainty` below 1, it also ends
    when the probability of a change is below `1 - certainty`, whatever the model's true distribution of answers is.
    A draw starts only when it is certain to be needed: of 9, 5 start at once, because fewer can't decide.
    More start only if those disagree. So it takes as few tokens as drawing one by one, in two or three rounds.

    `agreement` and `margin` of the result say how clear the outcome is. Each vote counts as one,
    or with a `weight` as its score or its probability. Then all draws start at once,
    because a vote that is still open may have any weight.

    See `BaseSamplingStrategy` for the cost of breadth.
    """

    concurrency_budget: int = 9
    """Maximum number of draws."""

    key: Key = staticmethod(exact)
    """Maps the value of an answer to the key that it votes for. None abstains."""

    certainty: float = 1.0
    """
    Probability of the outcome at which the vote ends early. With 1, ending early never changes it.

    It can't be below 1 for votes with a `weight`.
    """

    early_stop: bool = True
    """If False, make all draws."""

    all_at_once: bool = False
    """If True, start all draws at once. This is the fastest and the most expensive way."""

    weight: Weight | None = None
    """
    The weight of a vote. None counts every vote as one.

    "score" is the sum of the scores of its requirements. "logprobs" is the probability of its text, as the geometric
    mean over its tokens, so that long answers count as much as short ones. Request them with `Options(logprobs=True)`.
    A function takes the slice, and returns a number that is not negative.
    An answer for which it raises or returns anything else does not vote, unless no answer can be weighed.
    """

    def __init__(
        self,
        key: Key | None = None,
        *,
        certainty: float | None = None,
        early_stop: bool | None = None,
        all_at_once: bool | None = None,
        weight: Weight | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the key, the early stop and the base settings.

        None keeps a default.
        """
        self._take(key=key, certainty=certainty, early_stop=early_stop, all_at_once=all_at_once, weight=weight)
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not callable(self.key):
            raise wrong_type("key", self.key, "a callable that takes the value of an answer")
        if check_number("certainty", self.certainty, above=0) > 1:
            raise ValueError(f"certainty must be at most 1, got {self.certainty}")
        check_bool("early_stop", self.early_stop)
        check_bool("all_at_once", self.all_at_once)
        self._check_weight()

    def _check_weight(self) -> None:
        if self.weight is None:
            return
        if not callable(self.weight) and self.weight not in _WEIGHTS:
            raise wrong_type("weight", self.weight, '"score", "logprobs", or a callable that takes a slice')
        if self.certainty < 1:
            raise ValueError(
                f"certainty must be 1 for votes with a weight, got {self.certainty}: "
                "nothing is known about the weights of open draws"
            )

    def settled(self, progress: Progress[T]) -> bool:
        """Stop when the outcome is certain, or certain enough."""
        if not self.early_stop:
            return False
        still_open = self._open_draws(progress)
        return self._poll(progress.slices).is_over(still_open.count, still_open.earliest, self.certainty)

    def next_subsample_in_s(self, progress: Progress[T]) -> float:
        """
        Start another draw if the running ones can't settle the vote.

        It counts them as votes for the leader, which is the fastest way to settle it.
        """
        if self.all_at_once or not self.early_stop:
            return 0.0
        still_open = self._open_draws(progress)
        running = sum([one.subsample not in still_open.closed for one in progress.running])
        # An open vote needs one more draw at least. `draws_needed` may return 0: it assumes that the leader wins ties.
        needed = max(1, self._poll(progress.slices).draws_needed(still_open.count, self.certainty))
        # Infinity means: not until an attempt ends.
        return 0.0 if running < needed else math.inf

    def _open_draws(self, progress: Progress[T]) -> OpenDraws:
        # In a deterministic call nothing may depend on when a draw failed.
        ended = frozenset[int]() if self.deterministic else progress.ended
        return OpenDraws.after(progress.slices, progress.loop_budget, progress.concurrency_budget, ended)

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Return the earliest slice of the most frequent answer."""
        return self._winner(slices)

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Let the slices with the most merit vote."""
        return self._winner(_of_most_merit(slices))

    def count_votes(self, slices: Sequence[Slice[T]]) -> tuple[float | None, float | None]:
        """Return the share of the winner, and its lead."""
        if not any(one.valid for one in slices):
            slices = _of_most_merit(slices)
        poll = self._count(slices, self._key_of)
        return poll.agreement, poll.margin

    def _winner(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        standings = self._count(slices, self._key_or_warn).standings
        if not standings and self.weight is not None and not self._weights_of(slices):
            # No answer can be weighed: raise what the first one raised.
            self._weight_of(slices[0])
        # If all abstain, the first answer is as good as any other.
        return standings[0].first if standings else min(slices, key=lambda one: one.iteration)

    def _poll(self, slices: Sequence[Slice[T]]) -> Poll[T]:
        return self._count([one for one in slices if one.valid], self._key_of)

    def _count(self, slices: Sequence[Slice[T]], key_of: Callable[[Slice[T]], Hashable | None]) -> Poll[T]:
        if self.weight is None:
            return count_votes(slices, key_of)
        weights = self._weights_of(slices)
        # A probability is at most 1. Other weights have no bound.
        heaviest = 1.0 if self.weight == "logprobs" else math.inf
        weighed = [one for one in slices if one.iteration in weights]
        return count_votes(weighed, key_of, lambda one: weights[one.iteration], heaviest)

    def _weights_of(self, slices: Sequence[Slice[T]]) -> dict[int, float]:
        """Return the weights by iteration, without answers that can't be weighed."""
        weights: dict[int, float] = {}
        for one in slices:
            try:
                weights[one.iteration] = self._weight_of(one)
            except (MemoryError, RecursionError):
                raise
            except Exception as error:
                # One answer that can't be weighed must not spoil the vote.
                if is_defect(error, __file__):
                    raise
                _log.debug("vote_not_weighed", iteration_id=one.iteration_id, error_type=type(error).__name__)
        return weights

    def _weight_of(self, one: Slice[T]) -> float:
        weight_of = cast("Callable[[Slice[Any]], float]", _WEIGHTS.get(cast("str", self.weight), self.weight))
        weight = float(weight_of(one))
        if not weight >= 0 or math.isinf(weight):
            raise ValueError(f"weight must return a finite number that is not negative, got {weight}")
        return weight

    def _key_of(self, one: Slice[T], *, warn: bool = False) -> Hashable | None:
        """
        Return the key that this slice votes for.

        It is None if the slice abstains or the key function raises.
        """
        try:
            # An invalid answer may have no value, because it could not be parsed.
            key = self.key(one.text if one.value is None else one.value)
            hashable = _is_hashable(key)
        except MemoryError:
            raise
        except Exception as error:
            # One answer that breaks a key function must not spoil the vote. A misspelt name in it would, silently.
            if is_defect(error, __file__):
                raise
            if warn:
                _log.warning("vote_not_counted", iteration_id=one.iteration_id, error_type=type(error).__name__)
            return None
        if not hashable:
            raise TypeError(f"key must return something hashable, or None to abstain, got {short_repr(key)}")
        return key

    def _key_or_warn(self, one: Slice[T]) -> Hashable | None:
        return self._key_of(one, warn=True)


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        # Such as a list, or a tuple that holds one.
        return False
    return True


def _of_most_merit(slices: Sequence[Slice[T]]) -> list[Slice[T]]:
    best = max((one.passed, one.score) for one in slices)
    return [one for one in slices if (one.passed, one.score) == best]


def _score(one: Slice[Any]) -> float:
    return max(0.0, one.score)


def _probability(one: Slice[Any]) -> float:
    """Return the geometric mean of the probabilities of the tokens, or 1 if they are not known."""
    logprobs = [value for item in getattr(one.generation, "logprobs", ()) if (value := _logprob(item)) is not None]
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs))) if logprobs else 1.0


def _logprob(item: object) -> float | None:
    """Return the log-probability of one token, in any of the forms that servers use."""
    value = cast("Mapping[str, object]", item).get("logprob") if isinstance(item, Mapping) else item
    value = getattr(value, "logprob", value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_WEIGHTS: dict[str, Callable[[Slice[Any]], float]] = {"score": _score, "logprobs": _probability}
