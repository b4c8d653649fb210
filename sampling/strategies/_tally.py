"""
Count votes and decide when a vote is over.

A rival changes the outcome if the open draws put it ahead of the leader, or level where it would win a tie.
If it could not do so even with all open draws, the outcome is certain.

Anything less than certain must hold for every true distribution of the answers, which is unknown. The worst case
is a rival that is as likely as the leader: if it is less likely, it rarely catches up, and if it is more likely,
it is rarely behind. So the rule computes the probability that it catches up in a fair coin toss for each open draw.
A vote that ends when this is below `1 - certainty` has another outcome at most that often, because the coin tosses are
a martingale. Draws for other answers only leave fewer tosses. For several rivals the probabilities are added,
and all unseen answers count as one, which can only overestimate.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from math import comb, exp
from sys import float_info
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from sampling.results import Slice

__all__ = ["Poll", "Rival", "Standing", "chance_of_change", "count_votes", "draws_needed"]

T = TypeVar("T")

Rival: TypeAlias = tuple[int, bool]
"""The votes of a rival, and True if it would win a tie with the leader."""

_MAX_TOSSES = 1_024
"""With more open draws, Hoeffding's inequality bounds the probability, because the exact sum has a term for each."""


@attrs.frozen
class Standing(Generic[T]):
    """An answer and its votes."""

    votes: float
    """The number of votes, or the sum of their weights."""

    first: Slice[T]
    """The vote with the lowest iteration. It breaks ties, and is the answer on the result."""


@attrs.frozen
class Poll(Generic[T]):
    """
    The votes so far, the leader first.

    Standings are in the order of their votes, then of their lowest iteration.
    """

    standings: Sequence[Standing[T]]
    heaviest: float | None = None
    """The greatest weight that a vote may have, or None if each counts as one."""

    @property
    def agreement(self) -> float | None:
        """The share of the leader among all votes, or None without any."""
        return self._share_of(0.0)

    @property
    def margin(self) -> float | None:
        """The lead of the leader over the next answer, as a share of all votes, or None without any."""
        return self._share_of(self.standings[1].votes if len(self.standings) > 1 else 0.0)

    def _share_of(self, less: float) -> float | None:
        total = sum(standing.votes for standing in self.standings)
        return (self.standings[0].votes - less) / total if total else None

    def is_over(self, still_open: int, earliest_open: int, certainty: float) -> bool:
        """
        Return True if open draws won't change the outcome.

        With a `certainty` of 1 they can't. Below 1, the probability of a change is below `1 - certainty`.

        `earliest_open` is the lowest iteration that an open draw may have. It decides ties.
        """
        if not still_open:
            return True
        if not self.standings:
            return False
        leader, *others = self.standings
        if self.heaviest is not None:
            # An open draw may have any weight up to this, so only a certain outcome counts.
            most = max((other.votes for other in others), default=0.0) + still_open * self.heaviest
            return leader.votes > most
        first = leader.first.iteration
        newcomer_wins_ties = earliest_open < first
        rivals = [(int(other.votes), newcomer_wins_ties or other.first.iteration < first) for other in others]
        return _is_settled(int(leader.votes), (*rivals, (0, newcomer_wins_ties)), still_open, certainty)

    def draws_needed(self, still_open: int, certainty: float) -> int:
        """Return the minimum number of open draws to end it."""
        if self.heaviest is not None:
            return still_open
        leader, *others = [int(standing.votes) for standing in self.standings] or [0]
        return draws_needed(leader, tuple(others), still_open, certainty)


def count_votes(
    slices: Iterable[Slice[T]],
    key_of: Callable[[Slice[T]], Hashable | None],
    weight_of: Callable[[Slice[T]], float] | None = None,
    heaviest: float | None = None,
) -> Poll[T]:
    """
    Count the votes of these slices.

    A slice whose key is None does not vote.
    """
    standings: dict[Hashable, Standing[T]] = {}
    for one in slices:
        key = key_of(one)
        if key is not None:
            standings[key] = _with_vote(standings.get(key), one, 1 if weight_of is None else weight_of(one))
    ranked = sorted(standings.values(), key=lambda standing: (-standing.votes, standing.first.iteration))
    return Poll(ranked, heaviest)


def _with_vote(standing: Standing[T] | None, one: Slice[T], weight: float) -> Standing[T]:
    if standing is None:
        return Standing(weight, one)
    return Standing(standing.votes + weight, min(standing.first, one, key=_iteration))


def _iteration(one: Slice[Any]) -> int:
    return one.iteration


@lru_cache(maxsize=4096)
def draws_needed(leader: int, others: tuple[int, ...], still_open: int, certainty: float) -> int:
    """
    Return the minimum number of open draws to end a vote.

    This is the best case: all of them vote for the leader, and the leader wins every tie.
    """
    rivals = tuple([(votes, False) for votes in (*others, 0)])
    # More votes for the leader never reopen a vote, so a binary search finds the minimum.
    few, enough = 0, still_open
    while few < enough:
        middle = (few + enough) // 2
        if _is_settled(leader + middle, rivals, still_open - middle, certainty):
            enough = middle
        else:
            few = middle + 1
    return enough


def _is_settled(leader: int, rivals: tuple[Rival, ...], still_open: int, certainty: float) -> bool:
    chance = chance_of_change(leader, rivals, still_open)
    return not chance or chance + certainty < 1.0


def chance_of_change(leader: int, rivals: tuple[Rival, ...], still_open: int) -> float:
    """
    Return an upper bound on the probability of a new leader.

    It is 0 only if the open draws can't change the leader.
    The last rival has no votes and stands for all unseen answers.
    """
    margins = [margin for rival in rivals if (margin := _margin(leader, rival)) <= still_open]
    if margins and leader <= 1:
        # The first draw always leads, so it says nothing about answers that have not been seen yet.
        return 1.0
    return min(1.0, sum([_chance_to_gain(margin, still_open) for margin in margins]))


def _margin(leader: int, rival: Rival) -> int:
    """Return the lead in open draws that a rival needs."""
    votes, wins_ties = rival
    return leader - votes + (0 if wins_ties else 1)


@lru_cache(maxsize=4096)
def _chance_to_gain(margin: int, still_open: int) -> float:
    """Return the probability that a fair coin shows heads more often than tails, by at least this margin."""
    if margin <= 0:
        return 1.0
    if still_open > _MAX_TOSSES:
        chance = exp(-(margin**2) / (2 * still_open))
    else:
        # With one toss less, the difference has the other parity, and may be the more likely one.
        chance = max(_upper_tail(tosses, (tosses + margin + 1) // 2) for tosses in (still_open - 1, still_open))
    # It is possible, so never round it down to 0, which means impossible.
    return max(chance, float_info.min)


def _upper_tail(tosses: int, heads: int) -> float:
    return sum([comb(tosses, count) for count in range(heads, tosses + 1)]) / (1 << tosses)
