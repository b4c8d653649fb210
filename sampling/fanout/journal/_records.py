"""
Convert results and errors to JSON and back.

A conversation is stored once: attempts refer to messages by number. The context of the run and the text of the item
are not stored, because every item has them anyway.
Reading a record runs and imports nothing: errors are created from a fixed list of types.
"""

import builtins
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import attrs

from sampling import errors
from sampling._engine.scope import iteration_id
from sampling._json import bounded as bounded_json
from sampling._message_json import dump_generation, load_generation
from sampling._redaction import Redactor
from sampling.errors import ErrorFromJournal
from sampling.fanout.items import Item, ItemOutcome
from sampling.messages import Action, Attempt, Context, Generation, Message
from sampling.requirements import Requirement, Validation
from sampling.results import HookFailure, SamplingResult, Slice
from sampling.usage import NO_USAGE, Usage

__all__ = ["Recorder", "dump_error", "dump_value", "load_error"]

T = TypeVar("T")

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_redactor = Redactor()

_DEFAULTS = {"subsample": 0, "attempt": 0, "requests": 1, "tokens_saved": 0}
"""Fields of an attempt that are stored only if they differ from these defaults."""


class Recorder:
    """
    Converts outcomes of one run to JSON and back.

    It holds the context and the requirements, which all items share and no record repeats.
    """

    def __init__(self, context: Context | None, requirements: Sequence[Requirement]) -> None:
        self._context = context or Context()
        self._requirements = tuple(requirements)
        # Not keyed by the requirement itself: a strategy may create new ones for each call.
        self._positions: dict[tuple[str, int], int] = {}
        for position, requirement in enumerate(self._requirements):
            self._positions.setdefault((requirement.description, id(requirement.check)), position)

    # Dump.

    def dump(self, outcome: ItemOutcome[Any], action: Action[Any]) -> str:
        """Return an outcome as one line of ASCII JSON."""
        if outcome.error is not None:
            return _encode({"error": dump_error(outcome.error)})
        result = cast("SamplingResult[Any]", outcome.result)
        record = self._dump_result(result, action)
        if result.best is not None and result.best.value is not None and result.best.value != result.text:
            value = dump_value(result.best.value)
            if value is not None:
                record["value"] = value
        return _encode(record)

    def _dump_result(self, result: SamplingResult[Any], action: Action[Any]) -> dict[str, Any]:
        messages = _Messages(self._context, action)
        problems = list(result.errors)
        record: dict[str, Any] = {
            "success": result.success,
            "stop_reason": result.stop_reason,
            "sampling_id": result.sampling_id,
            "elapsed_s": result.elapsed_s,
            "max_attempts": result.max_attempts,
            "best": None if result.best is None else result.best.iteration,
            "attempts": [self._dump_attempt(attempt, messages, problems) for attempt in result.attempts],
        }
        if result.stop_detail is not None:
            record["stop_detail"] = result.stop_detail
        if result.parent_id is not None:
            record["parent_id"] = result.parent_id
        if messages.new:
            record["messages"] = [[message.role, message.content] for message in messages.new]
        if problems:
            record["errors"] = [dump_error(error) for error in problems]
            record["raised"] = len(result.errors)
        if result.hook_failures:
            record["hook_failures"] = [
                [failure.hook, failure.event, dump_error(failure.error), failure.iteration_id]
                for failure in result.hook_failures
            ]
        return record

    def _dump_attempt(self, attempt: Slice[Any], messages: "_Messages", problems: list[Exception]) -> dict[str, Any]:
        record: dict[str, Any] = {
            "iteration": attempt.iteration,
            "outcome": attempt.outcome,
            "started_s": attempt.started_s,
            "finished_s": attempt.finished_s,
        }
        for name, default in _DEFAULTS.items():
            if (value := getattr(attempt, name)) != default:
                record[name] = value
        if attempt.generation is not None:
            record["generation"] = _dump_generation(attempt.generation)
        if attempt.usage is not NO_USAGE and attempt.usage != NO_USAGE:
            usage = attempt.usage
            record["usage"] = [usage.input_tokens, usage.output_tokens, usage.cost]
        if attempt.validations:
            record["validations"] = [self._dump_validation(one, problems) for one in attempt.validations]
        numbers = messages.numbers(attempt)
        if numbers is not None:
            record["asked"] = numbers
        if isinstance(attempt.error, Exception):
            record["error"] = _index_of(attempt.error, problems)
        return record

    def _dump_validation(self, validation: Validation, problems: list[Exception]) -> list[Any]:
        about = validation.requirement
        position = None if about is None else self._positions.get((about.description, id(about.check)))
        record: list[Any] = [position, validation.passed, validation.reason, validation.score]
        if validation.error is not None:
            record.append(_index_of(validation.error, problems))
        while record[-1] is None:
            record.pop()
        return record

    # Load.

    def load(self, text: str, item: Item[T]) -> tuple[SamplingResult[T] | None, Exception | None]:
        """
        Return the result or the error of an item.

        Raise ValueError if `dump` did not write the record.
        """
        try:
            record = cast("dict[str, Any]", bounded_json.loads(text))
            if "error" in record:
                return None, load_error(record["error"])
            return self._load_result(record, item), None
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"not a record: {type(error).__name__}: {error}") from error

    def _load_result(self, record: Mapping[str, Any], item: Item[T]) -> SamplingResult[T]:
        new = [Message(role, content) for role, content in record.get("messages", ())]
        messages = (*self._context, Message("user", item.action.text), *new)
        problems = [load_error(error) for error in record.get("errors", ())]
        attempts = tuple(
            self._load_attempt(attempt, record["sampling_id"], item, messages, problems)
            for attempt in record["attempts"]
        )
        best = next((one for one in attempts if one.iteration == record["best"]), None)
        if best is not None:
            parsed = attrs.evolve(best, value=_value(record, item.action, best))
            attempts = tuple(parsed if one is best else one for one in attempts)
            best = parsed
        return SamplingResult(
            success=record["success"],
            best=best,
            slices=tuple(one for one in attempts if one.outcome in {"valid", "invalid"}),
            attempts=attempts,
            errors=tuple(problems[: record.get("raised", 0)]),
            usage=Usage.total(one.usage for one in attempts),
            stop_reason=record["stop_reason"],
            sampling_id=record["sampling_id"],
            elapsed_s=record["elapsed_s"],
            max_attempts=record["max_attempts"],
            parent_id=record.get("parent_id"),
            stop_detail=record.get("stop_detail"),
            hook_failures=tuple(
                HookFailure(hook, event, load_error(error), failed_in)
                for hook, event, error, failed_in in record.get("hook_failures", ())
            ),
        )

    def _load_attempt(
        self,
        record: Mapping[str, Any],
        sampling_id: str,
        item: Item[T],
        messages: tuple[Message, ...],
        problems: Sequence[Exception],
    ) -> Slice[T]:
        numbers: Sequence[int] = record.get("asked", range(len(self._context) + 1))
        sent = tuple([messages[number] for number in numbers])
        action = item.action.with_text(sent[-1].content)
        before = Context(sent[:-1])
        generation = load_generation(record["generation"]) if "generation" in record else None
        error_index: int | None = record.get("error")
        return Slice(
            record["iteration"],
            iteration_id(sampling_id, record["iteration"]),
            record.get("subsample", 0),
            record.get("attempt", 0),
            record["outcome"],
            action,
            Context(sent if generation is None else (*sent, Message("assistant", generation.text))),
            generation,
            tuple(self._load_validation(one, problems) for one in record.get("validations", ())),
            None,
            None if error_index is None else problems[error_index],
            Usage(*record.get("usage", ())),
            record["started_s"],
            record["finished_s"],
            record.get("requests", 1),
            record.get("tokens_saved", 0),
            Attempt(action, before),
        )

    def _load_validation(self, record: Sequence[Any], problems: Sequence[Exception]) -> Validation:
        position: int | None = record[0]
        error: int | None = record[4] if len(record) > 4 else None
        return Validation(
            *record[1:4],
            requirement=None if position is None else self._requirements[position],
            error=None if error is None else problems[error],
        )


