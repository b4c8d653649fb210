"""
Trace and measure calls with OpenTelemetry, by its conventions for generative AI.

    result = await strategy.sample("…", None, backend, reqs, hooks=otel_hooks())

Each call has a span, with a span for each subsample, each attempt, and each request to the model inside. While they
run, spans of attempts and requests are the current ones. So spans of nested calls and of an instrumented HTTP client
become their children.
"""

import time
from contextvars import Token
from typing import Any

import attrs

from sampling._arguments import check_bool
from sampling._observers.requests import Observers, SentRequest, ToolRun, observe, stop_observing
from sampling.errors import MissingExtra
from sampling.fanout.items import ItemFinished
from sampling.hooks import Hooks, IterationEvent, IterationFinished, IterationStarted, LoopFinished, LoopStarted
from sampling.requirements import Validation
from sampling.results import Slice
from sampling.telemetry._otel_content import input_messages, output_messages, tool_result
from sampling.telemetry._request_figures import (
    Attributes,
    describe_request,
    describe_tool,
    error_of,
    request_options,
    request_outcome,
    response_id,
    spent_tokens,
    without_none,
)

try:
    from opentelemetry import context, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

    from sampling.telemetry._otel_metrics import SCHEMA_URL, OtelMetrics, installed_version
except ImportError as _error:
    raise MissingExtra("tracing", "opentelemetry-api", "otel") from _error

__all__ = ["otel_hooks"]


def otel_hooks(
    tracer_provider: TracerProvider | None = None,
    *,
    meter_provider: MeterProvider | None = None,
    content: bool = False,
) -> Hooks:
    """
    Return hooks that trace and measure calls, also those of a fan-out.

    Spans, metrics and their attributes have the names of OpenTelemetry's conventions for generative AI where those
    exist (`gen_ai.request.model`, `gen_ai.client.token.usage`, …). All others begin with `sampling.`.
    Tokens are on the spans of requests only, so that viewers count them once.

    Args:
        tracer_provider: The provider of the tracer. None means the global one of the application.

        meter_provider: The provider of the meter. None means the global one of the application.

        content: Also record prompts, answers and the reasons of checks. They may contain private data.
    """
    tracer = trace.get_tracer("sampling", installed_version(), tracer_provider=tracer_provider, schema_url=SCHEMA_URL)
    metrics = OtelMetrics(meter_provider)
    spans = _Spans(tracer, metrics, content=check_bool("content", content))
    hooks = Hooks()
    hooks.on(LoopStarted)(spans.loop_started)
    hooks.on(IterationStarted)(spans.iteration_started)
    hooks.on(IterationFinished)(spans.iteration_finished)
    hooks.on(LoopFinished)(spans.loop_finished)
    hooks.on(ItemFinished)(metrics.item_finished)
    return hooks


@attrs.define
class _OpenSpan:
    """An open span, and the context to restore at its end."""

    span: Span
    attached: "Token[context.Context] | None" = None
    observed: Token[Observers] | None = None
    ended_ns: int | None = None


