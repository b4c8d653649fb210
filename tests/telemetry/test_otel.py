"""`otel_hooks`: spans for calls, subsamples, attempts and requests, and no text on any of them."""

import anyio
import attrs
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sampling import (
    Context,
    Generation,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    ToolCall,
    TransientError,
    Usage,
    Validation,
    checks,
    current,
    report_usage,
)
from sampling.backends.layers import Cached, Retrying, ToolLoop
from sampling.errors import AuthenticationFailed
from sampling.telemetry.otel import otel_hooks
from sampling.testing import After, ScriptedBackend
from tests.contracts.kinds import every_strategy

PRIVATE = "the patient's name is Xanthippe"
IS_B = Requirement("is b", check=lambda text: text == "b")


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def named(exporter, name):
    return [span for span in exporter.get_finished_spans() if span.name == name]


def children(exporter, parent):
    return [
        span for span in exporter.get_finished_spans() if span.parent and span.parent.span_id == parent.context.span_id
    ]


def test_a_call_is_a_tree_of_subsamples_attempts_and_requests(run, provider, exporter):
    """The request has model, options and tokens by the names of the convention. Its parents have no tokens."""
    backend = ScriptedBackend([Generation("a", Usage(5, 1)), Generation("b", Usage(7, 2, 0.5, 3, 1), "eos", "tiny")])

    async def call():
        strategy = MultiTurnStrategy(loop_budget=3, hooks=otel_hooks(provider))
        return await strategy.sample(
            "q", None, backend, [IS_B], options=Options(model="m", temperature=0.5, stop=["x"])
        )

    result = run(call)

    [whole] = named(exporter, "sample MultiTurnStrategy")
    [lane] = children(exporter, whole)
    first, second = children(exporter, lane)
    [_], [request] = children(exporter, first), children(exporter, second)
    assert ["subsample 0", "attempt", "attempt", "chat m"] == [one.name for one in (lane, first, second, request)]
    assert ["invalid", "valid"] == [span.attributes["sampling.outcome"] for span in (first, second)]
    assert [one.iteration_id for one in result.attempts] == [
        span.attributes["sampling.iteration_id"] for span in (first, second)
    ]
    assert SpanKind.CLIENT == request.kind
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("eos",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "sampling.cost": 0.5,
        "sampling.request.purpose": "answer",
        "sampling.request.ended": "answered",
        "sampling.id": result.sampling_id,
        "sampling.iteration_id": result.best.iteration_id,
    } == dict(request.attributes)
    for parent in (whole, lane, first, second):
        assert not [name for name in parent.attributes if name.startswith("gen_ai.")]
    assert (True, "validated", 2) == tuple(
        whole.attributes[name] for name in ("sampling.success", "sampling.stop_reason", "sampling.attempts")
    )
    assert whole.start_time <= lane.start_time <= first.start_time <= request.start_time
    assert request.end_time <= second.end_time <= lane.end_time <= whole.end_time


def test_tokens_that_nobody_reports_are_absent_and_not_zero(run, provider, exporter):
    """A dashboard must not average over numbers that nobody knows."""
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, ScriptedBackend(["b"]))

    [request] = named(exporter, "chat")
    assert not [name for name in request.attributes if "usage" in name or "cost" in name]


def test_every_real_request_is_a_span_and_nothing_else_is(run, provider, exporter):
    """Retries, rounds of tools, fallbacks and judges send requests of their own. A cache that answers sends none."""
    hooks = otel_hooks(provider)

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    calls = [ToolCall("1", "add", '{"a": 1, "b": 2}')]
    answers = ScriptedBackend(
        [
            TransientError("busy"),
            Generation("", Usage(1, 1), "tool_calls", tool_calls=calls),
            Generation("b", Usage(2, 2)),
        ]
    )
    judge = ScriptedBackend([Generation("yes", Usage(3, 1))])

    async def call():
        backend = Cached(ToolLoop(Retrying(answers, attempts=2), [add]))
        strategy = RejectionSamplingStrategy(hooks=hooks)
        reqs = [checks.judge("is polite", backend=judge)]
        first = await strategy.sample("q", None, backend, reqs)
        again = await strategy.sample("q", None, backend)
        return first, again

    first, again = run(call)

    assert again.best.from_cache
    assert 4 == first.attempts[0].requests
    spans = named(exporter, "chat")
    assert ["failed", "answered", "answered", "answered"] == [one.attributes["sampling.request.ended"] for one in spans]
    assert ["answer", "answer", "answer", "check"] == [one.attributes["sampling.request.purpose"] for one in spans]
    assert "TransientError" == spans[0].attributes["error.type"]
    assert [None, 1, 2, 3] == [one.attributes.get("gen_ai.usage.input_tokens") for one in spans]
    assert first.usage.input_tokens == sum(one.attributes.get("gen_ai.usage.input_tokens", 0) for one in spans)
    attempts = named(exporter, "attempt")
    assert {attempts[0].context.span_id} == {span.parent.span_id for span in spans}
    assert [] == children(exporter, attempts[1])


