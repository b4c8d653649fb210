"""Draw many, keep the answer that most of them agree on."""

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar, Unpack

import structlog

from sampling._arguments import check_bool, check_number, shown, wrong_type
from sampling.protocols import Progress
from sampling.results import Slice
from sampling.strategies._draws import OpenDraws
from sampling.strategies._tally import Poll, count_votes
from sampling.strategies.keys import Key, exact
from sampling.strategy import BaseSamplingStrategy, StrategySettings

__all__ = ["MajorityVotingStrategy"]

T = TypeVar("T")

log = structlog.get_logger("sampling")


class MajorityVotingStrategy(BaseSamplingStrategy):
    """
    Draw up to `concurrency_budget` answers, and keep the one that most of them agree on.

    Each subsample is one draw: it has `loop_budget` attempts to come to a valid answer, and that answer votes.
    Valid answers outrank invalid ones, however many those are. A draw that fails does not vote, and spoils nothing.
    A tie goes to the answer with the lowest iteration, so that the outcome does not depend on which one was faster.

    The vote ends when its outcome can't change any more, or, with a `certainty` below 1,
    when it would change with less than the remaining probability. And no draw is started before it is certain
    to be needed: of 9, first 5 start at once, because no fewer can decide, and more only if those disagree.
    So it costs as few tokens as drawing one by one, in two or three rounds.

    What breadth costs, and all the rest, is said at `BaseSamplingStrategy`.
    """

    concurrency_budget: int = 9
    """How many may vote."""

    key: Key = staticmethod(exact)
    """What makes two answers the same: it gets the value of each, and returns None for one that should not vote."""

    certainty: float = 1.0
    """How certain the outcome must be for the vote to end early; with 1, ending early never changes it."""

    early_stop: bool = True
    """Whether the vote may end early at all."""

    all_at_once: bool = False
    """Whether all draws start at once: the quickest, and the dearest."""

    def __init__(
        self,
        key: Key | None = None,
        *,
        certainty: float | None = None,
        early_stop: bool | None = None,
        all_at_once: bool | None = None,
        **settings: Unpack[StrategySettings],
    ) -> None:
        """Take what makes two answers the same, when to stop, and what the base takes; None keeps the default."""
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
        """Stop when the draws that are still open won't change the outcome."""
        if not self.early_stop:
            return False
        still_open = self._open_draws(progress)
        return self._poll(progress.slices).is_over(still_open.count, still_open.earliest, self.certainty)

    def next_subsample_in_s(self, progress: Progress[T]) -> float:
        """Start another draw now if those that run can't settle the vote, even if they all agree with its leader."""
        if self.all_at_once or not self.early_stop:
            return 0.0
        still_open = self._open_draws(progress)
        under_way = sum([one.subsample not in still_open.closed for one in progress.running])
        # It takes one more at least, or it would be settled: who wins ties is not known before they are counted.
        needed = max(1, self._poll(progress.slices).draws_needed(still_open.count, self.certainty))
        return 0.0 if under_way < needed else math.inf

    def _open_draws(self, progress: Progress[T]) -> OpenDraws:
        # In a deterministic call nothing may depend on when a draw failed.
        ended = frozenset[int]() if self.deterministic else progress.ended
        return OpenDraws.after(progress.slices, progress.loop_budget, progress.concurrency_budget, ended)

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose the answer with the most votes, and of its slices the one with the lowest iteration."""
        return self._winner(slices)

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        """Choose by merit; those of equal merit vote."""
        best = max((one.passed, one.score) for one in slices)
        return self._winner([one for one in slices if (one.passed, one.score) == best])

    def _winner(self, slices: Sequence[Slice[T]]) -> Slice[T]:
        standings = count_votes(slices, self._key_or_warn).standings
        return standings[0].first if standings else min(slices, key=lambda one: one.iteration)

    def _poll(self, slices: Sequence[Slice[T]]) -> Poll[T]:
        return count_votes((one for one in slices if one.valid), self._key_of)

    def _key_of(self, one: Slice[T], *, warn: bool = False) -> Hashable | None:
        """Return what this slice votes for. A key function that raises has found nothing to vote for."""
        try:
            key = self.key(one.text if one.value is None else one.value)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - an answer that a key function chokes on must not cost the others
            if warn:
                log.warning("vote_not_counted", iteration_id=one.iteration_id, error_type=type(error).__name__)
            return None
        if not isinstance(key, Hashable):
            raise TypeError(f"key must return something hashable, or None to abstain, got {shown(key)}")
        return key

    def _key_or_warn(self, one: Slice[T]) -> Hashable | None:
        return self._key_of(one, warn=True)
