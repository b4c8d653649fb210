"""Running tools: until there is an answer, at once, with every error told to the model and every token counted."""

import itertools
import threading
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import MappingProxyType

import anyio
import attrs
import pytest

from sampling import (
    Budget,
    Generation,
    Image,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    ServerError,
    Tool,
    ToolCall,
    ToolLoop,
    ToolResult,
    Usage,
    current,
    report_usage,
    tool,
)
from sampling.backends.layers import Cached, Limited, Retrying
from sampling.backends.layers._identity import identity_of
from sampling.errors import BadRequest, BudgetExceeded
from sampling.testing import After, ScriptedBackend, cancel_at_every_step

ASK = Request((Message("user", "How is it in Oslo?"),))
USED = Usage(10, 5)


async def weather(city: str) -> str:
    """Look up the weather of a city."""
    return f"rain in {city}"


def calling(*calls: ToolCall, text: str = "", **fields: object) -> Generation:
    return Generation(text, USED, "tool_calls", tool_calls=calls, **fields)


OSLO = ToolCall("1", "weather", '{"city": "Oslo"}')
BERGEN = ToolCall("2", "weather", '{"city": "Bergen"}')
SUNNY = Generation("sunny", USED)


def test_calls_are_run_until_there_is_an_answer(run):
    """The answer is the last text, the usage is that of all rounds, and the ids stay."""
    backend = ScriptedBackend([calling(OSLO, text="Let me see."), calling(BERGEN), SUNNY])
    answer = run(ToolLoop(backend, [weather]).generate, ASK)
    assert ("sunny", "stop", Usage(30, 15), ()) == (answer.text, answer.finish_reason, answer.usage, answer.tool_calls)
    assert (
        calling(OSLO, text="Let me see.").message,
        Message("tool", [ToolResult("1", "rain in Oslo")]),
        Message("assistant", [BERGEN]),
        Message("tool", [ToolResult("2", "rain in Bergen")]),
    ) == answer.turns
    assert [1, 3, 5] == [len(request.messages) for request in backend.requests]
    assert all("weather" == request.options.tools[0].name for request in backend.requests)


def test_calls_of_one_answer_run_at_the_same_time_and_their_results_keep_their_order(run):
    """The first call ends last: sequentially, it would wait for ever."""
    second_began = anyio.Event

    async def ask():
        began = second_began()

        async def first() -> str:
            await began.wait()
            return "one"

        async def second() -> str:
            began.set()
            return "two"

        backend = ScriptedBackend([calling(ToolCall("a", "first", ""), ToolCall("b", "second", "{}")), SUNNY])
        return await ToolLoop(backend, [first, second]).generate(ASK)

    assert (ToolResult("a", "one"), ToolResult("b", "two")) == run(ask).turns[1].content


def fails(city: str) -> str:
    """Fail."""
    raise LookupError(f"no {city}")


async def is_cancelled_by_nobody(city: str) -> str:
    """Raise a cancellation that nobody requested."""
    raise anyio.get_cancelled_exc_class()() if "asyncio" in str(anyio.get_cancelled_exc_class()) else LookupError


async def hangs(city: str) -> str:
    """Hang."""
    await anyio.sleep_forever()
    return ""