def test_a_function_that_passes_requests_on_is_not_counted_itself(run, provider, exporter):
    """Its own requests count, and a function that sends none counts as the model."""
    inner = ScriptedBackend(["a", "b"])

    async def twice(request):
        draft = await Retrying(inner).generate(request)
        return attrs.evolve(await Retrying(inner).generate(request), reasoning=draft.text)

    async def alone(request):
        return "b"

    for backend in (twice, alone):
        run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, backend)

    assert 3 == len(named(exporter, "chat"))


def test_a_trace_says_which_requirement_failed(run, provider, exporter):
    """One event for each requirement, with its name and verdict. The reason may quote the answer, so it is left out."""
    reqs = [IS_B, Requirement("is long", check=lambda text: Validation(False, f"{text} is short", 0.25))]
    backend = ScriptedBackend([Generation("b", raw={"id": "r-1"})])
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, backend, reqs)

    [attempt] = named(exporter, "attempt")
    assert ["gen_ai.evaluation.result"] * 2 == [event.name for event in attempt.events]
    assert [
        {
            "gen_ai.evaluation.name": "is b",
            "gen_ai.evaluation.score.label": "pass",
            "gen_ai.response.id": "r-1",
        },
        {
            "gen_ai.evaluation.name": "is long",
            "gen_ai.evaluation.score.label": "fail",
            "gen_ai.evaluation.score.value": 0.25,
            "gen_ai.response.id": "r-1",
        },
    ] == [dict(event.attributes) for event in attempt.events]


def test_a_text_that_is_cut_short_is_no_error(run, provider, exporter):
    """A partial check stopped it, and what it used is known."""

    class Streams:
        async def generate(self, request):
            return await self.stream(request, lambda _: None)

        async def stream(self, request, receive):
            report_usage(Usage(4, 1))
            receive("no")
            await anyio.sleep(60)

    reqs = [Requirement("is b", check=lambda text: text == "b", partial=lambda text: text == "b")]
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, Streams(), reqs)

    [request] = named(exporter, "chat")
    assert ("cut", 4) == (request.attributes["sampling.request.ended"], request.attributes["gen_ai.usage.input_tokens"])
    assert StatusCode.UNSET == request.status.status_code


@every_strategy
def test_the_trace_of_every_strategy_is_whole(run, provider, exporter, strategy_class):
    """S30: every span ends inside of its parent, and requests have the tokens of the result, once."""

    def reply(request):
        if request.iteration == 2:
            return After(0.2, TransientError("busy"))
        return After(0.5 + request.subsample, Generation("b" if request.attempt else "a", Usage(5, 2)))

    strategy = strategy_class(loop_budget=2, concurrency_budget=3, hooks=otel_hooks(provider))
    result = run(strategy.sample, "q", None, ScriptedBackend(reply), [IS_B])

    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    roots = [span for span in spans.values() if span.parent is None]
    assert 1 == len(roots)
    for span in spans.values():
        if span.parent is not None:
            parent = spans[span.parent.span_id]
            assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time
    requests = [span for span in spans.values() if span.kind is SpanKind.CLIENT]
    assert sum(one.requests for one in result.attempts) == len(requests)
    assert all("attempt" == spans[one.parent.span_id].name for one in requests)
    assert result.usage.input_tokens == sum(one.attributes.get("gen_ai.usage.input_tokens", 0) for one in requests)
    failed = [one for one in requests if one.status.status_code is StatusCode.ERROR]
    assert len(result.errors) == len(failed)


