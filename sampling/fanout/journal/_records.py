"""
Convert results and errors to JSON and back.

A conversation is stored once: attempts refer to messages by number. The context of the run and the text of the item
are not stored, because every item has them anyway.
Reading a record runs and imports nothing: errors are created from a fixed list of types.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import attrs

from sampling._arguments import short_repr
from sampling._completeness import COMPLETE
from sampling._engine.scope import iteration_id
from sampling._engine.validation import PARSES
from sampling._json import bounded as bounded_json
from sampling._serialization.errors import dump_error, load_error, message_of, redact
from sampling._serialization.messages import (
    dump_content,
    dump_rare_fields,
    load_content,
    load_generation,
)
from sampling._serialization.results import (
    MessageTable,
    dump_options,
    index_of,
    load_options,
    parse_again,
    place_of,
    restore_attempt,
)
from sampling._serialization.values import (
    MAX_INTEGER,
    dump_value,
    encode,
    encode_number,
    encode_object,
    encode_record,
    encode_text,
    readable,
    storable,
)
from sampling.fanout.items import Item, ItemOutcome, Restored
from sampling.fanout.journal._plain_records import plain_record
from sampling.messages import Action, Attempt, Context, Generation, Message
from sampling.parts import media_of
from sampling.requirements import Requirement, Validation
from sampling.results import HookFailure, SamplingResult, Slice
from sampling.strategy import NO_CONTEXT
from sampling.usage import NO_USAGE, Usage

__all__ = ["Recorder", "describe_requirement", "own_requirement", "padded_validation"]

T = TypeVar("T")

_CHECKED = frozenset({"valid", "invalid"})
"""The outcomes of attempts with an answer that was checked."""

_DEFAULTS = {"subsample": 0, "attempt": 0, "requests": 1, "tokens_saved": 0, "from_cache": False}
"""The fields of an attempt that are stored only if they differ."""


class Recorder:
    """
    Converts outcomes of one run to JSON and back.

    It holds the context and the requirements, which all items share and no record repeats.
    """

    def __init__(self, context: Context | None, requirements: Sequence[Requirement]) -> None:
        self._context = context or NO_CONTEXT
        self._requirements = tuple(requirements)
        self.recorded: tuple[str, ...] = tuple(requirement.description for requirement in self._requirements)
        """The descriptions that the numbers in records refer to. Those of a resumed run may be others."""

        # Not keyed by the requirement itself: a strategy may create new ones for each call.
        self._positions: dict[tuple[str, int], int] = {}
        for position, requirement in enumerate(self._requirements):
            self._positions.setdefault((requirement.description, id(requirement.check)), position)

    # Dump.

    def dump(
        self,
        outcome: ItemOutcome[Any],
        action: Action[Any],
        known: Sequence[str] = (),
        elapsed_s: float | None = None,
    ) -> tuple[str, list[str]]:
        """
        Return an outcome as one line of ASCII JSON, and notes on what could not be stored exactly.

        `known` are notes to begin with. `elapsed_s` is the time of an item without a result.

        It never fails: an outcome that was paid for is recorded, whatever it contains.
        """
        notes = [*known]
        try:
            if outcome.error is not None:
                text = encode(_timed(_dump_errors(outcome.error, notes), elapsed_s), notes)
            else:
                result = cast("SamplingResult[Any]", outcome.result)
                plain = None if notes else plain_record(result, action, self._context, self._position)
                if plain is not None:
                    return plain, notes
                text = self._dump_result(result, action, notes)
                if not _is_storable(text):
                    notes = [*known, "logprobs, turns and raw answers are not stored: there are too many of them"]
                    text = self._dump_result(_without_details(result), action, notes)
            if _is_storable(text):
                return text, notes
            problem = "it is too large or too deeply nested"
        except Exception as error:  # noqa: BLE001 - values and errors are the user's, and may raise anything
            problem = f"{type(error).__name__}: {message_of(error)}"
        notes = [*known, f"only a summary is stored: {short_repr(redact(problem))}"]
        return encode(_timed(_summary_of(outcome), elapsed_s), notes), notes

    def _dump_result(self, result: SamplingResult[Any], action: Action[Any], notes: list[str]) -> str:
        # Fields that every record has are formatted. To encode a dict of them takes twice as long.
        messages = _Messages(self._context, action)
        problems = list(result.errors)
        best, parent_id = result.best, result.parent_id
        attempts = [
            self._dump_attempt(attempt, result.sampling_id, messages, problems, notes) for attempt in result.attempts
        ]
        fields = (
            f'"success":{"true" if result.success else "false"},"stop_reason":{encode_text(result.stop_reason)},'
            f'"sampling_id":{encode_text(result.sampling_id)},"elapsed_s":{encode_number(result.elapsed_s, notes)},'
            f'"max_attempts":{encode_number(result.max_attempts, notes)},'
            f'"best":{"null" if best is None else format(best.iteration, "d")},'
            f'"parent_id":{"null" if parent_id is None else encode_text(parent_id)},"attempts":[{",".join(attempts)}]'
        )
        others = self._rare_fields(result, messages, problems, notes)
        if best is not None and best.value is not None:
            # A valid answer is parsed again. The value of an invalid one is its text only if there is no parser.
            text = best.text if best.valid or action.parser is None else None
            if best.value is not text and (value := dump_value(best.value, notes)) is not None and value != text:
                others["value"] = value
        return encode_record(fields, others, notes)

    def _rare_fields(
        self, result: SamplingResult[Any], messages: "_Messages", problems: Sequence[Exception], notes: list[str]
    ) -> dict[str, Any]:
        """Return the fields that most records do not have."""
        record: dict[str, Any] = {}
        if len(result.attempts) > 1 and len({attempt.iteration for attempt in result.attempts}) < len(result.attempts):
            # Each tier of an escalation counts iterations from 1.
            record["place"] = place_of(result.best, result.attempts)
        if len(result.slices) < len(result.attempts) and (uncounted := _uncounted(result)):
            record["uncounted"] = uncounted
        if result.stop_detail is not None:
            record["stop_detail"] = result.stop_detail
        if result.agreement is not None:
            record["votes"] = [result.agreement, result.margin]
        if messages.new:
            known = messages.known_media()
            record["messages"] = [[message.role, dump_content(message.content, known)] for message in messages.new]
        if problems:
            record["errors"] = [dump_error(error, notes) for error in problems]
            record["raised"] = len(result.errors)
        if result.hook_failures:
            record["hook_failures"] = [
                [failure.hook, failure.event, dump_error(failure.error, notes), failure.iteration_id]
                for failure in result.hook_failures
            ]
        return record

    def _dump_attempt(
        self,
        attempt: Slice[Any],
        sampling_id: str,
        messages: "_Messages",
        problems: list[Exception],
        notes: list[str],
    ) -> str:
        fields = (
            f'"iteration":{attempt.iteration:d},"outcome":{encode_text(attempt.outcome)},'
            f'"started_s":{encode_number(attempt.started_s, notes)},'
            f'"finished_s":{encode_number(attempt.finished_s, notes)}'
        )
        if attempt.generation is not None:
            fields += f',"generation":{_dump_generation(attempt.generation, notes)}'
        record = _unusual(attempt)
        if attempt.iteration_id != iteration_id(sampling_id, attempt.iteration):
            record["iteration_id"] = attempt.iteration_id
        if attempt.usage is not NO_USAGE and attempt.usage != NO_USAGE:
            record["usage"] = _without_zeros(attempt.usage)
            record.update(_cache_writes(attempt.usage))
        if attempt.validations:
            record["validations"] = [self._dump_validation(one, problems, messages) for one in attempt.validations]
        if attempt.value is not None and attempt.action.parser is not None:
            # It is parsed again. Not all answers are: one that is cut off is not, for example.
            record["parsed"] = True
        if attempt.tried is not None:
            record.update(_dump_plan(attempt.tried, messages, notes))
        if isinstance(attempt.error, Exception):
            record["error"] = index_of(attempt.error, problems)
        return encode_object(fields, record, notes)

    def _dump_validation(self, validation: Validation, problems: list[Exception], messages: "_Messages") -> list[Any]:
        about = validation.requirement
        position = None if about is None else self._position(about)
        error = None if validation.error is None else index_of(validation.error, problems)
        # A requirement that is not one of the run's, such as that of a stage, is named.
        name = about.description if about is not None and position is None else None
        transcript = messages.add(validation.transcript) if validation.transcript else None
        record: list[Any] = [position, validation.passed, validation.reason, validation.score, error, name, transcript]
        while record[-1] is None:
            record.pop()
        return record

    def _position(self, requirement: Requirement) -> int | str | None:
        """Return the number of a requirement, the name of one of ours, or None for one that has neither."""
        position = self._positions.get((requirement.description, id(requirement.check)))
        if position is None:
            return _OURS.get(requirement)
        return position if self._is_current(position) else None

    def _is_current(self, position: int) -> bool:
        """Return whether a number refers to the same requirement as when the run was begun."""
        known, now = self.recorded[position : position + 1], self._requirements[position : position + 1]
        return bool(known) and bool(now) and known[0] == now[0].description

    # Load.

    def load(self, text: str, item: Item[T]) -> Restored:
        """
        Return the result or the error of an item, and the notes on it.

        Raise ValueError if `dump` did not write the record.
        """
        try:
            record = cast("dict[str, Any]", bounded_json.loads(text))
            notes: list[str] = list(record.get("notes", ()))
            if "error" in record:
                return None, load_error(record["error"]), tuple(notes)
            return self._load_result(record, item, notes), None, tuple(notes)
        except (TypeError, KeyError, IndexError, AttributeError, StopIteration) as error:
            raise ValueError(f"not a record: {type(error).__name__}: {error}") from error

    def _load_result(self, record: Mapping[str, Any], item: Item[T], notes: list[str]) -> SamplingResult[T]:
        asked = Message(item.action.role, item.action.content)
        known = {part.digest: part for message in (*self._context, asked) for part in media_of(message.content)}
        new = [Message(role, load_content(content, known)) for role, content in record.get("messages", ())]
        messages = (*self._context, asked, *new)
        problems = [load_error(error) for error in record.get("errors", ())]
        attempts = tuple(
            self._load_attempt(attempt, record["sampling_id"], item, messages, problems, notes)
            for attempt in record["attempts"]
        )
        uncounted: Sequence[int] = record.get("uncounted", ())
        best = _best(record, attempts)
        if best is not None:
            parsed = attrs.evolve(best, value=_value(record, item.action, best, notes))
            attempts = tuple(parsed if one is best else one for one in attempts)
            best = parsed
        agreement, margin = record.get("votes", (None, None))
        return SamplingResult(
            success=record["success"],
            best=best,
            slices=tuple(
                one for place, one in enumerate(attempts) if one.outcome in _CHECKED and place not in uncounted
            ),
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
            agreement=agreement,
            margin=margin,
        )

    def _load_attempt(
        self,
        record: Mapping[str, Any],
        sampling_id: str,
        item: Item[T],
        messages: tuple[Message, ...],
        problems: Sequence[Exception],
        notes: list[str],
    ) -> Slice[T]:
        numbers: Sequence[int] = record.get("asked", range(len(self._context) + 1))
        generation = load_generation(record["generation"]) if "generation" in record else None
        options = load_options(record["options"]) if "options" in record else None
        tried, after = restore_attempt(item.action, [messages[number] for number in numbers], generation, options)
        error_index: int | None = record.get("error")
        value: T | None = None
        if generation is not None and record.get("parsed"):
            value = parse_again(item.action, generation.text, None, notes)
        elif generation is not None and item.action.parser is None and record["outcome"] in _CHECKED:
            # Without a parser, the value of an answer is its text.
            value = cast("T", generation.text)
        return Slice(
            record["iteration"],
            record.get("iteration_id") or iteration_id(sampling_id, record["iteration"]),
            record.get("subsample", 0),
            record.get("attempt", 0),
            record["outcome"],
            tried.action,
            after,
            generation,
            tuple(self._load_validation(one, problems, messages) for one in record.get("validations", ())),
            value,
            None if error_index is None else problems[error_index],
            Usage(*record.get("usage", ()), cache_write_tokens=record.get("cache_write_tokens", 0)),
            record["started_s"],
            record["finished_s"],
            record.get("requests", 1),
            record.get("tokens_saved", 0),
            tried,
            record.get("from_cache", False),
        )

    def _load_validation(
        self, record: Sequence[Any], problems: Sequence[Exception], messages: Sequence[Message]
    ) -> Validation:
        position: int | str | None = record[0]
        error: int | None = record[4] if len(record) > 4 else None
        named = Requirement(record[5]) if len(record) > 5 and record[5] is not None else None
        transcript: Sequence[int] = record[6] if len(record) > 6 else ()
        return Validation(
            *record[1:4],
            requirement=named if position is None else self._requirement(position),
            error=None if error is None else problems[error],
            transcript=tuple(messages[number] for number in transcript),
        )

    def _requirement(self, position: int | str) -> Requirement:
        if isinstance(position, str):
            return own_requirement(position)
        if self._is_current(position):
            return self._requirements[position]
        return Requirement(self.recorded[position] if position < len(self.recorded) else "a requirement")


def _uncounted(result: SamplingResult[Any]) -> list[int]:
    """Return the places of answers that were checked and don't count, because they came after a fatal error."""
    counted = {id(one) for one in result.slices}
    attempts = enumerate(result.attempts)
    return [place for place, one in attempts if one.outcome in _CHECKED and id(one) not in counted]


