"""
Format the record of an ordinary call at once.

Most calls make one attempt, get a text that passes, and have nothing else to record. `Recorder` dumps any result.
This dumps an ordinary one to the same text in half the time, and making records is a third of what a journal costs.
"""

from collections.abc import Callable
from typing import Any

from sampling._engine.scope import iteration_id
from sampling._json.bounded import MAX_BRACKETS
from sampling._serialization.values import MAX_NUMBER, encode_text
from sampling.messages import Action, Context, Generation
from sampling.requirements import Requirement, Validation
from sampling.results import SamplingResult, Slice
from sampling.usage import NO_USAGE, Usage

__all__ = ["plain_record"]

_FIRST_ATTEMPT = (1, 0, 0, "valid", 1, 0, False, None)


def plain_record(
    result: SamplingResult[Any],
    action: Action[Any],
    context: Context,
    position_of: Callable[[Requirement], int | str | None],
) -> str | None:
    """Return the record of an ordinary call as JSON, or None if the call is not ordinary."""
    attempt = result.best
    generation = None if attempt is None else attempt.generation
    if attempt is None or generation is None or not _is_plain_result(result, attempt):
        return None
    if not _is_plain_attempt(attempt, action, context) or not _is_plain_generation(generation):
        return None
    answer, others = f'"text":{encode_text(generation.text)}', ""
    if generation.model is not None:
        answer += f',"model":{encode_text(generation.model)}'
    if generation.usage is not NO_USAGE:
        used, listed = _dump_usage(generation.usage)
        answer += f',"usage":{used}'
        others += listed
    if attempt.validations:
        positions = [_position(validation, position_of) for validation in attempt.validations]
        if None in positions:
            return None
        others += f',"validations":[{",".join([f"[{position},true]" for position in positions])}]'
    parent_id = result.parent_id
    text = (
        f'{{"success":true,"stop_reason":{encode_text(result.stop_reason)},"sampling_id":{encode_text(result.sampling_id)},'
        f'"elapsed_s":{result.elapsed_s!r},"max_attempts":{result.max_attempts},"best":1,'
        f'"parent_id":{"null" if parent_id is None else encode_text(parent_id)},"attempts":[{{"iteration":1,'
        f'"outcome":"valid","started_s":{attempt.started_s!r},"finished_s":{attempt.finished_s!r},'
        f'"generation":{{{answer}}}{others}}}]}}'
    )
    # A text of this length never has more brackets than a reader allows.
    return text if len(text) <= MAX_BRACKETS else None


def _is_plain_result(result: SamplingResult[Any], attempt: Slice[Any]) -> bool:
    started_s, finished_s, elapsed_s = attempt.started_s, attempt.finished_s, result.elapsed_s
    return (
        result.success
        and len(result.attempts) == 1
        and len(result.slices) == 1
        and not result.errors
        and not result.hook_failures
        and result.stop_detail is None
        and result.agreement is None
        and type(result.max_attempts) is int
        and 0 <= result.max_attempts <= MAX_NUMBER
        and type(started_s) is type(finished_s) is type(elapsed_s) is float
        and 0.0 <= started_s <= finished_s <= elapsed_s <= MAX_NUMBER
        and attempt.iteration_id == iteration_id(result.sampling_id, 1)
    )


def _is_plain_attempt(attempt: Slice[Any], action: Action[Any], context: Context) -> bool:
    tried, generation = attempt.tried, attempt.generation
    fields = (
        attempt.iteration,
        attempt.subsample,
        attempt.attempt,
        attempt.outcome,
        attempt.requests,
        attempt.tokens_saved,
        attempt.from_cache,
        attempt.error,
    )
    return (
        fields == _FIRST_ATTEMPT
        and tried is not None
        and tried.options is None
        and tried.action is attempt.action is action
        and tried.context is context
        and action.parser is None
        and generation is not None
        and attempt.value is generation.text
        and attempt.usage is generation.usage
    )


def _is_plain_generation(generation: Generation) -> bool:
    usage = generation.usage
    return (
        generation.finish_reason == "stop"
        and generation.raw is None
        and generation.reasoning is None
        and generation.refusal is None
        and not (generation.tool_calls or generation.logprobs or generation.turns or generation.thoughts)
        and not (usage.cached_input_tokens or usage.reasoning_tokens or usage.cache_write_tokens)
        and type(usage.cost) is float
        and max(usage.input_tokens, usage.output_tokens, usage.cost) <= MAX_NUMBER
    )


def _dump_usage(usage: Usage) -> tuple[str, str]:
    """Return the usage of an answer, and that of its attempt, which is left out if there is none."""
    inputs, outputs, cost = repr(usage.input_tokens), repr(usage.output_tokens), repr(usage.cost)
    used = f'{{"input_tokens":{inputs},"output_tokens":{outputs},"cost":{cost}}}'
    return used, "" if usage == NO_USAGE else f',"usage":[{inputs},{outputs},{cost}]'


def _position(validation: Validation, position_of: Callable[[Requirement], int | str | None]) -> int | None:
    """Return the number of a requirement that was met, if there is nothing else to say about it."""
    if (
        validation.passed
        and validation.requirement is not None
        and validation.reason is None
        and validation.score is None
        and validation.error is None
        and not validation.transcript
    ):
        position = position_of(validation.requirement)
        return position if type(position) is int else None
    return None
