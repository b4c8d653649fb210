"""Voting, best of n, minimum Bayes risk and diversity."""

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import (
    Action,
    BestOfNStrategy,
    Budget,
    Context,
    Diverse,
    Generation,
    MajorityVotingStrategy,
    MBRStrategy,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Usage,
    Validation,
)
from sampling.errors import SelectionFailed
from sampling.strategies import EmbeddingSimilarity
from sampling.strategies.keys import json_field, number
from sampling.testing import After, ScriptedBackend


def answering(*answers):
    """A backend that gives each subsample its own answer."""
    return ScriptedBackend(lambda request: After(1.0 + request.subsample, answers[request.subsample]))


async def sample(strategy, backend, reqs=(), action="q", ctx=None, **arguments):
    return await strategy.sample(action, ctx, backend, reqs, **arguments)


class TestVotes:
    @pytest.mark.parametrize(
        ("key", "answers", "expected"),
        [
            (None, ["Rhine", "Elbe", " elbe. "], "Elbe"),
            (number, ["It is 42.", "41", "6 * 7 = 42.0"], "It is 42."),
            (json_field("n"), ['{"n": 1}', '{"n": 2, "why": "a"}', '{"why": "b", "n": 2}'], '{"n": 2, "why": "a"}'),
            (len, ["aa", "b", "c"], "b"),
        ],
    )
    def test_any_function_says_which_answers_are_the_same(self, run, key, answers, expected):
        """A ready-made key or a function works. The result is the first answer of the winner."""
        result = run(sample, MajorityVotingStrategy(key, concurrency_budget=3), answering(*answers))
        assert expected == result.text

    def test_typed_answers_vote_by_their_value(self, run):
        """The key gets the parsed value."""
        strategy = MajorityVotingStrategy(concurrency_budget=3)
        result = run(sample, strategy, answering("07", "8", "7"), action=Action("n?", int))
        assert (7, "07") == (result.value, result.text)

    def test_an_answer_without_a_key_does_not_vote(self, run):
        """None abstains. If all answers abstain, the first one wins."""
        strategy = MajorityVotingStrategy(number, concurrency_budget=3)
        assert "7" == run(sample, strategy, answering("none", "none", "7")).text
        assert "none" == run(sample, strategy, answering("none", "no", "no")).text

    @pytest.mark.parametrize("setting", ["key", "weight"])
    def test_a_misspelt_name_in_it_ends_the_call(self, run, setting):
        """All answers would abstain, and the first one would win as if it had been voted for."""

        def misspelt(value):
            return lenght(value)  # noqa: F821 - the point of this test

        backend = answering("7", "8", "8", "8", "8")
        with pytest.raises(SelectionFailed, match="lenght") as caught:
            run(sample, MajorityVotingStrategy(concurrency_budget=5, **{setting: misspelt}), backend)
        assert isinstance(caught.value.__cause__, NameError)

    def test_an_answer_that_a_key_executes_costs_its_own_vote_only(self, run):
        """The name that is missing is one of the answer."""
        strategy = MajorityVotingStrategy(lambda text: eval(text, {}), concurrency_budget=3)  # noqa: S307
        with capture_logs():
            assert "7" == run(sample, strategy, answering("seven", "7", "7")).text

    def test_a_key_function_that_raises_costs_that_vote_only(self, run):
        """The log has one warning, without any text of the answer."""
        strategy = MajorityVotingStrategy(int, concurrency_budget=3)
        with capture_logs() as logs:
            result = run(sample, strategy, answering("secret", "7", "7"))
        assert "7" == result.text
        assert ["ValueError"] == [line["error_type"] for line in logs if line["event"] == "vote_not_counted"]
        assert "secret" not in str(logs)

    @pytest.mark.parametrize("key", [list, lambda text: (1, [text])])
    def test_a_key_that_can_not_be_counted_is_an_error_that_says_so(self, run, key):
        """A bug in the key function is not blamed on an answer."""
        with pytest.raises(SelectionFailed, match="key must return something hashable, or None to abstain"):
            run(sample, MajorityVotingStrategy(key, concurrency_budget=3), answering("a", "b", "c"))

    def test_a_key_whose_hash_raises_costs_that_vote_only(self, run):
        """S19: one bad draw does not discard the others."""

        class Broken:
            def __hash__(self):
                raise RuntimeError("no hash")

        strategy = MajorityVotingStrategy(lambda text: Broken() if text == "b" else text, concurrency_budget=3)
        assert "a" == run(sample, strategy, answering("b", "a", "a")).text

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"key": 7}, "key must be a callable"),
            ({"certainty": 0}, "certainty must be > 0, got 0"),
            ({"certainty": 1.5}, "certainty must be at most 1, got 1.5"),
            ({"certainty": "high"}, "certainty must be a number"),
            ({"early_stop": 1}, "early_stop must be True or False"),
            ({"all_at_once": "yes"}, "all_at_once must be True or False"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, arguments, message):
        """The error is raised at construction."""
        with pytest.raises((TypeError, ValueError), match=message):
            MajorityVotingStrategy(**arguments)


