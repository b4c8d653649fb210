"""Results as JSON: what travels, what is left out, and what is refused."""

import contextlib
import copy
import json

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling import (
    Action,
    Budget,
    Context,
    EscalationStrategy,
    Generation,
    Hooks,
    Image,
    IterationFinished,
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    SamplingResult,
    Slice,
    Text,
    Tier,
    ToolCall,
    ToolResult,
    Usage,
    Validation,
)
from sampling.errors import AuthenticationFailed, ErrorFromJournal
from sampling.results import HookFailure
from sampling.testing import After, ScriptedBackend
from tests.contracts.kinds import STRATEGIES, every_strategy, sample

PRIVATE = "the patient's name is Xanthippe"
KEY = "sk-abcdefghijklmnop1234"


def copied(result, action=None):
    """Send a result through JSON text."""
    return SamplingResult.from_json(result.to_json(), action)


def known(error):
    """Return what can be compared of an error."""
    return None if error is None else (type(error), str(error), getattr(error, "retry_after_s", None))


def plain(result):
    """Return all fields of a result that can be compared: errors and requirements are equal to themselves only."""
    own = {field.name: getattr(result, field.name) for field in attrs.fields(SamplingResult) if field.eq}
    for name in ("best", "slices", "attempts"):
        own[name] = [plain_slice(one) for one in (own[name] if isinstance(own[name], tuple) else [own[name]]) if one]
    own["errors"] = [known(error) for error in result.errors]
    own["hook_failures"] = [(one.hook, one.event, known(one.error), one.iteration_id) for one in result.hook_failures]
    return own


def plain_slice(one):
    own = {field.name: getattr(one, field.name) for field in attrs.fields(Slice)}
    own["error"] = known(one.error)
    own["tried"] = (one.tried.messages, one.tried.options)
    own["action"] = (one.action.content, one.action.role)
    own["validations"] = [
        (v.passed, v.reason, v.score, v.requirement.description, known(v.error), v.transcript) for v in one.validations
    ]
    return own


def eventful(request):
    """Answer invalid, failing, slow and valid, by subsample and attempt."""
    if request.subsample == 1 and request.attempt == 0:
        return After(0.2, RateLimited("slow down", retry_after_s=2))
    text = "yes" if request.attempt else f"no {request.subsample}"
    return After(0.5 + request.subsample, Generation(text, Usage(5, 2, 0.25, 1, 1), "stop", "tiny", reasoning="hm"))


@every_strategy
def test_a_result_of_every_strategy_survives(run, strategy_class):
    """S28: attempts, conversations, verdicts, errors, usage, ids and votes are the same after JSON."""
    strategy = strategy_class(loop_budget=2, concurrency_budget=3)
    result = run(sample, strategy, ScriptedBackend(eventful), budget=Budget(attempts=6), options=Options(seed=7))

    back = copied(result)

    assert plain(result) == plain(back)
    assert result.to_dict() == back.to_dict()
    assert str(result) == str(back)
    assert result.explain() == back.explain()
    assert result.to_svg() == back.to_svg()
    assert [one.iteration for one in result.slices] == [one.iteration for one in back.slices]
    assert any(back.best is one for one in back.attempts)
    assert back.notes == ()


def test_all_strategies_of_the_front_door_are_among_them():
    """A new strategy can't be forgotten here."""
    import sampling
    from tests.contracts.kinds import PUBLIC

    assert all(any(issubclass(kind, public) for kind in STRATEGIES) for public in PUBLIC), sampling.__all__


def test_the_answer_of_an_escalation_is_that_of_its_tier(run):
    """Each tier counts its iterations from 1, so the answer is not known by its iteration."""
    strategy = EscalationStrategy(
        [Tier(options=Options(model="small")), Tier(options=Options(model="large"))], loop_budget=1
    )
    result = run(sample, strategy, ScriptedBackend(["no", "yes"]))
    back = copied(result)
    assert [one.iteration for one in result.slices] == [one.iteration for one in back.slices]
    assert len(result.attempts) == len(back.attempts)