def test_the_span_of_an_attempt_is_current_in_its_own_subsample(run, provider, exporter):
    """Spans made inside a backend are children of their own attempt."""
    tracer = trace.get_tracer("client", tracer_provider=provider)

    async def backend(request):
        for _ in range(3):
            with tracer.start_as_current_span("http", attributes={"iteration_id": current().iteration_id}):
                await anyio.sleep(1 + request.subsample)
        return "a"

    async def call():
        strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3, hooks=otel_hooks(provider))
        await strategy.sample("q", None, backend, [IS_B])
        return trace.get_current_span()

    outside = run(call)

    attempts = {span.context.span_id: span.attributes["sampling.iteration_id"] for span in named(exporter, "attempt")}
    inside = named(exporter, "http")
    assert 6 == len(attempts)
    assert 18 == len(inside)
    assert all(attempts[span.parent.span_id] == span.attributes["iteration_id"] for span in inside)
    assert not outside.get_span_context().is_valid


def test_a_nested_call_is_a_part_of_the_attempt_that_made_it(run, provider, exporter):
    """Its span hangs below that of the attempt."""
    hooks = otel_hooks(provider)

    async def outer(request):
        inner = await RejectionSamplingStrategy(hooks=hooks).sample("inner", None, ScriptedBackend(["b"]))
        return inner.text

    run(MultiTurnStrategy(hooks=hooks).sample, "outer", None, outer, [IS_B])

    [inner] = named(exporter, "sample RejectionSamplingStrategy")
    [outer_call] = named(exporter, "sample MultiTurnStrategy")
    [lane] = children(exporter, outer_call)
    [attempt] = children(exporter, lane)
    assert attempt.context.span_id == inner.parent.span_id
    assert 1 == len(named(exporter, "chat"))


def test_what_failed_says_so_and_what_lost_does_not(run, provider, exporter):
    """Only an errored attempt has the status ERROR, with its type, and all spans end."""

    async def backend(request):
        await anyio.sleep(1 + request.subsample)
        if request.subsample == 0:
            raise TransientError(f"the key sk-123 and {PRIVATE}")
        return "b"

    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=otel_hooks(provider))
    run(strategy.sample, "q", None, backend, [IS_B])

    requests = {span.attributes["sampling.request.ended"]: span for span in named(exporter, "chat")}
    assert {"failed", "answered", "cancelled"} == set(requests)
    assert (StatusCode.UNSET, None) == (
        requests["cancelled"].status.status_code,
        requests["cancelled"].attributes.get("error.type"),
    )
    assert "TransientError" == requests["failed"].attributes["error.type"]
    by_outcome = {span.attributes["sampling.outcome"]: span for span in named(exporter, "attempt")}
    assert {"errored", "valid", "cancelled"} == set(by_outcome)
    assert StatusCode.ERROR == by_outcome["errored"].status.status_code
    assert "TransientError" == by_outcome["errored"].attributes["error.type"]
    assert StatusCode.UNSET == by_outcome["cancelled"].status.status_code
    assert not any("sk-123" in span.to_json() or PRIVATE in span.to_json() for span in exporter.get_finished_spans())


def test_a_call_that_raises_ends_its_span_as_an_error(run, provider, exporter):
    """A call that raises ends its span with an error, and detaches its context."""
    strategy = RejectionSamplingStrategy(hooks=otel_hooks(provider))

    with pytest.raises(AuthenticationFailed):
        run(strategy.sample, "q", None, ScriptedBackend([AuthenticationFailed("no")]))

    [whole] = named(exporter, "sample RejectionSamplingStrategy")
    assert (StatusCode.ERROR, "AuthenticationFailed") == (whole.status.status_code, whole.attributes["error.type"])


@pytest.mark.parametrize("content", [False, True])
def test_texts_are_on_spans_only_if_asked_for(run, provider, exporter, content):
    """Row 74: prompts and answers may hold what nobody should find in a trace."""
    strategy = RejectionSamplingStrategy(hooks=otel_hooks(provider, content=content))
    run(strategy.sample, PRIVATE, Context([Message("system", PRIVATE)]), ScriptedBackend([PRIVATE]))

    assert content == any(PRIVATE in span.to_json() for span in exporter.get_finished_spans())


# Tools.


