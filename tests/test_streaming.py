"""`strategy.stream()` passes on what hooks see, never holds up a call, and leaves nothing behind."""

from dataclasses import dataclass
from itertools import groupby

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from sampling import (
    Action,
    Budget,
    Event,
    Fallback,
    FatalError,
    Generation,
    Hooks,
    IterationFinished,
    IterationStarted,
    Limited,
    LoopFinished,
    LoopStarted,
    MultiTurnStrategy,
    OpenAIBackend,
    RejectionSamplingStrategy,
    Requirement,
    Retrying,
    TextGrown,
    ToolCall,
    ToolLoop,
    TransientError,
    Usage,
    fan_out,
    hooks,
)
from sampling.backends.layers import Cached
from sampling.errors import UnexpectedCancellation
from sampling.strategies import BudgetForcingStrategy, Thinking
from sampling.testing import After, CapturedEvents, ScriptedBackend, cancel_at_every_step, explore, run_virtual
from sampling.testing.servers import OpenAIServer, Reply
from tests.faults.scenarios import is_yes, strategies, table


class BrokenBlock(BaseException):
    """What only a `BaseException` handler would catch."""


ANSWERS = ["no", "yes", "no", "yes", "no"]


class Streaming:
    """A backend that streams the answers of a function of the request, one piece for every `interval_s`."""

    def __init__(self, answer, interval_s=0.25):
        self._answer = answer
        self._interval_s = interval_s
        self.streamed = 0
        self.running = 0

    async def generate(self, request):
        return await self._send(request, lambda piece: None)

    async def stream(self, request, receive):
        self.streamed += 1
        return await self._send(request, receive)

    async def _send(self, request, receive):
        self.running += 1
        try:
            pieces = self._answer(request)
            for piece in pieces:
                # No two lanes are ready at once, so that every run ends in the same way.
                await anyio.sleep(self._interval_s * (1 + request.subsample * 0.137))
                if isinstance(piece, Exception):
                    raise piece
                receive(piece)
            return Generation("".join(pieces), Usage(1, len(pieces)))
        finally:
            self.running -= 1


def scripted_pieces(request):
    return list(ANSWERS[request.iteration % len(ANSWERS)])


def always(*pieces):
    return Streaming(lambda request: pieces)


async def read(strategy, backend, reqs=(is_yes,), action="q", **arguments):
    """Return all events of a stream, and its result."""
    async with strategy.stream(action, None, backend, reqs, **arguments) as events:
        seen = [event async for event in events]
    return seen, events.result


def joined(events):
    """Join the `TextGrown` of each attempt to one: what a reader who never reads in time gets."""
    kept, texts = [], {}
    for event in events:
        if isinstance(event, TextGrown):
            before = texts.get(event.iteration_id)
            texts[event.iteration_id] = event if before is None else event.joined_to(before)
        else:
            kept.append(event)
    return kept, texts


def texts_are_inside_of_attempts(events):
    """Return whether every `TextGrown` is between the start and the end of its attempt."""
    running = set()
    for event in events:
        if isinstance(event, IterationStarted):
            running.add(event.iteration_id)
        elif isinstance(event, IterationFinished):
            running.discard(event.iteration_id)
        elif isinstance(event, TextGrown) and event.iteration_id not in running:
            return False
    return True


def story(event):
    """Describe an event without ids and times."""
    fields = ("iteration", "subsample", "attempt", "strategy", "piece", "text", "success", "stop_reason", "attempts")
    return type(event).__name__, *[getattr(event, name, None) for name in fields]


def outcome(result):
    attempts = [(one.iteration, one.outcome, one.text, one.usage, one.requests) for one in result.attempts]
    best = result.best and (result.best.iteration, result.best.text)
    return (
        result.success,
        result.value,
        result.stop_reason,
        result.usage,
        best,
        result.agreement,
        result.margin,
        attempts,
    )


SETTINGS = {"loop_budget": 2, "concurrency_budget": 3}
EVERY = range(len(strategies(**SETTINGS)))