def test_parts_tools_judges_hooks_and_nested_ids_travel(run):
    """Messages keep images and tool calls, verdicts keep what the judge was asked, and hooks their failures."""
    hooks = Hooks()

    @hooks.on(IterationFinished)
    def fail(event):
        raise KeyError("gone")

    call = ToolCall("c1", "weather", '{"city": "Rome"}')
    turns = (Message("assistant", [call]), Message("tool", [ToolResult("c1", "sunny", is_error=True)]))
    answers = iter([Generation("It is sunny.", turns=turns, logprobs=({"token": "It"},), raw={"id": "r1"}), "Yes."])
    context = Context([Message("system", "Be brief."), Message("user", [Text("Here"), Image(b"\x89PNG\r\n\x1a\n1")])])
    strategy = RejectionSamplingStrategy(hooks=hooks)
    result = run(strategy.sample, "Weather?", context, ScriptedBackend(lambda _: next(answers)), ["is polite"])

    back = copied(result)

    assert plain(result) == plain(back)
    assert result.best.context.messages == back.best.context.messages
    assert result.best.generation == back.best.generation
    assert {"id": "r1"} == back.best.generation.raw
    assert result.best.validations[0].transcript == back.best.validations[0].transcript != ()
    [failure] = back.hook_failures
    assert ("IterationFinished", KeyError, ("gone",)) == (failure.event, type(failure.error), failure.error.args)


@attrs.frozen
class City:
    name: str
    people: int


ANSWER = '{"name": "Rome", "people": 3}'


def test_values_go_through_the_type_of_the_action(run):
    """With the action, a value has its type again. Without, it is JSON, and a note says so."""
    action = Action("Which city?", City)
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend([ANSWER]), [], action)

    assert City("Rome", 3) == copied(result, action).value
    untyped = copied(result)
    assert {"name": "Rome", "people": 3} == untyped.value
    assert ["the value of iteration 1 was of type 'City', and is plain JSON here: "
            "from_dict(data, action) parses it again"] == list(untyped.notes)  # fmt: skip
    assert "City" == result.to_dict()["attempts"][0]["value_type"]


@pytest.mark.parametrize(
    ("value", "expected", "note"),
    [
        ([City("Rome", 3)], [{"name": "Rome", "people": 3}], "list"),
        ((1, 2), [1, 2], "tuple"),
        ({1, 2}, [1, 2], "stored as a list"),
        (float("nan"), None, "nan"),
        (object, "<class 'object'>", "stored as text"),
        (10**400, None, "too large"),
    ],
)
def test_a_value_that_json_can_not_hold_is_degraded_with_a_note(run, value, expected, note):
    """The result can still be stored and restored."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["x"]), [], Action("q", lambda _: value))
    back = copied(result)
    assert expected == back.value
    assert any(note in one for one in back.notes)


@pytest.mark.parametrize(
    "value",
    [City("Rome", 3), [City("Rome", 3)], (1, 2), {1, 2}, object, 10**400, float("inf")],
    ids=lambda value: repr(value)[:30],
)
def test_a_value_keeps_its_type_through_readers_that_do_not_know_it(run, value):
    """A result can be read and written again without its action, and the next reader with the action gets the value."""
    action = Action("q", lambda _: value)
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["x"]), [], action)
    record = result.to_dict()

    passed_on = copied(result).to_dict()

    assert record["attempts"] == passed_on["attempts"]
    assert type(value).__name__ == passed_on["attempts"][0]["value_type"]
    assert passed_on == SamplingResult.from_dict(passed_on).to_dict()
    last = SamplingResult.from_dict(passed_on, action)
    assert value == last.value
    assert not [note for note in last.notes if "plain JSON" in note]


def test_an_answer_that_no_longer_parses_keeps_the_recorded_value(run):
    """A parser may have changed since."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["42"]), [], Action("q", int))

    def refuse(text):
        raise ValueError(text)

    back = copied(result, Action("q", refuse))
    assert 42 == back.value
    assert "can't be parsed any more: ValueError" in back.notes[0]


def test_without_content_no_text_travels(run):
    """S29: no prompt, answer, reasoning, value, reason or message of an error, and everything else is there."""
    script = [
        Generation(PRIVATE, Usage(3, 4), reasoning=PRIVATE, refusal=None, raw={"x": PRIVATE}, logprobs=(PRIVATE,)),
        AuthenticationFailed(PRIVATE),
    ]
    reqs = [Requirement("is empty", check=lambda text: Validation(False, f"not {text!r}", 0.5))]
    result = run(sample, MultiTurnStrategy(loop_budget=2), ScriptedBackend(script), reqs, PRIVATE)

    record = result.to_dict(content=False)

    assert "Xanthippe" not in json.dumps(record)
    assert "Xanthippe" not in result.to_json(content=False, indent=2)
    assert {"type": "AuthenticationFailed"} == record["errors"][0]
    [first, _] = record["attempts"]
    assert {"passed": False, "score": 0.5, "requirement": 0} == first["validations"][0]
    back = SamplingResult.from_dict(record)
    assert record == back.to_dict(content=False)
    assert "is empty" == back.best.validations[0].requirement.description
    assert result.usage == back.usage
    assert [one.outcome for one in result.attempts] == [one.outcome for one in back.attempts]


