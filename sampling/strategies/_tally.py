"""
Counting votes, and telling when counting can stop. Plain arithmetic on whole numbers: nothing here waits or guesses.

When is a vote over? With `votes` for the leader, and `still_open` draws that may yet vote, a rival changes the outcome
if it gets `y` of them and the leader `x`, so that it ends ahead (or level, where it would win a tie).

That it *can't* is plain: not even all of them would do. That it *hardly will* needs a belief about the draws to come.
Before the first draw, every division of the probability among the answers is held equally likely
(a uniform prior over the answers seen, and one more for all that were not). After the draws, that belief is a Dirichlet
distribution, and the draws to come follow Pólya's urn: each answer is drawn in proportion to its votes plus one.
The chance of each way in which they may fall is then a quotient of binomials, and is summed up exactly.
For several rivals the chances are added, which can only overestimate them. So is counting all unseen answers as one.
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
"""The votes of a rival, and whether it would win a tie with the leader."""

_FURTHEST_LOOK_AHEAD = 128
"""With more draws to come than this, only certainty counts: the sum has a term for every pair of them."""


@attrs.frozen
class Standing(Generic[T]):
    """One answer, and how it stands."""

    votes: int
    first: Slice[T]
    """Its vote with the lowest iteration: it wins ties for its answer, and stands for it on the result."""


@attrs.frozen
class Poll(Generic[T]):
    """The votes so far, the leader first: most votes, and of equals the one with the lowest iteration."""

    standings: Sequence[Standing[T]]

    def is_over(self, still_open: int, earliest_open: int, certainty: float) -> bool:
        """
        Say whether the outcome stands, with this certainty, whatever the open draws say.

        `earliest_open` is the lowest iteration that an open draw may have: it would win ties for its answer.
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
        """Return how many of the open draws it takes at least to end the vote."""
        leader, *others = [standing.votes for standing in self.standings] or [0]
        return draws_needed(leader, tuple(others), still_open, certainty)


def count_votes(slices: Iterable[Slice[T]], key_of: Callable[[Slice[T]], Hashable | None]) -> Poll[T]:
    """Count the votes; a slice whose key is None does not vote."""
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
    Return how many of the open draws it takes at least to end a vote.

    It takes the fewest if all of them go to the leader, and if the leader wins every tie.
    """
    rivals = tuple([(votes, False) for votes in (*others, 0)])
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
    Return how likely it is, at most, that the open draws change who leads.

    It is 0 only if they can't. The last rival has no votes, and stands for all answers that were not seen yet.
    """
    contenders = [rival for rival in rivals if _margin(leader, rival) <= still_open]
    if not contenders:
        return 0.0
    if still_open > _FURTHEST_LOOK_AHEAD or leader == 0:
        return 1.0
    others = sum(votes + 1 for votes, _ in rivals)
    return min(1.0, sum(_chance_to_overtake(leader, rival, others - rival[0] - 1, still_open) for rival in contenders))


def _margin(leader: int, rival: Rival) -> int:
    """Return by how many votes, of those to come, a rival must do better than the leader."""
    votes, wins_ties = rival
    return leader - votes + (0 if wins_ties else 1)


def _chance_to_overtake(leader: int, rival: Rival, others: int, still_open: int) -> float:
    """Sum, over all ways in which the draws may fall, the chances of those that bring this rival to the front."""
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
    # However unlikely, it is possible: only what can't be is 0.
    return max(ways / comb(leader + votes + others + 1 + still_open, still_open), float_info.min)