@pytest.mark.parametrize("number", EVERY)
@pytest.mark.parametrize("streams", [True, False])
def test_a_stream_has_the_events_of_the_hooks_and_the_result_of_sample(run, number, streams):
    """S24: for every strategy, in the same order, and whether the backend can stream or not."""

    def backend():
        streaming = Streaming(scripted_pieces)
        return streaming if streams else streaming.generate

    async def both():
        watching, sampled = CapturedEvents(text=True), CapturedEvents(text=True)
        seen, result = await read(strategies(**SETTINGS)[number], backend(), hooks=watching)
        same = await strategies(**SETTINGS)[number].sample("q", None, backend(), [is_yes], hooks=sampled)
        unwatched = await strategies(**SETTINGS)[number].sample("q", None, backend(), [is_yes])
        return seen, watching.events, sampled.events, result, same, unwatched

    seen, watched, sampled, result, same, unwatched = run(both)
    assert joined(watched) == joined(seen)
    assert all(any(event is other for other in watched) for event in seen if not isinstance(event, TextGrown))
    assert sorted(map(story, sampled)) == sorted(map(story, watched))
    assert outcome(result) == outcome(same) == outcome(unwatched)
    texts = joined(seen)[1]
    assert texts
    for attempt in result.attempts:
        if attempt.generation is not None:
            assert attempt.text == texts[attempt.iteration_id].text


def test_a_reader_in_time_gets_every_piece_of_every_lane(run):
    """Breadth streams all lanes, each piece when it arrives."""

    async def timed():
        started = anyio.current_time()
        strategy = RejectionSamplingStrategy(concurrency_budget=2)
        async with strategy.stream("q", None, always("a", "b", "c")) as events:
            return [
                (anyio.current_time() - started, event.subsample, event.piece, event.text)
                async for event in events
                if isinstance(event, TextGrown)
            ]

    seen = run(timed)
    assert [(0.25, "a", "a"), (0.5, "b", "ab"), (0.75, "c", "abc")] == [
        (at, piece, text) for at, subsample, piece, text in seen if subsample == 0
    ]
    assert {0, 1} == {subsample for _, subsample, _, _ in seen}


def test_the_events_of_stages_name_their_parent(run):
    """S20: an escalation streams the text of its tiers, whose calls carry the outer call as their parent."""
    strategy = strategies(loop_budget=1)[-1]
    seen, result = run(read, strategy, always("n", "o"))
    grown = [event for event in seen if isinstance(event, TextGrown)]
    assert {result.sampling_id} == {event.parent_id for event in grown}
    assert 2 == len({event.sampling_id for event in grown})


# Slow readers.


def test_a_slow_reader_holds_up_nothing_and_gets_joined_pieces(run):
    """S25: unread pieces of an attempt are one event, all others are kept, and the call ends in its own time."""
    pieces = [f"{number} " for number in range(1_000)]

    async def read_slowly():
        strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=2)
        seen = []
        async with strategy.stream("q", None, always(*pieces), [lambda text: False]) as events:
            await anyio.sleep(10_000)
            async for event in events:
                seen.append(event)
                await anyio.sleep(1_000)
        return seen, events.result

    seen, result = run(read_slowly)
    assert 568.5 == pytest.approx(result.elapsed_s)
    assert [("".join(pieces),) * 2] * 4 == [(e.piece, e.text) for e in seen if isinstance(e, TextGrown)]
    assert 4 == sum(isinstance(event, IterationFinished) for event in seen)
    assert isinstance(seen[0], LoopStarted)
    assert isinstance(seen[-1], LoopFinished)
    by_attempt = [event for event in seen if getattr(event, "iteration", None) == 1]
    assert [IterationStarted, TextGrown, IterationFinished] == [kind for kind, _ in groupby(map(type, by_attempt))][:3]


def test_pieces_are_joined_from_where_the_reader_stopped(run):
    """The next event begins where the last one ended."""

    async def read_with_a_pause():
        strategy, seen = RejectionSamplingStrategy(), []
        async with strategy.stream("q", None, always("a", "b", "c", "d")) as events:
            async for event in events:
                if isinstance(event, TextGrown):
                    seen.append((event.piece, event.text))
                    await anyio.sleep(0.6)
        return seen

    assert [("a", "a"), ("bc", "abc"), ("d", "abcd")] == run(read_with_a_pause)