class TestBestOfN:
    def test_the_highest_score_among_the_valid_wins(self, run):
        """A higher score of an invalid answer does not count."""
        result = run(sample, BestOfNStrategy(len), answering("a", "bbbb", "ccc", "dddddd"), [lambda t: "d" not in t])
        assert "bbbb" == result.text
        assert 4 == len(result.slices)

    def test_a_score_may_be_async_and_see_the_view(self, run):
        """A reward model is awaited, and gets the view as a check does."""

        async def reward(text, view):
            await anyio.sleep(0.5)
            return view.value * 1.5

        result = run(sample, BestOfNStrategy(reward), answering("1", "9", "3", "4"), action=Action("n?", int))
        assert 9 == result.value
        assert 13.5 == result.best.score

    def test_a_sentence_is_judged_and_counted(self, run):
        """The backend of the call gives points. Their cost is on the slice and in the budget."""

        def reply(request):
            if request.messages[0].role == "system":
                assert "is short" in request.messages[-1].content
                return Generation("29"[request.subsample], Usage(3, 1))
            return Generation("ab"[request.subsample], Usage(10, 5))

        budget = Budget(tokens=1_000)
        result = run(sample, BestOfNStrategy("is short", concurrency_budget=2), ScriptedBackend(reply), budget=budget)
        assert "b" == result.text
        assert 0.9 == result.best.score
        assert (Usage(13, 6), 2) == (result.best.usage, result.best.requests)

    def test_nothing_is_paid_for_the_score_of_an_answer_that_failed(self, run):
        """Like a judge, the score runs after the code checks."""
        scored = []
        strategy = BestOfNStrategy(lambda text: scored.append(text) or 1.0, concurrency_budget=3)
        run(sample, strategy, answering("a", "b", "c"), [lambda text: text == "b"])
        assert ["b"] == scored

    def test_a_requirement_may_give_the_score(self, run):
        """Scores of other requirements do not count."""
        quality = Requirement("is good", check=lambda text: Validation(True, score=len(text)))
        other = Requirement("noise", check=lambda text: Validation(True, score=100.0 if text == "a" else 0.0))
        result = run(sample, BestOfNStrategy(quality, concurrency_budget=2), answering("a", "bb"), [other])
        assert "bb" == result.text

    def test_without_a_score_those_of_the_requirements_count(self, run):
        """The scores of all requirements are added up."""
        scored = Requirement("scored", check=lambda text: Validation(True, score=len(text)))
        assert "bb" == run(sample, BestOfNStrategy(concurrency_budget=2), answering("a", "bb"), [scored]).text

    def test_a_score_that_is_enough_ends_the_call(self, run):
        """The other draws are cancelled."""
        result = run(sample, BestOfNStrategy(len, enough=3), answering("a", "bbb", "cccc", "d"))
        assert "bbb" == result.text
        assert ["valid", "valid", "cancelled", "cancelled"] == [one.outcome for one in result.attempts]

    def test_a_tie_goes_to_the_lowest_iteration(self, run):
        """The order of arrival does not matter."""
        backend = ScriptedBackend(lambda request: After(5.0 - request.subsample, "abcd"[request.subsample]))
        assert "a" == run(sample, BestOfNStrategy(len), backend).text

    def test_a_score_that_fails_costs_that_answer_only(self, run):
        """The attempt is invalid, and the error is on the result."""
        strategy = BestOfNStrategy(lambda text: 1 / (len(text) - 1), concurrency_budget=3)
        result = run(sample, strategy, answering("a", "bbb", "cc"))
        assert "cc" == result.text
        assert [ZeroDivisionError] == [type(error) for error in result.errors]

    @pytest.mark.parametrize("score", [None, "high", [1]])
    def test_a_score_that_is_no_number_is_an_error_that_says_so(self, run, score):
        """A bug in the score function is not blamed on an answer."""
        with pytest.raises(TypeError, match=r"has a score.*score must"):
            run(sample, BestOfNStrategy(lambda text: score), answering("a", "b", "c", "d"))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"score": 7}, "score must be a callable that takes the text, a sentence, or a Requirement"),
            ({"score": " "}, "score must not be empty"),
            ({"enough": "high"}, "enough must be a number"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, arguments, message):
        """The error is raised at construction."""
        with pytest.raises((TypeError, ValueError), match=message):
            BestOfNStrategy(**arguments)


