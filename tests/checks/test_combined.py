"""Combinations of requirements: verdicts, order and reasons."""

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import RejectionSamplingStrategy, Requirement, Validation, checks
from sampling._engine.validation import may_still_pass
from sampling.errors import BadVerdict
from sampling.testing import ScriptedBackend, cancel_at_every_step

LONG = Requirement("is long", check=lambda text: (len(text) > 5, "it is short"))
LOUD = Requirement("is loud", check=str.isupper)


async def slowly_long(text):
    await anyio.sleep(1)
    return len(text) > 5, "it is short, after a while"


SLOW = Requirement("is long", check=slowly_long)
BLOCKING = Requirement("is long", check=lambda text: (len(text) > 5, "it is short"), blocking=True)


def broken(text):
    raise LookupError("broken")


async def sample(text, requirement, critic=None):
    """Sample with this answer and this judge."""
    writer = ScriptedBackend(lambda request: (critic or "yes") if "You check" in request.messages[0].content else text)
    result = await RejectionSamplingStrategy().sample("q", None, writer, [requirement])
    return result, len(writer.requests) - 1


@pytest.mark.parametrize("long", [LONG, SLOW, BLOCKING], ids=["plain", "async", "blocking"])
@pytest.mark.parametrize(
    ("text", "both", "either", "neither"),
    [("HELLO WORLD", True, True, False), ("hello world", False, True, False), ("hi", False, False, True)],
)
def test_all_any_and_not(run, long, text, both, either, neither):
    """They combine plain, async and blocking checks."""
    for requirement, expected in (
        (checks.all_of(long, LOUD), both),
        (checks.any_of(long, LOUD), either),
        (checks.not_(checks.any_of(long, LOUD)), neither),
    ):
        result, _ = run(sample, text, requirement)
        assert expected is result.success


def test_plain_checks_are_combined_without_waiting():
    """There is no coroutine if nothing must be awaited."""
    requirement = checks.all_of(checks.any_of(LONG, LOUD), checks.not_(LOUD))
    assert Validation(True) == requirement.check("hello world", None)


class TestWhatIsTold:
    def test_all_of_tells_what_failed(self, run):
        """Checks that passed are not mentioned."""
        result, _ = run(sample, "HI", checks.all_of(LONG, LOUD))
        assert ("is long; and is loud: is long: it is short",) == result.best.complaints
        assert "is long; and is loud" == checks.all_of(LONG, LOUD).description

    def test_any_of_tells_what_would_do(self, run):
        """The reason has every part, and why it failed."""
        result, _ = run(sample, "hi", checks.any_of(LONG, LOUD))
        assert ("at least one of these must be true: is long; or is loud (it is short)",) == result.best.complaints

    def test_not_tells_what_must_not_be(self, run):
        """The reason has the description of the requirement."""
        result, _ = run(sample, "HI", checks.not_(LOUD))
        assert ("not: is loud: this must not be true of the answer: is loud",) == result.best.complaints

    def test_a_description_of_ones_own(self):
        """It replaces a long generated one."""
        assert "is fine" == checks.all_of(LONG, LOUD, description="is fine").description


class TestErrors:
    @pytest.mark.parametrize("combine", [checks.all_of, checks.any_of, checks.not_])
    def test_a_check_that_breaks_never_passes(self, run, combine):
        """Semantics 6: not even inside not_(). The error is kept."""
        with capture_logs():
            result, _ = run(sample, "hi", combine(Requirement("is well", broken)))
        assert not result.success
        assert [LookupError] == [type(error) for error in result.errors]

    def test_what_another_check_makes_up_for_is_no_error(self, run):
        """any_of() passes if one part passes."""
        result, _ = run(sample, "HI", checks.any_of(Requirement("is well", broken), LOUD))
        assert (True, ()) == (result.success, result.errors)

    def test_a_check_without_a_clear_answer_ends_the_call(self, run):
        """Row 53: as it does outside of a combination."""
        with pytest.raises(BadVerdict, match="is well"):
            run(sample, "hi", checks.any_of(LOUD, Requirement("is well", lambda text: None)))