BY_HAND = Tool("by_hand", "", {"type": "object", "properties": {"n": {"enum": [1, 2]}}}, lambda **given: str(given))
PLAIN = Tool("plain", "", {"type": "object", "properties": {}}, lambda n: f"{n}")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("1", "fails", '{"city": "Oslo"}'), "the tool failed: no Oslo"),
        (ToolCall("1", "is_cancelled_by_nobody", '{"city": "Oslo"}'), "the tool failed"),
        (ToolCall("1", "hangs", '{"city": "Oslo"}'), "took longer than 5 s"),
        (ToolCall("1", "nothing", "{}"), "there is no tool 'nothing': call one of fails, "),
        (ToolCall("1", "fails", "{oops"), "are not JSON"),
        (ToolCall("1", "fails", "[1]"), "must be a JSON object"),
        (ToolCall("1", "fails", '{"town": "Oslo"}'), "at /city: field required"),
        (ToolCall("1", "fails", '{"city": 3}'), "at /city: input should be a valid string"),
        (ToolCall("1", "by_hand", '{"n": 3}'), "at /n: 3 is not one of [1, 2]"),
        (ToolCall("1", "plain", '{"m": 3}'), "missing a required argument: 'n'"),
    ],
)
async def test_an_error_goes_back_to_the_model(anyio_backend, call, says):
    """The model gets the error as the result of its call, and can try again."""
    backend = ScriptedBackend([calling(call), SUNNY])
    tools = [fails, is_cancelled_by_nobody, hangs, BY_HAND, PLAIN]
    # Without a virtual clock, because a thread works outside of it.
    timeout_s = 0.05 if call.name == "hangs" else 5
    answer = await ToolLoop(backend, tools, timeout_s=timeout_s).generate(ASK)
    [result] = answer.turns[1].content
    assert result.is_error
    assert "1" == result.id
    assert says.replace("5 s", f"{timeout_s} s") in result.text
    assert "Traceback" not in result.text
    assert "sunny" == answer.text


@attrs.frozen
class Place:
    name: str


@dataclass
class Sky:
    clouds: int
    place: Place


PIXEL = Image(b"\x89PNG\r\n\x1a\n...")


class Wind(Enum):
    WEST = "w"


class Reading:
    """An array, as of NumPy."""

    def __init__(self, values):
        self.tolist = lambda: values


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("rain", "rain"),
        (None, "null"),
        ({"ø": 1}, '{"ø": 1}'),
        ([1, 2], "[1, 2]"),
        ([], "[]"),
        (Sky(3, Place("Oslo")), '{"clouds": 3, "place": {"name": "Oslo"}}'),
        ({3, 1}, "[1, 3]"),
        (Wind.WEST, '"w"'),
        ({"at": datetime(2026, 1, 2, 3, 4)}, '{"at": "2026-01-02T03:04:00"}'),
        ({date(2026, 1, 2): Wind.WEST, (1, 2): {Wind.WEST: {3}}}, '{"2026-01-02": "w", "(1, 2)": {"w": [3]}}'),
        (MappingProxyType({"a": Decimal("1.50")}), '{"a": "1.50"}'),
        ("wörds".encode(), '"wörds"'),
        (Reading([1, 2]), "[1, 2]"),
        (ToolResult("?", "rain"), "rain"),
        (PIXEL, (PIXEL,)),
        (["a picture", PIXEL], ToolResult("1", ["a picture", PIXEL]).content),
    ],
)
async def test_a_result_is_text_parts_or_json(anyio_backend, returned, content):
    """Text and parts are sent as the tool returned them, and other values as JSON."""

    def look() -> object:
        return returned

    backend = ScriptedBackend([calling(ToolCall("1", "look", "")), SUNNY])
    answer = await ToolLoop(backend, [look]).generate(ASK)
    assert content == answer.turns[1].content[0].content


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


def is_broken():
    raise Unspeakable


@pytest.mark.parametrize(
    ("look", "says"),
    [
        (lambda: nested(100_000), "nested too deeply"),
        (itertools.count, "it returned a count, which is not JSON: return a list"),
        (lambda: {"picture": PIXEL}, "it returned Image inside of something else: return it alone, or in a list"),
        (lambda: b"\xff\xfe", "it returned bytes that are not text"),
        (is_broken, "the tool failed"),
    ],
)
async def test_a_result_that_no_model_can_read_is_an_error_of_its_tool(anyio_backend, look, says):
    """The model gets an error instead of bytes that it can't read."""
    backend = ScriptedBackend([calling(ToolCall("1", "look", "")), SUNNY])
    answer = await ToolLoop(backend, [Tool("look", "", {"type": "object"}, look)]).generate(ASK)
    [result] = answer.turns[1].content
    assert (True, "sunny") == (result.is_error, answer.text)
    assert says in result.text