# Text that starts over, or comes at once.


def grown(events):
    return [(event.piece, event.text) for event in events if isinstance(event, TextGrown)]


def test_a_backend_that_cannot_stream_gives_its_text_at_once(run):
    """One `TextGrown`, before the checks. An answer without text gives none."""
    seen, result = run(read, RejectionSamplingStrategy(), ScriptedBackend([After(1.0, "yes")]))
    assert [("yes", "yes")] == grown(seen)
    assert ["LoopStarted", "IterationStarted", "TextGrown", "IterationFinished", "LoopFinished"] == [
        type(event).__name__ for event in seen
    ]
    seen, result = run(read, RejectionSamplingStrategy(), ScriptedBackend([""]))
    assert not grown(seen)
    assert not result.success


@pytest.mark.parametrize("wrap", [Retrying, lambda backend: Limited(Retrying(backend), max_in_flight=1, adaptive=True)])
def test_a_retried_text_starts_over(run, wrap):
    """A watched call is retried like any other, and `piece == text` says that the text starts over."""
    tries = iter([["ma", TransientError("broke off")], ["y", "e", "s"]])
    seen, result = run(read, RejectionSamplingStrategy(), wrap(Streaming(lambda request: next(tries))))
    assert [("ma", "ma"), ("y", "y"), ("e", "ye"), ("s", "yes")] == grown(seen)
    assert (True, 2) == (result.success, result.best.requests)


def test_a_fallback_starts_over(run):
    """The text of the first backend is taken back."""
    first, second = always("ma", FatalError("no")), always("yes")
    seen, result = run(read, RejectionSamplingStrategy(), Fallback(first, second))
    assert [("ma", "ma"), ("yes", "yes")] == grown(seen)
    assert result.success


def test_partial_checks_see_the_text_that_starts_over(run):
    """A check of a growing text is not shown the text of a failed try."""
    tries = iter([["n", TransientError("broke off")], ["y", "es"]])
    checked = []

    def may_be_yes(text):
        checked.append(text)
        return "yes".startswith(text) or text == "n"

    async def sample():
        backend = Retrying(Streaming(lambda request: next(tries)))
        reqs = [Requirement("is yes", is_yes, partial=may_be_yes)]
        return await RejectionSamplingStrategy().sample("q", None, backend, reqs)

    assert run(sample).success
    assert ["n", "y", "yes"] == checked


def test_a_forced_answer_keeps_its_prefix_when_it_starts_over(run):
    """The prefix is not the retried backend's to take back."""
    tries = iter([["thought"], ["ma", TransientError("broke off")], ["yes"]])
    backend = Retrying(Streaming(lambda request: next(tries)))
    strategy = BudgetForcingStrategy(Thinking(tokens=1, answer_suffix="It is "))
    seen, result = run(read, strategy, backend, [])
    assert [("It is ", "It is "), ("ma", "It is ma"), ("It is ", "It is "), ("yes", "It is yes")] == grown(seen)
    assert "It is yes" == result.text


def test_of_a_tool_loop_the_final_answer_remains(run):
    """Words before a call are shown, and taken back when the answer begins."""

    def look_up(word: str) -> str:
        return "42"

    class Calling(Streaming):
        async def stream(self, request, receive):
            if len(request.messages) > 1:
                return await super().stream(request, receive)
            receive("Let me see.")
            return Generation(
                "Let me see.", Usage(1, 1), "tool_calls", tool_calls=[ToolCall("1", "look_up", '{"word": "x"}')]
            )

    seen, result = run(read, RejectionSamplingStrategy(), ToolLoop(Calling(lambda _: ["y", "es"]), [look_up]))
    assert [("Let me see.", "Let me see."), ("y", "y"), ("es", "yes")] == grown(seen)
    assert "yes" == result.text


