"""Results: summary, explanation, errors and copies."""

import copy
import pickle  # noqa: TID251 - that it can be done, for those who send results between processes
import traceback

import pytest

from sampling import (
    Action,
    Budget,
    EscalationStrategy,
    Generation,
    MultiTurnStrategy,
    NoValidAnswer,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Tier,
    Usage,
    Validation,
)
from sampling.errors import AuthenticationFailed
from sampling.testing import After, ScriptedBackend


async def sample(strategy, backend, reqs=(lambda text: text == "yes",), action="q", **arguments):
    return await strategy.sample(action, None, backend, reqs, **arguments)


def test_print_is_worth_reading(run):
    """The line has the outcome, the time, the attempts, the cost and the answer."""

    def reply(request):
        return After(1.25 if request.subsample == 1 else 2.0, Generation("yes", Usage(100, 12)))

    result = run(sample, RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4), ScriptedBackend(reply))
    assert 'success in 1.25 s after 4 of 12 attempts (1 valid, 3 cancelled) · 112 tokens · "yes"' == str(result)
    assert f"<SamplingResult {result}>" == repr(result)


def test_a_failure_says_why_it_stopped(run):
    """The line has the stop reason and the errors."""
    backend = ScriptedBackend([RateLimited(), RateLimited(), "no"])
    result = run(sample, RejectionSamplingStrategy(loop_budget=3), backend)
    assert (
        "no valid answer (exhausted) in 0.00 s after 3 of 3 attempts (1 invalid, 2 errored)"
        ' · errors: RateLimited ×2 · "no"'
    ) == str(result)


def test_explain_shows_every_attempt(run):
    """The explanation has each prompt, answer, and failed requirement with its reason."""
    reqs = [
        Requirement("is short", check=lambda text: len(text) < 20),
        Requirement("has a number", check=lambda text: Validation(text.isdigit(), "there is no digit", score=0.5)),
    ]
    backend = ScriptedBackend([RateLimited("slow down"), Generation("forty", Usage(7, 1)), "42"])
    result = run(sample, MultiTurnStrategy(loop_budget=3), backend, reqs)
    text = result.explain()
    for expected in (
        "iteration 1 (subsample 0, attempt 0): errored",
        'RateLimited: "slow down"',
        'answered  "forty"',
        'passed    "is short"',
        'failed    "has a number": "there is no digit" (score 0.5)',
        "7 tokens" if False else "8 tokens",
        "iteration 3 (subsample 0, attempt 2): valid",
        "← the answer",
        "there is no digit\\nPlease",
    ):
        assert expected in text


def test_model_text_can_not_steer_a_terminal(run):
    """Row 73: newlines, ANSI, NUL and right-to-left marks are escaped."""
    nasty = "a\nb\x1b[31m\x00\u202e\x9b\ud800 ok"
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend([nasty]))
    for shown in (str(result), repr(result), result.explain().replace("\n", "")):
        assert all(character.isprintable() for character in shown)
    assert "\\x1b[31m" in str(result)
    assert nasty == result.text


