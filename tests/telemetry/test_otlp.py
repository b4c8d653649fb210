"""End to end: spans and metrics arrive at a collector, over HTTP, as OTLP in protobuf."""

import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sampling import Generation, RejectionSamplingStrategy, Requirement, TransientError, Usage
from sampling.telemetry._otel_metrics import SCHEMA_URL
from sampling.telemetry.otel import otel_hooks
from sampling.testing import After, ScriptedBackend

MESSAGES = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@pytest.fixture
def collector():
    """A server on loopback that parses what it receives, and refuses what is not protobuf."""
    received = defaultdict(list)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received[self.path].append(MESSAGES[self.path].FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.received = received
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def session():
    with requests.Session() as session:
        session.trust_env = False  # no proxy between us and loopback
        yield session


def plain(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def test_a_collector_receives_the_trace_and_the_metrics_of_a_call(run, collector, session):
    """Names, kinds, parents, statuses and events are the same after protobuf and HTTP."""
    traces = TracerProvider(shutdown_on_exit=False)
    traces.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces", timeout=30, session=session))
    )
    exporter = OTLPMetricExporter(f"{collector.url}/v1/metrics", timeout=30, session=session)
    meters = MeterProvider([PeriodicExportingMetricReader(exporter, 600_000)], shutdown_on_exit=False)

    def reply(request):
        if request.subsample == 1:
            return After(0.1, TransientError("busy"))
        return After(1 + request.subsample, Generation("b", Usage(5, 2), model="tiny"))

    hooks = otel_hooks(traces, meter_provider=meters)
    strategy = RejectionSamplingStrategy(concurrency_budget=3, hooks=hooks)
    try:
        run(strategy.sample, "q", None, ScriptedBackend(reply), [Requirement("is b", check=lambda text: text == "b")])
    finally:
        traces.shutdown()
        meters.shutdown()

    scopes = [scope for one in collector.received["/v1/traces"] for r in one.resource_spans for scope in r.scope_spans]
    assert {("sampling", SCHEMA_URL)} == {(one.scope.name, one.schema_url) for one in scopes}
    spans = {span.span_id: span for scope in scopes for span in scope.spans}
    assert ["attempt", "attempt", "attempt", "chat", "chat", "chat", "sample RejectionSamplingStrategy",
            "subsample 0", "subsample 1", "subsample 2"] == sorted(span.name for span in spans.values())  # fmt: skip
    requests_sent = [span for span in spans.values() if span.kind == Span.SPAN_KIND_CLIENT]
    by_end = {plain(span.attributes)["sampling.request.ended"]: span for span in requests_sent}
    assert {"answered", "failed", "cancelled"} == set(by_end)
    assert 5 == plain(by_end["answered"].attributes)["gen_ai.usage.input_tokens"]
    assert [Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET] == [
        by_end[name].status.code for name in ("failed", "cancelled")
    ]
    winner = spans[by_end["answered"].parent_span_id]
    assert [("gen_ai.evaluation.result", "is b", "pass")] == [
        (event.name, *[plain(event.attributes)[f"gen_ai.evaluation.{name}"] for name in ("name", "score.label")])
        for event in winner.events
    ]
    lane = spans[winner.parent_span_id]
    assert ["subsample 0", "sample RejectionSamplingStrategy"] == [lane.name, spans[lane.parent_span_id].name]

    metrics = {
        metric.name: metric
        for one in collector.received["/v1/metrics"]
        for resource in one.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert 3 == sum(point.count for point in metrics["gen_ai.client.operation.duration"].histogram.data_points)
    assert {"valid": 1, "errored": 1, "cancelled": 1} == {
        plain(point.attributes)["sampling.outcome"]: point.as_int
        for point in metrics["sampling.attempts"].sum.data_points
    }
