"""Adapt one call of mellea to our engine: its question, conversation, backend and requirements."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import anyio
import attrs
from mellea.backends import ModelOption
from mellea.core import Backend, Component, ModelOutputThunk, TemplateRepresentation, ValidationResult
from mellea.core import Context as MelleaContext
from mellea.core import Requirement as MelleaRequirement
from mellea.core.backend import generate_walk
from mellea.formatters import TemplateFormatter
from mellea.stdlib import functional
from mellea.stdlib.components import Message as MelleaMessage
from mellea.stdlib.context import ChatContext

from sampling._engine.scope import count_request, current
from sampling.backends.adapters import AdaptedBackend
from sampling.messages import Action, Context, Generation, Message, Options, Request
from sampling.requirements import Requirement, Validation, View
from sampling.usage import Usage

__all__ = ["MelleaCall", "Record"]

# Parts of mellea's signatures have no types.
_functional: Any = functional
_RequirementClass: Any = MelleaRequirement


@attrs.define
class Record:
    """The objects of mellea that belong to one attempt."""

    action: Any
    context: Any
    """The context after the generation."""

    thunk: Any
    validations: dict[int, ValidationResult] = attrs.field(factory=dict[int, ValidationResult])
    """By the id of the requirement of ours."""


class MelleaCall:
    """One call of `sample` in mellea."""

    def __init__(
        self,
        action: Any,
        context: MelleaContext,
        backend: Backend,
        *,
        validation_ctx: MelleaContext | None,
        format: Any,  # noqa: A002 - mellea's name
        tool_calls: bool,
        model_options: Mapping[str, Any],
        stream: bool,
    ) -> None:
        self.records: dict[str, Record] = {}
        """By iteration_id."""

        self.requirements: dict[int, MelleaRequirement] = {}
        """The requirements of the call, by the id of ours."""

        self._action = action
        self._context = context
        self._backend = backend
        self._validation_ctx = validation_ctx
        self._format = format
        self._tool_calls = tool_calls
        self._model_options = _renamed(model_options, backend)
        self._stream = stream
        self._formatter: Any = getattr(backend, "formatter", None) or TemplateFormatter(model_id="default")
        self._contexts: dict[tuple[Message, ...], Any] = {}
        """The contexts that can be continued, by the messages that they consist of."""

        self._spans: dict[Message, Any] = {}
        """The objects of mellea that messages were made of. They have images and tools, which messages have not."""

        self._history: tuple[Message, ...] = ()

    async def prepare(self) -> None:
        """Wait for the parts of the action and of the conversation that mellea has not computed yet, and render all."""
        before = self._context.view_for_generation() or []
        for part in (*before, self._action):
            # One after the other: two readers of a thunk, which may occur twice, would wait for ever.
            for thunk in generate_walk(part):
                await thunk.avalue()
        self._history = tuple(self._messages(before))
        self._contexts[self._history] = self._context
        self._spans.update(zip(self._history, before, strict=True))
        [self._rendered] = self._formatter.to_chat_messages([self._action])
        self._asked = Message("user", self._rendered.content)
        self._spans[self._asked] = self._action

    def question(self) -> Action[Any]:
        """Return the action, as the text that the backend makes of it."""
        # Only a component can parse. The value of anything else is its text.
        text = self._asked.text
        return Action(text, self._parse) if isinstance(self._action, Component) else Action(text)

    def conversation(self) -> Context:
        """Return the conversation before the action, as messages."""
        return Context(self._history)

    def options(self) -> Options:
        """Return the options that strategies vary and budgets read."""
        # The default seed of a backend would make all samples of a call equal.
        defaults = _renamed(getattr(self._backend, "model_options", None) or {}, self._backend)
        options = self._model_options
        return Options(
            temperature=options.get(ModelOption.TEMPERATURE),
            max_tokens=options.get(ModelOption.MAX_NEW_TOKENS),
            seed=options.get(ModelOption.SEED, defaults.get(ModelOption.SEED)),
            stop=options.get(ModelOption.STOP_SEQUENCES) or (),
            schema=self._format,
        )

    def as_backend(self, timeout_s: float) -> AdaptedBackend:
        """Return the backend of mellea as one of ours."""
        return AdaptedBackend("mellea", self._generate, timeout_s)

    def requirement(self, requirement: MelleaRequirement | str, timeout_s: float) -> Requirement:
        """Return a requirement of mellea as one of ours."""
        original = MelleaRequirement(requirement) if isinstance(requirement, str) else requirement
        kind: Any = type(original)
        coded = original.validation_fn is not None and kind.validate is _RequirementClass.validate

        async def check(text: str, _view: View) -> Validation:
            return await self._validate(text, original, ours, self._backend)

        async def judge(text: str, view: View) -> Validation:
            verdicts: list[Validation] = []

            async def ask(_request: Request, _receive: Callable[[str], None]) -> Generation:
                async with _ClosingBackend(self._backend) as backend:
                    verdicts.append(await self._validate(text, original, ours, backend))
                    return _generation_of_all(backend.thunks)

            # Through the engine, so that budgets and usage know of the request.
            question = Message("user", ours.description)
            await view.ask([question], backend=AdaptedBackend("mellea", ask, timeout_s))
            return verdicts[-1]

        description = (original.description or "").strip() or type(original).__name__
        ours = Requirement(description, check if coded else judge, judged=not coded)
        self.requirements[id(ours)] = original
        return ours

    def record_of_text(self, text: str, question: str) -> Record:
        """Return a record of an answer that no backend of mellea gave."""
        action = self._action if question == self._asked.text else MelleaMessage("user", question)
        thunk: Any = ModelOutputThunk(text, parsed_repr=cast("Any", text))
        return Record(action, self._context.add(action).add(thunk), thunk)

    async def _validate(self, text: str, original: MelleaRequirement, ours: Requirement, backend: Any) -> Validation:
        record = self._record(text)
        verdicts: list[ValidationResult] = await _functional.avalidate(
            [original],
            self._validation_ctx if self._validation_ctx is not None else record.context,
            backend,
            output=record.thunk,
            model_options={**self._streamed(), **self._model_options},
        )
        verdict = record.validations[id(ours)] = _as_result(verdicts[0])
        reason = None if verdict.reason is None else str(verdict.reason)
        return Validation(bool(verdict), reason, _finite(verdict.score))

    def _record(self, text: str) -> Record:
        """Return the record of the current attempt."""
        identity = current()
        iteration_id = "" if identity is None or identity.iteration_id is None else identity.iteration_id
        record = self.records.get(iteration_id)
        if record is None:
            # The answer is of a backend of ours, as of a tier.
            record = self.records[iteration_id] = self.record_of_text(text, self._asked.text)
        return record

    def _parse(self, text: str) -> Any:
        record = self._record(text)
        record.thunk.parsed_repr = parsed = self._action.parse(record.thunk)
        return parsed

    async def _generate(self, request: Request, receive: Callable[[str], None]) -> Generation:
        action, context = self._continued(request.messages)
        async with _ClosingBackend(self._backend) as backend:
            thunk, context = await backend.generate_from_context(
                action,
                ctx=context,
                # A strategy asks for thoughts without the schema of the answer.
                format=None if request.options.schema is None else self._format,
                model_options=self._options_of(request.options),
                tool_calls=self._tool_calls,
            )
            await _read(thunk, receive)
        if not isinstance(self._action, Component):
            thunk.parsed_repr = thunk.value
        self.records[request.iteration_id] = Record(action, self._kept(context, action, thunk), thunk)
        generation = _generation_of(thunk)
        self._contexts[*request.messages, Message("assistant", generation.text)] = context
        return generation

    def _continued(self, messages: Sequence[Message]) -> tuple[Any, Any]:
        """Return the action that stands for the last message, and the context before it."""
        *before, last = messages
        context = self._contexts.get(tuple(before))
        if context is None or (before and not context.view_for_generation()):
            # A strategy may leave out turns, or write its own. A SimpleContext would hide them all from the model.
            context = self._rebuilt(before)
        return self._action_for(last, before), context

    def _action_for(self, last: Message, before: Sequence[Message]) -> Any:
        if last in self._spans:
            return self._spans[last]
        if last.role != "user" or self._asked in before[len(self._history) :]:
            return _plain(last)
        # It stands in for the question, as a repair does.
        return _Restated(self._rendered, last.text, _tools_of(self._action))

    def _rebuilt(self, messages: Sequence[Message]) -> Any:
        context: Any = self._context.new_instance()
        if not context.add(self._action).view_for_generation():
            context = ChatContext()
        for message in messages:
            context = context.add(self._spans.get(message) or _plain(message))
        return context

    def _kept(self, context: Any, action: Any, thunk: Any) -> Any:
        """Return the context after a generation, as one of the caller's kind."""
        same = isinstance(context, type(self._context))
        return context if same else self._context.add(action).add(thunk)

    def _messages(self, parts: Sequence[Any]) -> list[Message]:
        return [Message(one.role, one.content) for one in self._formatter.to_chat_messages(list(parts))]

    def _options_of(self, options: Options) -> dict[str, Any]:
        if options.model is not None:
            raise ValueError(f"a backend of mellea has one model, and the strategy asks for {options.model!r}")
        chosen = {
            ModelOption.TEMPERATURE: options.temperature,
            ModelOption.MAX_NEW_TOKENS: options.max_tokens,
            ModelOption.SEED: options.seed,
            ModelOption.STOP_SEQUENCES: list(options.stop) or None,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        return {**self._streamed(), **given, **self._fixed_options()}

    def _streamed(self) -> dict[str, Any]:
        return {ModelOption.STREAM: True} if self._stream else {}

    def _fixed_options(self) -> dict[str, Any]:
        """Return the options of the caller, without those that a strategy may vary."""
        varied = {
            ModelOption.TEMPERATURE,
            ModelOption.MAX_NEW_TOKENS,
            ModelOption.SEED,
            ModelOption.STOP_SEQUENCES,
        }
        return {name: value for name, value in self._model_options.items() if name not in varied}


class _Restated(MelleaMessage):
    """The question in other words, with the images, documents and tools of the action."""

    def __init__(self, rendered: Any, text: str, tools: Any) -> None:
        super().__init__(
            "user",
            text,
            images=rendered.images,
            audio=rendered.audio,
            documents=rendered._docs,
            provider_fields=rendered.provider_fields,
        )
        self._tools = tools

    def format_for_llm(self) -> TemplateRepresentation:
        """Return the representation of a message, with tools."""
        representation = super().format_for_llm()
        representation.tools = self._tools
        return representation


class _ClosingBackend:
    """
    A backend of mellea that counts its requests, and closes what it began.

    mellea generates in its own tasks, which continue when nothing waits for them any more.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend: Any = backend
        self._requests = 0
        self.thunks: list[Any] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Requirements use isinstance to find out what a backend can do.
        kind: type[Any] = self._backend.__class__
        return kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def generate_from_context(self, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        self._count()
        thunk, context = await self._backend.generate_from_context(*arguments, **keywords)
        self.thunks.append(thunk)
        return thunk, context

    async def generate_from_raw(self, *arguments: Any, **keywords: Any) -> Any:
        self._count()
        return await self._backend.generate_from_raw(*arguments, **keywords)

    def _count(self) -> None:
        """Count a request, except for the first, which the engine has counted. A requirement may make several."""
        if self._requests:
            count_request()
        self._requests += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if all(thunk.is_computed() for thunk in self.thunks):
            return
        # In tasks of their own: in a cancelled task, mellea closes only half.
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for thunk in self.thunks:
                    group.start_soon(thunk.aclose)


async def _read(thunk: Any, receive: Callable[[str], None]) -> None:
    """Wait for the whole answer."""
    try:
        async for piece in thunk:
            receive(piece)
    except Exception:
        # The text is complete if only parsing it failed, which our engine does again, and tells the model why.
        if not thunk.is_computed() or thunk.generate_log is None:
            raise


def _generation_of_all(thunks: Sequence[Any]) -> Generation:
    """Return the last answer, with the usage of all. The requirement may have asked several times, or not at all."""
    if not thunks:
        return Generation("")
    generations = [_generation_of(thunk) for thunk in thunks]
    return attrs.evolve(generations[-1], usage=Usage.total(one.usage for one in generations))


def _generation_of(thunk: Any) -> Generation:
    facts = thunk.generation
    counts: Mapping[str, Any] = facts.usage or {}
    sent: Mapping[str, Any] = counts.get("prompt_tokens_details") or {}
    received: Mapping[str, Any] = counts.get("completion_tokens_details") or {}
    return Generation(
        thunk.value or "",
        Usage(
            counts.get("prompt_tokens") or 0,
            counts.get("completion_tokens") or 0,
            cached_input_tokens=sent.get("cached_tokens") or 0,
            reasoning_tokens=received.get("reasoning_tokens") or 0,
        ),
        _finish_reason(facts.finish_reasons),
        facts.response_model or facts.model,
    )


def _finish_reason(reasons: Sequence[str] | None) -> str:
    # Tools are offered and called by mellea. Our engine does not know of them.
    reason = reasons[0] if reasons else None
    return "stop" if reason in {None, "tool_calls"} else str(reason)


def _plain(message: Message) -> MelleaMessage:
    return MelleaMessage(cast("Any", message.role), message.text)


def _tools_of(action: Any) -> Any:
    representation: Any = action.format_for_llm() if isinstance(action, Component) else None
    return cast("Any", representation).tools if isinstance(representation, TemplateRepresentation) else None


def _renamed(options: Mapping[str, Any], backend: Backend) -> dict[str, Any]:
    """Return options by mellea's names. A backend also takes those of its server, such as `seed`."""
    for name in ("to_mellea_model_opts_map_chats", "to_mellea_model_opts_map"):
        names = getattr(backend, name, None)
        if names:
            return cast("dict[str, Any]", cast("Any", ModelOption).replace_keys(dict(options), names))
    return dict(options)


def _as_result(verdict: Any) -> ValidationResult:
    """Return the result of a validation. To mellea, a plain bool is one too."""
    return verdict if isinstance(verdict, ValidationResult) else ValidationResult(bool(verdict))


def _finite(score: Any) -> float | None:
    """Return a score, or None for one that can't be compared, which must not decide about the answer."""
    return score if isinstance(score, int | float) and math.isfinite(score) else None