class _Messages:
    """
    Numbers for the messages of one item.

    First the context of the run, then the text of the item, then new messages. A record has each message once.
    """

    def __init__(self, context: Context, action: Action[Any]) -> None:
        self._plain_count = len(context) + 1
        self._action = action
        self._numbers: dict[Message, int] | None = None
        self._known = context
        self.new: list[Message] = []

    def numbers(self, attempt: Slice[Any]) -> list[int] | None:
        """Return the numbers of the messages that an attempt sent, or None if it sent the item unchanged."""
        tried = attempt.tried
        if tried is None or (tried.action.text == self._action.text and tried.context is self._known):
            return None
        if self._numbers is None:
            first = (*self._known, Message("user", self._action.text))
            self._numbers = {message: number for number, message in reversed(list(enumerate(first)))}
        return [self._number(message, self._numbers) for message in tried.messages]

    def _number(self, message: Message, numbers: dict[Message, int]) -> int:
        number = numbers.get(message)
        if number is None:
            number = numbers[message] = self._plain_count + len(self.new)
            self.new.append(message)
        return number


def _dump_generation(generation: Generation) -> dict[str, Any]:
    """Return a generation as JSON values, without defaults."""
    if type(generation) is not Generation:
        return dump_generation(generation)
    record: dict[str, Any] = {"text": generation.text}
    if generation.finish_reason != "stop":
        record["finish_reason"] = generation.finish_reason
    if generation.model is not None:
        record["model"] = generation.model
    if generation.reasoning is not None:
        record["reasoning"] = generation.reasoning
    usage = generation.usage
    if usage is not NO_USAGE:
        used = (usage.input_tokens, usage.output_tokens, usage.cost)
        record["usage"] = dict(zip(("input_tokens", "output_tokens", "cost"), used, strict=True))
    return record


