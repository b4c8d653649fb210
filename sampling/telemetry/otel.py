"""
Trace calls with OpenTelemetry: a span for each call, and one in it for each attempt.

    result = await strategy.sample("…", None, backend, reqs, hooks=otel_hooks())

While an attempt runs, its span is the current one: what an instrumented HTTP client traces is a part of it,
and a nested call is a part of the attempt that made it.
"""

import json
from typing import Any, TypeAlias

from sampling._arguments import check_bool
from sampling.errors import MissingExtra
from sampling.hooks import Hooks, IterationEvent, IterationFinished, IterationStarted, LoopFinished, LoopStarted
from sampling.messages import Message, Options
from sampling.results import Slice
from sampling.usage import Usage

try:
    from opentelemetry import context, trace
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider
except ImportError as error:
    raise MissingExtra("tracing", "opentelemetry-api", "otel") from error

__all__ = ["otel_hooks"]

Attributes: TypeAlias = dict[str, Any]


def otel_hooks(tracer_provider: TracerProvider | None = None, *, content: bool = False) -> Hooks:
    """
    Make hooks that trace calls.

    Names of attributes are those of OpenTelemetry's conventions for generative AI where these have one
    (`gen_ai.request.model`, `gen_ai.usage.output_tokens`, …), else they begin with `sampling.`.

    Args:
        tracer_provider: Who makes the spans; None for the one that the application has set.

        content: Put prompts and answers on the spans too. They may hold what nobody should find in a trace.
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
    """The spans that are open, by the id of their call or attempt."""

    def __init__(self, tracer: trace.Tracer, *, content: bool) -> None:
        self._tracer = tracer
        self._content = content
        self._open: dict[str, tuple[Span, Any]] = {}

    def _start(self, key: str, name: str, attributes: Attributes) -> None:
        span = self._tracer.start_span(name, attributes=_given(attributes))
        # An attempt starts and ends in one task, so what is attached here is what is detached there.
        self._open[key] = span, context.attach(trace.set_span_in_context(span))

    def _end(self, key: str, attributes: Attributes, error: BaseException | None) -> None:
        opened = self._open.pop(key, None)
        if opened is None:
            return
        span, attached = opened
        context.detach(attached)
        span.set_attributes(_given(attributes))
        if error is not None:
            # Only the type: a message may quote the prompt, the answer, or a key.
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
        attributes = {"gen_ai.operation.name": "chat", **_ids(event), **_asked(event.options)}
        if self._content:
            asked = (*event.context.messages, Message("user", event.action.text))
            attributes["gen_ai.input.messages"] = _as_json(asked)
        self._start(event.iteration_id, "attempt", attributes)

    def iteration_finished(self, event: IterationFinished) -> None:
        attempt = event.slice
        attributes = {"sampling.outcome": attempt.outcome, **_spent(attempt.usage), **_answered(attempt)}
        if self._content and attempt.text is not None:
            attributes["gen_ai.output.messages"] = _as_json([Message("assistant", attempt.text)])
        # An invalid answer is an answer, and a loser that was cancelled did nothing wrong.
        self._end(event.iteration_id, attributes, attempt.error if attempt.outcome == "errored" else None)

    def loop_finished(self, event: LoopFinished) -> None:
        attributes: Attributes = {
            "sampling.success": event.success,
            "sampling.stop_reason": event.stop_reason,
            "sampling.attempts": event.attempts,
            "sampling.slices": event.iterations,
            **_spent(event.usage),
        }
        self._end(event.sampling_id, attributes, event.error)


def _given(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _ids(event: IterationEvent) -> Attributes:
    return {
        "sampling.id": event.sampling_id,
        "sampling.iteration_id": event.iteration_id,
        "sampling.iteration": event.iteration,
        "sampling.subsample": event.subsample,
        "sampling.attempt": event.attempt,
    }


def _asked(options: Options) -> Attributes:
    return {
        "gen_ai.request.model": options.model,
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.max_tokens": options.max_tokens,
        "gen_ai.request.seed": options.seed,
        "gen_ai.request.stop_sequences": tuple(options.stop) or None,
    }


def _answered(attempt: Slice[Any]) -> Attributes:
    if attempt.generation is None:
        return {}
    return {
        "gen_ai.response.model": attempt.generation.model,
        "gen_ai.response.finish_reasons": (attempt.generation.finish_reason,),
    }


def _spent(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "sampling.cost": usage.cost or None,
    }


def _as_json(messages: Any) -> str:
    return json.dumps([{"role": one.role, "parts": [{"type": "text", "content": one.content}]} for one in messages])
