"""
Traces and metrics follow OpenTelemetry's conventions for generative AI.

Every name is looked up in the registry that OpenTelemetry publishes as a package, so a misspelt one is found.
The levels of requirement are those of the text of the conventions: required, required on a condition, recommended.
"""

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes, server_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from sampling import (
    Context,
    Generation,
    Image,
    Message,
    Options,
    Reasoning,
    RejectionSamplingStrategy,
    Requirement,
    ServerError,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    Validation,
    fan_out,
)
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.gemini import GeminiBackend
from sampling.backends.layers import ToolLoop
from sampling.backends.openai import OpenAIBackend
from sampling.telemetry._otel_metrics import SCHEMA_URL
from sampling.telemetry.otel import otel_hooks
from sampling.testing import After, ScriptedBackend
from sampling.testing.servers import AnthropicServer, GeminiServer, OpenAIServer, Reply

REQUIRED = {"gen_ai.operation.name", "gen_ai.provider.name"}
IF_THERE_IS_A_SERVER = {"server.address", "server.port"}
RECOMMENDED = {
    "gen_ai.request.model",
    "gen_ai.response.finish_reasons",
    "gen_ai.response.id",
    "gen_ai.response.model",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
}
OF_OPTIONS = {
    "gen_ai.output.type",
    "gen_ai.request.frequency_penalty",
    "gen_ai.request.max_tokens",
    "gen_ai.request.presence_penalty",
    "gen_ai.request.seed",
    "gen_ai.request.stop_sequences",
    "gen_ai.request.stream",
    "gen_ai.request.temperature",
    "gen_ai.request.top_k",
    "gen_ai.request.top_p",
}
EVERY_OPTION = Options(
    model="m", temperature=0.5, max_tokens=20, seed=7, stop=["x"], top_p=0.9, frequency_penalty=0.1,
    presence_penalty=0.2, schema={"type": "object"},
)  # fmt: skip
PRIVATE = "Xanthippe"


def registered():
    """Return the names of the registry, without those that were renamed or removed."""
    found = set()
    for module in (gen_ai_attributes, server_attributes, error_attributes):
        source = Path(module.__file__).read_text("utf-8")  # Python drops the docstrings of constants
        for name, note in re.findall(r'^[A-Z_]+: Final = "([\w.]+)"\n"""\n(.*?)"""', source, re.MULTILINE | re.DOTALL):
            if not re.match(r"Deprecated: (Replaced|Removed)", note.strip()):
                found.add(name)
    return found


REGISTERED = registered()


def unknown(names):
    """Return the names that are neither ours nor in the registry."""
    return {name for name in names if not name.startswith("sampling.") and name not in REGISTERED}


def test_a_misspelt_name_would_be_found():
    """The registry is what it should be: current names are in it, and old and misspelt ones are not."""
    good = REQUIRED | IF_THERE_IS_A_SERVER | RECOMMENDED | OF_OPTIONS | {"error.type"}
    assert set() == unknown(good)
    wrong = {"gen_ai.usage.reasoning_tokens", "gen_ai.sytem", "gen_ai.usage.prompt_tokens", "gen_ai.system"}
    assert wrong == unknown(wrong)


def test_the_schema_url_is_a_published_one():
    """Collectors use it to translate between versions."""
    assert SCHEMA_URL in {schema.value for schema in Schemas}


class Telemetry:
    """Spans and metrics in memory, and hooks that make them."""

    def __init__(self, **settings):
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.hooks = otel_hooks(provider, meter_provider=meters, **settings)

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    @property
    def requests(self):
        return [span for span in self.spans if span.kind is SpanKind.CLIENT]

    def scopes(self):
        return self.reader.get_metrics_data().resource_metrics[0].scope_metrics

    def metrics(self):
        return {metric.name: metric for scope in self.scopes() for metric in scope.metrics}

    def points(self, name):
        return self.metrics()[name].data.data_points