def test_the_last_text_is_that_of_the_answer_even_if_the_backend_changed_it(run):
    """A backend may strip what it streamed, or stream less than it returns."""

    class Stripping(Streaming):
        async def stream(self, request, receive):
            generation = await super().stream(request, receive)
            return attrs.evolve(generation, text=self.final)

    for final, last in [("yes", ("yes", "yes")), (" yes!", ("!", " yes!")), ("", ("", ""))]:
        backend = Stripping(lambda _: [" y", "es"])
        backend.final, captured = final, CapturedEvents(text=True)
        run(read, RejectionSamplingStrategy(), backend, hooks=captured)
        assert last == grown(captured.events)[-1]


def test_a_cached_answer_is_passed_on(run):
    """The second call has the same text, at once."""

    async def twice():
        backend = Cached(always("y", "es"))
        first, _ = await read(RejectionSamplingStrategy(), backend)
        second, _ = await read(RejectionSamplingStrategy(), backend)
        return grown(first), grown(second)

    assert ([("y", "y"), ("es", "yes")], [("yes", "yes")]) == run(twice)


# Typed actions.


@dataclass
class Flight:
    number: int
    day: str


def test_the_value_is_partially_parsed_while_it_grows(run):
    """`partial` is the JSON so far: in a fence, or with a string that is still growing."""
    pieces = ['Here:\n```json\n{"number": 7', ', "day": "Mon', 'day"}', "\n```"]
    seen, result = run(read, RejectionSamplingStrategy(), always(*pieces), [], Action("q", Flight))
    partials = [event.partial for event in seen if isinstance(event, TextGrown)]
    whole = {"number": 7, "day": "Monday"}
    assert [{"number": 7}, {"number": 7, "day": "Mon"}, whole, whole] == partials
    assert Flight(7, "Monday") == result.value


@pytest.mark.parametrize(
    ("shape", "text", "partial"),
    [
        (Flight, "", None),
        (Flight, "<think>{", None),
        (Flight, '<think>{"no": 1}</think>{"number": 1', {"number": 1}),
        (Flight, "{" * 5_000, None),
        (Flight, '{"number": ' + "1" * 5_000, None),
        (Flight, '{"number": 1,}', {"number": 1}),
        (list[Flight], '[{"number": 1}, {"num', [{"number": 1}, {}]),
        (list[Flight], '{"value": [{"number": 1', [{"number": 1}]),
        (list[Flight], '{"va', None),
        (Flight | list[int], '{"number": 1, "da', {"number": 1}),
        (Flight | list[int], "[1, 2", [1, 2]),
        (Flight | list[int], '{"value": {"number": 1', {"number": 1}),
        (Flight | None, '```json\n{"number": 1', {"number": 1}),
        (bool, "true", None),
        (str.upper, '{"number": 1}', None),
    ],
)
def test_what_is_partially_parsed(shape, text, partial):
    """None where there is nothing yet, nothing typed, or nothing that is safe to read."""
    ids = {"sampling_id": "s", "parent_id": None, "strategy": "S", "iteration": 1, "iteration_id": "i"}
    event = TextGrown(**ids, subsample=0, attempt=0, piece=text, text=text, action=Action("q", shape))
    assert partial == event.partial


# No listener, no cost.


def test_without_a_listener_nothing_is_streamed_and_no_event_is_made(run, monkeypatch):
    """S26: hooks on other events do not make a call stream."""
    made = []

    class Counted(TextGrown):
        def __attrs_post_init__(self):
            made.append(self)

    monkeypatch.setattr("sampling._engine.attempt.TextGrown", Counted)
    backend, others = always("yes"), Hooks()
    others.on(IterationFinished)(lambda event: None)

    async def sample(**arguments):
        return await RejectionSamplingStrategy().sample("q", None, backend, [is_yes], **arguments)

    run(sample)
    run(sample, hooks=others)
    assert (0, []) == (backend.streamed, made)
    others.on(Event)(lambda event: None)
    run(sample, hooks=others)
    assert (1, 0) == (backend.streamed, len(made))


# Hooks.


