"""Draw several answers and keep the most frequent one."""

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar, Unpack

import structlog

from sampling._arguments import check_bool, check_number, short_repr, wrong_type
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._draws import OpenDraws
from sampling.strategies._tally import Poll, count_votes
from sampling.strategies.keys import Key, exact
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MajorityVotingStrategy"]

T = TypeVar("T")

_log = structlog.get_logger("sampling")


class MajorityVotingStrategy(BaseSamplingStrategy):
    """
    Draw several answers and keep the most frequent one.

    Use it when there is no check, and answers can be compared: numbers, labels, fields.
    Each of up to `concurrency_budget` subsamples is one draw with `loop_budget` attempts. Its valid answer votes.
    Valid answers outrank any number of invalid ones. A failed draw does not vote, and the others still count.
    The answer with the lowest iteration wins a tie, so the outcome does not depend on speed.

    The vote ends when its outcome can't change any more. With a `certainty` below 1, it also ends
    when the probability of a change is below `1 - certainty`.
    A draw starts only when it is certain to be needed: of 9, 5 start at once, because fewer can't decide.
    More start only if those disagree. So it takes as few tokens as drawing one by one, in two or three rounds.

    See `BaseSamplingStrategy` for the cost of breadth.
    """

    concurrency_budget: int = 9
    """Maximum number of draws."""

    key: Key = staticmethod(exact)
    """Maps the value of an answer to the key that it votes for. None abstains."""

    certainty: float = 1.0
    """Probability of the outcome at which the vote ends early. With 1, ending early never changes it."""

    early_stop: bool = True
    """If False, make all draws."""

    all_at_once: bool = False
    """If True, start all draws at once. This is the fastest and the most expensive way."""

    def __init__(
        self,
        key: Key | None = None,
        *,
        certainty: float | None = None,
        early_stop: bool | None = None,
        all_at_once: bool | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """
        Set the key, the early stop and the base settings.

        None keeps a default.
        """
        self._take(key=key, certainty=certainty, early_stop=early_stop, all_at_once=all_at_once)
        super().__init__(**settings)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not callable(self.key):
            raise wrong_type("key", self.key, "a callable that takes the value of an answer")
        if check_number("certainty", self.certainty, above=0) > 1:
            raise ValueError(f"certainty must be at most 1, got {self.certainty}")
        check_bool("early_stop", self.early_stop)
        check_bool("all_at_once", self.all_at_once)

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
        best = max((one.passed, one.score) for one in slices)
        return self._winner([one for one in slices if (one.passed, one.score) == best])

    def _winner(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        standings = count_votes(slices, self._key_or_warn).standings
        # If all abstain, the first answer is as good as any other.
        return standings[0].first if standings else min(slices, key=lambda one: one.iteration)

    def _poll(self, slices: Sequence[Slice[T]]) -> Poll[T]:
        return count_votes((one for one in slices if one.valid), self._key_of)

    def _key_of(self, one: Slice[T], *, warn: bool = False) -> Hashable | None:
        """
        Return the key that this slice votes for.

        It is None if the slice abstains or the key function raises.
        """
        try:
            # An invalid answer may have no value, because it could not be parsed.
            key = self.key(one.text if one.value is None else one.value)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - one answer that breaks a key function must not spoil the vote
            if warn:
                _log.warning("vote_not_counted", iteration_id=one.iteration_id, error_type=type(error).__name__)
            return None
        if not isinstance(key, Hashable):
            raise TypeError(f"key must return something hashable, or None to abstain, got {short_repr(key)}")
        return key

    def _key_or_warn(self, one: Slice[T]) -> Hashable | None:
        return self._key_of(one, warn=True)
