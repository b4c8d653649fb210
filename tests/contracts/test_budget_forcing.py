"""The contract S21: budget forcing."""

import anyio
import pytest

from sampling import (
    Budget,
    BudgetForcingStrategy,
    Generation,
    Message,
    Options,
    RateLimited,
    Requirement,
    Usage,
    report_usage,
)
from sampling.strategies import Thinking
from sampling.testing import After, ScriptedBackend
from tests.contracts.kinds import sample

THINK = "<think>\n"
END = "\n</think>\n\n"


def thinking_model(thoughts, answer="42", tokens=5):
    """A model that has these thoughts, one a request, and then gives its answer."""
    thoughts = list(thoughts)

    def reply(request):
        if request.messages[-1].content.endswith(END):
            return Generation(answer, Usage(10, 2), model="m")
        return Generation(thoughts.pop(0) if thoughts else "…", Usage(10, tokens))

    return ScriptedBackend(reply)


class TestS21:
    def test_a_model_that_stops_thinking_early_goes_on_until_its_budget_is_spent(self, run):
        """S21: the end of thinking is replaced by "Wait,", until the tokens are spent, and then the answer follows."""
        backend = thinking_model(["6 times 7", " is 42", " yes"], tokens=5)
        result = run(sample, BudgetForcingStrategy(Thinking(tokens=15)), backend, [], "6 * 7?")
        sent = [request.messages[-1] for request in backend.requests]
        thoughts = "6 times 7\nWait, is 42\nWait, yes"
        assert [
            Message("assistant", THINK),
            Message("assistant", f"{THINK}6 times 7\nWait,"),
            Message("assistant", f"{THINK}6 times 7\nWait, is 42\nWait,"),
            Message("assistant", f"{THINK}{thoughts}{END}"),
        ] == sent
        assert [15, 10, 5, None] == [request.options.max_tokens for request in backend.requests]
        assert "42" == result.text
        assert thoughts == result.best.generation.reasoning
        assert ["6 * 7?", "42"] == [message.content for message in result.best.context]

    @pytest.mark.parametrize("finish_reason", ["length", "stop"])
    def test_a_server_that_sends_no_thoughts_costs_no_more_requests(self, run, finish_reason):
        """S21: an attempt sends the thoughts, `most_waits` extensions and the answer, and no more."""
        backend = ScriptedBackend(lambda request: Generation("", Usage(10, 0), finish_reason=finish_reason))
        run(sample, BudgetForcingStrategy(Thinking(tokens=1024, most_waits=3)), backend, [])
        assert 5 == len(backend.requests)

    def test_a_judge_does_not_think(self, run):
        """S21: only answers are forced to think. A judge sends one request."""
        backend = thinking_model(["hm"], answer="42", tokens=9)
        run(sample, BudgetForcingStrategy(9), backend, ["is polite"])
        assert 3 == len(backend.requests)

    def test_without_thinking_it_answers_at_once(self, run):
        """S21: with no tokens the thoughts are empty, and there is one request."""
        backend = thinking_model([])
        result = run(sample, BudgetForcingStrategy(0), backend, [])
        assert [f"{THINK}{END}"] == [request.messages[-1].content for request in backend.requests]
        assert ("42", None) == (result.text, result.best.generation.reasoning)

    def test_the_answer_begins_as_it_should(self, run):
        """S21: the model continues the suffix, which is part of the answer, in partial checks too."""
        begun = "The answer is \\boxed{"
        seen = []
        backend = ScriptedBackend(lambda request: Generation("42}", Usage(10, 2)))
        watched = Requirement("is watched", lambda text: True, partial=lambda text: seen.append(text) or True)
        result = run(sample, BudgetForcingStrategy(Thinking(tokens=2, answer_suffix=begun)), backend, [watched])
        assert f"{begun}42}}" == result.text
        assert backend.requests[-1].messages[-1].content.endswith(END + begun)
        assert seen[0] == begun
        assert seen[-1] == result.text

    def test_a_model_that_would_think_for_ever_is_cut_off(self, run):
        """S21: when the thinking tokens are spent, the answer follows."""
        backend = ScriptedBackend(
            lambda request: Generation("hm " * 40, Usage(10, request.options.max_tokens or 3), finish_reason="length")
        )
        result = run(sample, BudgetForcingStrategy(100), backend, [])
        assert 2 == len(backend.requests)
        assert Usage(20, 103) == result.usage

    def test_a_model_with_nothing_more_to_say_is_not_asked_for_ever(self, run):
        """S21: a backend that reports no tokens, and says nothing, is made to go on a few times only."""
        backend = ScriptedBackend(lambda _: "")
        result = run(sample, BudgetForcingStrategy(Thinking(tokens=1000, most_waits=3)), backend, [])
        assert 5 == len(backend.requests) == result.best.requests

    def test_the_callers_options_are_never_changed(self, run):
        """S21: the answer has the caller's options, and only the thinking has its own limit."""
        options = Options(
            model="m",
            temperature=0.3,
            max_tokens=7,
            seed=1,
            stop=("\n",),
            schema={"type": "object"},
            extra={"top_p": 1},
        )
        before = repr(options)
        backend = thinking_model(["a", "b"])
        run(sample, BudgetForcingStrategy(10), backend, [], options=options)
        *thinking, answering = [request.options for request in backend.requests]
        assert before == repr(options)
        assert options == answering
        for one in thinking:
            assert ("m", 0.3, 1, {"top_p": 1}) == (one.model, one.temperature, one.seed, dict(one.extra))
            assert (("</think>",), None) == (one.stop, one.schema)

    def test_it_works_with_a_plain_function(self, run):
        """S21: any backend that can go on with a text will do, also one that knows neither tokens nor stop words."""

        async def should_continue(request):
            text = request.messages[-1].content
            return "42" if text.endswith(END) else "let me see</think>41"

        result = run(sample, BudgetForcingStrategy(Thinking(tokens=8, most_waits=1)), should_continue, [])
        assert "42" == result.text
        assert "let me see\nWait,let me see" == result.best.generation.reasoning

    def test_a_server_that_has_to_be_told_to_go_on_is_told(self, run):
        """S21: the options for continuing a text are added to the caller's own extra options."""
        told = {"continue_final_message": True, "add_generation_prompt": False}
        backend = thinking_model(["a"])
        strategy = BudgetForcingStrategy(Thinking(tokens=5, continuing=told))
        run(sample, strategy, backend, [], options=Options(extra={"top_k": 5}))
        assert [{"top_k": 5, **told}] * 2 == [dict(request.options.extra) for request in backend.requests]

    def test_every_request_counts_and_is_on_the_slice(self, run):
        """S21: thoughts cost as much as answers: usage, requests and a budget of requests see all of them."""
        backend = thinking_model(["a", "b", "c"], tokens=5)
        result = run(sample, BudgetForcingStrategy(15), backend, [])
        assert (4, Usage(40, 17)) == (result.best.requests, result.best.usage)
        backend = thinking_model(["a", "b", "c"], tokens=5)
        with pytest.raises(Exception, match="budget of 2 requests"):
            run(sample, BudgetForcingStrategy(15), backend, [], budget=Budget(requests=2))
        assert 2 == len(backend.requests)

    def test_what_was_thought_before_a_failure_or_a_cancellation_is_paid_for(self, run):
        """S21: the slice of an attempt that ends between thoughts has the usage of those that came."""

        async def backend(request):
            if request.messages[-1].content == THINK:
                return Generation("a thought", Usage(10, 5))
            report_usage(Usage(12, 1))
            if request.subsample == 0:
                raise RateLimited("slow down")
            await anyio.sleep(1000 if request.subsample == 1 else 1)
            return Generation("yes", Usage(12, 3))

        result = run(sample, BudgetForcingStrategy(Thinking(tokens=20, most_waits=0), concurrency_budget=3), backend)
        assert ["errored", "cancelled", "valid"] == [one.outcome for one in result.attempts]
        assert [Usage(22, 6), Usage(22, 6), Usage(22, 8)] == [one.usage for one in result.attempts]

    def test_only_the_answer_is_streamed_and_checked(self, run):
        """S21: a partial check sees the answer grow, and nothing of the thoughts."""

        class Streaming:
            async def generate(self, request):
                return await self.stream(request, lambda _: None)

            async def stream(self, request, receive):
                text = "42" if request.messages[-1].content.endswith(END) else "no no no"
                receive(text)
                return Generation(text)

        short = Requirement("is short", check=lambda text: len(text) < 4, partial=lambda text: len(text) < 4)
        assert run(sample, BudgetForcingStrategy(Thinking(tokens=1)), Streaming(), [short]).success

    def test_an_invalid_answer_is_thought_about_anew(self, run):
        """S21: each attempt of the loop budget has the whole thinking budget."""
        backend = ScriptedBackend(lambda request: After(1.0, "yes" if request.attempt == 2 else "no"))
        result = run(sample, BudgetForcingStrategy(Thinking(tokens=1), loop_budget=3), backend)
        assert result.success
        assert 6 == len(backend.requests)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tokens": -1}, "tokens must be >= 0, got -1"),
            ({"tokens": 1.5}, "tokens must be an int >= 0"),
            ({"most_waits": -1}, "most_waits must be >= 0"),
            ({"closing": " "}, "closing must not be empty"),
            ({"wait": ""}, "wait must not be empty"),
            ({"continuing": [1]}, "must be a mapping"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, arguments, message):
        """S21: what a Thinking can't be, it says."""
        with pytest.raises((TypeError, ValueError), match=message):
            Thinking(**arguments)