async def test_sync_tools_run_in_threads_and_know_their_attempt(anyio_backend):
    """Two of them meet at a barrier, which one thread alone could not pass."""
    meet = threading.Barrier(2, timeout=30)
    seen = []

    def look(n: int) -> None:
        meet.wait()
        seen.append((threading.current_thread() is threading.main_thread(), current().iteration))

    calls = [ToolCall(str(n), "look", f'{{"n": {n}}}') for n in range(2)]
    backend = ToolLoop(ScriptedBackend([calling(*calls), SUNNY]), [look])
    assert "sunny" == (await RejectionSamplingStrategy().sample("?", None, backend)).value
    assert [(False, 1), (False, 1)] == seen


def test_after_max_rounds_the_answer_is_incomplete_and_a_repair_goes_on(run):
    """The calls of the last round are not run, and the next attempt sends a result for each of them."""
    backend = ScriptedBackend([calling(OSLO), calling(BERGEN), SUNNY])
    result = run(MultiTurnStrategy(loop_budget=2).sample, "How is it?", None, ToolLoop(backend, [weather], 2))
    first, second = result.slices
    assert ("invalid", "max_rounds", (BERGEN,)) == (
        first.outcome,
        first.generation.finish_reason,
        first.generation.tool_calls,
    )
    assert "answer now, with what is known" in first.validations[0].reason
    assert ["user", "assistant", "tool", "assistant", "tool", "user"] == [
        message.role for message in backend.requests[-1].messages
    ]
    assert "not run" in backend.requests[-1].messages[4].content[0].text
    assert ("sunny", [2, 1]) == (second.value, [one.requests for one in result.slices])


def test_a_repair_continues_the_whole_conversation(run):
    """Calls and results are in the context of the slice, and a requirement can look at them."""

    def looked(text, view):
        return text != "sunny" and any(message.role == "tool" for message in view.generation.turns)

    backend = ScriptedBackend([calling(OSLO), SUNNY, calling(BERGEN), "rain"])
    requirement = Requirement("looked it up", looked)
    result = run(MultiTurnStrategy(loop_budget=2).sample, "?", None, ToolLoop(backend, [weather]), [requirement])
    assert "rain" == result.value
    assert ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"] == [
        message.role for message in result.best.context.messages
    ]


def test_every_request_and_token_is_counted(run):
    """Those of rounds, of retries, and what a tool reports itself."""

    async def ask_a_model() -> str:
        report_usage(Usage(100, 1))
        return "rain"

    script = [calling(ToolCall("1", "ask_a_model", "")), ServerError("busy"), SUNNY]
    backend = ToolLoop(Retrying(ScriptedBackend(script), backoff_s=0), [ask_a_model])
    budget = Budget(requests=3)
    result = run(RejectionSamplingStrategy().sample, "?", None, backend, budget=budget)
    assert Usage(120, 11) == result.usage == budget.spent == result.best.generation.usage
    assert 3 == budget.requests_made == result.best.requests


@pytest.mark.parametrize("limit", [{"requests": 1}, {"tokens": 25}, {"cost": 0.015}])
def test_a_round_that_the_budget_has_no_room_for_is_not_sent(run, limit):
    """The usage of earlier rounds is on the slice."""
    asked = Generation("", Usage(10, 5, 0.01), "tool_calls", tool_calls=[OSLO])
    backend = ScriptedBackend([asked, SUNNY])
    budget = Budget(**limit)
    with pytest.raises(BudgetExceeded):
        run(
            RejectionSamplingStrategy().sample,
            "?",
            None,
            ToolLoop(backend, [weather]),
            options=Options(max_tokens=15),
            budget=budget,
        )
    assert 1 == len(backend.requests) == budget.requests_made
    assert Usage(10, 5, 0.01) == budget.spent
    assert 0 == budget.reserved.tokens == budget.reserved.requests


