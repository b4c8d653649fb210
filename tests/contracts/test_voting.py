"""The contract S19: majority vote and minimum Bayes risk."""

import itertools
import random
from collections import Counter

import attrs
import pytest

from sampling import (
    Action,
    Context,
    EscalationStrategy,
    Generation,
    Hooks,
    LoopStarted,
    MajorityVotingStrategy,
    MBRStrategy,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    SelectionFailed,
    Slice,
    Tier,
    Validation,
)
from sampling._text.similarity import rouge_l
from sampling.protocols import Progress
from sampling.testing import After, ScriptedBackend
from tests.contracts.kinds import sample

draws_many = pytest.mark.parametrize("strategy_class", [MajorityVotingStrategy, MBRStrategy])


def answering(answers, delays=None):
    """A backend that gives each subsample its own answer, after its own delay."""
    return ScriptedBackend(lambda r: After(delays[r.subsample] if delays else 1.0, answers[r.subsample]))


def drawn(subsample, text, outcome="valid"):
    """The slice of a draw that took one attempt."""
    generation = Generation(text)
    iteration = subsample + 1
    return Slice(iteration, f"-{iteration}", subsample, 0, outcome, Action("q"), Context(), generation, value=text)


def progress_of(slices, of, ended=()):
    """Return the progress of a call after these slices."""
    return Progress(
        slices=slices,
        attempts=slices,
        started=of,
        running=(),
        ended=frozenset(ended),
        loop_budget=1,
        concurrency_budget=of,
        now_s=0.0,
    )


def full_vote(answers):
    """The outcome by counting them all: most votes, and of equals the one that was given first."""
    votes = Counter(answers)
    return max(votes, key=lambda answer: (votes[answer], -answers.index(answer)))


class TestBoth:
    @draws_many
    def test_one_valid_answer_outranks_many_invalid_ones(self, run, strategy_class):
        """S19: valid outrank invalid, however well those agree."""
        backend = answering(["no no", "no no", "yes", "no no", "no no"])
        result = run(sample, strategy_class(concurrency_budget=5), backend, [lambda text: text == "yes"])
        assert result.success
        assert "yes" == result.text
        assert 4 <= len(result.slices)

    @draws_many
    @pytest.mark.parametrize("error", [RuntimeError("broken"), RateLimited("slow down")])
    def test_one_failing_draw_does_not_discard_the_rest(self, run, strategy_class, error):
        """S19: the others still make the outcome, and the failure is on the result."""
        result = run(sample, strategy_class(concurrency_budget=5), answering(["a", error, "b", "b", "c"]), [])
        assert "b" == result.text
        assert [error] == list(result.errors)
        assert ["valid", "errored", "valid", "valid", "valid"] == [one.outcome for one in result.attempts]

    @draws_many
    def test_all_draws_are_on_the_result(self, run, strategy_class):
        """S19: the winner, those who agree with it, and those who don't."""
        answers = ["a b c", "a b", "d", "a b c e", "a b c"]
        result = run(sample, strategy_class(concurrency_budget=5), answering(answers, [5, 4, 3, 2, 1]), [])
        assert "a b c" == result.text
        assert 1 == result.best.iteration
        assert answers == [one.text for one in result.slices]

    @draws_many
    def test_a_draw_may_take_repairs_to_become_valid(self, run, strategy_class):
        """S19: each draw has the whole depth to come to a valid answer, and votes once."""
        backend = ScriptedBackend(lambda r: "yes" if r.attempt == r.subsample else f"no {r.attempt}")
        strategy = strategy_class(loop_budget=3, concurrency_budget=3)
        result = run(sample, strategy, backend, [lambda text: text == "yes"])
        assert "yes" == result.text
        assert (0, 0) == (result.best.subsample, result.best.attempt)

    @draws_many
    def test_it_stops_when_the_outcome_can_not_change_any_more(self, run, strategy_class):
        """S19: what still runs then is cancelled."""
        strategy = strategy_class(concurrency_budget=10)
        if strategy_class is MajorityVotingStrategy:
            strategy.all_at_once = True
        result = run(sample, strategy, answering(["the same"] * 10, range(1, 11)), [])
        # A majority settles a vote. For ROUGE-L it takes more than four fifths: the rest could be closer to something.
        enough = 5 if strategy_class is MajorityVotingStrategy else 9
        assert enough == len(result.slices)
        assert 10 - enough == [one.outcome for one in result.attempts].count("cancelled")
        assert "validated" == result.stop_reason

    @draws_many
    def test_failures_vote_only_among_those_of_equal_merit(self, run, strategy_class):
        """S19, S12: when none is valid, most requirements met comes first, then agreement."""
        reqs = [lambda text: "good" in text, lambda text: False]
        backend = answering(["x y", "x y", "good a", "good b", "good b"])
        result = run(sample, strategy_class(concurrency_budget=5), backend, reqs)
        assert not result.success
        assert "good b" == result.text