def _index_of(error: Exception, problems: list[Exception]) -> int:
    for index, known in enumerate(problems):
        if known is error:
            return index
    problems.append(error)
    return len(problems) - 1


def _value(record: Mapping[str, Any], action: Action[T], best: Slice[T]) -> T | None:
    """Parse the answer again. JSON may not be able to hold the parsed value."""
    if not best.valid or best.text is None:
        return cast("T | None", record.get("value"))
    try:
        return action.parse(best.text)
    except Exception:  # noqa: BLE001 - the parser is the user's code, and it may have changed since
        return cast("T | None", record.get("value"))


def dump_value(value: Any) -> Any:
    """Return a parsed value as JSON, or None if impossible."""
    dump = getattr(value, "model_dump", None)
    try:
        plain = dump(mode="json") if callable(dump) else attrs.asdict(value) if attrs.has(value.__class__) else value
        _encode(plain)
    except Exception:  # noqa: BLE001 - user code may raise anything, and the text is recorded in any case
        return None
    return plain


# Errors.

_TYPES: dict[str, type[Exception]] = {
    name: kind
    for module in (builtins, errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup)
}
_DETAILS = {"retry_after_s": (int, float), "status": (int,), "maybe_billed": (bool,), "partial_text": (str,)}


def dump_error(error: BaseException) -> dict[str, Any]:
    """
    Return the type and message of an error as JSON.

    Anything that looks like a key is masked.
    """
    details = {name: getattr(error, name, None) for name in _DETAILS if isinstance(error, errors.BackendError)}
    given = {name: value for name, value in details.items() if value is not None and value is not False}
    return {"type": type(error).__name__, "message": _redactor.redact(_message_of(error)), **given}


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that can't even be printed must not stop the run
        return "an error that can't be shown"


def load_error(record: Any) -> Exception:
    """
    Return the error that `dump_error` described.

    It has its own type if that is one of ours or a builtin.
    """
    details = dict(record)
    name, message = str(details.pop("type")), str(details.pop("message"))
    kind = _TYPES.get(name)
    if kind is None:
        return ErrorFromJournal(message, name)
    # Bypass the constructor, whose other arguments are not recorded. `args` restores the message.
    error = kind.__new__(kind, message)
    error.args = (message,)
    for detail, value in details.items():
        if not isinstance(value, _DETAILS[detail]):
            raise ValueError(f"{detail} is of the wrong type")  # noqa: TRY004 - the data is wrong, not the call
        setattr(error, detail, value)
    return error
