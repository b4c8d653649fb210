"""
Count votes and decide when a vote is over.

A rival changes the outcome if the open draws put it ahead of the leader, or level where it would win a tie.
If it could not do so even with all open draws, the outcome is certain.

Anything less than certain needs a prior. Before the first draw, every distribution over the answers is equally likely:
a uniform prior over the answers seen, plus one that stands for all unseen answers. After the draws, the posterior is
a Dirichlet distribution, and the open draws follow Pólya's urn: each answer has a probability in proportion to its
votes plus one. The probability of each outcome is a quotient of binomials, so the sum is exact.
For several rivals the probabilities are added. That, and counting all unseen answers as one, can only overestimate.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from math import comb
from sys import float_info
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from sampling.results import Slice

__all__ = ["Poll", "Rival", "Standing", "chance_of_change", "count_votes", "draws_needed"]

T = TypeVar("T")

Rival: TypeAlias = tuple[int, bool]
"""The votes of a rival, and True if it would win a tie with the leader."""

_MAX_LOOKAHEAD = 128
"""With more open draws, only a certain outcome ends a vote, because the sum has a term for every pair of them."""


@attrs.frozen
class Standing(Generic[T]):
    """An answer and its votes."""

    votes: int
    first: Slice[T]
    """The vote with the lowest iteration. It breaks ties, and is the answer on the result."""


@attrs.frozen
class Poll(Generic[T]):
    """
    The votes so far, the leader first.

    Standings are in the order of their votes, then of their lowest iteration.
    """

    standings: Sequence[Standing[T]]

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
        first = leader.first.iteration
        newcomer_wins_ties = earliest_open < first
        rivals = [(other.votes, newcomer_wins_ties or other.first.iteration < first) for other in others]
        return _is_settled(leader.votes, (*rivals, (0, newcomer_wins_ties)), still_open, certainty)

    def draws_needed(self, still_open: int, certainty: float) -> int:
        """Return the minimum number of open draws to end it."""
        leader, *others = [standing.votes for standing in self.standings] or [0]
        return draws_needed(leader, tuple(others), still_open, certainty)


def count_votes(slices: Iterable[Slice[T]], key_of: Callable[[Slice[T]], Hashable | None]) -> Poll[T]:
    """
    Count the votes of these slices.

    A slice whose key is None does not vote.
    """
    standings: dict[Hashable, Standing[T]] = {}
    for one in slices:
        key = key_of(one)
        if key is not None:
            standings[key] = _with_vote(standings.get(key), one)
    return Poll(sorted(standings.values(), key=lambda standing: (-standing.votes, standing.first.iteration)))


def _with_vote(standing: Standing[T] | None, one: Slice[T]) -> Standing[T]:
    if standing is None:
        return Standing(1, one)
    return Standing(standing.votes + 1, min(standing.first, one, key=_iteration))


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


@lru_cache(maxsize=4096)
def chance_of_change(leader: int, rivals: tuple[Rival, ...], still_open: int) -> float:
    """
    Return an upper bound on the probability of a new leader.

    It is 0 only if the open draws can't change the leader.
    The last rival has no votes and stands for all unseen answers.
    """
    contenders = [rival for rival in rivals if _margin(leader, rival) <= still_open]
    if not contenders:
        return 0.0
    if still_open > _MAX_LOOKAHEAD or leader == 0:
        return 1.0
    others = sum(votes + 1 for votes, _ in rivals)
    return min(1.0, sum(_chance_to_overtake(leader, rival, others - rival[0] - 1, still_open) for rival in contenders))


def _margin(leader: int, rival: Rival) -> int:
    """Return the lead in open draws that a rival needs."""
    votes, wins_ties = rival
    return leader - votes + (0 if wins_ties else 1)


def _chance_to_overtake(leader: int, rival: Rival, others: int, still_open: int) -> float:
    """Return the probability that this rival overtakes the leader."""
    votes, _ = rival
    margin = _margin(leader, rival)
    ways = 0
    for for_others in range(still_open - margin + 1 if others else 1):
        contested = still_open - for_others
        # The rival gets y of what is contested and the leader the rest: y - (contested - y) >= margin.
        least = (contested + margin + 1) // 2
        ahead = sum(
            comb(votes + y, y) * comb(leader + contested - y, contested - y) for y in range(least, contested + 1)
        )
        ways += ahead * (comb(others + for_others - 1, for_others) if for_others else 1)
    # It is possible, so never round it down to 0, which means impossible.
    return max(ways / comb(leader + votes + others + 1 + still_open, still_open), float_info.min)