def _unusual(attempt: Slice[Any]) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    # Most attempts have none, and are compared at once.
    values = (attempt.subsample, attempt.attempt, attempt.requests, attempt.tokens_saved, attempt.from_cache)
    if values == _DEFAULT_VALUES:
        return {}
    return {name: value for (name, default), value in zip(_DEFAULTS.items(), values, strict=True) if value != default}


_DEFAULT_VALUES = tuple(_DEFAULTS.values())


def _best(record: Mapping[str, Any], attempts: Sequence[Slice[T]]) -> Slice[T] | None:
    """Return the answer. Earlier versions did not store its place, though each tier of an escalation counts from 1."""
    place: int | None = record.get("place")
    if place is not None:
        return attempts[place]
    candidates = [one for one in attempts if one.iteration == record["best"]]
    return next((one for one in candidates if one.valid == record["success"]), candidates[0] if candidates else None)


_OURS = {PARSES: "parses", COMPLETE: "complete"}
"""The requirements that every answer has, by their names in a record."""


def own_requirement(name: str) -> Requirement:
    """Return the requirement that every answer has, by its name in a record."""
    return next(requirement for requirement, known in _OURS.items() if known == name)


def padded_validation(validation: Sequence[Any]) -> tuple[Any, ...]:
    """Return all fields of a recorded validation: requirement, passed, reason, score, error and name."""
    # Without the conversation with a judge, which is the last one.
    return (*validation[:6], *[None] * (6 - len(validation)))