def test_every_name_of_an_eventful_call_is_in_the_registry(run):
    """S30: spans, events and metrics, with content, for answers, errors, losers and judges."""
    telemetry = Telemetry(content=True)

    def reply(request):
        if request.action is None:
            return Generation("yes", Usage(3, 1))
        if request.subsample == 1:
            return After(0.1, ServerError("busy"))
        return After(0.5 + request.subsample, Generation("b", Usage(5, 2, 0.1, 1, 1), model="tiny", raw={"id": "r"}))

    reqs = [Requirement("is b", check=lambda text: Validation(text == "b", "no", 1.0)), "is polite"]
    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3, hooks=telemetry.hooks)
    run(strategy.sample, "q", None, ScriptedBackend(reply), reqs, options=EVERY_OPTION)

    assert 5 == len(telemetry.requests)
    for span in telemetry.spans:
        assert set() == unknown(span.attributes)
        assert all(event.name == "gen_ai.evaluation.result" for event in span.events)
        assert all(set() == unknown(event.attributes) for event in span.events)
    for request in telemetry.requests:
        assert set(request.attributes) >= REQUIRED
        assert f"chat {request.attributes['gen_ai.request.model']}" == request.name
    for metric in telemetry.metrics().values():
        for point in metric.data.data_points:
            assert set() == unknown(point.attributes)
    failed = [span for span in telemetry.requests if span.status.status_code is StatusCode.ERROR]
    assert ["ServerError"] * 2 == [span.attributes["error.type"] for span in failed]


def test_every_name_of_a_tool_is_in_the_registry(run):
    """S30: with its arguments, its result and its error."""
    telemetry = Telemetry(content=True)

    def reply(request):
        if request.messages[-1].role == "tool":
            return "b"
        calls = [ToolCall("1", "weather", '{"city": "Oslo"}'), ToolCall("2", "weather", "{")]
        return Generation("", finish_reason="tool_calls", tool_calls=calls)

    async def weather(city: str) -> str:
        """Look up the weather of a city."""
        return "rain"

    agent = ToolLoop(ScriptedBackend(reply), [weather])
    run(RejectionSamplingStrategy(hooks=telemetry.hooks).sample, "q", None, agent)
    tools = [span for span in telemetry.spans if span.name == "execute_tool weather"]
    assert [False, True] == sorted("error.type" in span.attributes for span in tools)
    assert all(set() == unknown(span.attributes) for span in tools)
    assert "execute_tool" in {value.value for value in gen_ai_attributes.GenAiOperationNameValues}