class TestTheVote:
    def test_a_tie_does_not_depend_on_who_was_faster(self, run):
        """S19: of equals the answer with the lowest iteration wins, whichever came first."""
        answers = list("abbac")
        for delays in itertools.islice(itertools.permutations([1.0, 2.0, 3.0, 4.0, 5.0]), 0, None, 3):
            result = run(sample, MajorityVotingStrategy(concurrency_budget=5), answering(answers, delays), [])
            assert "a" == result.text

    def test_stopping_early_never_changes_the_outcome(self):
        """S19: 10,000 votes, with ties, failures and any order of arrival, have the outcome of the full vote."""
        rng = random.Random(19)
        strategies = [MajorityVotingStrategy(str, concurrency_budget=max(1, n)) for n in range(13)]
        stopped_early = ties = 0
        for _ in range(10_000):
            n = rng.randint(1, 12)
            answers = [rng.choice("abcdef"[: rng.randint(1, 6)]) for _ in range(n)]
            valid = [rng.random() < 0.9 for _ in range(n)]
            votes = [answer for answer, counts in zip(answers, valid, strict=True) if counts]
            if not votes:
                continue
            counts = Counter(votes).most_common(2)
            ties += len(counts) == 2 and counts[0][1] == counts[1][1]
            strategy = strategies[n]
            slices, ended = [], set()
            for subsample in rng.sample(range(n), n):
                outcome = "valid" if valid[subsample] else rng.choice(["invalid", "errored"])
                ended.add(subsample)
                if outcome != "errored":
                    slices.append(drawn(subsample, answers[subsample], outcome))
                if slices and strategy.settled(progress_of(slices, n, ended)):
                    stopped_early += len(ended) < n
                    break
            assert full_vote(votes) == strategy.select([one for one in slices if one.valid]).text
        assert 3_000 < stopped_early
        assert 1_000 < ties

    def test_it_stops_as_soon_as_no_answers_to_come_could_change_the_outcome(self):
        """S19: compared with trying all of them: neither too early nor too late."""
        rng = random.Random(4)
        for _ in range(300):
            n = rng.randint(2, 6)
            order = rng.sample(range(n), rng.randint(1, n))
            slices = [drawn(subsample, rng.choice("abc")) for subsample in order]
            known = {one.subsample: one.text for one in slices}
            still_open = [subsample for subsample in range(n) if subsample not in known]
            outcomes = {
                full_vote([{**known, **dict(zip(still_open, more, strict=True))}[s] for s in range(n)])
                for more in itertools.product("abcx", repeat=len(still_open))
            }
            strategy = MajorityVotingStrategy(concurrency_budget=n)
            assert (len(outcomes) == 1) is strategy.settled(progress_of(slices, n)), (n, known)

    @pytest.mark.parametrize("certainty", [1.0, 0.95])
    def test_in_a_real_call_no_draw_is_made_that_one_by_one_would_not_need(self, run, certainty):
        """S19: starting draws together costs no more of them than drawing one after the other."""
        rng = random.Random(7)
        for _ in range(60):
            n = rng.randint(1, 11)
            answers = [rng.choice("aaab" if rng.random() < 0.5 else "abcd") for _ in range(n)]
            strategy = MajorityVotingStrategy(concurrency_budget=n, certainty=certainty)
            slices = [drawn(subsample, answer) for subsample, answer in enumerate(answers)]
            one_by_one = next(k for k in range(1, n + 1) if strategy.settled(progress_of(slices[:k], n)))
            backend = answering(answers)
            result = run(sample, strategy, backend, [])
            assert one_by_one == len(backend.requests), answers
            if certainty == 1.0:
                assert full_vote(answers) == result.text

    def test_first_as_many_start_as_can_decide(self, run):
        """S19: of 9 draws, 5 start at once, and the open outcome decides how many follow."""
        backend = answering(list("aaaaaaaaa"))
        result = run(sample, MajorityVotingStrategy(), backend, [])
        assert (5, 5, 1.0) == (len(backend.requests), backend.max_in_flight, result.elapsed_s)
        backend = answering(list("aaaababbb"))
        result = run(sample, MajorityVotingStrategy(), backend, [])
        assert (6, 5, 2.0) == (len(backend.requests), backend.max_in_flight, result.elapsed_s)

    def test_all_of_them_vote_at_once_where_that_is_wanted(self, run):
        """S19: without early_stop, all votes are counted in the time of one draw."""
        backend = answering(list("aaaaaaaaa"))
        result = run(sample, MajorityVotingStrategy(early_stop=False), backend, [])
        assert (9, 9, 1.0) == (len(result.slices), backend.max_in_flight, result.elapsed_s)

    def test_a_draw_that_fails_is_made_up_for(self, run):
        """S19: with one draw lost, another one is started in its place."""
        answers = ["a", RuntimeError("broken"), "b", "b", "a", "a", "a", "a", "a"]
        result = run(sample, MajorityVotingStrategy(), answering(answers), [])
        assert "a" == result.text
        assert ["b", "b", "a", "a", "a"] == [one.text for one in result.slices[1:]]

    def test_the_votes_of_a_call_are_as_many_as_its_hooks_say(self, run):
        """S19, S8: a hook that raises the number of draws raises that of the vote."""
        hooks = Hooks()

        @hooks.on(LoopStarted)
        def nine(event):
            return attrs.evolve(event, concurrency_budget=9)

        strategy = MajorityVotingStrategy(concurrency_budget=3, hooks=hooks)
        result = run(sample, strategy, answering(list("aabbbbbbb")), [])
        assert "b" == result.text

    @pytest.mark.parametrize("certainty", [0.9, 0.95, 0.99])
    def test_less_than_certain_it_is_wrong_less_often_than_it_says(self, certainty):
        """S19: the full vote would have another outcome in less than 1 - certainty of the calls. Draws are saved."""
        rng = random.Random(int(certainty * 100))
        strategy = MajorityVotingStrategy(str, certainty=certainty)
        changed = made = 0
        for _ in range(1_000):
            # Any division of the probability among four answers is as likely as any other.
            weights = [rng.expovariate(1.0) for _ in range(4)]
            answers = rng.choices("abcd", weights, k=9)
            slices = [drawn(subsample, answer) for subsample, answer in enumerate(answers)]
            k = next(k for k in range(1, 10) if strategy.settled(progress_of(slices[:k], 9)))
            made += k
            changed += full_vote(answers) != strategy.select(slices[:k]).text
        assert changed < 1_000 * (1 - certainty)
        assert made < 0.85 * 1_000 * 9

    @pytest.mark.parametrize("certainty", [1.0, 0.9])
    def test_a_deterministic_vote_does_not_depend_on_timing(self, run, certainty):
        """S19, semantics 8: the same answer and the same votes, whatever was slow."""
        rng = random.Random(3)
        answers = ["a", "b", RuntimeError("broken"), "b", "a", "a", "c", "b", "a"]
        outcomes = set()
        for _ in range(30):
            strategy = MajorityVotingStrategy(certainty=certainty, deterministic=True)
            result = run(sample, strategy, answering(answers, [rng.random() for _ in answers]), [])
            outcomes.add((result.text, result.best.iteration))
        assert 1 == len(outcomes)

    def test_the_result_says_how_clear_the_vote_was(self, run):
        """S19: agreement is the share of the winner among the counted draws, and margin its lead."""
        strategy = MajorityVotingStrategy(concurrency_budget=5, early_stop=False)
        result = run(sample, strategy, answering(["a", "b", "a", RuntimeError("broken"), "a"]), [])
        assert (0.75, 0.5) == (result.agreement, result.margin)

    def test_invalid_answers_are_counted_if_there_are_no_others(self, run):
        """S19: the answers with the most merit voted, so they are counted."""
        strategy = MajorityVotingStrategy(concurrency_budget=3, early_stop=False)
        result = run(sample, strategy, answering(list("aab")), [Requirement("never", check=lambda _: False)])
        assert (False, 2 / 3, 1 / 3) == (result.success, result.agreement, result.margin)

    def test_without_a_vote_there_is_no_agreement(self, run):
        """S19: other strategies leave both None."""
        result = run(sample, RejectionSamplingStrategy(), answering(["a"]), [])
        assert (None, None) == (result.agreement, result.margin)

    def test_the_agreement_of_a_tier_is_on_the_result(self, run):
        """S19, S20: an escalation has the agreement of the tier that won."""
        strategy = EscalationStrategy([Tier(strategy=MajorityVotingStrategy(concurrency_budget=3, early_stop=False))])
        result = run(sample, strategy, answering(list("aab")), [])
        assert (2 / 3, 1 / 3) == (result.agreement, result.margin)

    def test_objects_without_a_hash_can_vote(self, run):
        """S19: answers that were parsed into a pydantic, attrs or dataclass object are compared by their fields."""

        @attrs.define
        class River:
            name: str

        async def call():
            answers = answering(["Rhine", "Elbe", "Rhine"])
            action = Action("?", lambda text: River(text.strip()))
            return await MajorityVotingStrategy(concurrency_budget=3).sample(action, None, answers)

        assert River("Rhine") == run(call).value

    def test_votes_count_by_their_score(self, run):
        """S19: one answer with a high score outweighs two with a low one."""
        scores = {"a": 0.2, "b": 0.9}
        scored = Requirement("has a score", check=lambda text: Validation(True, score=scores[text]))
        strategy = MajorityVotingStrategy(concurrency_budget=3, weight="score")
        result = run(sample, strategy, answering(list("aab")), [scored])
        assert ("b", pytest.approx(0.9 / 1.3)) == (result.text, result.agreement)

    def test_votes_count_by_their_probability(self, run):
        """S19: the geometric mean of the tokens counts, in every form that servers use, and decides early."""
        sure = [{"token": "b", "logprob": -0.01}, {"token": "!", "logprob": -0.01}]

        async def backend(request):
            if request.subsample < 2:
                return attrs.evolve(_WITH_LOGPROBS, text="a", logprobs=(-2.0, -2.0))
            return attrs.evolve(_WITH_LOGPROBS, text="b", logprobs=tuple(sure))

        strategy = MajorityVotingStrategy(concurrency_budget=3, weight="logprobs")
        assert "b" == run(sample, strategy, backend, []).text
        poll = strategy._poll([drawn(0, "a"), drawn(1, "a"), drawn(2, "a")])
        assert poll.is_over(2, 9, 1.0)
        assert not poll.is_over(3, 9, 1.0)

    @pytest.mark.parametrize("weight", [lambda _: -1.0, lambda _: float("nan"), lambda _: float("inf")])
    def test_a_weight_is_a_number(self, run, weight):
        """S19: a weight that can't be added up is an error that says so."""
        strategy = MajorityVotingStrategy(concurrency_budget=2, weight=weight)
        with pytest.raises(SelectionFailed) as raised:
            run(sample, strategy, answering(list("ab")), [])
        assert "weight must return a finite number" in str(raised.value.__cause__)

    @pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: float("nan"), lambda: "heavy"])
    def test_an_answer_that_can_not_be_weighed_does_not_vote(self, run, broken):
        """S19: one bad draw does not discard the others."""
        strategy = MajorityVotingStrategy(
            concurrency_budget=3, weight=lambda one: broken() if one.text == "bad" else 1.0
        )
        assert "a" == run(sample, strategy, answering(["bad", "a", "a"]), []).text

    def test_an_open_vote_may_have_any_weight(self):
        """S19: so a certainty below 1 is refused, and so is an unknown weight."""
        with pytest.raises(ValueError, match=r"certainty must be 1 for votes with a weight, got 0\.9"):
            MajorityVotingStrategy(weight="score", certainty=0.9)
        with pytest.raises(TypeError, match="weight must be"):
            MajorityVotingStrategy(weight="length")


