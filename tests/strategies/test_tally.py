"""The probabilities of a vote."""

import itertools
import random
from functools import cache
from types import SimpleNamespace

import pytest

from sampling.strategies._tally import chance_of_change, count_votes, draws_needed


def by_all_tosses(margin, still_open):
    """Return the probability to gain a margin by tossing coins, by enumerating every sequence of tosses."""
    return max(
        sum(sum(way) >= margin for way in itertools.product((-1, 1), repeat=tosses)) / 2**tosses
        for tosses in (still_open - 1, still_open)
    )


class TestChanceOfChange:
    @pytest.mark.parametrize("leader", [2, 3, 5])
    @pytest.mark.parametrize("wins_ties", [True, False])
    @pytest.mark.parametrize("still_open", [1, 2, 5, 8])
    def test_with_one_rival_it_is_that_of_fair_coins(self, leader, wins_ties, still_open):
        """The sum equals that over all sequences of tosses."""
        margin = leader if wins_ties else leader + 1
        expected = by_all_tosses(margin, still_open)
        assert pytest.approx(expected) == chance_of_change(leader, ((0, wins_ties),), still_open)

    def test_the_probabilities_of_several_rivals_are_added(self):
        """That can only overestimate."""
        alone = [chance_of_change(4, (rival,), 5) for rival in ((2, True), (1, False), (0, False))]
        assert pytest.approx(sum(alone)) == chance_of_change(4, ((2, True), (1, False), (0, False)), 5)

    def test_it_is_nothing_only_if_it_can_not_be(self):
        """It is 0 only if all open draws together can't change the leader."""
        assert 0.0 == chance_of_change(3, ((0, False),), 2)
        assert 0.0 == chance_of_change(3, ((0, False),), 3)
        assert 0.0 < chance_of_change(3, ((0, True),), 3)
        assert 0.0 < chance_of_change(10**6, ((10**6 - 100, False),), 101)
        assert 0.0 < chance_of_change(10**6, ((0, False),), 10**6 + 1)

    def test_the_first_vote_says_nothing(self):
        """Whatever is drawn first leads, so with one vote the outcome is open."""
        assert 1.0 == chance_of_change(1, ((0, False),), 2)

    def test_far_from_the_end_it_is_bounded(self):
        """Hoeffding's inequality is above the exact sum, and takes no time."""
        assert chance_of_change(200, ((100, False),), 1024) < chance_of_change(200, ((100, False),), 1025)
        assert chance_of_change(5_000, ((0, False),), 10_000) < 0.01


ANSWERS = [
    *[[share, 1 - share] for share in (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)],
    *[[1 / 3] * 3, [0.4, 0.4, 0.2], [0.45, 0.45, 0.1], [0.5, 0.3, 0.2]],
    *[[0.25] * 4, [0.1] * 10, [0.3, 0.3, 0.1, 0.1, 0.1, 0.1], [0.02] * 50],
]
"""True distributions: those that are worst for an early end, and others."""


def ended_early(draws, certainty):
    """Return the answer with which a vote ends, and the number of draws that it took."""
    slices = [SimpleNamespace(iteration=place, answer=answer) for place, answer in enumerate(draws, 1)]
    for made in range(1, len(draws) + 1):
        poll = count_votes(slices[:made], lambda one: one.answer)
        if poll.is_over(len(draws) - made, made + 1, certainty):
            return poll.standings[0].first.answer, made
    raise AssertionError("a vote without open draws is over")


class TestCertainty:
    @pytest.mark.parametrize(
        ("certainty", "draws"), [(0.6, 9), (0.8, 5), (0.8, 9), (0.8, 31), (0.9, 9), (0.9, 15), (0.95, 9)]
    )
    def test_an_early_end_is_wrong_less_often_than_it_says(self, certainty, draws):
        """S19: for every true distribution, the full vote has another outcome in less than 1 - certainty of all."""
        runs = 1_500 // draws
        spread = 2.5 * (certainty * (1 - certainty) / runs) ** 0.5
        for number, shares in enumerate(ANSWERS):
            rng = random.Random(number)
            changed = 0
            for _ in range(runs):
                drawn = rng.choices(range(len(shares)), shares, k=draws)
                full, _ = ended_early(drawn, 1.0)
                changed += ended_early(drawn, certainty)[0] != full
            assert changed / runs <= 1 - certainty + spread, (shares, changed)

    @pytest.mark.parametrize("certainty", [0.8, 0.9, 0.95])
    @pytest.mark.parametrize("draws", [3, 7, 9, 15, 31])
    def test_for_two_answers_it_holds_exactly(self, certainty, draws):
        """S19: the sum over all votes is below 1 - certainty, for every share of the two answers."""
        for percent in range(2, 99, 6):
            share = percent / 100
            assert probability_of_change(share, draws, certainty) <= 1 - certainty, share

    def test_it_saves_draws(self):
        """With 90 %, a vote of 31 in which 80 % agree takes less than half of the draws."""
        rng = random.Random(1)
        made = [ended_early(rng.choices("ab", (0.8, 0.2), k=31), 0.9)[1] for _ in range(50)]
        assert sum(made) < 0.5 * 31 * 50


def probability_of_change(share, draws, certainty):
    """Return the exact probability that a vote on two answers ends with another outcome than the full one."""

    @cache
    def final(first, votes, more):
        # The full vote goes to the answer with more votes, and to the earlier one in a tie.
        a, b = votes
        if not more:
            return 1.0 if a > b or (a == b and first == 0) else 0.0
        return share * final(first, (a + 1, b), more - 1) + (1 - share) * final(first, (a, b + 1), more - 1)

    @cache
    def go(first, votes):
        made = sum(votes)
        slices = [SimpleNamespace(iteration=1 + (answer != first), answer=answer) for answer in (0, 1)]
        cast = [slices[answer] for answer in (0, 1) for _ in range(votes[answer])]
        poll = count_votes(cast, lambda one: one.answer)
        if poll.is_over(draws - made, made + 1, certainty):
            wins = final(first, votes, draws - made)
            return 1 - wins if poll.standings[0].first.answer == 0 else wins
        return share * go(first, (votes[0] + 1, votes[1])) + (1 - share) * go(first, (votes[0], votes[1] + 1))

    return share * go(0, (1, 0)) + (1 - share) * go(1, (0, 1))


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
        """Of 9 draws, 5 are needed for certainty, and 4 for a certainty of 95 %."""
        assert 5 == draws_needed(0, (), 9, 1.0)
        assert 4 == draws_needed(0, (), 9, 0.95)