def describe_requirement(position: int | str | None, descriptions: Sequence[str]) -> str:
    """Return the description of a requirement that a record refers to."""
    if isinstance(position, str):
        return own_requirement(position).description
    # Out of range if the run was resumed with other requirements.
    if position is None or position >= len(descriptions):
        return "a requirement"
    return descriptions[position]


class _Messages:
    """
    Numbers for the messages of one item.

    First the context of the run, then the text of the item, then new messages. A record has each message once.
    """

    def __init__(self, context: Context, action: Action[Any]) -> None:
        self._action = action
        self._known = context
        self._table: MessageTable | None = None

    @property
    def new(self) -> Sequence[Message]:
        """The messages that a record must contain."""
        return () if self._table is None else self._table.new

    def numbers(self, tried: Attempt[Any]) -> list[int] | None:
        """Return the numbers of the messages that an attempt sent, or None if it sent the item unchanged."""
        action = self._action
        if tried.action is action and tried.context is self._known:
            return None
        if tried.action.content == action.content and self._is_known(tried.context):
            return None
        return self.add(tried.messages)

    def add(self, messages: Iterable[Message]) -> list[int]:
        """Return the numbers of messages."""
        if self._table is None:
            self._table = MessageTable(self._first())
        return self._table.numbers(messages)

    def _is_known(self, context: Context) -> bool:
        # Without a context, the run and its calls have an empty one each.
        return context is self._known or not len(context) + len(self._known)

    def _first(self) -> tuple[Message, ...]:
        return (*self._known, Message(self._action.role, self._action.content))

    def known_media(self) -> set[str]:
        """Return the digests of media that the item or the context of the run have, which are not repeated."""
        return {part.digest for message in self._first() for part in media_of(message.content)}