def test_sync_hooks_get_every_piece_even_if_nothing_is_awaited(run):
    """The backend calls them itself."""

    class Bursting(Streaming):
        async def _send(self, request, receive):
            for piece in "yes":
                receive(piece)
            return Generation("yes")

    seen, own = [], Hooks()
    own.on(TextGrown)(lambda event: seen.append(event.piece))
    events, _ = run(read, RejectionSamplingStrategy(hooks=own), Bursting(None))
    assert list("yes") == seen
    assert [("yes", "yes")] == grown(events)


def test_async_hooks_are_awaited_while_the_text_grows(run):
    """They hold up nothing, get joined pieces, and have ended before the attempt is announced to have ended."""
    told, own = [], Hooks()

    @own.on(TextGrown, IterationFinished)
    async def slow(event):
        if isinstance(event, TextGrown):
            await anyio.sleep(0.6)
        told.append(event.text if isinstance(event, TextGrown) else "finished")

    async def sample():
        return await RejectionSamplingStrategy(hooks=own).sample("q", None, always("a", "b", "c", "d"))

    result = run(sample)
    assert ["a", "abc", "abcd", "finished"] == told
    # The request took 1 s. The hook began for the last time 1.45 s after the start.
    assert 2.05 == pytest.approx(result.best.finished_s)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_fails_changes_nothing(run, is_async):
    """Its failures are on the result."""
    own = Hooks()

    def fails(event):
        raise LookupError("mine")

    async def fails_later(event):
        fails(event)

    own.on(TextGrown)(fails_later if is_async else fails)
    seen, result = run(read, RejectionSamplingStrategy(hooks=own), always("y", "es"))
    assert result.success
    assert {"TextGrown"} == {failure.event for failure in result.hook_failures}
    assert [("y", "y"), ("es", "yes")] == grown(seen)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("streams", [True, False])
def test_a_critical_hook_ends_the_call(run, is_async, streams):
    """The caller gets its exception, bare, and the request is stopped."""
    own, backend = Hooks(), always("y", "es", *"!!!!!!")

    def fails(event):
        raise LookupError("mine")

    async def fails_later(event):
        fails(event)

    own.on(TextGrown, critical=True)(fails_later if is_async else fails)
    captured = CapturedEvents(text=True)
    with pytest.raises(LookupError, match="mine"):
        run(read, RejectionSamplingStrategy(hooks=own), backend if streams else backend.generate, hooks=captured)
    assert 0 == backend.running
    [finished] = captured.of(IterationFinished)
    assert "errored" == finished.slice.outcome
    if not streams:
        assert Usage(1, 8) == finished.slice.usage


def test_a_plain_function_may_return_a_coroutine(run):
    """It is awaited before the end of the attempt, and has got the whole text by then."""
    told, own = [], Hooks()

    async def later(event):
        await anyio.sleep(1)
        told.append(event.text)

    own.on(TextGrown)(lambda event: later(event))  # noqa: PLW0108 - plain, unlike what it returns
    own.on(IterationFinished)(lambda event: told.append("finished"))
    run(read, RejectionSamplingStrategy(hooks=own), always("y", "e", "s"))
    assert ["y", "yes", "finished"] == told


def test_hooks_of_a_fan_out_see_the_text_grow(run):
    """With the ids of the call of each item."""
    captured = CapturedEvents(text=True)

    async def many():
        return await fan_out(RejectionSamplingStrategy(), ["a", "b"], None, always("y", "es"), hooks=captured)

    run(many)
    texts = {}
    for event in captured.of(TextGrown):
        texts.setdefault(event.sampling_id, []).append(event.text)
    assert [["y", "yes"]] * 2 == list(texts.values())


# Errors.


@pytest.mark.parametrize("reads", [True, False])
def test_the_exception_of_the_call_is_raised_as_it_is(run, reads):
    """By the iteration, after the last event, or by the end of the block, and only once."""
    backend = ScriptedBackend(lambda _: FatalError("no"))
    seen = []

    async def stream():
        async with RejectionSamplingStrategy(concurrency_budget=2).stream("q", None, backend) as events:
            if not reads:
                await anyio.sleep(1)
                return
            async for event in events:
                seen.append(event)  # noqa: PERF401 - kept when the iteration raises

    with pytest.raises(FatalError, match="no") as caught:
        run(stream)
    assert caught.type is FatalError
    assert not reads or isinstance(seen[-1], LoopFinished)