def test_long_text_is_cut(run):
    """Long answers are truncated."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["x" * 10_000]))
    assert len(str(result)) < 200


def test_unwrap_gives_the_value_or_raises(run):
    """unwrap() raises `NoValidAnswer` if there is no valid answer."""
    assert 42 == run(sample, RejectionSamplingStrategy(), ScriptedBackend(["42"]), [], Action("n", int)).unwrap()
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["no"]))
    with pytest.raises(NoValidAnswer, match="no valid answer") as caught:
        result.unwrap()
    assert result is caught.value.result


def test_no_valid_answer_says_which_requirements_failed_how_often_and_why(run):
    """The message has the most frequent ones first, each with its last reason."""
    reqs = [
        Requirement("is short", check=lambda text: len(text) < 6),
        Requirement("has a number", check=lambda text: (text.isdigit(), f"there is no digit in {text!r}")),
        Requirement("is lower case", check=lambda text: (text.islower(), None)),
    ]
    result = run(sample, RejectionSamplingStrategy(loop_budget=3), ScriptedBackend(["one", "two", "three\x1b"]), reqs)
    with pytest.raises(NoValidAnswer) as caught:
        result.unwrap()
    why = '"has a number" ×3 ("there is no digit in \'three\\x1b\'"), "is short" ×1'
    assert why == result.explain_failure()
    assert f"{result} · failed: {why}" == str(caught.value)


def test_a_result_without_failed_requirements_explains_no_failure(run):
    """A success has none, and neither has a call that produced no answer."""
    assert "" == run(sample, RejectionSamplingStrategy(), ScriptedBackend(["yes"]), []).explain_failure()


def test_explain_calls_no_failure_the_answer(run):
    """The attempt that `best` is gets another mark if it is invalid."""
    text = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["no"])).explain()
    assert "← the best failure" in text
    assert "← the answer" not in text


def test_reprs_are_short(run):
    """A result, its records, conversations and strategies fit into a line or two of a terminal."""
    backend = ScriptedBackend(["x" * 10_000])
    reqs = [Requirement("is short", check=lambda text: len(text) < 20)]
    result = run(sample, RejectionSamplingStrategy(), backend, reqs)
    shown = f'<Slice 1: invalid in 0.00 s · 0 of 1 requirements met · "{"x" * 59}…">'
    assert shown == repr(result.best)
    validation = "Validation(passed=False, reason=None, score=None, requirement='is short', error=None)"
    assert validation == repr(result.best.validations[0])
    for one in (result, result.best.generation, result.best.context, RejectionSamplingStrategy()):
        assert len(repr(one)) < 300
        assert "\n" not in repr(one)


def test_times_are_whole_nanoseconds(run):
    """Three times 0.1 s is 0.3 s, and not 0.30000000000000004 s, on every page and in every file."""
    backend = ScriptedBackend(lambda _: After(0.1, "no"))
    result = run(sample, RejectionSamplingStrategy(loop_budget=3), backend)
    assert [(0.0, 0.1), (0.1, 0.2), (0.2, 0.3)] == [(one.started_s, one.finished_s) for one in result.attempts]
    assert 0.3 == result.elapsed_s
    tiers = [Tier(strategy=RejectionSamplingStrategy(loop_budget=count)) for count in (1, 2)]
    result = run(sample, EscalationStrategy(tiers), backend)
    assert [(0.0, 0.1), (0.1, 0.2), (0.2, 0.3)] == [(one.started_s, one.finished_s) for one in result.attempts]


def test_a_fatal_error_ends_the_call_with_what_there_is(run):
    """Semantics 5: siblings are cancelled, and existing slices are returned with the error."""

    def reply(request):
        if request.iteration == 2:
            return After(1.0, AuthenticationFailed("bad key"))
        return "no" if request.iteration == 1 else After(9.0, "yes")

    result = run(sample, RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3), ScriptedBackend(reply))
    assert ("failed", False, 1.0) == (result.stop_reason, result.success, result.elapsed_s)
    assert ["invalid", "errored", "cancelled", "cancelled"] == [one.outcome for one in result.attempts]
    assert [AuthenticationFailed] == [type(error) for error in result.errors]


def test_a_fatal_error_with_nothing_to_show_is_raised_at_once(run):
    """Semantics 4 and 5: it is raised with its own type, from a group with all errors."""

    def reply(request):
        if request.subsample == 1:
            return After(2.5, AuthenticationFailed("bad key"))
        return After(1.0, RateLimited())

    with pytest.raises(AuthenticationFailed) as caught:
        run(sample, RejectionSamplingStrategy(loop_budget=9, concurrency_budget=2), ScriptedBackend(reply))
    group = caught.value.__cause__
    assert [RateLimited, RateLimited, AuthenticationFailed] == [type(error) for error in group.exceptions]
    assert "hint: Check the key" in "".join(traceback.format_exception(caught.value))


def test_the_cause_of_a_failure_stays_in_the_chain(run):
    """Semantics 4: the cause of `raise X from Y` in a backend is kept."""

    async def backend(request):
        try:
            raise ConnectionError("the socket")
        except ConnectionError as error:
            raise RateLimited from error

    with pytest.raises(RateLimited) as caught:
        run(sample, RejectionSamplingStrategy(concurrency_budget=2), backend)
    assert "the socket" in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_a_single_failure_has_no_group(run):
    """Semantics 4: only several failures are grouped."""
    with pytest.raises(RateLimited) as caught:
        run(sample, RejectionSamplingStrategy(), ScriptedBackend([RateLimited()]))
    assert caught.value.__cause__ is None


def test_a_result_survives_copying_and_pickling(run):
    """A long conversation is copied without recursion."""
    strategy = MultiTurnStrategy(loop_budget=2_000)
    reqs = [Requirement("never", check=str.isdigit)]
    result = run(sample, strategy, ScriptedBackend(lambda _: "no"), reqs)
    context = result.slices[-1].context
    assert context == pickle.loads(pickle.dumps(context)) == copy.deepcopy(context)  # noqa: S301 - our own bytes
    assert 4_000 == len(context) == len(context.messages)


def test_usage_adds_up():
    """Usages can be added with + and sum()."""
    assert Usage(3, 5, 0.5) == Usage(1, 2, 0.25) + Usage(2, 3, 0.25) == sum([Usage(1, 2, 0.25), Usage(2, 3, 0.25)])
    assert Usage() == Usage.total([])
    assert 8 == Usage(3, 5).total_tokens
    with pytest.raises(TypeError):
        Usage() + 1


def test_a_stop_detail_is_explained(run):
    """The explanation names the limit that was reached."""
    result = run(sample, RejectionSamplingStrategy(loop_budget=5), ScriptedBackend(["no"]), budget=Budget(attempts=1))
    assert "budget of 1 attempts: 1 spent" in result.explain()


@pytest.mark.parametrize(
    "options", [Options(), Options(seed=1, stop=("a",)), Options(extra={"a": {"b": [1]}}, logit_bias={1: 2.0})]
)
def test_options_can_be_pickled_and_copied(options):
    """So can the slices and plans that hold them, for those who send results between processes."""
    assert options == pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == copy.copy(options)  # noqa: S301
