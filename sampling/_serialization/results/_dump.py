"""Convert results to plain JSON."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

import attrs

from sampling._serialization.errors import dump_error, redact
from sampling._serialization.messages import dump_content, dump_generation, plain_option
from sampling._serialization.results._shared import FORMAT, VERSION, MessageTable, PlainSlice, index_of, place_of
from sampling._serialization.values import dump_value, encode, readable, storable
from sampling.messages import Context, Generation, Message
from sampling.options import Options
from sampling.requirements import Requirement, Validation
from sampling.results import HookFailure, SamplingResult, Slice

__all__ = ["dump_options", "dump_result", "result_to_json"]

_RESULT_FIELDS: Final = (
    *("success", "stop_reason", "stop_detail", "sampling_id", "parent_id"),
    *("elapsed_s", "max_attempts", "agreement", "margin"),
)
_ATTEMPT_FIELDS: Final = (
    *("iteration", "iteration_id", "subsample", "attempt", "outcome"),
    *("started_s", "finished_s", "requests", "tokens_saved", "from_cache"),
)
_OPTIONS_WITH_TEXTS: Final = frozenset({"stop", "schema", "extra", "tools", "tool_choice", "logit_bias"})
_GENERATION_WITHOUT_TEXTS: Final = ("finish_reason", "model", "usage")
_ERROR_WITHOUT_TEXTS: Final = ("type", "status", "retry_after_s", "maybe_billed")


def dump_result(result: SamplingResult[Any], *, content: bool) -> dict[str, Any]:
    """Return a result as JSON values. Without content, it has no text of a prompt or an answer."""
    record = _Dump(content=content).result(result)
    notes: list[str] = record["notes"]
    try:
        encode(record, [])
    except (TypeError, ValueError, OverflowError, RecursionError):
        record = cast("dict[str, Any]", storable(record, "result", notes))
    else:
        return record
    return {**record, "notes": [str(note) for note in notes]}


def result_to_json(result: SamplingResult[Any], *, content: bool, indent: int | None) -> str:
    """Return a result as JSON in ASCII, so that it can be sent and stored anywhere."""
    record = dump_result(result, content=content)
    return encode(record, []) if indent is None else json.dumps(record, indent=indent, allow_nan=False)


class _Dump:
    """The tables of one record: shared values are written once, and referred to by index."""

    def __init__(self, *, content: bool) -> None:
        self._content = content
        self._messages = MessageTable()
        self._requirements: list[str] = []
        self._problems: list[Exception] = []
        self._notes: list[str] = []

    def result(self, result: SamplingResult[Any]) -> dict[str, Any]:
        self._problems = list(result.errors)
        counted = {id(one) for one in result.slices}
        attempts = [self._attempt(one, counts=id(one) in counted) for one in result.attempts]
        hook_failures = [self._hook_failure(one) for one in result.hook_failures]
        messages = [{"role": one.role, "content": dump_content(one.content)} for one in self._messages.new]
        return {
            "format": FORMAT,
            "version": VERSION,
            "content": self._content,
            **{name: getattr(result, name) for name in _RESULT_FIELDS},
            "usage": attrs.asdict(result.usage),
            "best": place_of(result.best, result.attempts),
            "attempts": attempts,
            "requirements": self._requirements,
            "messages": messages,
            "errors": [self._error(error) for error in self._problems],
            "raised": len(result.errors),
            "hook_failures": hook_failures,
            "notes": list(dict.fromkeys([*result.notes, *self._notes])),
        }

    def _attempt(self, attempt: Slice[Any], *, counts: bool) -> dict[str, Any]:
        record: dict[str, Any] = {name: getattr(attempt, name) for name in _ATTEMPT_FIELDS}
        record["usage"] = attrs.asdict(attempt.usage)
        if attempt.outcome in {"valid", "invalid"} and not counts:
            record["counts"] = False
        if attempt.generation is not None:
            record["generation"] = self._generation(attempt.generation)
        record["validations"] = [self._validation(one) for one in attempt.validations]
        if isinstance(attempt.error, Exception):
            record["error"] = index_of(attempt.error, self._problems)
        if attempt.tried is not None and attempt.tried.options is not None:
            record["options"] = self._options(attempt.tried.options)
        if self._content:
            record.update(self._conversation(attempt))
            record.update(self._value(attempt))
        return record

    def _conversation(self, attempt: Slice[Any]) -> dict[str, Any]:
        tried = attempt.tried
        asked = (Message(attempt.action.role, attempt.action.content),) if tried is None else tried.messages
        record: dict[str, Any] = {"asked": self._messages.numbers(asked)}
        answer = attempt.generation
        if attempt.context != Context(asked if answer is None else (*asked, *answer.turns, answer.message)):
            record["context"] = self._messages.numbers(attempt.context)
        return record

    def _value(self, attempt: Slice[Any]) -> dict[str, Any]:
        value = attempt.value
        recorded_type = {"value_type": attempt.value_type} if isinstance(attempt, PlainSlice) else {}
        if value is None or value is attempt.text:
            return {"value": value, **recorded_type}
        name = f"the value of iteration {attempt.iteration}"
        stored = dump_value(value, self._notes, name)
        own_type = {} if _is_same(stored, value) else {"value_type": type(value).__name__}
        return {"value": stored, **recorded_type, **own_type}

    def _generation(self, generation: Generation) -> dict[str, Any]:
        record = dump_generation(generation)
        if not self._content:
            return {name: record[name] for name in _GENERATION_WITHOUT_TEXTS}
        if "raw" in record:
            record["raw"] = _redacted(record["raw"])
            if not readable(encode({"raw": record["raw"]}, [])):
                del record["raw"]
                self._notes.append("raw of a generation is nested too deeply, and is not stored")
        return record

    def _validation(self, validation: Validation) -> dict[str, Any]:
        record: dict[str, Any] = {"passed": validation.passed, "score": validation.score}
        if validation.requirement is not None:
            record["requirement"] = self._requirement(validation.requirement)
        if validation.error is not None:
            record["error"] = index_of(validation.error, self._problems)
        if self._content:
            record["reason"] = validation.reason
            if validation.transcript:
                record["transcript"] = self._messages.numbers(validation.transcript)
        return record

    def _requirement(self, requirement: Requirement) -> int:
        if requirement.description not in self._requirements:
            self._requirements.append(requirement.description)
        return self._requirements.index(requirement.description)

    def _options(self, options: Options) -> dict[str, Any]:
        return dump_options(options, self._notes, without=() if self._content else _OPTIONS_WITH_TEXTS)

    def _hook_failure(self, failure: HookFailure) -> dict[str, Any]:
        return {
            "hook": failure.hook,
            "event": failure.event,
            "iteration_id": failure.iteration_id,
            "error": index_of(failure.error, self._problems),
        }

    def _error(self, error: Exception) -> dict[str, Any]:
        record = dump_error(error, self._notes)
        # The message may quote the prompt or the answer.
        return record if self._content else {name: record[name] for name in _ERROR_WITHOUT_TEXTS if name in record}


def dump_options(options: Options, notes: list[str], without: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that are set, as JSON values. Anything that looks like a key is masked."""
    record: dict[str, Any] = {}
    for name, value in options.given().items():
        if name in without:
            continue
        try:
            record[name] = _redacted(plain_option(name, value))
        except Exception:  # noqa: BLE001 - a schema is the user's, and may raise anything
            notes.append(f"option {name} is not made of JSON values, and is not stored")
    return record


def _is_same(stored: Any, value: Any) -> bool:
    """Return whether a value needs no parser to be restored."""
    try:
        return type(stored) is type(value) and bool(stored == value)
    except Exception:  # noqa: BLE001 - the value is the user's, and may raise anything
        return False


def _redacted(value: Any) -> Any:
    """Return JSON values in which anything that looks like a key is masked."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: _redacted(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in cast("Iterable[Any]", value)]
    return value
