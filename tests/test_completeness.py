"""Answers that are none: cut off, filtered, refused, or calls of tools that nobody offered."""

import pytest

from sampling import (
    Action,
    EscalationStrategy,
    Generation,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    Tool,
    ToolCall,
)
from sampling.testing import ScriptedBackend

LOOK = Tool("look", "Look it up.", {"type": "object", "properties": {}})
CALL = ToolCall("1", "look", "{}")

INCOMPLETE = [
    (Generation("12", finish_reason="length"), "cut off"),
    (Generation("12", finish_reason="MAX_TOKENS"), "cut off"),
    (Generation("12", finish_reason="content_filter"), "content filter"),
    (Generation("12", finish_reason="SAFETY"), "content filter"),
    (Generation("12", refusal="I can't."), "I can't."),
    (Generation("", reasoning="hm"), "only reasoning"),
    (Generation("12", tool_calls=[CALL]), "there are no tools"),
]
NOT_OFFERED = (Generation("", finish_reason="tool_calls", tool_calls=[CALL]), "there are no tools")


@pytest.mark.parametrize(("generation", "reason"), [*INCOMPLETE, NOT_OFFERED])
def test_it_is_invalid_with_a_reason(run, generation, reason):
    """S22: a part of a number is not a number, and the model learns why."""
    backend = ScriptedBackend([generation, "13"])
    result = run(MultiTurnStrategy(loop_budget=2).sample, Action("How many?", int), None, backend)
    assert 13 == result.value
    assert "invalid" == result.slices[0].outcome
    assert reason in backend.requests[1].messages[-1].text


@pytest.mark.parametrize(("generation", "reason"), INCOMPLETE)
def test_it_is_checked_like_others_if_the_caller_says_so(run, generation, reason):
    """S22: `accept_incomplete=True` leaves the decision to the requirements."""
    strategy = RejectionSamplingStrategy(accept_incomplete=True)
    assert run(strategy.sample, "How many?", None, ScriptedBackend([generation])).success


def test_a_call_of_a_tool_that_was_not_offered_is_never_an_answer(run):
    """S22: nobody can run it, and there is no text."""
    strategy = RejectionSamplingStrategy(accept_incomplete=True)
    result = run(strategy.sample, "How many?", None, ScriptedBackend([NOT_OFFERED[0]]))
    assert not result.success
    assert NOT_OFFERED[1] in result.best.validations[0].reason


def test_the_tiers_of_an_escalation_accept_it_too(run):
    """S22: a tier without a strategy of its own has the settings of the escalation."""
    strategy = EscalationStrategy([ScriptedBackend([INCOMPLETE[0][0]])], accept_incomplete=True)
    assert run(strategy.sample, "How many?", None, ScriptedBackend([])).success


def test_a_call_of_an_offered_tool_is_an_answer(run):
    """S22: and a requirement can look at it."""
    called = Requirement("calls look", lambda text, view: "look" == view.generation.tool_calls[0].name)
    backend = ScriptedBackend([Generation("", finish_reason="tool_calls", tool_calls=[CALL])])
    result = run(RejectionSamplingStrategy().sample, "Look.", None, backend, [called], options=Options(tools=[LOOK]))
    assert result.success
    assert (CALL,) == result.best.context.messages[-1].content


def test_a_repair_after_a_call_sends_a_conversation_that_providers_accept(run):
    """S22: every call has a result before the user speaks again."""
    backend = ScriptedBackend([Generation("", finish_reason="tool_calls", tool_calls=[CALL]), "42"])
    run(MultiTurnStrategy(loop_budget=2).sample, "Look.", None, backend, [lambda text: text == "42"])
    roles = [message.role for message in backend.requests[1].messages]
    assert ["user", "assistant", "tool", "user"] == roles
    assert "1" == backend.requests[1].messages[2].content[0].id
