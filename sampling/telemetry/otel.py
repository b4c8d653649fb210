"""
Trace calls with OpenTelemetry.

Each call has a span, with a child span for each attempt:

    result = await strategy.sample("…", None, backend, reqs, hooks=otel_hooks())

While an attempt runs, its span is the current one. So spans of an instrumented HTTP client and of nested calls
become children of the attempt that made them.
"""

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from sampling._arguments import check_bool
from sampling._message_json import plain_content
from sampling.errors import MissingExtra
from sampling.hooks import Hooks, IterationEvent, IterationFinished, IterationStarted, LoopFinished, LoopStarted
from sampling.messages import Attempt, Message, Options
from sampling.parts import Content
from sampling.results import Slice
from sampling.usage import Usage

try:
    from opentelemetry import context, trace
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider
except ImportError as _error:
    raise MissingExtra("tracing", "opentelemetry-api", "otel") from _error

__all__ = ["otel_hooks"]

Attributes: TypeAlias = dict[str, Any]


def otel_hooks(tracer_provider: TracerProvider | None = None, *, content: bool = False) -> Hooks:
    """
    Return hooks that trace calls.

    Attributes have the names of OpenTelemetry's conventions for generative AI where those exist
    (`gen_ai.request.model`, `gen_ai.usage.output_tokens`, …). All others begin with `sampling.`.

    Args:
        tracer_provider: The provider of the tracer. None means the global one of the application.

        content: Also record prompts and answers on the spans. They may contain private data.
    """
    spans = _Spans(
        trace.get_tracer("sampling", tracer_provider=tracer_provider), content=check_bool("content", content)
    )
    hooks = Hooks()
    hooks.on(LoopStarted)(spans.loop_started)
    hooks.on(IterationStarted)(spans.iteration_started)
    hooks.on(IterationFinished)(spans.iteration_finished)
    hooks.on(LoopFinished)(spans.loop_finished)
    return hooks


class _Spans:
    """The open spans, by call or attempt."""

    def __init__(self, tracer: trace.Tracer, *, content: bool) -> None:
        self._tracer = tracer
        self._content = content
        self._open: dict[str, tuple[Span, Any]] = {}

    def _start(self, key: str, name: str, attributes: Attributes) -> None:
        span = self._tracer.start_span(name, attributes=_without_none(attributes))
        # An attempt starts and ends in one task, so `_end` can detach this token.
        self._open[key] = span, context.attach(trace.set_span_in_context(span))

    def _end(self, key: str, attributes: Attributes, error: BaseException | None) -> None:
        opened = self._open.pop(key, None)
        if opened is None:
            return
        span, attached = opened
        context.detach(attached)
        span.set_attributes(_without_none(attributes))
        if error is not None:
            # Only the type: the message may contain the prompt, the answer or a key.
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def loop_started(self, event: LoopStarted) -> None:
        self._start(
            event.sampling_id,
            f"sample {event.strategy}",
            {
                "sampling.id": event.sampling_id,
                "sampling.parent_id": event.parent_id,
                "sampling.strategy": event.strategy,
                "sampling.loop_budget": event.loop_budget,
                "sampling.concurrency_budget": event.concurrency_budget,
            },
        )

    def iteration_started(self, event: IterationStarted) -> None:
        attributes = {"gen_ai.operation.name": "chat", **_ids(event), **_request_attributes(event.options)}
        if self._content:
            asked = Attempt(event.action, event.context).messages
            attributes["gen_ai.input.messages"] = _as_json(asked)
        self._start(event.iteration_id, "attempt", attributes)

    def iteration_finished(self, event: IterationFinished) -> None:
        attempt = event.slice
        attributes = {
            "sampling.outcome": attempt.outcome,
            **_usage_attributes(attempt.usage),
            **_response_attributes(attempt),
        }
        if self._content and attempt.generation is not None:
            attributes["gen_ai.output.messages"] = _as_json([*attempt.generation.turns, attempt.generation.message])
        # Invalid and cancelled attempts are normal, not errors.
        self._end(event.iteration_id, attributes, attempt.error if attempt.outcome == "errored" else None)

    def loop_finished(self, event: LoopFinished) -> None:
        attributes: Attributes = {
            "sampling.success": event.success,
            "sampling.stop_reason": event.stop_reason,
            "sampling.attempts": event.attempts,
            "sampling.slices": event.iterations,
            **_usage_attributes(event.usage),
        }
        self._end(event.sampling_id, attributes, event.error)


def _without_none(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _ids(event: IterationEvent) -> Attributes:
    return {
        "sampling.id": event.sampling_id,
        "sampling.iteration_id": event.iteration_id,
        "sampling.iteration": event.iteration,
        "sampling.subsample": event.subsample,
        "sampling.attempt": event.attempt,
    }


def _request_attributes(options: Options) -> Attributes:
    return {
        "gen_ai.request.model": options.model,
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.max_tokens": options.max_tokens,
        "gen_ai.request.seed": options.seed,
        "gen_ai.request.stop_sequences": tuple(options.stop) or None,
        "gen_ai.request.top_p": options.top_p,
        "gen_ai.request.top_k": options.top_k,
        "gen_ai.request.frequency_penalty": options.frequency_penalty,
        "gen_ai.request.presence_penalty": options.presence_penalty,
    }


def _response_attributes(attempt: Slice[Any]) -> Attributes:
    if attempt.generation is None:
        return {}
    return {
        "gen_ai.response.model": attempt.generation.model,
        "gen_ai.response.finish_reasons": (attempt.generation.finish_reason,),
    }


def _usage_attributes(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        "sampling.cost": usage.cost or None,
    }


def _as_json(messages: Iterable[Message]) -> str:
    return json.dumps([{"role": one.role, "parts": _parts(one.content)} for one in messages])


def _parts(content: Content) -> list[Attributes]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    # Large media by their digests: a span has no room for them.
    plain: list[Attributes] = plain_content(content)
    return [{"type": "text", "content": part["text"]} if part["type"] == "text" else part for part in plain]