def _dump_generation(generation: Generation, notes: list[str]) -> str:
    """Return a generation as JSON, without defaults."""
    fields = f'"text":{encode_text(generation.text)}'
    if generation.model is not None:
        fields += f',"model":{encode_text(generation.model)}'
    others = dump_rare_fields(generation)
    if generation.logprobs and "logprobs" not in others:
        # Servers report a probability of 0 as a logprob of -inf.
        others["logprobs"] = storable(list(generation.logprobs), "logprobs", notes) or []
    if generation.raw is not None and "raw" not in others:
        notes.append("raw of an answer is not made of JSON values, and is not stored")
    if generation.finish_reason != "stop":
        others["finish_reason"] = generation.finish_reason
    if generation.reasoning is not None:
        others["reasoning"] = generation.reasoning
    if generation.usage is not NO_USAGE:
        numbers = dict(zip(_USAGE_NAMES, _without_zeros(generation.usage), strict=False))
        others["usage"] = {**numbers, **_cache_writes(generation.usage)}
    return encode_object(fields, others, notes)


def _dump_plan(tried: Attempt[Any], messages: _Messages, notes: list[str]) -> dict[str, Any]:
    """Return the messages of an attempt, and its own options."""
    record: dict[str, Any] = {}
    numbers = messages.numbers(tried)
    if numbers is not None:
        record["asked"] = numbers
    if tried.options is not None:
        # Extra options may contain headers and keys.
        record["options"] = dump_options(tried.options, notes, without=("extra",))
        if tried.options.extra and _NO_EXTRA not in notes:
            notes.append(_NO_EXTRA)
    return record