def test_metrics_are_those_of_the_registry(run):
    """Names, units and kinds of instruments are as published, and durations and tokens are right."""
    telemetry = Telemetry()

    def reply(request):
        return After(1 + request.subsample, Generation("b" if request.subsample else "a", Usage(5, 2)))

    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=telemetry.hooks)
    run(strategy.sample, "q", None, ScriptedBackend(reply), [lambda text: text == "b"])

    published = Published()
    for create in (
        gen_ai_metrics.create_gen_ai_client_operation_duration,
        gen_ai_metrics.create_gen_ai_client_operation_time_to_first_chunk,
        gen_ai_metrics.create_gen_ai_client_token_usage,
    ):
        create(published)
    measured = telemetry.metrics()
    theirs = {name for name in measured if name.startswith("gen_ai.")}
    assert {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"} == theirs
    for name in theirs:
        assert published.units[name] == measured[name].unit
        assert type(measured[name].data).__name__ == "Histogram"
        assert all(set(point.attributes) >= REQUIRED for point in measured[name].data.data_points)
    [duration] = telemetry.points("gen_ai.client.operation.duration")
    assert (3, pytest.approx(1 + 2 + 2)) == (duration.count, duration.sum)
    assert (0.01, 81.92) == (duration.explicit_bounds[0], duration.explicit_bounds[-1])
    tokens = {one.attributes["gen_ai.token.type"]: one for one in telemetry.points("gen_ai.client.token.usage")}
    assert {"input": (2, 10), "output": (2, 4)} == {kind: (one.count, one.sum) for kind, one in tokens.items()}
    assert (1, 67108864) == (tokens["input"].explicit_bounds[0], tokens["input"].explicit_bounds[-1])


class Published:
    """A meter that notes what the registry creates."""

    def __init__(self):
        self.units = {}

    def create_histogram(self, name, unit="", description=""):
        self.units[name] = unit


def test_our_own_metrics_say_what_was_lost(run):
    """Attempts by outcome, the time to a valid answer, and the tokens of all other attempts."""
    telemetry = Telemetry()

    def reply(request):
        return After(1 + request.subsample, Generation("b" if request.subsample else "a", Usage(5, 2, 0.5)))

    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=telemetry.hooks)
    run(strategy.sample, "q", None, ScriptedBackend(reply), [lambda text: text == "b"])

    outcomes = {one.attributes["sampling.outcome"]: one.value for one in telemetry.points("sampling.attempts")}
    assert {"valid": 1, "invalid": 1, "cancelled": 1} == outcomes
    [valid] = telemetry.points("sampling.time_to_valid")
    assert (1, pytest.approx(2)) == (valid.count, valid.sum)
    wasted = {one.attributes["gen_ai.token.type"]: one.value for one in telemetry.points("sampling.wasted_tokens")}
    assert {"input": 5, "output": 2} == wasted
    assert [1.0] == [one.value for one in telemetry.points("sampling.cost")]
    assert [0] == [one.value for one in telemetry.points("sampling.calls.running")]
    [call] = telemetry.points("sampling.calls")
    assert ("validated", 1) == (call.attributes["sampling.stop_reason"], call.value)


def test_spans_and_metrics_name_the_library_and_the_conventions(run):
    """The scope has the name and version of the library, and the URL of the schema."""
    telemetry = Telemetry()
    run(RejectionSamplingStrategy(hooks=telemetry.hooks).sample, "q", None, ScriptedBackend(["b"]))

    scopes = [telemetry.spans[0].instrumentation_scope, telemetry.scopes()[0].scope]
    assert [("sampling", SCHEMA_URL)] * 2 == [(scope.name, scope.schema_url) for scope in scopes]
    assert all(scope.version for scope in scopes)


def test_a_fan_out_is_measured_item_by_item(run):
    """Each item has a trace of its own, which names the item, and items are counted by status."""
    telemetry = Telemetry()

    async def items():
        backend = ScriptedBackend(lambda request: "b" if "2" not in request.messages[0].text else "a")
        return await fan_out(
            RejectionSamplingStrategy(),
            ["1", "2", "3"],
            None,
            backend,
            [lambda text: text == "b"],
            hooks=telemetry.hooks,
        )

    result = run(items)
    counted = {one.attributes["sampling.status"]: one.value for one in telemetry.points("sampling.fan_out.items")}
    assert {status: count for status, count in result.counts().items() if count} == counted
    roots = [span for span in telemetry.spans if span.parent is None]
    assert 3 == len(roots) == len({span.context.trace_id for span in roots})
    assert {f"{result.run_id}:{one.key}:{one.index}" for one in result.outcomes} == {
        span.attributes["sampling.parent_id"] for span in roots
    }


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


PROVIDERS = [
    (OpenAIServer, OpenAIBackend, "openai"),
    (AnthropicServer, AnthropicBackend, "anthropic"),
    (GeminiServer, GeminiBackend, "gcp.gemini"),
]