class TestMBR:
    def test_the_answer_most_like_all_the_others_wins(self, run):
        """ROUGE-L works where no two answers are equal."""
        answers = ["the cat sat on the mat", "two dogs", "the cat sat on a mat", "the cat lay on the mat", "cats sit"]
        assert answers[0] == run(sample, MBRStrategy(), answering(*answers)).text

    def test_any_similarity_of_two_texts_will_do(self, run):
        """Here the similarity compares lengths."""
        result = run(
            sample, MBRStrategy(lambda a, b: -abs(len(a) - len(b))), answering("a", "b" * 4, "c" * 5, "d" * 9, "e" * 20)
        )
        assert "c" * 5 == result.text

    @pytest.mark.parametrize("asynchronous", [True, False])
    def test_embeddings_are_awaited_once_for_each_answer(self, run, asynchronous):
        """Embedding is part of the validation, so the comparison needs no await."""
        embedded = []

        def embed(text):
            embedded.append(text)
            return [len(text), 1.0]

        async def embed_async(text):
            await anyio.sleep(1.0)
            return embed(text)

        strategy = MBRStrategy(EmbeddingSimilarity(embed_async if asynchronous else embed), concurrency_budget=4)
        result = run(sample, strategy, answering("a" * 9, "b", "c" * 8, "x"), [lambda text: text != "x"])
        assert "c" * 8 == result.text
        assert ["a" * 9, "b", "c" * 8] == sorted(embedded)

    @pytest.mark.anyio
    async def test_an_embedding_that_computes_for_long_goes_into_a_thread(self):
        """It does not block the event loop."""
        import threading

        threads = []

        def embed(text):
            threads.append(threading.current_thread())
            return [1.0, len(text)]

        strategy = MBRStrategy(EmbeddingSimilarity(embed, blocking=True), concurrency_budget=2)
        assert (await sample(strategy, ScriptedBackend(["a", "b"]))).success
        assert threading.main_thread() not in threads

    def test_an_answer_that_can_not_be_embedded_costs_that_draw_only(self, run):
        """It is invalid, with the error on the result."""

        async def embed(text):
            if text == "b":
                raise OSError("the server is down")
            return [1.0, len(text)]

        result = run(sample, MBRStrategy(EmbeddingSimilarity(embed), concurrency_budget=3), answering("a", "b", "c"))
        assert result.success
        assert ["valid", "invalid", "valid"] == [one.outcome for one in result.attempts]
        assert [OSError] == [type(error) for error in result.errors]

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_an_embedding_that_is_not_finite_makes_its_answer_invalid(self, run, number):
        """S19: one bad draw does not discard the others."""
        strategy = MBRStrategy(EmbeddingSimilarity(lambda text: [1.0, number if text == "b" else 2.0]))
        result = run(sample, strategy, answering(*"abcde"))
        assert result.success
        assert ["b"] == [one.text for one in result.attempts if one.outcome == "invalid"]

    @pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: float("nan"), lambda: None])
    def test_an_answer_that_can_not_be_compared_does_not_discard_the_others(self, run, broken):
        """S19: its pairs count as 0. The log has one warning, without any text of the answers."""

        def similarity(one, other):
            return broken() if "secret" in (one, other) else float(one[0] == other[0])

        with capture_logs() as logs:
            result = run(sample, MBRStrategy(similarity, concurrency_budget=3), answering("secret", "aa", "ab"))
        assert "aa" == result.text
        assert [4] == [line["pairs"] for line in logs if line["event"] == "answers_not_compared"]
        assert "secret" not in str(logs)

    def test_embeddings_of_different_lengths_do_not_discard_the_others(self, run):
        """S19: two vectors of different lengths can't be compared."""
        strategy = MBRStrategy(EmbeddingSimilarity(lambda text: [1.0] if text == "a" else [1.0, 2.0]))
        assert "b" == run(sample, strategy, answering(*"abcde")).text

    @pytest.mark.parametrize("similarity", [lambda a, b: None, lambda a, b: float("nan"), lambda a, b: "high"])
    def test_a_similarity_that_is_no_number_is_an_error_that_says_so(self, run, similarity):
        """The error has all draws."""
        with pytest.raises(SelectionFailed, match="similarity must return a finite number"):
            run(sample, MBRStrategy(similarity), answering(*"abcde"))

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: MBRStrategy(7), "similarity must be a callable of two texts"),
            (lambda: MBRStrategy(relaxation=0.5), "relaxation must be >= 1, got 0.5"),
            (lambda: EmbeddingSimilarity("model"), "embed must be a callable"),
            (lambda: EmbeddingSimilarity(len, blocking=1), "blocking must be True or False"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, build, message):
        """The error is raised at construction."""
        with pytest.raises((TypeError, ValueError), match=message):
            build()