_NO_EXTRA = "extra options of attempts are not stored"


_USAGE_NAMES = tuple(field.name for field in attrs.fields(Usage))


def _without_zeros(usage: Usage) -> list[float]:
    """Return the numbers of a usage, without cached and reasoning tokens if there are none."""
    numbers = usage.numbers()
    # There is a note on a larger count already, because a row has even smaller ones.
    return [min(number, MAX_INTEGER) for number in (numbers if any(numbers[3:]) else numbers[:3])]


def _cache_writes(usage: Usage) -> dict[str, int]:
    """Return the tokens that were written to a cache, if any. Few servers report them, and rows have no column."""
    return {"cache_write_tokens": min(usage.cache_write_tokens, MAX_INTEGER)} if usage.cache_write_tokens else {}


def _value(record: Mapping[str, Any], action: Action[T], best: Slice[T], notes: list[str]) -> T | None:
    if best.value is not None:
        # It was parsed again, or is the text.
        return best.value
    recorded: Any = record.get("value")
    if not best.valid or best.text is None:
        return cast("T | None", recorded)
    return parse_again(action, best.text, recorded, notes)


def _without_details(result: SamplingResult[T]) -> SamplingResult[T]:
    """Return a result without the parts of its answers that are of any size."""
    lean = {
        id(one): attrs.evolve(one, generation=attrs.evolve(one.generation, logprobs=(), turns=(), raw=None))
        for one in result.attempts
        if one.generation is not None
    }
    return attrs.evolve(
        result,
        attempts=tuple(lean.get(id(one), one) for one in result.attempts),
        slices=tuple(lean.get(id(one), one) for one in result.slices),
        best=None if result.best is None else lean.get(id(result.best), result.best),
    )


_MAX_LENGTH = 900_000_000
"""The length of the largest record. SQLite takes no text of more than a billion bytes."""


def _is_storable(text: str) -> bool:
    """Return whether a record can be written and read back."""
    return len(text) <= _MAX_LENGTH and readable(text)


def _summary_of(outcome: ItemOutcome[Any]) -> dict[str, Any]:
    """Return a minimal description of an outcome. It has the answer, which was paid for."""
    if outcome.error is not None:
        return {"error": {"type": type(outcome.error).__name__, "message": "an error that can't be stored"}}
    result = cast("SamplingResult[Any]", outcome.result)
    best = result.best
    answer: dict[str, Any] = {}
    if best is not None:
        answer = {name: getattr(best, name) for name in ("iteration", "outcome", "started_s", "finished_s")}
        # As long as it may be if every character is escaped.
        text = best.text[: _MAX_LENGTH // 12] if best.text is not None else ""
        answer["generation"] = {"text": text}
    return {
        "success": result.success,
        "stop_reason": result.stop_reason,
        "sampling_id": result.sampling_id,
        "elapsed_s": result.elapsed_s,
        "max_attempts": result.max_attempts,
        "best": answer.get("iteration"),
        "attempts": [answer] if answer else [],
    }


def _timed(record: dict[str, Any], elapsed_s: float | None) -> dict[str, Any]:
    """Return a record with the end and the duration of an item, if its result does not have them."""
    return record if elapsed_s is None else {**record, "elapsed_s": elapsed_s, "finished_s": time.time()}


# Errors.

_MAX_OTHERS = 20
"""A limit, because a call may make thousands of attempts that fail in the same way."""


def _dump_errors(error: Exception, notes: list[str]) -> dict[str, Any]:
    """Return an error, with those in it and those of other attempts that it was raised from."""
    record: dict[str, Any] = {"error": dump_error(error, notes)}
    others: list[dict[str, Any]] = []
    for one in (*_leaves(error), *_leaves(error.__cause__)):
        if one is not error and (other := dump_error(one, notes)) not in others:
            others.append(other)
            if len(others) == _MAX_OTHERS:
                break
    if others:
        record["others"] = others
    return record


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            if isinstance(member, BaseExceptionGroup):
                yield from _leaves(cast("BaseException", member))
            else:
                yield member
