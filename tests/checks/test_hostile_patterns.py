"""Regular expressions that take exponential time on a hostile answer do not block the event loop."""

import json
import threading
from inspect import isawaitable
from types import SimpleNamespace

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from sampling import Generation, Message, RejectionSamplingStrategy, Request, Tool, ToolCall, ToolLoop, checks
from sampling._engine.validation import may_still_pass
from sampling._json import time_limit
from sampling._schemas.patterns import fits
from sampling.testing import ScriptedBackend

HOSTILE = "(a|a|aa)+$"
ANSWER = "a" * 60 + "!"
SCHEMAS = {
    "pattern": ({"type": "string", "pattern": f"^{HOSTILE}"}, ANSWER),
    "many": ({"type": "array", "items": {"pattern": f"^{HOSTILE}"}}, [ANSWER] * 100),
    "names": ({"type": "object", "patternProperties": {f"^{HOSTILE}": {}}}, {ANSWER: 1}),
    "other names": ({"patternProperties": {f"^{HOSTILE}": {}}, "additionalProperties": False}, {ANSWER: 1}),
}


async def turns_during(awaitable):
    """Return the result of an awaitable, or its exception, and how many turns another task got meanwhile."""
    turns = 0
    outcome = None

    async def watch():
        nonlocal turns
        while True:
            # Not all the time: the module that matches counts the processor time of all threads.
            await anyio.sleep(0.001)
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            outcome = await awaitable
        except TimeoutError as error:
            outcome = error
        group.cancel_scope.cancel()
    return outcome, turns


class TestTheLoopGoesOn:
    @pytest.fixture(autouse=True)
    def short_limit(self, monkeypatch):
        monkeypatch.setattr("sampling._schemas.validation._PATTERN_TIMEOUT_S", 0.2)

    async def test_while_an_answer_is_matched(self, anyio_backend):
        """Other tasks get turns, and the check fails as it did."""
        begun = checks.matches(HOSTILE, timeout_s=0.2).check(ANSWER)
        assert isawaitable(begun)
        outcome, turns = await turns_during(begun)
        assert isinstance(outcome, TimeoutError)
        assert turns > 2

    @pytest.mark.parametrize("name", SCHEMAS)
    async def test_while_a_pattern_of_a_schema_is_matched(self, anyio_backend, name):
        """Other tasks get turns, however many strings there are."""
        schema, value = SCHEMAS[name]
        begun = checks.json_schema(schema).check(json.dumps(value))
        assert isawaitable(begun)
        outcome, turns = await turns_during(begun)
        assert isinstance(outcome, TimeoutError)
        assert turns > 2

    async def test_while_the_arguments_of_a_tool_call_are_matched(self, anyio_backend):
        """Other tasks get turns, and the reason says what is too slow."""
        schema, value = SCHEMAS["names"]
        call = ToolCall("1", "look", json.dumps(value))
        requirement = checks.tool_calls(schemas={"look": schema})
        begun = requirement.check("", SimpleNamespace(generation=SimpleNamespace(tool_calls=(call,))))
        assert isawaitable(begun)
        (passed, reason), turns = await turns_during(begun)
        assert not passed
        assert "the arguments of look do not match its schema: it takes too long to check" in reason
        assert turns > 2

    async def test_while_a_tool_loop_reads_a_call(self, anyio_backend):
        """The model is told, and the call goes on."""
        schema, value = SCHEMAS["names"]
        looked = []
        tool = Tool("look", "Look.", schema, lambda **names: looked.append(names))
        call = ToolCall("1", "look", json.dumps(value))
        backend = ScriptedBackend([Generation("", tool_calls=(call,)), Generation("done")])
        request = Request((Message("user", "?"),))
        answer, turns = await turns_during(ToolLoop(backend, [tool]).generate(request))
        [result] = answer.turns[1].content
        assert "the call is invalid: it takes too long to check" in result.text
        assert not looked
        assert turns > 2