_WITH_LOGPROBS = Generation("")


class TestMinimumBayesRisk:
    def test_punctuation_and_endings_do_not_decide(self, run):
        """S19: the same word with other punctuation is the same word."""
        answers = answering(["London", "Paris.", "Paris!", "London", "Paris"])
        assert "Paris" in run(sample, MBRStrategy(), answers, []).text

    def test_stopping_early_never_changes_the_outcome(self):
        """S19: where so many are the same that it stops, no answers to come bring another to the front."""
        rng = random.Random(5)
        stopped_early = 0
        for _ in range(500):
            n = rng.randint(5, 12)
            common = " ".join(rng.choices("abc", k=rng.randint(1, 6)))
            answers = [
                common if rng.random() < 0.85 else " ".join(rng.choices("abcd", k=rng.randint(1, 8))) for _ in range(n)
            ]
            strategy = MBRStrategy(concurrency_budget=n)
            slices = [drawn(subsample, answer) for subsample, answer in enumerate(answers)]
            k = next((k for k in range(1, n + 1) if strategy.settled(progress_of(slices[:k], n))), n)
            stopped_early += k < n
            assert strategy.select(slices).text == strategy.select(slices[:k]).text
        assert 75 < stopped_early

    def test_the_bound_of_rouge_l_holds(self):
        """S19: (1 - F(a, c)) - (1 - F(b, c)) <= 4 (1 - F(a, b)) for any three texts, and 4 is the smallest factor."""
        rng = random.Random(6)
        worst = 0.0
        for _ in range(2_000):
            a = rng.choices("ab" if rng.random() < 0.5 else "a", k=rng.randint(1, 60))
            b = [*a, *rng.choices("bcd", k=rng.randint(1, 3))]
            c = rng.choices("abcd", k=rng.randint(1, 3))
            a, b, c = (" ".join(words) for words in (a, b, c))
            apart = 1 - rouge_l(a, b)
            gained = rouge_l(b, c) - rouge_l(a, c)
            assert gained <= 4 * apart + 1e-12
            worst = max(worst, gained / apart)
        assert 3.8 < worst

    def test_a_similarity_of_which_nothing_is_known_needs_all_draws(self, run):
        """S19: the last draw may be more like all the others than any before it."""
        result = run(sample, MBRStrategy(lambda a, b: float(a == b)), answering(["same"] * 5, range(1, 6)), [])
        assert 5 == len(result.slices)