def test_a_round_waits_for_what_others_only_reserved(run):
    """The second agent's last round fits once the first has settled."""
    replies = iter([calling(OSLO), calling(BERGEN), SUNNY, SUNNY])

    async def both():
        budget = Budget(tokens=100)
        backend = ToolLoop(ScriptedBackend(lambda _: After(1.0, next(replies))), [weather])
        strategy = RejectionSamplingStrategy()
        results = []

        async def one():
            options = Options(max_tokens=20)
            results.append(await strategy.sample("?" * 16, None, backend, options=options, budget=budget))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return budget, results

    budget, results = run(both)
    assert [True, True] == [result.success for result in results]
    assert (60, 0, 4) == (budget.tokens_charged, budget.reserved.tokens, budget.requests_made)


@pytest.mark.parametrize("layer", [lambda inner: Limited(inner, max_in_flight=1), Cached])
def test_a_round_that_waits_for_its_budget_holds_nobody_up(run, layer):
    """Those who wait for its slot, or for the same answer, must go on before they can return their reservations."""
    replies = iter([calling(OSLO), SUNNY, SUNNY])
    sent = []

    def reply(request):
        sent.append(len(request.messages))
        return After(1.0, next(replies))

    async def both():
        budget = Budget(tokens=65)
        backend = layer(ToolLoop(ScriptedBackend(reply), [weather]))
        results = []

        async def one():
            strategy, options = RejectionSamplingStrategy(), Options(max_tokens=20)
            results.append(await strategy.sample("?" * 16, None, backend, options=options, budget=budget))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return budget, results

    budget, results = run(both)
    assert [True, True] == [result.success for result in results]
    assert [1, 1, 3] == sent
    assert (0, 3) == (budget.reserved.tokens, budget.requests_made)


def test_a_failure_in_a_later_round_keeps_the_usage_of_the_earlier_ones(run):
    """Earlier rounds were paid for, so their usage counts."""
    backend = ToolLoop(ScriptedBackend([calling(OSLO), ServerError("busy"), SUNNY]), [weather])
    result = run(RejectionSamplingStrategy(loop_budget=2).sample, "?", None, backend)
    assert [USED, USED] == [one.usage for one in result.attempts]


def test_losers_stop_in_the_middle_of_a_tool(run):
    """The winner's answer cancels the tools of the others."""
    cancelled = []

    async def hang() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(current().subsample)

    def reply(request):
        return After(1.0, SUNNY) if request.subsample == 2 else calling(ToolCall("1", "hang", ""))

    backend = ToolLoop(ScriptedBackend(reply), [hang], timeout_s=None)
    result = run(RejectionSamplingStrategy(concurrency_budget=4).sample, "?", None, backend)
    assert (True, [0, 1, 3]) == (result.success, sorted(cancelled))
    assert Usage(40, 20) == result.usage


async def test_a_loser_leaves_a_thread_behind_and_does_not_wait_for_it(anyio_backend):
    """The call returns while the thread still works."""
    release, working = threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        release.wait(30)

    async def generate(request):
        if request.subsample == 0:
            return calling(ToolCall("1", "work", ""))
        await anyio.to_thread.run_sync(working.wait)
        return SUNNY

    try:
        backend = ToolLoop(generate, [work])
        result = await RejectionSamplingStrategy(concurrency_budget=2).sample("?", None, backend)
        assert ("sunny", False) == (result.value, release.is_set())
    finally:
        release.set()


def test_it_can_be_cancelled_at_every_step():
    """After a cancellation at any step, requests and usage still add up."""

    async def look() -> str:
        await anyio.sleep(0.1)
        return "rain"

    def start(world):
        calls = [ToolCall("1", "look", ""), ToolCall("2", "look", "")]
        backend = ToolLoop(ScriptedBackend(lambda r: SUNNY if len(r.messages) > 1 else calling(*calls)), [look])
        return lambda: RejectionSamplingStrategy(concurrency_budget=2).sample("?", None, backend)

    assert cancel_at_every_step(start)