class TestTheVerdictIsTheSame:
    @pytest.mark.parametrize("text", ["2030", "203", "", "on 2030"])
    @pytest.mark.parametrize("inline_s", [0, 0.05])
    async def test_on_the_loop_and_in_a_thread(self, anyio_backend, monkeypatch, inline_s, text):
        """Where a pattern is matched decides nothing."""
        monkeypatch.setattr(time_limit, "INLINE_S", inline_s)
        requirements = [
            checks.matches(r"\d{4}"),
            checks.json_schema({"pattern": r"^\d{4}$"}),
            checks.not_(checks.matches(r"\D*")),
        ]
        expected = [text == "2030", text == "2030", text in {"2030", "203", "on 2030"}]
        texts = [text, json.dumps(text), text]
        results = [
            await RejectionSamplingStrategy().sample("?", None, ScriptedBackend([one]), [requirement])
            for one, requirement in zip(texts, requirements, strict=True)
        ]
        assert expected == [result.success for result in results]
        assert not any(result.errors for result in results)

    def test_by_the_time_of_this_thread(self):
        """The module counts the processor time of all threads. So a match that others slowed down is begun again."""
        given = []

        def match(text, *, timeout, **options):
            given.append(timeout)
            if len(given) < 3:
                raise TimeoutError
            return text

        assert fits(match, "a", 1.0)
        assert [1.0, 2.0, 4.0] == given


class TestPartialChecks:
    async def test_a_start_that_is_too_slow_is_matched_once(self, anyio_backend, monkeypatch):
        """Every further piece would stall the loop again. The whole answer decides."""
        tried = []
        monkeypatch.setattr(
            "sampling.checks.patterns.fits", lambda *args, **options: tried.append(args[1]) or fits(*args, **options)
        )
        requirement = checks.matches(HOSTILE)
        texts = [ANSWER + "b" * count for count in range(20)]
        assert all(may_still_pass(requirement, text).passed for text in texts)
        assert [ANSWER] == tried
        assert not may_still_pass(requirement, "b").passed

    async def test_it_is_not_remembered_for_ever(self, anyio_backend, monkeypatch):
        """The number of slow starts is bounded."""

        def too_slow(*args, **options):
            raise time_limit.TooComplex

        monkeypatch.setattr("sampling.checks.patterns.fits", too_slow)
        requirement = checks.matches("a+")
        for number in range(1_000):
            assert may_still_pass(requirement, f"{number} ").passed
        [slow] = [
            cell.cell_contents for cell in requirement.partial.__closure__ if isinstance(cell.cell_contents, tuple)
        ]
        assert len(slow) < 100


async def test_a_cancelled_check_does_not_wait_for_its_thread(anyio_backend):
    """The thread is left behind, and ends by itself."""
    may_end, ended = threading.Event(), threading.Event()
    begun = anyio.Event()
    token = anyio.lowlevel.current_token()

    def work():
        if threading.current_thread() is threading.main_thread():
            raise time_limit.TooComplex
        anyio.from_thread.run_sync(begun.set, token=token)
        may_end.wait(10)  # If the check waits for this, it ends too early, and the test fails.
        ended.set()

    async def check():
        await time_limit.within_time(work)

    async with anyio.create_task_group() as group:
        group.start_soon(check)
        await begun.wait()
        group.cancel_scope.cancel()
    assert not ended.is_set()
    may_end.set()
    ended.wait()


async def test_a_hostile_answer_of_a_whole_call_is_an_error_of_its_check(anyio_backend):
    """Row 54: it fails closed, with the error on the result."""
    with capture_logs():
        result = await RejectionSamplingStrategy().sample(
            "?", None, ScriptedBackend([ANSWER]), [checks.matches(HOSTILE, timeout_s=0.2)]
        )
    assert not result.success
    assert [TimeoutError] == [type(error) for error in result.errors]
