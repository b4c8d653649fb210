"""
mellea's own tests of sampling, rewritten with our names.

The differences are in `docs/how-to/coming-from-mellea.md`, and their tests begin with "Different".
"""

import anyio
import pytest

from sampling import (
    Action,
    BudgetForcingStrategy,
    Context,
    EscalationStrategy,
    Generation,
    MajorityVotingStrategy,
    MBRStrategy,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Tier,
    Usage,
    Validation,
    checks,
)
from sampling._text.similarity import rouge_l
from sampling.strategies import Thinking
from sampling.strategies.keys import expression
from sampling.testing import ScriptedBackend

THREE = ["is funny", "is formal", "uses only words that begin with w"]


def fails(description, reason=None):
    return Requirement(description, check=lambda _: Validation(False, reason))


def passes(description):
    return Requirement(description, check=lambda _: True)


async def slow(_request):
    """Answer after a while, like a server."""
    await anyio.sleep(0.05)
    return "mocked"


class TestRepair:
    def prompts(self, run, *requirements, action="Write a poem"):
        backend = ScriptedBackend(lambda _: "long text")
        run(RepairTemplateStrategy(loop_budget=2).sample, action, None, backend, requirements)
        return [request.messages[-1].text for request in backend.requests]

    def test_the_reason_is_in_the_next_prompt(self, run):
        """The prompt before had none, and the conversation does not grow."""
        first, second = self.prompts(run, fails("is concise", "the text was too long"))
        assert "too long" not in first
        assert "the text was too long" in second

    def test_the_description_stands_in_for_a_reason(self, run):
        """A check need not explain itself."""
        assert "must be brief" in self.prompts(run, fails("must be brief"))[1]

    def test_all_failures_are_listed(self, run):
        """A repair lists every failed requirement."""
        second = self.prompts(run, fails("is short", "too long"), fails("is polite", "rude tone"))[1]
        assert "too long" in second
        assert "rude tone" in second

    def test_what_passed_is_not_listed(self, run):
        """The model should not change it."""
        second = self.prompts(run, passes("format ok"), fails("content", "incorrect"))[1]
        assert "format ok" not in second
        assert "incorrect" in second

    def test_different_any_action_is_repaired(self, run):
        """Different: mellea repeats everything but an Instruction unchanged."""
        first, second = self.prompts(run, fails("is short"), action=Action("hello"))
        assert first != second

    def test_different_requirement_and_reason_are_both_said(self, run):
        """Different: mellea says the reason alone."""
        second = self.prompts(run, fails("is formal", "the output was too casual"))[1]
        assert "is formal: the output was too casual" in second


class TestBreadth:
    def test_an_early_success_ends_the_call(self, run):
        """The fifth validation is the first that passes, so that at least five of nine attempts were made."""
        seen = []

        def fifth(_text):
            seen.append(None)
            return len(seen) % 5 == 0

        result = run(RejectionSamplingStrategy(loop_budget=3, concurrency_budget=3).sample, "q", None, slow, [fifth])
        assert result.success
        assert 5 <= len(result.slices) < 9

    def test_a_subsample_ends_with_its_success(self, run):
        """There is one slice, although two attempts were allowed."""
        result = run(RejectionSamplingStrategy(loop_budget=2).sample, "q", None, slow, [passes("anything")])
        assert (True, 1) == (result.success, len(result.slices))

    def test_failures_use_the_whole_budget(self, run):
        """Every attempt is a slice, and the last ones were repaired."""
        strategy = RepairTemplateStrategy(loop_budget=5, concurrency_budget=5)
        result = run(strategy.sample, "q", None, slow, [fails("always fails")])
        assert 25 == len(result.slices)
        assert "always fails" in result.slices[-1].context.messages[0].text

    def test_a_conversation_has_two_messages_per_attempt(self, run):
        """The last context is twice as long as the depth."""
        strategy = MultiTurnStrategy(loop_budget=2, concurrency_budget=3)
        result = run(strategy.sample, "q", None, slow, [fails("always fails")])
        assert 6 == len(result.slices)
        assert 4 == len(result.slices[-1].context)

    def test_the_winner_is_kept(self, run):
        """Cancelling the others does not lose it."""
        result = run(RejectionSamplingStrategy(loop_budget=2, concurrency_budget=4).sample, "q", None, slow)
        assert result.success
        assert result.best in result.slices

    @pytest.mark.parametrize("budget", ["loop_budget", "concurrency_budget"])
    def test_a_budget_is_at_least_one(self, budget):
        """The error names it."""
        with pytest.raises(ValueError, match=budget):
            RejectionSamplingStrategy(**{budget: 0})

    def test_different_requirements_of_strategy_and_call_are_checked(self, run):
        """Different: in mellea, those of the strategy replace those of the call."""
        strategy = RejectionSamplingStrategy(requirements=[passes("of the strategy")])
        result = run(strategy.sample, "q", None, slow, [passes("of the call")])
        descriptions = [validation.requirement.description for validation in result.best.validations]
        assert ["of the strategy", "of the call"] == descriptions