class TestDiversity:
    def test_each_subsample_gets_its_own_by_its_number(self, run):
        """Each sequence wraps around, and nothing depends on timing."""
        diverse = Diverse(temperatures=(0.1, 0.9), models=("a", "b", "c"), seeds=range(5, 9))
        backend = ScriptedBackend(lambda request: After(5.0 - request.subsample, "no"))
        run(sample, RejectionSamplingStrategy(concurrency_budget=4, variation=diverse), backend, [lambda text: False])
        asked = {r.subsample: (r.options.temperature, r.options.model, r.options.seed) for r in backend.requests}
        assert {0: (0.1, "a", 5), 1: (0.9, "b", 6), 2: (0.1, "c", 7), 3: (0.9, "a", 8)} == asked

    def test_the_callers_options_are_kept_where_nothing_else_is_said(self, run):
        """The caller's options object is never changed."""
        options = Options(temperature=0.5, max_tokens=9, seed=3)
        backend = ScriptedBackend(["a"])
        run(sample, RejectionSamplingStrategy(variation=Diverse(temperatures=(0.1,))), backend, options=options)
        assert Options(temperature=0.1, max_tokens=9, seed=3) == backend.requests[0].options
        assert Options(temperature=0.5, max_tokens=9, seed=3) == options

    def test_no_two_attempts_have_the_same_seed(self, run):
        """The same prompt with the same seed would give the same answer."""
        backend = ScriptedBackend(lambda _: "no")
        strategy = RejectionSamplingStrategy(loop_budget=5, concurrency_budget=4, variation=Diverse(seeds=range(4)))
        run(sample, strategy, backend, [lambda text: False])
        seeds = [request.options.seed for request in backend.requests]
        assert 20 == len(set(seeds))
        assert all(0 <= seed < 2**31 for seed in seeds)

    @pytest.mark.parametrize("strategy_class", [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy])
    def test_a_prompt_is_put_in_front_once_and_stays_through_repairs(self, run, strategy_class):
        """It is a new system message, or the end of the existing one."""
        diverse = Diverse(prompts=("", "Think step by step.", "Be brief."))
        for ctx, expected in [
            (None, {0: (), 1: ("Think step by step.",), 2: ("Be brief.",)}),
            (
                Context([Message("system", "You are kind.")]),
                {
                    0: ("You are kind.",),
                    1: ("You are kind.\n\nThink step by step.",),
                    2: ("You are kind.\n\nBe brief.",),
                },
            ),
        ]:
            backend = ScriptedBackend(lambda _: "no")
            strategy = strategy_class(loop_budget=3, concurrency_budget=3, variation=diverse)
            run(sample, strategy, backend, [lambda text: False], ctx=ctx)
            for request in backend.requests:
                system = tuple(message.content for message in request.messages if message.role == "system")
                assert expected[request.subsample] == system

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"temperatures": 0.5}, "temperatures must be a sequence of numbers"),
            ({"temperatures": (-1,)}, "an item of temperatures must be >= 0, got -1"),
            ({"models": "gpt"}, "models must be a sequence of str"),
            ({"models": ("",)}, "an item of models must not be empty"),
            ({"seeds": (1.5,)}, "an item of seeds must be an int"),
            ({"prompts": (7,)}, "an item of prompts must be a str"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, arguments, message):
        """The error is raised at construction."""
        with pytest.raises((TypeError, ValueError), match=message):
            Diverse(**arguments)
