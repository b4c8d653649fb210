"""Log the events of a call, one structured line each."""

import hashlib
import logging
from typing import Any, Literal, TypeAlias, get_args

from sampling._arguments import check_bool, short_repr, wrong_type
from sampling._log import StderrLogger
from sampling._text import quoted
from sampling.hooks import (
    Event,
    Hooks,
    IterationEvent,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Repaired,
)
from sampling.requirements import Requirement
from sampling.results import Slice
from sampling.usage import Usage

__all__ = ["Level", "logging_hooks"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
"""The level of the log lines."""

_LEVELS = get_args(Level)
_MAX_TEXT_CHARS = 10_000
_STANDARD_LOGGERS: tuple[type[Any], ...] = (logging.Logger, logging.LoggerAdapter)
"""Loggers that have the right methods, but accept no fields."""


Fields: TypeAlias = dict[str, Any]


def logging_hooks(logger: Any = None, *, level: Level = "info", content: bool = False) -> Hooks:
    """
    Return hooks that log every event as one line.

    The events are `loop_started`, `iteration_started`, `iteration_finished`, …
    A line has the ids of its call and attempt, the outcome, tokens and seconds, and the failed requirements of an
    invalid attempt. It does not contain prompts or answers, only their length and a short hash. The hash identifies
    equal texts. A very short text can be guessed from it.

    Args:
        logger: Any structlog logger. None means `structlog.get_logger("sampling")` if structlog is configured, else
            `logging.getLogger("sampling")` if that has a handler, else stderr.

        level: The level of all lines. (Failed attempts and hooks are logged as warnings even without these hooks.)

        content: Also log prompts and answers, each in its own field, on one line and with control characters
            escaped. They may contain private data.
    """
    log = StderrLogger() if logger is None else logger
    _check_logger(log, level)
    write = _EventLogger(log, level, content=check_bool("content", content))
    hooks = Hooks()
    hooks.on(LoopStarted)(write.loop_started)
    hooks.on(IterationStarted)(write.iteration_started)
    hooks.on(IterationFinished)(write.iteration_finished)
    hooks.on(Repaired)(write.repaired)
    hooks.on(LoopFinished)(write.loop_finished)
    return hooks


def _check_logger(logger: Any, level: object) -> None:
    if level not in _LEVELS:
        raise ValueError(f"level must be one of {', '.join(_LEVELS)}, got {short_repr(level)}")
    if isinstance(logger, _STANDARD_LOGGERS):
        raise wrong_type("logger", logger, "a structlog logger (structlog.stdlib.get_logger() wraps the standard one)")
    if isinstance(logger, type) or not callable(getattr(logger, str(level), None)):
        raise wrong_type("logger", logger, f"a structlog logger, with a method {level!r}")


def _one_line(text: str) -> str:
    # Without the quotes, because the renderer adds its own.
    return quoted(text, _MAX_TEXT_CHARS)[1:-1]


class _EventLogger:
    """Writes one log line for each event."""

    def __init__(self, logger: Any, level: Level, *, content: bool) -> None:
        self._logger = logger
        self._level = level
        self._content = content

    def _write(self, line: str, fields: Fields) -> None:
        # Look the method up each time: a logger created before logging was configured is a proxy.
        getattr(self._logger, self._level)(line, **{key: value for key, value in fields.items() if value is not None})

    def loop_started(self, event: LoopStarted) -> None:
        self._write(
            "loop_started",
            {
                **_call_ids(event),
                "strategy": event.strategy,
                "loop_budget": event.loop_budget,
                "concurrency_budget": event.concurrency_budget,
                "requirements": [_name(requirement) for requirement in event.requirements],
                "context_messages": len(event.context),
                **self._text("prompt", event.action.text),
            },
        )

    def iteration_started(self, event: IterationStarted) -> None:
        self._write(
            "iteration_started",
            {
                **_ids(event),
                "model": None if event.options.model is None else _one_line(event.options.model),
                "context_messages": len(event.context),
                **self._text("prompt", event.action.text),
            },
        )

    def iteration_finished(self, event: IterationFinished) -> None:
        self._write(
            "iteration_finished",
            {
                **_ids(event),
                "outcome": event.slice.outcome,
                "elapsed_s": round(event.slice.elapsed_s, 6),
                **_spent(event.slice.usage),
                **_error(event.slice.error),
                **self._failed(event.slice),
                **self._answer(event.slice),
            },
        )

    def repaired(self, event: Repaired) -> None:
        self._write(
            "repaired",
            {
                **_ids(event),
                **self._failed(event.failed),
                "context_messages": len(event.next.context),
                **self._text("prompt", event.next.action.text),
            },
        )

    def loop_finished(self, event: LoopFinished) -> None:
        best = None if event.result is None else event.result.best
        self._write(
            "loop_finished",
            {
                **_call_ids(event),
                "success": event.success,
                "stop_reason": event.stop_reason,
                "attempts": event.attempts,
                "iterations": event.iterations,
                "elapsed_s": round(event.elapsed_s, 6),
                **_spent(event.usage),
                **_error(event.error),
                **self._answer(best),
            },
        )

    def _answer(self, answered: Slice[Any] | None) -> Fields:
        if answered is None or answered.generation is None:
            return {}
        generation = answered.generation
        return {"finish_reason": _one_line(generation.finish_reason), **self._text("answer", generation.text)}

    def _text(self, name: str, text: str) -> Fields:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        fields: Fields = {f"{name}_chars": len(text), f"{name}_hash": digest[:12]}
        return {**fields, name: _one_line(text)} if self._content else fields

    def _failed(self, attempt: Slice[Any]) -> Fields:
        failed = [validation for validation in attempt.validations if not validation.passed]
        if not failed:
            return {}
        fields: Fields = {"failed": [_name(validation.requirement) for validation in failed]}
        # A reason may quote the answer, so it counts as content.
        return {**fields, "reasons": [_one_line(one.complaint) for one in failed]} if self._content else fields


def _call_ids(event: Event) -> Fields:
    return {"sampling_id": event.sampling_id, "parent_id": event.parent_id}


def _ids(event: IterationEvent) -> Fields:
    return {
        **_call_ids(event),
        "iteration_id": event.iteration_id,
        "iteration": event.iteration,
        "subsample": event.subsample,
        "attempt": event.attempt,
    }


def _spent(usage: Usage) -> Fields:
    fields: Fields = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    # Only where there are any: most backends report neither.
    if usage.cached_input_tokens:
        fields["cached_input_tokens"] = usage.cached_input_tokens
    if usage.reasoning_tokens:
        fields["reasoning_tokens"] = usage.reasoning_tokens
    return {**fields, "cost": usage.cost or None}


def _error(error: BaseException | None) -> Fields:
    # Only the type: the message may contain the prompt, the answer or a key.
    return {} if error is None else {"error_type": type(error).__name__}


def _name(requirement: Requirement | None) -> str:
    return "a requirement" if requirement is None else _one_line(requirement.description)