class BackendFailed(RuntimeError):
    """An error that only its backend knows."""


class TestErrors:
    @pytest.mark.parametrize(("depth", "breadth"), [(1, 1), (2, 3)])
    def test_an_error_is_raised_if_there_is_no_answer(self, run, depth, breadth):
        """The error has its own type."""

        async def backend(_request):
            raise BackendFailed("backend failed")

        strategy = RejectionSamplingStrategy(loop_budget=depth, concurrency_budget=breadth)
        with pytest.raises(BackendFailed, match="backend failed"):
            run(strategy.sample, "q", None, backend)

    def test_an_error_does_not_hide_a_success(self, run):
        """One subsample fails before the others answer."""

        async def backend(request):
            if request.subsample == 0:
                await anyio.sleep(0.01)
                raise BackendFailed("first call failed")
            return await slow(request)

        result = run(RejectionSamplingStrategy(concurrency_budget=3).sample, "q", None, backend)
        assert result.success
        assert [BackendFailed] == [type(error) for error in result.errors]


class TestPlainText:
    def test_the_value_of_text_is_text(self, run):
        """Nothing is parsed where nothing says how."""
        assert "mocked" == run(RejectionSamplingStrategy(loop_budget=2).sample, "What is 1+1?", None, slow).value

    def test_a_failure_has_a_value_too(self, run):
        """The best answer is there, and `success` says that it is not good enough."""
        result = run(RejectionSamplingStrategy(loop_budget=2).sample, "q", None, slow, [fails("always fails")])
        assert (False, "mocked") == (result.success, result.value)


class TestVotes:
    @pytest.mark.parametrize(
        ("one", "other", "equal"),
        [
            (r"\boxed{2}", r"\boxed{2}", True),
            (r"\boxed{2}", r"\boxed{3}", False),
            ("2", "2", True),
            ("2", "3", False),
            ("1+1", "2", True),
        ],
    )
    def test_mathematics_is_compared_by_value(self, one, other, equal):
        """In a box or plain. Choose another key to compare less: there are no match types."""
        assert equal is (expression(one) == expression(other))

    def test_the_majority_wins(self, run):
        """The samples are the subsamples."""
        answers = iter([r"\boxed{2}", r"So it is \boxed{2}", r"\boxed{3}"])
        backend = ScriptedBackend(lambda _: next(answers))
        result = run(MajorityVotingStrategy(expression, concurrency_budget=3).sample, "1+1", None, backend)
        assert expression("2") == expression(result.value)

    @pytest.mark.parametrize(
        ("one", "other", "least", "most"),
        [
            ("hello world", "hello world", 1.0, 1.0),
            ("hello world", "foo bar baz", 0.0, 0.49),
            ("the quick brown fox", "the quick fox", 0.01, 0.99),
        ],
    )
    def test_similarity_is_between_none_and_all(self, one, other, least, most):
        """ROUGE-L is between 0 and 1."""
        assert least <= rouge_l(one, other) <= most

    def test_the_answer_nearest_to_all_wins(self, run):
        """The most typical of three answers wins."""
        answers = iter(["the quick fox", "the quick brown fox", "something else"])
        backend = ScriptedBackend(lambda _: next(answers))
        result = run(MBRStrategy(concurrency_budget=3).sample, "q", None, backend)
        assert result.value.startswith("the quick")


class TestContexts:
    def judged(self, run, strategy):
        def reply(request):
            is_judge = request.messages[0].role == "system"
            return Generation("no\nIt does not." if is_judge else "Water wins.", Usage(1, 1))

        return run(strategy.sample, "Write a sentence.", Context(), ScriptedBackend(reply), THREE)

    def test_rejection_keeps_one_question_and_one_answer(self, run):
        """However many attempts there were, and each has a verdict on all requirements, in order."""
        result = self.judged(run, RejectionSamplingStrategy(loop_budget=3))
        assert 3 == len(result.slices)
        assert 2 == len(result.best.context)
        assert THREE == [validation.requirement.description for validation in result.best.validations]
        assert isinstance(result.value, str)

    def test_a_verdict_has_the_conversation_with_the_judge(self, run):
        """The transcript has the question and the reply."""
        result = self.judged(run, RejectionSamplingStrategy())
        assert ["system", "user", "assistant"] == [one.role for one in result.best.validations[0].transcript]

    def test_turns_add_up(self, run):
        """The prompt of the n-th attempt has 2n - 1 messages."""
        result = self.judged(run, MultiTurnStrategy(loop_budget=3))
        assert [1, 3, 5] == [len(one.context) - 1 for one in result.slices]


