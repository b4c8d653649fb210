"""Restore results from plain JSON."""

import math
from typing import Any, Final, Generic, TypeVar, cast, get_args

import attrs

from sampling._arguments import check_instance, check_str, short_repr
from sampling._json import bounded as bounded_json
from sampling._serialization.errors import load_error
from sampling._serialization.messages import load_content, load_generation
from sampling._serialization.results._fields import Fields, wrong_data
from sampling._serialization.results._shared import FORMAT, VERSION, PlainSlice, parse_again, restore_attempt
from sampling.messages import Action, Attempt, Context, Generation, Message
from sampling.options import Options
from sampling.requirements import Requirement, Validation
from sampling.results import HookFailure, Outcome, SamplingResult, Slice, StopReason
from sampling.tools import Tool
from sampling.usage import Usage

__all__ = ["load_options", "load_result", "result_from_json"]

T = TypeVar("T")

_MAX_BRACKETS: Final = 10_000_000
"""A result of many thousands of attempts has more of them than a single answer may have."""

_NOT_TOLD: Final = "the message was left out"
_PARSE_IT: Final = "from_dict(data, action) parses it again"


def result_from_json(text: str, action: Action[T] | None) -> SamplingResult[T]:
    """Restore a result from JSON text."""
    check_str("text", text)
    try:
        data: object = bounded_json.loads(text, max_brackets=_MAX_BRACKETS)
    except ValueError as error:
        raise wrong_data("the text", f"is not valid JSON: {error}") from None
    return load_result(data, action)


def load_result(data: object, action: Action[T] | None) -> SamplingResult[T]:
    """Restore a result. With an action, values are parsed again as that action parses them."""
    if action is not None:
        check_instance("action", action, Action, "an Action, or None")
    fields = Fields(data, "result")
    if fields.raw("format") != FORMAT:
        raise wrong_data("result.format", f"must be {FORMAT!r}, got {short_repr(fields.raw('format'))}")
    version = fields.integer("version", least=1)
    if version > VERSION:
        raise ValueError(
            f"this result has version {version} of the format, and this release of sampling reads up to {VERSION}. "
            "Upgrade sampling, or write the result with the older release."
        )
    return _Load[T](fields, action).result()