def test_an_exception_that_was_caught_is_not_raised_again(run):
    """After an exception was caught, only `events.result` raises it again."""

    async def stream():
        async with RejectionSamplingStrategy().stream("q", None, ScriptedBackend([FatalError("no")])) as events:
            with pytest.raises(FatalError):
                async for _ in events:
                    pass
        assert [] == [event async for event in events]
        with pytest.raises(FatalError):
            events.result  # noqa: B018

    run(stream)


@pytest.mark.parametrize(
    "kind", [LookupError, KeyboardInterrupt, SystemExit, GeneratorExit, StopAsyncIteration, BrokenBlock]
)
def test_an_exception_of_the_block_is_raised_as_it_is(run, kind):
    """An exception of the block is raised unchanged, and the call is cancelled."""
    backend = always("a", "b")
    own = kind("the block's own")

    async def stream():
        async with RejectionSamplingStrategy(concurrency_budget=3).stream("q", None, backend) as events:
            async for event in events:
                if isinstance(event, TextGrown):
                    raise own

    async def guarded():
        # Here, because event loops treat some of these in ways of their own.
        with pytest.raises(kind) as caught:
            await stream()
        assert own is caught.value
        assert 0 == backend.running

    run(guarded)


@pytest.mark.parametrize("leaves", [True, False])
def test_streams_inside_of_streams(run, leaves):
    """In the block of another, and in a check of another. Leaving the outer one ends them all."""
    outer, inner = always("a", "b", "c"), always("y", "e", "s")
    strategy = RejectionSamplingStrategy(concurrency_budget=2)
    ended = []

    async def ask_another(text):
        seen, result = await read(strategy, inner)
        ended.append(len(seen))
        return result.success

    async def stream():
        async with strategy.stream("q", None, outer, [Requirement("another agrees", check=ask_another)]) as events:
            async for event in events:
                if not isinstance(event, TextGrown):
                    continue
                async with strategy.stream("q", None, inner) as nested:
                    async for below in nested:
                        if leaves and isinstance(below, TextGrown):
                            break
                if leaves and event.text == "abc":
                    # The check of this answer streams now.
                    await anyio.sleep(0.3)
                    assert inner.running
                    break
        assert 0 == outer.running == inner.running
        return None if leaves else events.result.success

    assert run(stream) in {None, True}
    assert bool(ended) is not leaves


def test_a_check_may_stream_inside_of_a_fan_out(run):
    """Every item has its own streams, and nothing is left of them."""
    outer, inner = always("a", "b"), always("y", "e", "s")
    seen = []

    async def ask_another(text):
        events, result = await read(RejectionSamplingStrategy(), inner)
        seen.append([type(event).__name__ for event in events])
        return result.success

    async def items():
        reqs = [Requirement("another agrees", check=ask_another)]
        return await fan_out(RejectionSamplingStrategy(), list("abcde"), None, outer, reqs, max_concurrency=3)

    assert "completed" == run(items).status
    assert 5 == len(seen)
    assert all(names[0] == "LoopStarted" and names[-1] == "LoopFinished" for names in seen)
    assert 0 == outer.running == inner.running


def test_a_timeout_around_one_event_loses_none(run):
    """A reader may wait for a moment, do something else, and come back."""

    async def stream():
        text, waits = "", 0
        async with RejectionSamplingStrategy().stream("q", None, always(*"abcdef")) as events:
            while True:
                with anyio.move_on_after(0.1) as moment:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return text, waits
                if moment.cancelled_caught:
                    waits += 1
                elif isinstance(event, TextGrown):
                    text += event.piece

    text, waits = run(stream)
    assert "abcdef" == text
    assert waits > 6