class TestTwoSolvers:
    """SOFAI: a fast solver first, and a slow one where it fails. Here it is an escalation of two tiers."""

    @pytest.mark.parametrize(("carry", "turns"), [(False, 1), (True, 3), ("conversation", 5)])
    def test_three_ways_to_go_on(self, run, carry, turns):
        """Start fresh, show the best attempt, or go on in the same chat."""
        fast, slow_solver = ScriptedBackend(lambda _: "no"), ScriptedBackend(lambda _: "yes")
        strategy = EscalationStrategy([Tier(fast), Tier(slow_solver)], carry=carry, loop_budget=2)
        result = run(strategy.sample, "q", None, fast, [lambda text: text == "yes"])
        assert result.success
        assert turns == len(slow_solver.requests[0].messages)

    def test_a_judge_of_its_own(self, run):
        """A requirement can name its own judge."""
        judge = ScriptedBackend(lambda _: "yes")
        requirement = checks.judge("is right", backend=judge)
        strategy = EscalationStrategy([Tier(), Tier()])
        assert run(strategy.sample, "q", None, ScriptedBackend(lambda _: "text"), [requirement]).success
        assert 1 == len(judge.requests)

    def test_a_solver_must_be_a_backend(self):
        """The error comes at construction."""
        with pytest.raises(TypeError, match="backend must be"):
            Tier("not a backend")

    def test_the_budget_is_at_least_one(self):
        """The budget is checked as in every strategy."""
        with pytest.raises(ValueError, match="loop_budget"):
            EscalationStrategy([Tier()], loop_budget=0)

    def test_different_the_best_failure_is_chosen(self, run):
        """Different: mellea takes the last attempt, or the later of equals. Here it is the best, or the earlier."""
        answers = iter(["b", "ab", "c"])
        backend = ScriptedBackend(lambda _: next(answers))
        reqs = [lambda text: "a" in text, lambda text: "b" in text, lambda text: "z" in text]
        result = run(RejectionSamplingStrategy(loop_budget=3).sample, "q", None, backend, reqs)
        assert "ab" == result.value
        answers = iter(["b", "a", "c"])
        assert "b" == run(RejectionSamplingStrategy(loop_budget=3).sample, "q", None, backend, reqs).value


class TestJudgements:
    def verdict(self, run, reply):
        requirement = checks.judge("is right", backend=ScriptedBackend(lambda _: reply))
        result = run(RejectionSamplingStrategy().sample, "q", None, ScriptedBackend(lambda _: "text"), [requirement])
        return result.best.validations[0]

    @pytest.mark.parametrize("reply", ["Yes", "yes", "YES", "  Yes  ", "Yes, the requirement is satisfied."])
    def test_yes(self, run, reply):
        """A yes passes in upper and lower case, and if more words follow."""
        assert self.verdict(run, reply).passed

    @pytest.mark.parametrize("reply", ["No", "no", "NO", "No, there are errors.", "No, it needs work.\nDetails."])
    def test_no(self, run, reply):
        """A verdict of no fails the requirement."""
        assert not self.verdict(run, reply).passed

    @pytest.mark.parametrize("reply", ["Maybe", "I'm not sure", "Maybe, hard to tell"])
    def test_anything_else_is_no_pass(self, run, reply):
        """An unclear judgement never passes."""
        assert not self.verdict(run, reply).passed

    def test_different_the_verdict_comes_first(self, run):
        """Different: mellea finds a "yes" anywhere in the first line, as in a sentence that says the opposite."""
        assert not self.verdict(run, "It would be wrong to say yes").passed

    def test_the_reason_is_kept(self, run):
        """All lines after the verdict."""
        reason = self.verdict(run, "No\nError 1: X\nError 2: Y").reason
        assert "Error 1: X" in reason
        assert "Error 2: Y" in reason


class TestThinking:
    @pytest.mark.parametrize("tokens", [0, 16, 2048])
    def test_little_much_or_no_thinking(self, run, tokens):
        """The answer begins with its suffix."""
        backend = ScriptedBackend(lambda _: Generation("4}", Usage(1, 1)))
        thinking = Thinking(tokens=tokens, most_waits=1, answer_suffix=r"The final answer is: \boxed{")
        result = run(BudgetForcingStrategy(thinking).sample, "2+2?", Context([Message("system", "s")]), backend)
        assert r"The final answer is: \boxed{4}" == result.value


class TestCode:
    """The presets of mellea are requirements and a strategy here."""

    @pytest.mark.parametrize(
        ("requirement", "answer", "words"),
        [
            (checks.python_parses(), "```python\nx = 1\nif x\n    pass\n```", "line 2"),
            (checks.python_imports("math"), "```python\nimport subprocess\n```", "subprocess"),
            (checks.length(max_chars=10), "x" * 50, "50"),
        ],
    )
    def test_reasons_tell_the_model_what_to_change(self, run, requirement, answer, words):
        """A reason names the place of the mistake and the allowed values."""
        backend = ScriptedBackend(lambda _: answer)
        result = run(RepairTemplateStrategy(loop_budget=2).sample, "Write code", None, backend, [requirement])
        assert words in result.best.complaints[0]
        assert words in backend.requests[1].messages[-1].text