class _Spans:
    """The open spans, by call, subsample, attempt or request."""

    def __init__(self, tracer: trace.Tracer, metrics: OtelMetrics, *, content: bool) -> None:
        self._tracer = tracer
        self._metrics = metrics
        self._content = content
        self._open: dict[object, _OpenSpan] = {}
        self._subsamples: dict[str, list[int]] = {}
        """The subsamples of each running call that have begun."""

    # Calls, subsamples and attempts.

    def loop_started(self, event: LoopStarted) -> None:
        attributes = {
            "sampling.id": event.sampling_id,
            "sampling.parent_id": event.parent_id,
            "sampling.strategy": event.strategy,
            "sampling.loop_budget": event.loop_budget,
            "sampling.concurrency_budget": event.concurrency_budget,
        }
        opened = self._start(event.sampling_id, f"sample {event.strategy}", attributes)
        opened.observed = observe(self)
        self._metrics.call_started(event)
        self._subsamples[event.sampling_id] = []

    def iteration_started(self, event: IterationStarted) -> None:
        lane = event.sampling_id, event.subsample
        if lane not in self._open:
            span = self._tracer.start_span(
                f"subsample {event.subsample}",
                attributes={"sampling.id": event.sampling_id, "sampling.subsample": event.subsample},
            )
            self._open[lane] = _OpenSpan(span)
            self._subsamples.setdefault(event.sampling_id, []).append(event.subsample)
        parent = trace.set_span_in_context(self._open[lane].span)
        self._start(event.iteration_id, "attempt", _ids(event), parent)

    def iteration_finished(self, event: IterationFinished) -> None:
        attempt = event.slice
        self._metrics.attempt_finished(event)
        opened = self._open.get(event.iteration_id)
        if opened is not None:
            for validation in attempt.validations:
                opened.span.add_event("gen_ai.evaluation.result", self._evaluation(validation, attempt))
        # Invalid and cancelled attempts are normal, not errors.
        error = attempt.error if attempt.outcome == "errored" else None
        self._end(event.iteration_id, {"sampling.outcome": attempt.outcome}, error)
        lane = self._open.get((event.sampling_id, event.subsample))
        if lane is not None:
            lane.ended_ns = time.time_ns()

    def loop_finished(self, event: LoopFinished) -> None:
        if event.sampling_id not in self._open:
            # An earlier critical hook failed on `LoopStarted`, so this call was never seen to start.
            return
        self._metrics.call_finished(event)
        for subsample in self._subsamples.pop(event.sampling_id, ()):
            lane = self._open.pop((event.sampling_id, subsample))
            lane.span.end(lane.ended_ns)
        attributes: Attributes = {
            "sampling.success": event.success,
            "sampling.stop_reason": event.stop_reason,
            "sampling.attempts": event.attempts,
            "sampling.slices": event.iterations,
        }
        if event.result is not None:
            attributes |= {"sampling.agreement": event.result.agreement, "sampling.margin": event.result.margin}
        self._end(event.sampling_id, attributes, event.error)

    # Requests.

    def request_started(self, sent: SentRequest) -> None:
        span = self._request_span(sent)
        sent.marks[self] = _OpenSpan(span, context.attach(trace.set_span_in_context(span)))

    def request_ended(self, sent: SentRequest) -> None:
        self._metrics.request_ended(sent)
        opened = sent.marks.pop(self, None) or _OpenSpan(self._request_span(sent))
        attributes = {
            **spent_tokens(sent),
            "sampling.request.ended": request_outcome(sent),
            "sampling.cost": None if sent.usage is None else sent.usage.cost or None,
            "gen_ai.request.stream": True if sent.first_chunk_s is not None else None,
            "gen_ai.response.time_to_first_chunk": sent.first_chunk_s,
        }
        generation = sent.generation
        if generation is not None:
            attributes["gen_ai.response.id"] = response_id(generation)
            attributes["gen_ai.response.model"] = generation.model
            attributes["gen_ai.response.finish_reasons"] = (generation.finish_reason,)
            if self._content:
                attributes["gen_ai.output.messages"] = output_messages(generation)
        _finish(opened, attributes, error_of(sent))

    def _request_span(self, sent: SentRequest) -> Span:
        request = sent.request
        attributes = {
            **describe_request(sent),
            **request_options(request.options),
            "sampling.id": request.sampling_id or None,
            "sampling.iteration_id": request.iteration_id or None,
            # A check asks a model about an answer. Everything else asks for one.
            "sampling.request.purpose": "check" if request.action is None else "answer",
        }
        if self._content:
            attributes["gen_ai.input.messages"] = input_messages(request.messages)
        model = attributes.get("gen_ai.request.model")
        name = f"chat {model}" if model else "chat"
        return self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=without_none(attributes), start_time=sent.started_ns
        )

    # Tools.

    def tool_started(self, ran: ToolRun) -> None:
        attributes = describe_tool(ran)
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = ran.call.arguments
        # The name of a tool that does not exist is text of the model.
        name = "execute_tool" if ran.tool is None else f"execute_tool {ran.tool.name}"
        span = self._tracer.start_span(name, attributes=without_none(attributes))
        ran.marks[self] = _OpenSpan(span, context.attach(trace.set_span_in_context(span)))

    def tool_ended(self, ran: ToolRun) -> None:
        result = tool_result(ran.result) if self._content and ran.result is not None else None
        _finish(ran.marks.pop(self), {"gen_ai.tool.call.result": result}, ran.error_type)

    def _evaluation(self, validation: Validation, attempt: Slice[Any]) -> Attributes:
        requirement = validation.requirement
        return without_none(
            {
                "gen_ai.evaluation.name": "a requirement" if requirement is None else requirement.description,
                "gen_ai.evaluation.score.label": "pass" if validation.passed else "fail",
                "gen_ai.evaluation.score.value": validation.score,
                # The reason may quote the answer.
                "gen_ai.evaluation.explanation": validation.reason if self._content else None,
                "gen_ai.response.id": response_id(attempt.generation),
                "error.type": None if validation.error is None else type(validation.error).__name__,
            }
        )

    # Opening and closing.

    def _start(
        self, key: object, name: str, attributes: Attributes, parent: context.Context | None = None
    ) -> _OpenSpan:
        span = self._tracer.start_span(name, parent, attributes=without_none(attributes))
        # A call or an attempt starts and ends in one task, so `_finish` can detach this token.
        self._open[key] = _OpenSpan(span, context.attach(trace.set_span_in_context(span)))
        return self._open[key]

    def _end(self, key: object, attributes: Attributes, error: BaseException | None) -> None:
        opened = self._open.pop(key, None)
        if opened is not None:
            _finish(opened, attributes, None if error is None else type(error).__name__)


def _finish(opened: _OpenSpan, attributes: Attributes, error_type: str | None) -> None:
    if opened.attached is not None:
        context.detach(opened.attached)
    if opened.observed is not None:
        stop_observing(opened.observed)
    opened.span.set_attributes(without_none(attributes))
    if error_type is not None:
        # Only the type: the message may contain the prompt, the answer or a key.
        opened.span.set_attribute("error.type", error_type)
        opened.span.set_status(Status(StatusCode.ERROR))
    opened.span.end(opened.ended_ns)


def _ids(event: IterationEvent) -> Attributes:
    return {
        "sampling.id": event.sampling_id,
        "sampling.iteration_id": event.iteration_id,
        "sampling.iteration": event.iteration,
        "sampling.subsample": event.subsample,
        "sampling.attempt": event.attempt,
    }