def test_timeouts_and_task_groups_of_asyncio_work_around_a_stream():
    """They cancel in a way of their own: the task, and not a scope."""
    import asyncio  # noqa: TID251 - what a program on asyncio uses

    backend = always(*"abc" * 100)

    async def stream():
        async with RejectionSamplingStrategy(concurrency_budget=2).stream("q", None, backend) as events:
            async for _ in events:
                await asyncio.sleep(0.1)

    async def fail():
        await asyncio.sleep(1)
        raise LookupError("a neighbour's")

    async def beside_a_failure():
        async with asyncio.TaskGroup() as group:
            group.create_task(stream())
            group.create_task(fail())

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream(), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await stream()
        assert (0, 0) == (asyncio.current_task().cancelling(), backend.running)
        with pytest.raises(ExceptionGroup) as caught:
            await beside_a_failure()
        assert [LookupError] == list(map(type, caught.value.exceptions))
        assert 0 == backend.running
        task = asyncio.create_task(stream())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert 0 == backend.running

    run_virtual(main)


def test_there_is_no_result_before_the_end_or_after_leaving(run):
    """Both errors say what to do."""

    async def stream():
        async with RejectionSamplingStrategy().stream("q", None, always("a", "b")) as events:
            async for event in events:
                with pytest.raises(RuntimeError, match="iterate over all events first"):
                    events.result  # noqa: B018
                if isinstance(event, TextGrown):
                    break
        with pytest.raises(RuntimeError, match="left before the call had ended"):
            events.result  # noqa: B018
        rest = [event async for event in events]
        assert [IterationFinished, LoopFinished] == list(map(type, rest))
        assert "cancelled" == rest[0].slice.outcome

    run(stream)


def test_leaving_at_the_last_event_keeps_the_result(run):
    """The call has ended by then."""

    async def stream():
        async with RejectionSamplingStrategy().stream("q", None, always("yes")) as events:
            async for event in events:
                if isinstance(event, LoopFinished):
                    break
        return events.result

    assert run(stream).success


def test_bad_arguments_are_refused_as_by_sample(run):
    """Invalid arguments raise before anything runs."""

    async def stream(**arguments):
        async with RejectionSamplingStrategy().stream("q", None, always("yes"), **arguments):
            pass

    for name in ("hooks", "budget", "options", "validation_ctx"):
        with pytest.raises(TypeError, match=name):
            run(stream, **{name: 3})
    with pytest.raises(TypeError, match="reqs"):
        run(stream, reqs=3)
    with pytest.raises(TypeError, match=r"overrides stream\(\), which is final"):
        type("Own", (RejectionSamplingStrategy,), {"stream": None})


def test_a_task_that_is_cancelled_from_outside_is_an_error():
    """Semantics 10: a cancellation that the caller did not ask for is not taken for the end of the call."""
    import asyncio  # noqa: TID251 - only asyncio can cancel a task of others

    async def stream():
        async with RejectionSamplingStrategy().stream("q", None, always("a", "b")) as events:
            async for event in events:
                if isinstance(event, TextGrown):
                    for task in asyncio.all_tasks() - {asyncio.current_task()}:
                        task.cancel()

    with pytest.raises(UnexpectedCancellation):
        asyncio.run(stream())


def test_the_deadline_and_the_budget_of_a_call_hold(run):
    """A stream is a call like any other."""
    seen, result = run(read, RejectionSamplingStrategy(loop_budget=9), always("n", "o"), budget=Budget(deadline_s=0.6))
    assert "deadline" == result.stop_reason
    assert isinstance(seen[-1], LoopFinished)


# Schedules, and cancellation at every step.


def streaming_of(fates):
    """Return a backend with the fates of a schedule, which streams character by character and then may break off."""

    def pieces(request):
        _, fate = fates[request.subsample, request.attempt]
        return [*"yes", fate("drawn")] if isinstance(fate, type) else list(fate)

    class Drawn(Streaming):
        async def _send(self, request, receive):
            self._interval_s = fates[request.subsample, request.attempt][0] / 2
            return await super()._send(request, receive)

    return Drawn(pieces)


