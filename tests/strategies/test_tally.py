"""The probabilities of a vote."""

import itertools
import random
from fractions import Fraction

import pytest

from sampling.strategies._tally import chance_of_change, draws_needed


def by_all_ways(leader, rivals, still_open):
    """Return the probability of a change, by enumerating every sequence of draws."""
    changed = Fraction(0)
    for way in itertools.product(range(len(rivals) + 1), repeat=still_open):
        urn = [leader + 1, *[votes + 1 for votes, _ in rivals]]
        chance = Fraction(1)
        for ball in way:
            chance *= Fraction(urn[ball], sum(urn))
            urn[ball] += 1
        final = [balls - 1 for balls in urn]
        overtaken = any(
            votes > final[0] or (votes == final[0] and wins_ties)
            for votes, (_, wins_ties) in zip(final[1:], rivals, strict=True)
        )
        changed += chance * overtaken
    return changed


class TestChanceOfChange:
    @pytest.mark.parametrize("leader", [1, 2, 3, 5])
    @pytest.mark.parametrize("wins_ties", [True, False])
    @pytest.mark.parametrize("still_open", [1, 2, 5])
    def test_with_one_rival_it_is_exact(self, leader, wins_ties, still_open):
        """The sum equals that over all sequences of draws."""
        rivals = ((0, wins_ties),)
        assert pytest.approx(float(by_all_ways(leader, rivals, still_open))) == chance_of_change(
            leader, rivals, still_open
        )

    def test_with_several_rivals_it_never_says_too_little(self):
        """The sum of the probabilities of all rivals can only overestimate."""
        rng = random.Random(1)
        for _ in range(60):
            rivals = (*[(rng.randint(0, 3), rng.random() < 0.5) for _ in range(rng.randint(0, 2))], (0, False))
            leader = max(votes for votes, _ in rivals) + rng.randint(1, 3)
            still_open = rng.randint(1, 5)
            exact = float(by_all_ways(leader, rivals, still_open))
            assert exact <= chance_of_change(leader, rivals, still_open) + 1e-12

    def test_it_is_nothing_only_if_it_can_not_be(self):
        """It is 0 only if all open draws together can't change the leader."""
        assert 0.0 == chance_of_change(3, ((0, False),), 2)
        assert 0.0 == chance_of_change(3, ((0, False),), 3)
        assert 0.0 < chance_of_change(3, ((0, True),), 3)
        assert 0.0 < chance_of_change(10**6, ((10**6 - 100, False),), 101)

    def test_far_from_the_end_only_certainty_counts(self):
        """The sum would have too many terms, so the vote continues."""
        assert 1.0 == chance_of_change(500, ((0, False),), 501)
        assert 0.0 == chance_of_change(500, ((0, False),), 499)


class TestDrawsNeeded:
    @pytest.mark.parametrize("certainty", [1.0, 0.99, 0.95, 0.8])
    def test_it_is_the_fewest_that_can_settle_the_vote(self, certainty):
        """It equals a search from the smallest number."""
        rng = random.Random(2)
        for _ in range(100):
            others = tuple(sorted(rng.choices(range(1, 4), k=rng.randint(0, 3)), reverse=True))
            leader = max((0, *others)) + rng.randint(0, 3)
            still_open = rng.randint(1, 12)
            rivals = tuple((votes, False) for votes in (*others, 0))

            def settles(more):
                chance = chance_of_change(leader + more, rivals, still_open - more)  # noqa: B023
                return chance == 0 or chance + certainty < 1

            expected = next(more for more in range(still_open + 1) if settles(more))
            assert expected == draws_needed(leader, others, still_open, certainty)

    def test_the_default_vote_starts_with_a_majority(self):
        """Of 9 draws, 5 are needed for certainty, and 3 for a certainty of 95 %."""
        assert 5 == draws_needed(0, (), 9, 1.0)
        assert 3 == draws_needed(0, (), 9, 0.95)