def test_keys_do_not_travel(run):
    """In messages of errors, in options and in what the server said."""

    def reply(request):
        return RuntimeError(f"Bearer {KEY}") if request.subsample else Generation("yes", raw={"auth": f"Bearer {KEY}"})

    class Keyed(RejectionSamplingStrategy):
        def repair(self, history):
            return attrs.evolve(
                history[0].tried, options=Options(extra={"headers": {"Authorization": f"Bearer {KEY}"}})
            )

    result = run(sample, Keyed(loop_budget=2, concurrency_budget=2), ScriptedBackend(reply), [lambda text: False])
    assert any("headers" in one.get("options", {}).get("extra", {}) for one in result.to_dict()["attempts"])
    assert KEY not in result.to_json()


def test_errors_of_unknown_types_keep_their_names(run):
    """No class is imported. A second journey changes nothing."""

    class Odd(Exception):
        pass

    def reply(request):
        return Odd("strange") if request.subsample else After(1, "yes")

    result = run(sample, RejectionSamplingStrategy(concurrency_budget=2), ScriptedBackend(reply))
    [error] = copied(result).errors
    assert (ErrorFromJournal, "Odd", "Odd: strange") == (type(error), error.type_name, str(error))
    assert result.to_dict() == copied(copied(result)).to_dict()


def some_result(run):
    return run(sample, MultiTurnStrategy(loop_budget=3), ScriptedBackend(["no", RateLimited("busy"), "yes"])).to_dict()