@pytest.mark.parametrize(("server_class", "backend_class", "provider"), PROVIDERS)
async def test_a_request_over_http_has_all_that_is_recommended(server_class, backend_class, provider):
    """The provider, the server, the id, the tokens and the time to the first chunk, from real responses."""
    telemetry = Telemetry()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_class())
        backend = backend_class(base_url=server.url, api_key="key-of-nobody", model="m")
        await stack.enter_async_context(backend)
        strategy = RejectionSamplingStrategy(hooks=telemetry.hooks)
        await strategy.sample("q", None, backend, options=Options(temperature=0.5, max_tokens=50))
        port = server.port

    [request] = telemetry.requests
    assert set() == (REQUIRED | IF_THERE_IS_A_SERVER | RECOMMENDED) - set(request.attributes)
    assert set() == unknown(request.attributes)
    assert (provider, "127.0.0.1", port, True, "chat m") == (
        request.attributes["gen_ai.provider.name"],
        request.attributes["server.address"],
        request.attributes["server.port"],
        request.attributes["gen_ai.request.stream"],
        request.name,
    )
    assert 0 <= request.attributes["gen_ai.response.time_to_first_chunk"]
    assert "gen_ai.client.operation.time_to_first_chunk" in telemetry.metrics()
    assert "key-of-nobody" not in "".join(span.to_json() for span in telemetry.spans)


async def test_a_loser_over_http_ends_as_cancelled():
    """Its connection is closed, and its span is no error."""
    telemetry = Telemetry()

    async with (
        OpenAIServer(lambda request: Reply(["x"], endless="first" in str(request.json()))) as server,
        OpenAIBackend(server.url, model="m") as backend,
    ):

        async def wins(request):
            await server.until(lambda: len(server.requests) == 1)
            return "b"

        async def asks(request):
            return await (backend.generate(request) if request.subsample == 0 else wins(request))

        strategy = RejectionSamplingStrategy(concurrency_budget=2, hooks=telemetry.hooks)
        with anyio.fail_after(30):
            result = await strategy.sample("first", None, asks)

    assert "b" == result.text
    [lost] = [span for span in telemetry.requests if "server.address" in span.attributes]
    assert "cancelled" == lost.attributes["sampling.request.ended"]
    assert (StatusCode.UNSET, None) == (lost.status.status_code, lost.attributes.get("error.type"))


def test_messages_have_the_shape_of_the_conventions(run):
    """Text, reasoning, tool calls and their results, and media by value or by address."""
    telemetry = Telemetry(content=True)
    call = ToolCall("c", "f", "{}")
    context = Context([
        Message("system", PRIVATE),
        Message("user", [Text("see"), Image(b"\x89PNG\r\n\x1a\n1"), Image("https://example.com/a.png")]),
        Message("assistant", [Reasoning("hm", "s"), call]),
        Message("tool", [ToolResult("c", "42")]),
    ])  # fmt: skip
    answer = Generation("b", reasoning="so", tool_calls=[call])
    strategy = RejectionSamplingStrategy(hooks=telemetry.hooks, accept_incomplete=True)
    run(strategy.sample, "q", context, ScriptedBackend([answer]))

    [request] = telemetry.requests
    asked = json.loads(request.attributes["gen_ai.input.messages"])
    assert ["system", "user", "assistant", "tool", "user"] == [message["role"] for message in asked]
    assert [{"type": "text", "content": PRIVATE}] == asked[0]["parts"]
    assert ["text", "blob", "uri"] == [part["type"] for part in asked[1]["parts"]]
    assert {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://example.com/a.png"} == {
        **asked[1]["parts"][2], "mime_type": "image/png",
    }  # fmt: skip
    assert ["reasoning", "tool_call"] == [part["type"] for part in asked[2]["parts"]]
    assert [{"type": "tool_call_response", "id": "c", "response": "42"}] == asked[3]["parts"]
    [answered] = json.loads(request.attributes["gen_ai.output.messages"])
    assert ("assistant", "stop") == (answered["role"], answered["finish_reason"])
    assert ["reasoning", "text", "tool_call"] == [part["type"] for part in answered["parts"]]