class Streaming:
    """Streams its answers word by word."""

    def __init__(self, *answers):
        self.answers = iter(answers)

    async def generate(self, request):
        return next(self.answers)

    async def stream(self, request, receive):
        answer = next(self.answers)
        for word in answer.text.split():
            receive(word + " ")
        return attrs.evolve(answer, text="".join(word + " " for word in answer.text.split()))


def test_text_is_streamed_piece_by_piece(run):
    """Pieces of every round are passed on as they arrive."""
    pieces = []
    answer = run(ToolLoop(Streaming(calling(OSLO), Generation("it rains")), [weather]).stream, ASK, pieces.append)
    assert ["it ", "rains "] == pieces
    assert "it rains " == answer.text


def test_partial_checks_see_the_answer_alone(run):
    """Text before a tool call is not part of the answer, in any layer."""
    seen = []
    short = Requirement("is short", lambda text: True, partial=lambda text: seen.append(text) or len(text) < 12)
    backend = Retrying(ToolLoop(Streaming(calling(OSLO, text="Let me see"), Generation("it rains")), [weather]))
    result = run(RejectionSamplingStrategy().sample, "?", None, backend, [short])
    assert "it rains " == result.value
    assert ["it ", "it rains "] == seen[-2:]


def test_a_forced_choice_is_for_the_first_round(run):
    """A model that must call a tool would never answer."""
    backend = ScriptedBackend([calling(OSLO), SUNNY])
    run(ToolLoop(backend, [weather]).generate, attrs.evolve(ASK, options=Options(tool_choice="weather")))
    assert ["weather", None] == [request.options.tool_choice for request in backend.requests]


def test_tools_of_the_application_end_the_loop(run):
    """They are offered too, and their calls are the answer."""
    buy = Tool("buy", "", {"type": "object", "properties": {}})
    backend = ScriptedBackend([calling(OSLO), calling(ToolCall("2", "buy", "{}"))])
    result = run(
        RejectionSamplingStrategy().sample, "?", None, ToolLoop(backend, [weather]), options=Options(tools=[buy])
    )
    assert result.success
    assert ["buy"] == [call.name for call in result.best.generation.tool_calls]
    assert 2 == len(result.best.generation.turns)


def test_calls_of_an_answer_that_was_cut_off_are_not_run(run):
    """Their arguments may be cut off, too."""
    cut = Generation("", finish_reason="length", tool_calls=[OSLO])
    answer = run(ToolLoop(ScriptedBackend([cut]), [weather]).generate, ASK)
    assert ((OSLO,), "length", ()) == (answer.tool_calls, answer.finish_reason, answer.turns)


def test_ids_are_unique_in_a_conversation(run):
    """Servers that number the calls of each answer anew, or give no ids, would be misunderstood."""
    again, none = attrs.evolve(BERGEN, id="1"), attrs.evolve(BERGEN, id="")
    backend = ScriptedBackend([calling(OSLO), calling(again, none), SUNNY])
    answer = run(ToolLoop(backend, [weather]).generate, ASK)
    ids = [part.id for message in answer.turns for part in message.content]
    assert ["1", "1", "call_0", "call_1", "call_0", "call_1"] == ids


def test_ids_are_unique_after_a_repair(run):
    """Servers that count their calls from 0 in each answer, such as Bedrock, repeat the ids of the first attempt."""
    counted = attrs.evolve(OSLO, id="call_0")
    backend = ScriptedBackend([calling(counted), SUNNY, calling(counted), Generation("rain", USED)])
    strategy = MultiTurnStrategy(loop_budget=2)
    run(strategy.sample, "How is it?", None, ToolLoop(backend, [weather]), [lambda text: text == "rain"])
    parts = [part for message in backend.requests[-1].messages for part in message.content]
    calls = [part.id for part in parts if isinstance(part, ToolCall)]
    results = [part.id for part in parts if isinstance(part, ToolResult)]
    assert ["call_0", "call_1"] == calls == results