def changed(record, path, value):
    """Return a copy of the record with another value at a path such as "attempts.0.outcome"."""
    made = copy.deepcopy(record)
    *parents, last = path.split(".")
    place = made
    for name in parents:
        place = place[int(name) if name.isdecimal() else name]
    place[int(last) if last.isdecimal() else last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "other", "result.format must be 'sampling.result', got 'other'"),
        ("version", 2, "has version 2 of the format, and this release of sampling reads up to 1. Upgrade sampling"),
        ("version", "1", "result.version must be an integer of at least 1"),
        ("content", None, "result.content must be true or false, got None"),
        ("success", 1, "result.success must be true or false, got 1"),
        ("stop_reason", "bored", "result.stop_reason must be one of validated, exhausted, budget, deadline, failed"),
        ("elapsed_s", float("nan"), "result.elapsed_s must be a finite number"),
        ("best", 9, "result.best must be an integer of at least 0 and less than 3, got 9"),
        ("best", 0, "result.best must be a valid attempt, because success is true"),
        ("attempts", {}, "result.attempts must be a list"),
        ("attempts.0", [], "result.attempts[0] must be an object"),
        ("attempts.0.outcome", "fine", "result.attempts[0].outcome must be one of valid, invalid, errored, cancelled"),
        ("attempts.0.asked", [99], "result.attempts[0].asked must be a list of places in a table of"),
        ("attempts.0.asked", [], "result.attempts[0].asked must have a message"),
        ("attempts.0.usage", {"input_tokens": -1}, "result.attempts[0].usage can't be read"),
        ("attempts.0.usage", None, "result.attempts[0].usage can't be read"),
        ("attempts.0.generation", {"text": 3}, "result.attempts[0].generation can't be read"),
        ("attempts.0.generation", {"text": "", "__class__": "os.system"}, "generation can't be read"),
        ("attempts.0.options", {"temperature": "hot"}, "result.attempts[0].options can't be read"),
        ("attempts.0.validations", [{"passed": "yes"}], "validations[0].passed must be true or false"),
        (
            "attempts.0.validations",
            [{"passed": True, "requirement": 7}],
            "requirement must be an integer of at least 0",
        ),
        ("attempts.1.error", 5, "result.attempts[1].error must be an integer of at least 0 and less than 1"),
        ("messages.0.role", "root", "result.messages[0].content can't be read"),
        ("messages.0.content", [{"type": "image", "url": "/etc/passwd"}], "result.messages[0].content can't be read"),
        ("messages.0.content", [{"type": "os.system"}], "result.messages[0].content can't be read"),
        ("requirements", [""], "result.requirements can't be read"),
        ("requirements", [1], "result.requirements must be a list of texts"),
        ("errors", [{"message": "no type"}], "result.errors[0].type is missing"),
        ("hook_failures", [{"hook": "h", "event": "e"}], "result.hook_failures[0].error is missing"),
        ("notes", "none", "result.notes must be a list"),
    ],
)
def test_wrong_data_is_refused_with_its_place(run, path, value, message):
    """The error is a ValueError that says where the data is wrong, and what is allowed."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        SamplingResult.from_dict(changed(some_result(run), path, value))
    assert message in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "{}", 3, {}, {"format": "sampling.result"}])
def test_anything_else_is_refused(data):
    """Invalid data raises a ValueError that says what is wrong."""
    with pytest.raises(ValueError, match="this is not a result of to_dict"):
        SamplingResult.from_dict(data)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"format": NaN}', '{"a":' * 100 + "1" + "}" * 100])
def test_text_that_is_no_json_is_refused(text):
    """Invalid JSON, and JSON that is nested too deeply, raise a ValueError."""
    with pytest.raises(ValueError, match="this is not a result of to_dict"):
        SamplingResult.from_json(text)


def test_deep_nesting_in_a_dict_is_refused(run):
    """A dict needs no parser, so nothing else has limited its depth."""
    content = "x"
    for _ in range(100_000):
        content = [{"type": "tool_result", "id": "1", "content": content}]
    record = changed(some_result(run), "messages.0.content", content)
    with pytest.raises(ValueError, match="can't be read"):
        SamplingResult.from_dict(record)
    while isinstance(content, list):  # freed from the outside: Python would recurse
        content = content[0].pop("content")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.integers(0, 10_000), value=JSON)
def test_no_damage_raises_anything_but_a_value_error(place, value):
    """Any part of a record, replaced by anything, is refused with a ValueError or read."""
    record = json.loads(RECORD)
    spots = list(_spots(record))
    parent, key = spots[place % len(spots)]
    parent[key] = value
    with contextlib.suppress(ValueError):
        SamplingResult.from_dict(record)


def _spots(record):
    for key, value in record.items() if isinstance(record, dict) else enumerate(record):
        yield record, key
        if isinstance(value, dict | list):
            yield from _spots(value)


def _made():
    failed = Slice(
        1, "id-1", 0, 0, "invalid", Action("q"), Context([Message("user", "q"), Message("assistant", "a")]),
        Generation("a", Usage(1, 1), tool_calls=[ToolCall("1", "f", "{}")], turns=[Message("assistant", "t")]),
        (Validation(False, "r", 1.0, requirement=Requirement("d", check=bool), error=ValueError("e")),), "a",
    )  # fmt: skip
    return SamplingResult(
        success=False, best=failed, slices=(failed,), attempts=(failed,), errors=(RateLimited(),), usage=Usage(1, 1),
        stop_reason="exhausted", sampling_id="id", elapsed_s=1.0, max_attempts=1,
        hook_failures=(HookFailure("h", "e", ValueError("x")),),
    )  # fmt: skip


RECORD = _made().to_json()


def test_a_slice_made_by_hand_travels():
    """Also if it has no plan, and a context that is not that of its answer."""
    back = SamplingResult.from_json(RECORD)
    assert ["q", "a"] == [message.text for message in back.best.context]
    assert RECORD == back.to_json()


def test_a_result_of_many_attempts_can_be_read_back(run):
    """The limit on brackets is that of results, not that of a single answer."""
    strategy = RejectionSamplingStrategy(loop_budget=3_000)
    result = run(
        sample, strategy, ScriptedBackend(lambda _: "[[{{ " * 10), [(lambda text, n=n: False) for n in range(4)]
    )
    text = result.to_json()
    assert text.count("{") > 20_000
    assert 3_000 == len(SamplingResult.from_json(text).attempts)


def test_text_that_is_no_unicode_travels(run):
    """A lone surrogate is escaped, as JSON is ASCII."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["\ud800 \x00 \u202e"]), [])
    assert result.to_json().isascii()
    assert result.text == copied(result).text