async def streamed_anyhow(world):
    """Any strategy, read at any pace, left at any event or not at all."""
    deterministic = world.rng.random() < 0.3
    choice = strategies(loop_budget=2, concurrency_budget=4, deterministic=deterministic)
    strategy = world.rng.choice(choice)
    errors = [(TransientError, 0.1), (FatalError, 0.03)]
    backend = streaming_of(table(world, yes=0.3, errors=errors))
    watching, seen, ending = CapturedEvents(text=True), [], None
    if world.rng.random() < 0.3:

        async def slow(event):
            await anyio.sleep(world.latency())

        watching.on(TextGrown)(slow)
    leaves_after = world.rng.choice([None, None, 1, 5, 9])
    pauses = world.rng.random() < 0.5
    try:
        async with strategy.stream("q", None, backend, [is_yes], hooks=watching) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == leaves_after:
                    world.reached("left")
                    break
                if pauses:
                    await anyio.sleep(world.latency())
        ending = "left" if leaves_after else events.result.stop_reason
    except (FatalError, TransientError) as error:
        ending = type(error).__name__
    seen += [event async for event in events]
    assert 0 == backend.running, "I6: a request outlived the block"
    assert joined(watching.events) == joined(seen), "S24: an event was lost, or is out of order"
    assert texts_are_inside_of_attempts(seen), "I9: a text grew before its attempt started, or after it ended"
    if len(grown(seen)) < len(grown(watching.events)):
        world.reached("joined")
    world.reached(ending)
    return ending, [story(event) for event in seen]


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_no_event_is_lost_in_any_schedule(loop):
    """S24, I6: whatever the strategy, its reader and its errors do."""
    must_reach = ["left", "joined", "validated", "exhausted", "FatalError"]
    explore(streamed_anyhow, seeds=range(300), loops=[loop], must_reach=must_reach, replay=0.02)


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("number", EVERY)
@pytest.mark.parametrize("native", [False, True])
def test_nothing_is_left_when_a_stream_is_cancelled_at_any_step(number, native):
    """I6, I9, I11: no task, no request and no reservation outlives the block, and every event was announced."""
    state = {}

    async def scenario(world):
        budget, captured = Budget(attempts=100), CapturedEvents(text=True)
        backend = streaming_of(table(world, yes=0.3))
        state.update(budget=budget, captured=captured, backend=backend)
        strategy = strategies(loop_budget=2, concurrency_budget=3)[number]
        _, result = await read(strategy, backend, budget=budget, hooks=captured)
        await checkpoint()
        return result.stop_reason

    def check(world, ended):
        assert not ended.left_running
        assert "raised" != ended.kind
        assert 0 == state["backend"].running
        assert 0 == state["budget"].reserved.attempts
        names = state["captured"].names
        assert names.count("IterationStarted") == names.count("IterationFinished")
        assert names.count("LoopStarted") == names.count("LoopFinished")

    cancel_at_every_step(scenario, check=check, native=native)


# A real server.


@pytest.mark.parametrize("how", ["leaves", "raises", "is cancelled"])
def test_leaving_closes_the_connections_of_all_lanes(anyio_backend, how):
    """S27: the server sees every client disconnect, and no answer is completed."""

    async def stream():
        reply = Reply(["word "], endless=True, interval_s=0.005)
        async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="any") as backend:
            lanes = set()
            with anyio.CancelScope() as scope:
                try:
                    async with RejectionSamplingStrategy(concurrency_budget=4).stream("q", None, backend) as events:
                        async for event in events:
                            if isinstance(event, TextGrown):
                                lanes.add(event.subsample)
                            if len(lanes) == 4 and how == "leaves":
                                break
                            if len(lanes) == 4 and how == "raises":
                                raise LookupError("enough")
                            if len(lanes) == 4:
                                scope.cancel()
                except LookupError:
                    pass
            with anyio.fail_after(30):
                await server.until(lambda: server.disconnects == 4)
            assert (4, 0, 0) == (server.disconnects, server.completed, server.open)
            assert "is cancelled" != how or scope.cancelled_caught

    anyio.run(stream, backend=anyio_backend)


def test_the_module_of_events_names_them_all():
    """Every event that `sampling.hooks` exports is in the type of a stream."""
    assert {"TextGrown", "LoopStarted", "LoopFinished"} <= set(hooks.__all__)
    assert issubclass(TextGrown, Event)
    assert MultiTurnStrategy.stream is RejectionSamplingStrategy.stream