def test_each_round_has_an_idempotency_key_of_its_own(run):
    """A server would else repeat its first answer."""
    backend = ScriptedBackend([calling(OSLO), SUNNY])
    run(ToolLoop(backend, [weather]).generate, attrs.evolve(ASK, idempotency_key="item:1"))
    assert ["item:1", "item:1:2"] == [request.idempotency_key for request in backend.requests]


def test_a_cache_around_it_has_the_whole_conversation(run, tmp_path):
    """A cached answer has the turns before it, and a usage of zero."""

    async def ask():
        first = await Cached(ToolLoop(ScriptedBackend([calling(OSLO), SUNNY]), [weather]), store=path).generate(ASK)
        again = await Cached(ToolLoop(ScriptedBackend([]), [weather]), store=path).generate(ASK)
        return first, again

    path = tmp_path / "cache"
    first, again = run(ask)
    assert first.turns == again.turns
    assert ("sunny", Usage()) == (again.text, again.usage)


def test_the_identity_includes_the_tools():
    """Other tools, other code and other rounds give other answers. The same give the same."""

    def other(city: str) -> str:
        """Look up the weather of a city."""
        return f"snow in {city}"

    schema = {"type": "object", "properties": {}}
    loops = [
        ToolLoop(backend, tools, rounds)
        for backend in (weather,)
        for tools in ([weather], [other], [Tool("weather", "", schema, weather)], [Tool("weather", "", schema, other)])
        for rounds in (2, 3)
    ]
    identities = [tuple(identity_of(loop)) for loop in loops]
    assert len(loops) == len(set(identities))
    assert identities[0] == tuple(identity_of(ToolLoop(weather, [weather], 2)))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ToolLoop(weather, []), ValueError, "tools must not be empty"),
        (lambda: ToolLoop(weather, [Tool("a", "", {"type": "object"})]), ValueError, "'a' has none"),
        (lambda: ToolLoop(weather, [weather, weather]), ValueError, "'weather' twice"),
        (lambda: ToolLoop(weather, weather), TypeError, "tools must be"),
        (lambda: ToolLoop(weather, [weather], 0), ValueError, "max_rounds must be >= 1"),
        (lambda: ToolLoop(weather, [weather], timeout_s=0), ValueError, "timeout_s must be > 0"),
        (lambda: ToolLoop(3, [weather]), TypeError, "backend must be"),
    ],
)
def test_what_could_not_work_is_refused_at_construction(make, error, says):
    """Invalid tools are refused before anything is paid for."""
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("options", [Options(tools=[weather]), Options(tool_choice="nothing")])
def test_options_that_do_not_fit_the_tools_are_refused_before_anything_is_sent(run, options):
    """A tool of the same name, and a choice of a tool that is not there."""
    backend = ScriptedBackend([])
    with pytest.raises(BadRequest, match=r"options\.tool"):
        run(ToolLoop(backend, [weather]).generate, attrs.evolve(ASK, options=options))
    assert [] == backend.requests


def test_the_repr_names_the_tools():
    """The repr names the tools, for logs."""
    assert "ToolLoop(weather, tools=['weather'], max_rounds=8)" == repr(ToolLoop(weather, [tool(weather)]))


def test_a_tool_that_returns_an_iterator_is_told_to_return_a_list(run):
    """The model would get the address of an object."""

    async def later():
        yield 1

    async def pages() -> object:
        """Return all pages."""
        return later()

    backend = ScriptedBackend([calling(ToolCall("1", "pages", "{}")), SUNNY])
    answer = run(ToolLoop(backend, [pages]).generate, ASK)
    [result] = answer.turns[-1].content
    assert result.is_error
    assert "async_generator, which is not JSON: return a list" in result.content