def calls_then_answers(*calls):
    """Call tools first, and answer then."""

    def reply(request):
        if request.messages[-1].role == "tool":
            return Generation("b")
        return Generation("", finish_reason="tool_calls", tool_calls=calls)

    return ScriptedBackend(reply)


async def weather(city: str) -> str:
    """Look up the weather of a city."""
    return f"rain in {city}"


async def broken() -> str:
    """Fail."""
    raise OSError(PRIVATE)


async def traced(city: str) -> str:
    """Start a span of its own."""
    with trace.get_tracer("application").start_as_current_span("inside the tool"):
        await anyio.sleep(1)
    return city


ASKS_FOR_THE_WEATHER = ToolCall("1", "weather", f'{{"city": "{PRIVATE}"}}')


def test_a_tool_that_was_run_has_a_span(run, provider, exporter):
    """S30: it has the name and the attributes of the conventions, beside the requests of the attempt."""
    agent = ToolLoop(calls_then_answers(ASKS_FOR_THE_WEATHER), [weather])
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, agent)
    [attempt] = named(exporter, "attempt")
    assert ["chat", "execute_tool weather", "chat"] == [span.name for span in children(exporter, attempt)]
    [span] = named(exporter, "execute_tool weather")
    assert SpanKind.INTERNAL is span.kind
    assert {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "1",
        "gen_ai.tool.description": "Look up the weather of a city.",
    } == dict(span.attributes)


def test_arguments_and_results_of_tools_are_content(run, provider, exporter):
    """They are on the span only if content was asked for."""
    agent = ToolLoop(calls_then_answers(ASKS_FOR_THE_WEATHER), [weather])
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider, content=True)).sample, "q", None, agent)
    [span] = named(exporter, "execute_tool weather")
    assert ASKS_FOR_THE_WEATHER.arguments == span.attributes["gen_ai.tool.call.arguments"]
    assert f"rain in {PRIVATE}" == span.attributes["gen_ai.tool.call.result"]


@pytest.mark.parametrize(
    ("call", "name", "error"),
    [
        (ToolCall("1", "broken", "{}"), "execute_tool broken", "OSError"),
        (ToolCall("1", "weather", "{"), "execute_tool weather", "invalid_arguments"),
        # The name of a tool that does not exist is text of the model.
        (ToolCall("1", PRIVATE, "{}"), "execute_tool", "unknown_tool"),
        (ToolCall("1", "traced", '{"city": "x"}'), "execute_tool traced", "timeout"),
    ],
)
def test_a_tool_that_failed_has_the_type_of_its_error(run, provider, exporter, call, name, error):
    """No text of the model, of an argument or of an exception is on the span."""
    agent = ToolLoop(calls_then_answers(call), [weather, broken, traced], timeout_s=0.5)
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, agent)
    [span] = named(exporter, name)
    assert StatusCode.ERROR is span.status.status_code
    assert error == span.attributes["error.type"]
    assert PRIVATE not in span.to_json()


def test_a_tool_of_a_loser_did_not_fail(run, provider, exporter):
    """Its span ends, without an error."""
    backend = calls_then_answers(ToolCall("1", "traced", '{"city": "x"}'))
    agent = ToolLoop(backend, [traced])

    async def one_is_quick(request):
        return "b" if request.subsample else await agent.generate(request)

    async def quick_after_the_tool_began(request):
        if request.subsample:
            await anyio.sleep(0.5)
        return await one_is_quick(request)

    strategy = RejectionSamplingStrategy(concurrency_budget=2, hooks=otel_hooks(provider))
    run(strategy.sample, "q", None, quick_after_the_tool_began)
    [span] = named(exporter, "execute_tool traced")
    assert StatusCode.UNSET is span.status.status_code


def test_spans_inside_of_a_tool_are_its_children(run, provider, exporter, monkeypatch):
    """So a trace says which tool sent which request."""
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: provider.get_tracer(name))
    agent = ToolLoop(calls_then_answers(ToolCall("1", "traced", '{"city": "x"}')), [traced])
    run(RejectionSamplingStrategy(hooks=otel_hooks(provider)).sample, "q", None, agent)
    [span] = named(exporter, "execute_tool traced")
    assert ["inside the tool"] == [child.name for child in children(exporter, span)]