class _Load(Generic[T]):
    """The tables of one record."""

    def __init__(self, fields: Fields, action: Action[T] | None) -> None:
        self._fields = fields
        self._content = fields.flag("content")
        self._typed = action is not None
        self._action: Action[T] = action or cast("Action[T]", Action(""))
        fields.texts("requirements")
        self._requirements = fields.read("requirements", lambda texts: [Requirement(text) for text in texts or ()])
        self._messages = [_load_message(one) for one in fields.objects("messages")]
        self._errors = [_load_error(one) for one in fields.objects("errors")]
        # What an earlier reader did not know of a value, this one may know.
        self._notes = [note for note in fields.texts("notes") if not note.endswith(_PARSE_IT)]

    def result(self) -> SamplingResult[T]:
        fields = self._fields
        records = list(fields.objects("attempts"))
        attempts = tuple(self._attempt(one) for one in records)
        ignored = {place for place, one in enumerate(records) if not one.flag("counts", True)}
        place: int | None = fields.integer("best", None, below=len(attempts))
        best = None if place is None else attempts[place]
        success = fields.flag("success")
        if success and (best is None or not best.valid):
            raise wrong_data("result.best", "must be a valid attempt, because success is true")
        return SamplingResult(
            success=success,
            best=best,
            slices=tuple(
                one
                for place, one in enumerate(attempts)
                if one.outcome in {"valid", "invalid"} and place not in ignored
            ),
            attempts=attempts,
            errors=tuple(self._errors[: fields.integer("raised", 0)]),
            usage=fields.read("usage", _load_usage),
            stop_reason=fields.text("stop_reason", among=get_args(StopReason)),
            sampling_id=fields.text("sampling_id"),
            elapsed_s=fields.number("elapsed_s"),
            max_attempts=fields.integer("max_attempts"),
            parent_id=fields.text("parent_id", None),
            stop_detail=fields.text("stop_detail", None),
            hook_failures=tuple(self._hook_failure(one) for one in fields.objects("hook_failures")),
            agreement=fields.number("agreement", None),
            margin=fields.number("margin", None),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _attempt(self, fields: Fields) -> Slice[T]:
        generation = self._generation(fields) if "generation" in fields else None
        tried, context = self._conversation(fields, generation)
        restored = Slice(
            fields.integer("iteration", least=1),
            fields.text("iteration_id"),
            fields.integer("subsample"),
            fields.integer("attempt"),
            cast("Outcome", fields.text("outcome", among=get_args(Outcome))),
            tried.action,
            context,
            generation,
            tuple(self._validation(one) for one in fields.objects("validations")),
            self._value(fields, generation),
            self._error(fields),
            fields.read("usage", _load_usage),
            fields.number("started_s"),
            fields.number("finished_s"),
            fields.integer("requests"),
            fields.integer("tokens_saved"),
            tried,
            fields.flag("from_cache"),
        )
        return restored if self._typed or "value_type" not in fields else self._plain(restored, fields)

    def _plain(self, restored: Slice[T], fields: Fields) -> Slice[T]:
        """Keep the type that the value had, for the next reader, and say that it is not of this type."""
        kind: str = fields.text("value_type")
        self._notes.append(
            f"the value of iteration {restored.iteration} was of type {short_repr(kind)}, and is plain JSON here: "
            f"{_PARSE_IT}"
        )
        return PlainSlice(**attrs.asdict(restored, recurse=False), value_type=kind)

    def _generation(self, fields: Fields) -> Generation:
        if self._content:
            return fields.read("generation", load_generation)
        return fields.read("generation", lambda data: load_generation({"text": "", **data}))

    def _conversation(self, fields: Fields, generation: Generation | None) -> tuple[Attempt[T], Context]:
        options = fields.read("options", load_options) if "options" in fields else None
        if not self._content:
            return Attempt(self._action.with_content(""), Context(), options), Context()
        asked = fields.pick("asked", self._messages)
        if not asked:
            raise wrong_data(fields.path("asked"), "must have a message")
        tried, context = fields.read("asked", lambda _: restore_attempt(self._action, asked, generation, options))
        return tried, Context(fields.pick("context", self._messages)) if "context" in fields else context

    def _value(self, fields: Fields, generation: Generation | None) -> T | None:
        recorded: Any = fields.raw("value")
        if recorded is None and "value_type" not in fields:
            return None
        if self._typed and generation is not None:
            return parse_again(self._action, generation.text, recorded, self._notes)
        return cast("T", recorded)

    def _error(self, fields: Fields) -> Exception | None:
        place: int | None = fields.integer("error", None, below=len(self._errors))
        return None if place is None else self._errors[place]

    def _validation(self, fields: Fields) -> Validation:
        place: int | None = fields.integer("requirement", None, below=len(self._requirements))
        return Validation(
            fields.flag("passed"),
            fields.text("reason", None),
            fields.number("score", None),
            requirement=None if place is None else self._requirements[place],
            error=self._error(fields),
            transcript=tuple(fields.pick("transcript", self._messages)),
        )

    def _hook_failure(self, fields: Fields) -> HookFailure:
        error = self._error(fields)
        if error is None:
            raise wrong_data(fields.path("error"), "is missing")
        return HookFailure(fields.text("hook"), fields.text("event"), error, fields.text("iteration_id", None))


def _load_message(fields: Fields) -> Message:
    role = fields.text("role")
    return fields.read("content", lambda data: Message(role, load_content(data)))


def _load_error(fields: Fields) -> Exception:
    kind, message = fields.text("type"), fields.text("message", _NOT_TOLD)
    details = {name: fields.raw(name) for name in ("status", "retry_after_s", "maybe_billed", "partial_text", "hint")}
    return load_error({"type": kind, "message": message, **details})


def _load_usage(data: Any) -> Usage:
    usage = Usage(**data)
    if not math.isfinite(usage.cost):
        raise ValueError("cost must be finite")
    return usage


def load_options(data: Any) -> Options:
    """Return the options that `dump_options` described."""
    fields = dict(data)
    if "tools" in fields:
        fields["tools"] = [Tool(one["name"], one["description"], one["schema"]) for one in fields["tools"]]
    return Options(**fields)
