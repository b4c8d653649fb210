"""Records of ordinary calls, which are formatted at once."""

import math
from functools import partial

import anyio
import attrs
import pytest

from sampling import (
    Action,
    Attempt,
    Context,
    Generation,
    Message,
    Options,
    Reasoning,
    RejectionSamplingStrategy,
    Requirement,
    SamplingResult,
    Slice,
    ToolCall,
    Usage,
    Validation,
)
from sampling.fanout.journal._plain_records import plain_record
from sampling.fanout.journal._records import Recorder
from sampling.results import HookFailure
from sampling.strategy import NO_CONTEXT

ACTION = Action('How many {brackets} and "quotes"?')
KNOWN = Requirement("is short", check=lambda text: len(text) < 100)
STAGE = Requirement("a requirement of a stage", check=lambda _: True)
RECORDER = Recorder(None, [KNOWN])
ANSWER = Generation('{"ä": [1, 2]}\n', Usage(120, 35, 0.0004), model="a-model")


class Odd(float):
    """A number with a repr of its own, as those of NumPy have."""

    def __repr__(self):
        return f"Odd({float(self)})"


def sampled(answer, requirements=(KNOWN,)):
    """Return the result of a real call."""

    async def backend(_request):
        return answer

    return anyio.run(partial(RejectionSamplingStrategy().sample, ACTION, None, backend, list(requirements)))


def plain(result):
    """Return the record that is formatted at once, if there is one."""
    return plain_record(result, ACTION, NO_CONTEXT, RECORDER._position)


def general(result):
    """Return the record as it is made for any result, and the notes on it."""
    notes = []
    return RECORDER._dump_result(result, ACTION, notes), notes


def with_attempt(result, **changes):
    """Return a result whose only attempt is changed."""
    attempt = attrs.evolve(result.best, **changes)
    return attrs.evolve(result, best=attempt, attempts=(attempt,), slices=(attempt,))


def with_answer(result, **changes):
    """Return a result whose answer is changed, and its attempt to match."""
    answer = attrs.evolve(result.best.generation, **changes)
    return with_attempt(result, generation=answer, value=answer.text, usage=answer.usage)


def with_validation(result, **changes):
    """Return a result with a changed validation."""
    (validation,) = result.best.validations
    return with_attempt(result, validations=(attrs.evolve(validation, **changes),))


ORDINARY = {
    "a text": sampled("ok", ()),
    "a text of JSON": sampled('{"values": [[], {}]}' * 100, ()),
    "a model and a usage": sampled(ANSWER, ()),
    "requirements": sampled(ANSWER),
    "a time of whole seconds": with_attempt(attrs.evolve(sampled(ANSWER), elapsed_s=2.0), finished_s=1.0),
    "a parent": attrs.evolve(sampled(ANSWER), parent_id="a parent"),
    "no parent": attrs.evolve(sampled(ANSWER), parent_id=None),
}
TIMES = [math.nan, math.inf, -1.0, 1e300, 7, True, Odd(0.5)]
RESULTS = {
    "success": [False],
    "best": [None],
    "slices": [()],
    "attempts": [()],
    "errors": [(ValueError("no"),)],
    "usage": [Usage(1)],
    "stop_reason": ["budget"],
    "sampling_id": ["another"],
    "elapsed_s": TIMES,
    "max_attempts": [7, 10**400, -(10**400), True],
    "parent_id": ["another", None],
    "stop_detail": ["tokens"],
    "hook_failures": [(HookFailure("hook", "LoopStarted", ValueError("no"), None),)],
    "agreement": [0.5],
    "margin": [0.5],
    "notes": [("a note",)],
}
ATTEMPTS = {
    "iteration": [2],
    "iteration_id": ["another"],
    "subsample": [1],
    "attempt": [1],
    "outcome": ["invalid"],
    "action": [Action("another"), Action("another", parser=int)],
    "context": [Context([Message("user", "another")])],
    "generation": [None],
    "validations": [(), (Validation(True),), (Validation(True, requirement=STAGE),)],
    "value": [None, "another", 7],
    "error": [ValueError("no")],
    "usage": [Usage(1), Usage()],
    "started_s": TIMES,
    "finished_s": TIMES,
    "requests": [2],
    "tokens_saved": [1],
    "tried": [
        None,
        Attempt(Action("another"), NO_CONTEXT),
        Attempt(ACTION, Context([Message("user", "another")])),
        Attempt(ACTION, NO_CONTEXT, Options(seed=7)),
    ],
    "from_cache": [True],
}
ANSWERS = {
    "text": ["", "\ud800", "x" * 200_000],
    "usage": [
        Usage(),
        Usage(10**400),
        Usage(0, 10**16),
        Usage(0, 0, 1e300),
        Usage(0, 0, 1),
        Usage(1, 0, 0.0, 1),
        Usage(0, 1, 0.0, 0, 1),
        Usage(1, cache_write_tokens=1),
        Usage(1, 1, Odd(0.5)),
    ],
    "finish_reason": ["length"],
    "model": [None, 'a "model"'],
    "reasoning": ["because"],
    "tool_calls": [(ToolCall("1", "add", "{}"),)],
    "refusal": ["no"],
    "logprobs": [(-math.inf,)],
    "turns": [(Message("assistant", "before"),)],
    "raw": [{"id": "1"}, object()],
    "thoughts": [(Reasoning("because"),)],
}
VALIDATIONS = {
    "passed": [False],
    "reason": ["", "it is short"],
    "score": [0.0, 0.5],
    "requirement": [None, STAGE],
    "error": [ValueError("no")],
    "transcript": [(Message("user", "is it short?"),)],
}


def unusual():
    """Yield results that differ from an ordinary one in one field."""
    changed = sampled(ANSWER)
    places = ((attrs.evolve, RESULTS), (with_attempt, ATTEMPTS), (with_answer, ANSWERS), (with_validation, VALIDATIONS))
    for change, fields in places:
        for name, values in fields.items():
            for number, value in enumerate(values):
                yield pytest.param(change(changed, **{name: value}), id=f"{name}-{number}")


@pytest.mark.parametrize("result", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_record_is_formatted_as_any_other(result):
    """F15: the record that is formatted at once equals the general one."""
    assert general(result) == (plain(result), [])


@pytest.mark.parametrize("result", list(unusual()))
def test_whatever_is_unusual_is_recorded(result):
    """F15: a result that differs in any field has the record of any other result."""
    formatted = plain(result)
    assert formatted is None or general(result) == (formatted, [])


def test_an_answer_that_was_parsed_is_recorded_as_parsed():
    """F15: a parser that returns the text itself is a parser all the same."""
    action = Action("How many?", parser=str)
    result = with_attempt(sampled("ok", ()), action=action, tried=Attempt(action, NO_CONTEXT))
    assert plain_record(result, action, NO_CONTEXT, RECORDER._position) is None


@pytest.mark.parametrize(
    ("cls", "fields"), [(SamplingResult, RESULTS), (Slice, ATTEMPTS), (Generation, ANSWERS), (Validation, VALIDATIONS)]
)
def test_every_field_is_tried(cls, fields):
    """A field that is added to a result must be considered here, too."""
    assert list(attrs.fields_dict(cls)) == list(fields)