class TestJudges:
    def test_whatever_holds_a_judge_is_judged(self):
        """It runs after all code checks, inside and outside of the combination."""
        assert checks.all_of(LONG, "is polite").judged
        assert checks.not_(checks.any_of(LONG, checks.weighted([("is polite", 1)]))).judged
        assert not checks.all_of(LONG, LOUD).judged

    @pytest.mark.parametrize(
        ("combine", "text", "asked", "success"),
        [
            (checks.all_of, "hello world", 1, True),
            (checks.all_of, "hi", 0, False),
            (checks.any_of, "hello world", 0, True),
            (checks.any_of, "hi", 1, True),
        ],
    )
    def test_a_judge_is_asked_only_if_it_depends_on_it(self, run, combine, text, asked, success):
        """A judge costs money, and code does not."""
        result, questions = run(sample, text, combine("is polite", LONG))
        assert (asked, success) == (questions, result.success)

    def test_a_judge_that_says_no_counts(self, run):
        """The reason has its words."""
        result, questions = run(sample, "hello world", checks.all_of("is polite", SLOW), critic="no: it is rude")
        assert (1, False, ("is polite; and is long: is polite: it is rude",)) == (
            questions,
            result.success,
            result.best.complaints,
        )

    def test_the_opposite_of_a_no_is_a_pass(self, run):
        """not_() passes if the judge says no."""
        result, _ = run(sample, "hi", checks.not_("is rude"), critic="no")
        assert result.success

    def test_an_outer_check_that_fails_keeps_an_inner_judge_from_being_asked(self, run):
        """Semantics 6 applies to combinations."""

        async def main():
            writer = ScriptedBackend(["hello world"])
            return await RejectionSamplingStrategy().sample("q", None, writer, [checks.all_of("is polite", LONG), LOUD])

        assert not run(main).success


class TestWeighted:
    def test_enough_of_them_will_do(self, run):
        """The share of the weights is the score."""
        requirement = checks.weighted([(LONG, 3), (LOUD, 1)], at_least=0.75)
        result, _ = run(sample, "hello world", requirement)
        assert (True, 0.75) == (result.success, result.best.score)
        result, _ = run(sample, "HI", requirement)
        assert (False, 0.25) == (result.success, result.best.score)
        assert (
            "0.75 of: is long, is loud: it has 0.25 of the points, and 0.75 are needed (it is short)",
        ) == result.best.complaints

    def test_a_share_of_nothing_passes_and_scores(self, run):
        """With `at_least=0`, every answer passes, and everything runs for the score."""
        requirement = checks.weighted([(LONG, 1), (LOUD, 1), ("is polite", 2)], at_least=0)
        result, asked = run(sample, "HI", requirement)
        assert (True, 0.75) == (result.success, result.best.score)
        assert asked

    def test_a_score_counts_as_that_much(self, run):
        """A failed check with a score of 0.5 counts half of its weight."""
        scored = Requirement("is good", lambda text: Validation(False, "not quite", 0.5))
        result, _ = run(sample, "HI", checks.weighted([(scored, 1), (LOUD, 1)], at_least=0.75))
        assert (True, 0.75) == (result.success, result.best.score)

    @pytest.mark.parametrize(("text", "asked"), [("HELLO WORLD", 0), ("hello world", 1), ("hi", 0)])
    def test_a_judge_is_asked_only_if_its_weight_decides(self, run, text, asked):
        """It does not run if the outcome is certain without it."""
        requirement = checks.weighted([(LONG, 2), (LOUD, 1), ("is polite", 1)], at_least=0.75)
        _, questions = run(sample, text, requirement)
        assert asked == questions

    def test_weights_that_do_not_add_up_exactly(self, run):
        """Ten times 0.1 is 1."""
        always = [(Requirement(f"is {n}", check=lambda text: True), 0.1) for n in range(10)]
        assert run(sample, "hi", checks.weighted(always, at_least=1))[0].success


def other_slow(text):
    """An async check behind a plain function, which creates the coroutine before it is awaited."""
    return slowly_long(text)


@pytest.mark.parametrize("native", [False, True], ids=["scope", "native"])
def test_a_cancellation_at_any_step_leaves_nothing_unawaited(native):
    """Row 35: everything that a combination started ends with it."""

    async def scenario(world):
        inner = checks.all_of(other_slow, checks.any_of(SLOW, other_slow), "is polite")
        result, _ = await sample("hello world", checks.any_of(checks.not_(SLOW), inner, checks.all_of(LOUD, SLOW)))
        assert result.success

    cancel_at_every_step(scenario, native=native)


def test_what_never_came_to_be_awaited_is_closed(run):
    """Row 53: a bad verdict ends the call before the others are awaited."""
    no_verdict = Requirement("is well", lambda text: None)

    async def main():
        writer = ScriptedBackend(["hello"])
        return await RejectionSamplingStrategy().sample(
            "q", None, writer, [checks.all_of(SLOW, other_slow), no_verdict]
        )

    with pytest.raises(BadVerdict, match="is well"):
        run(main)


class TestPartial:
    SHORT = checks.length(max_chars=3)
    YES = checks.one_of("yes", "no")

    def test_all_of_is_cut_by_any(self):
        """If one part can't pass, the whole can't."""
        both = checks.all_of(self.SHORT, LOUD)
        assert may_still_pass(both, "abc").passed
        assert not may_still_pass(both, "abcd").passed

    def test_any_of_is_cut_by_all(self):
        """It continues while one part may still pass."""
        either = checks.any_of(self.SHORT, self.YES)
        assert may_still_pass(either, "abc").passed
        assert not may_still_pass(either, "abcd").passed
        assert checks.any_of(self.SHORT, LOUD).partial is None

    def test_not_is_never_cut(self):
        """A part that can't pass any more means that not_() may pass."""
        assert checks.not_(self.SHORT).partial is None
