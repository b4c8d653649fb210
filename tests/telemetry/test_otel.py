"""`otel_hooks`: a span a call, a span an attempt in it, current while it runs, and no text on either."""

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sampling import (
    Context,
    Generation,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    TransientError,
    Usage,
    current,
)
from sampling.errors import AuthenticationFailed
from sampling.telemetry.otel import otel_hooks
from sampling.testing import ScriptedBackend

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


def test_a_call_and_its_attempts_are_spans(run, provider, exporter):
    """The attempts are children of the call, with outcome, model, options and tokens by the names of the convention."""
    backend = ScriptedBackend([Generation("a", Usage(5, 1)), Generation("b", Usage(7, 2, 0.5), "eos", "tiny")])

    async def call():
        strategy = MultiTurnStrategy(loop_budget=3, hooks=otel_hooks(provider))
        return await strategy.sample(
            "q", None, backend, [IS_B], options=Options(model="m", temperature=0.5, stop=["x"])
        )

    result = run(call)

    [whole] = named(exporter, "sample MultiTurnStrategy")
    first, second = named(exporter, "attempt")
    assert {whole.context.span_id} == {first.parent.span_id, second.parent.span_id}
    assert ["invalid", "valid"] == [span.attributes["sampling.outcome"] for span in (first, second)]
    assert [one.iteration_id for one in result.attempts] == [
        span.attributes["sampling.iteration_id"] for span in (first, second)
    ]
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("eos",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "sampling.cost": 0.5,
    }.items() <= dict(second.attributes).items()
    assert (True, "validated", 2, 12) == tuple(
        whole.attributes[name]
        for name in ("sampling.success", "sampling.stop_reason", "sampling.attempts", "gen_ai.usage.input_tokens")
    )


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
    [attempt] = [one for one in named(exporter, "attempt") if one.parent.span_id == outer_call.context.span_id]
    assert attempt.context.span_id == inner.parent.span_id


def test_what_failed_says_so_and_what_lost_does_not(run, provider, exporter):
    """Only an errored attempt has the status ERROR, with its type, and all spans end."""

    async def backend(request):
        await anyio.sleep(1 + request.subsample)
        if request.subsample == 0:
            raise TransientError(f"the key sk-123 and {PRIVATE}")
        return "b"

    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=otel_hooks(provider))
    run(strategy.sample, "q", None, backend, [IS_B])

    by_outcome = {span.attributes["sampling.outcome"]: span for span in named(exporter, "attempt")}
    assert {"errored", "valid", "cancelled"} == set(by_outcome)
    assert StatusCode.ERROR == by_outcome["errored"].status.status_code
    assert "TransientError" == by_outcome["errored"].attributes["error.type"]
    assert StatusCode.UNSET == by_outcome["cancelled"].status.status_code
    assert not any("sk-123" in span.to_json() or PRIVATE in span.to_json() for span in exporter.get_finished_spans())


def test_a_call_that_raises_ends_its_span_as_an_error(run, provider, exporter):
    """And leaves nothing attached."""
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
