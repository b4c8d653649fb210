"""Messages, contexts, actions, requests and generations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from inspect import iscoroutinefunction
from typing import Any, Generic, Literal, Self, TypeVar, cast, final, get_args, overload

import attrs

from sampling._arguments import check_instance, check_int, check_items, check_str, short_repr, wrong_type
from sampling._frozen import quick, unchecked
from sampling._schemas.output_types import is_output_type, plain_parser, reader_for
from sampling.options import Options
from sampling.parts import (
    Content,
    Media,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    as_content,
    content_chars,
    content_text,
)
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "Action",
    "Attempt",
    "Context",
    "Generation",
    "Identity",
    "Message",
    "Options",
    "Request",
    "Role",
    "answer_calls",
    "as_action",
]

T = TypeVar("T")

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""The author of a message, in the terms of chat APIs."""

_ROLES = frozenset(get_args(Role))


@quick
@attrs.frozen
class Message:
    """One turn of a conversation."""

    role: Role
    content: Content
    """A text, or a sequence of parts. It becomes a tuple."""

    def __attrs_post_init__(self) -> None:
        try:
            known = self.role in _ROLES
        except TypeError:
            # Unhashable values, such as a list, can't be looked up in a set.
            known = False
        if not known:
            raise ValueError(f"role must be one of {', '.join(sorted(_ROLES))}, got {short_repr(self.role)}")
        if not isinstance(self.content, str):
            object.__setattr__(self, "content", _checked_parts(self.role, as_content(self.content)))

    @property
    def text(self) -> str:
        """The text of the message: all of its text parts, joined."""
        return content_text(self.content)

    @property
    def chars(self) -> int:
        """The number of characters. For media it is an estimate."""
        return content_chars(self.content)


_new_message = unchecked(Message)

_ROLE_OF: dict[type[Any], str] = {ToolCall: "assistant", Reasoning: "assistant", ToolResult: "tool"}


def _checked_parts(role: Role, content: Content) -> Content:
    for part in content:
        expected = _ROLE_OF.get(type(part), role)
        if expected != role:
            raise ValueError(
                f"a {type(part).__name__} must be in a message of role {expected!r}, got one of role {role!r}"
            )
        if role == "tool" and not isinstance(part, ToolResult):
            raise ValueError(f"a message of role 'tool' must have ToolResults only, got a {type(part).__name__}")
    return content


@final
class Context:
    """
    An immutable conversation.

    `add` returns a new context that stores only the new messages and a link to its parent.
    It takes the same time at the first turn and at the thousandth, and subsamples share their common history.
    It iterates, compares and hashes like the tuple of its messages, but an empty context is true.
    """

    __slots__ = ("__weakref__", "_all", "_answer", "_count", "_parent", "_tail", "chars")

    chars: int
    """The number of characters in all messages. For media it is an estimate."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._parent: Context | None = None
        self._tail = _check_messages(check_items("messages", messages, "an iterable of Message"))
        self._answer: str | tuple[Message, ...] | None = None
        self._all: tuple[Message, ...] | None = None
        self._count = len(self._tail)
        self.chars = sum([message.chars for message in self._tail])

    def add(self, *messages: Message) -> "Context":
        """Return a new context with these messages appended."""
        grown = Context(messages)
        grown._parent = self
        grown._count += self._count
        grown.chars += self.chars
        return grown

    @classmethod
    def sent(
        cls, messages: tuple[Message, ...], chars: int, answer: "str | tuple[Message, ...] | None" = None
    ) -> "Context":
        """
        Build the context of a sent request.

        `chars` is the length of all messages together, without the answer: its text, or the messages that it consists
        of.
        """
        context = cls.__new__(cls)
        context._parent = None
        context._tail = messages
        # The answer becomes a Message only when it is read: most attempts are never looked at again.
        context._answer = answer
        if isinstance(answer, str):
            context._all = None
            context._count = len(messages) + 1
            context.chars = chars + len(answer)
        elif answer is None:
            context._all = messages
            context._count = len(messages)
            context.chars = chars
        else:
            context._all = None
            context._count = len(messages) + len(answer)
            context.chars = chars + sum([message.chars for message in answer])
        return context

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        if self._all is None:
            self._all = self._collect()
        return self._all

    def messages_with(self, message: Message) -> tuple[Message, ...]:
        """Return all messages, followed by this one."""
        if self._all is None and self._answer is not None:
            # Build one tuple, not two: nobody may ever need the one without `message`.
            return (*self._tail, *self._answer_messages(self._answer), message)
        return (*self.messages, message)

    @staticmethod
    def _answer_messages(answer: "str | tuple[Message, ...]") -> tuple[Message, ...]:
        return (_new_message("assistant", answer),) if isinstance(answer, str) else answer

    def _collect(self) -> tuple[Message, ...]:
        if self._answer is not None:
            return (*self._tail, *self._answer_messages(self._answer))
        # Walk up only to the nearest ancestor with a cached tuple. In a growing conversation that is the parent.
        tails = [self._tail]
        node = self._parent
        while node is not None:
            if node._all is not None or node._answer is not None:
                tails.append(node.messages)
                break
            tails.append(node._tail)
            node = node._parent
        return tuple([message for tail in reversed(tails) for message in tail])

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        # An empty conversation is truthy, so that `ctx or Context()` keeps it.
        return True

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return self is other or (self._count == other._count and self.messages == other.messages)

    def __hash__(self) -> int:
        return hash(self.messages)

    def __reduce__(self) -> tuple[type["Context"], tuple[tuple[Message, ...]]]:
        # The default pickling recurses through the parents, and a long conversation would overflow the stack.
        return Context, (self.messages,)

    def __repr__(self) -> str:
        return f"Context({self._count} messages, {self.chars} characters)"


def _check_messages(messages: tuple[Any, ...]) -> tuple[Message, ...]:
    for message in messages:
        if type(message) is not Message:
            check_instance("an item of messages", message, Message, "a Message(role, content)")
    return messages


def _reader_and_schema(parser: Any, schema: Any, *, lenient: bool) -> tuple[Callable[[str], Any], Any]:
    """Return the function that parses an answer, and the schema to ask for it with."""
    if is_output_type(parser):
        reader = reader_for(parser) if lenient else reader_for(parser).strictly()
        return reader, reader.schema if schema is None else schema
    _check_parser(parser)
    return plain_parser(parser), schema


# init=False: the overloads of __init__ infer `T` from the parser, which attrs can't do.
@attrs.frozen(init=False, repr=False, slots=False)
class Action(Generic[T]):
    """
    A prompt, with a parser for its answer.

    Without a parser, the value is the text of the answer. A parser is a function of that text,
    or a type to read from JSON: a pydantic model, an attrs class, a dataclass, a typed dict,
    or a container such as `list[Flight]`. The schema of a type is sent to backends that support constrained decoding.
    Answers are parsed and checked even if the backend constrains them. JSON is found in thoughts, fences and prose,
    and small mistakes are mended, unless `lenient=False`.

    A subclass may have more fields. Repairs keep them, and backends find them on `Request.action`.
    """

    content: Content = attrs.field(alias="text")  # the name that `attrs.evolve` passes to `__init__`
    """The text, or a tuple of parts."""

    parser: Callable[[str], T] | None = None
    schema: Any = attrs.field(default=None, hash=False)
    """The default of `Options.schema` for this action. The caller's options take precedence."""

    text: str = attrs.field(init=False, eq=False)
    """The text of the content."""

    @overload
    def __init__(
        self: "Action[str]", text: Content, parser: None = None, *, schema: Any = None, lenient: bool = True
    ) -> None: ...
    @overload
    def __init__(self, text: Content, parser: type[T], *, schema: Any = None, lenient: bool = True) -> None: ...
    @overload
    def __init__(
        self, text: Content, parser: Callable[[str], T], *, schema: Any = None, lenient: bool = True
    ) -> None: ...
    def __init__(
        self,
        text: Content,
        parser: type[T] | Callable[[str], T] | None = None,
        *,
        schema: Any = None,
        lenient: bool = True,
    ) -> None:
        content = text
        if not isinstance(text, str):
            content = _asked_parts(text)
            text = content_text(content)
        if parser is not None:
            parser, schema = _reader_and_schema(parser, schema, lenient=lenient)
        self._fill(content, parser, schema, text)

    def _fill(self, content: Content, parser: Any, schema: Any, text: str) -> None:
        fields = self.__dict__
        fields["text"], fields["content"], fields["parser"], fields["schema"] = text, content, parser, schema

    def __attrs_post_init__(self) -> None:
        # Only for a subclass that attrs made: its own `__init__` has set the fields as they were given.
        content, parser, schema = self.content, self.parser, self.schema
        if not isinstance(content, str):
            content = _asked_parts(content)
        if parser is not None:
            parser, schema = _reader_and_schema(parser, schema, lenient=True)
        self._fill(content, parser, schema, content if isinstance(content, str) else content_text(content))

    def __repr__(self) -> str:
        asked = f"text={self.text!r}" if isinstance(self.content, str) else f"content={self.content!r}"
        return f"Action({asked}, parser={self.parser!r})"

    @property
    def role(self) -> Role:
        """The role of its message: "tool" if it consists of tool results, else "user"."""
        return "user" if isinstance(self.content, str) or not isinstance(self.content[0], ToolResult) else "tool"

    @property
    def chars(self) -> int:
        """The number of characters. For media it is an estimate."""
        return content_chars(self.content)

    def with_text(self, text: str) -> "Action[T]":
        """Return an action with another text, and the same media and parser."""
        check_str("text", text)
        if isinstance(self.content, str):
            return self._with(text, text)
        if self.role == "tool":
            return self._with(text, text)
        places = [place for place, part in enumerate(self.content) if isinstance(part, Text)]
        parts: list[Part] = [part for part in self.content if not isinstance(part, Text)]
        # Where the first text was: "Compare [image] with [image]" stays a question before its images.
        parts.insert(places[0] if places else 0, Text(text))
        return self._with(text, tuple(parts))

    def with_content(self, content: Content) -> "Action[T]":
        """Return an action with another content and the same parser."""
        if isinstance(content, str):
            return self._with(content, content)
        content = _asked_parts(content)
        return self._with(content_text(content), content)

    def _with(self, text: str, content: Content) -> "Action[T]":
        # Bypass __init__: the parser was checked when this action was created.
        other = object.__new__(type(self)) if type(self) is Action else self._copied()
        other._fill(content, self.parser, self.schema, text)
        return other

    def _copied(self) -> Self:
        """Return a copy with all fields of a subclass, which need not be one of attrs."""
        other = copy(self)
        if hasattr(self, "__dict__"):
            other.__dict__.update(self.__dict__)
        return other

    def parse(self, text: str) -> T:
        """
        Parse the text of an answer.

        Exceptions of the parser propagate.
        """
        return cast("T", text) if self.parser is None else self.parser(text)


def _asked_parts(content: object) -> Content:
    """Check the parts of an action: what a user says, or the results of tools."""
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise wrong_type("text", content, "a str or a sequence of parts")
    parts = as_content(cast("object", content), (Text, Media, ToolResult), "Text, Image, Audio, File and ToolResult")
    results = sum(isinstance(part, ToolResult) for part in parts)
    if results not in (0, len(parts)):
        raise ValueError("content must have either ToolResults or other parts, got both")
    return parts


def as_action(action: object) -> "Action[Any]":
    """Convert a text or a sequence of parts to an action."""
    if isinstance(action, str):
        return Action(action)
    if isinstance(action, Action):
        return cast("Action[Any]", cast("Any", action))
    if isinstance(action, Sequence) and not isinstance(action, bytes | bytearray):
        return Action(cast("Sequence[Part]", action))
    raise wrong_type("action", action, "an Action or a str, or a sequence of parts")


def _check_parser(parser: object) -> None:
    if not callable(parser):
        raise wrong_type("parser", parser, "a function of the answer's text, a type to read from JSON, or None")
    if iscoroutinefunction(parser) or iscoroutinefunction(getattr(parser, "__call__", None)):  # noqa: B004
        raise TypeError(
            f"parser must be a plain function, got the async {short_repr(parser)}. Move what it awaits into a check."
        )


_NOT_RUN = "This call was not run, because the answer was not accepted."


def answer_calls(messages: tuple[Message, ...], following: Message | None = None) -> tuple[Message, ...]:
    """
    Return the messages with a result for each tool call of the last one, unless a result follows.

    Providers refuse a conversation that goes on without the results.
    """
    calls = [part for part in messages[-1].content if isinstance(part, ToolCall)]
    if not calls or (following is not None and following.role == "tool"):
        return messages
    return (*messages, Message("tool", [ToolResult(call.id, _NOT_RUN, is_error=True) for call in calls]))


@quick
@attrs.frozen
class Attempt(Generic[T]):
    """The plan of an attempt, returned by a strategy's `repair`."""

    action: Action[T]
    context: Context
    options: Options | None = None
    """Override the options of the call, for this attempt only."""

    _messages: tuple[Message, ...] | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.action, Action):
            raise wrong_type("action", self.action, "an Action")
        if not isinstance(self.context, Context):
            raise wrong_type("context", self.context, "a Context")
        if self.options is not None and not isinstance(self.options, Options):
            raise wrong_type("options", self.options, "Options or None")

    @property
    def chars(self) -> int:
        """The number of characters to send."""
        content = self.action.content
        return self.context.chars + (len(content) if type(content) is str else content_chars(content))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, followed by the action as a message."""
        messages = self._messages
        if messages is None:
            action = self.action
            content = action.content
            message = _new_message("user", content) if type(content) is str else Message(action.role, content)
            messages = self.context.messages_with(message)
            if len(messages) > 1 and type(messages[-2].content) is not str:
                messages = (*answer_calls(messages[:-1], message), message)
            # Cached: a strategy may make the same attempt many times.
            object.__setattr__(self, "_messages", messages)
        return messages


@quick
@attrs.frozen
class Request:
    """A request to a backend, with the ids of its attempt."""

    messages: Sequence[Message]
    options: Options = Options()
    sampling_id: str = ""
    iteration: int = 1
    iteration_id: str = ""
    subsample: int = 0
    attempt: int = 0
    idempotency_key: str | None = None
    """Identifies an item of a fan-out, also when it is sent again after a crash. None outside of a fan-out."""

    action: Action[Any] | None = attrs.field(default=None, kw_only=True, repr=False, eq=False)
    """The action that is asked. None for a request of a check, or outside of a call."""

    def __attrs_post_init__(self) -> None:
        messages = self.messages
        if not isinstance(messages, tuple):
            object.__setattr__(self, "messages", _check_messages(check_items("messages", messages, "Messages")))
        elif messages and type(messages[-1]) is not Message:
            # Check only the last message: checking all of them at every turn makes a conversation O(n²).
            _check_messages(messages)
        if not isinstance(self.options, Options):
            raise wrong_type("options", self.options, "Options")
        # Fast checks first. _check_ids only runs to raise the right error, or to accept a subclass.
        if not type(self.iteration) is type(self.subsample) is type(self.attempt) is int:
            self._check_ids()
        if self.iteration < 1 or self.subsample < 0 or self.attempt < 0:
            self._check_ids()
        key = self.idempotency_key
        if not type(self.sampling_id) is type(self.iteration_id) is str or (key is not None and type(key) is not str):
            self._check_ids()
        if self.action is not None and not isinstance(self.action, Action):
            raise wrong_type("action", self.action, "an Action or None")

    def _check_ids(self) -> None:
        check_str("sampling_id", self.sampling_id)
        check_int("iteration", self.iteration, least=1)
        check_str("iteration_id", self.iteration_id)
        check_int("subsample", self.subsample, least=0)
        check_int("attempt", self.attempt, least=0)
        if self.idempotency_key is not None:
            check_str("idempotency_key", self.idempotency_key)


_NOTHING: tuple[Any, ...] = ()


@quick
@attrs.frozen
class Generation:
    """The answer of a backend."""

    text: str = attrs.field(repr=short_repr)
    usage: Usage = NO_USAGE
    finish_reason: str = "stop"
    """The reason why it ended: "stop", "length", "content_filter", … Checks read `view.generation.finish_reason`."""

    model: str | None = None
    reasoning: str | None = attrs.field(default=None, kw_only=True, repr=short_repr)
    """The reasoning that came before the answer, if the backend returns it. Not part of `text`."""

    tool_calls: Sequence[ToolCall] = attrs.field(default=_NOTHING, kw_only=True, repr=short_repr)
    """The tools that the model calls."""

    refusal: str | None = attrs.field(default=None, kw_only=True, repr=short_repr)
    """The refusal of the model, where the server separates it from the answer."""

    logprobs: Sequence[Any] = attrs.field(default=_NOTHING, kw_only=True, hash=False, repr=short_repr)
    """The log probabilities as the server gave them, one item per token. `Options(logprobs=True)` requests them."""

    turns: Sequence[Message] = attrs.field(default=_NOTHING, kw_only=True, repr=short_repr)
    """The messages before the final answer: tool calls and their results. They are part of the context."""

    raw: Any = attrs.field(default=None, kw_only=True, eq=False, repr=False)
    """What else the server said, such as the id of its response. The library passes it on and never reads it."""

    thoughts: Sequence[Reasoning] = attrs.field(default=_NOTHING, kw_only=True, repr=False)
    """The reasoning in parts. Signed parts go into the context, because their provider wants them back."""

    def __attrs_post_init__(self) -> None:
        # Inlined checks: one Generation is created per attempt, and function calls would cost time.
        if not isinstance(self.text, str):
            raise wrong_type("text", self.text, "a str")
        if not isinstance(self.usage, Usage):
            raise wrong_type("usage", self.usage, "a Usage")
        if not isinstance(self.finish_reason, str):
            raise wrong_type("finish_reason", self.finish_reason, 'a str, such as "stop"')
        if self.model is not None and not isinstance(self.model, str):
            raise wrong_type("model", self.model, "a str or None")
        if self.reasoning is not None and not isinstance(self.reasoning, str):
            raise wrong_type("reasoning", self.reasoning, "a str or None")
        if self.refusal is not None and not isinstance(self.refusal, str):
            raise wrong_type("refusal", self.refusal, "a str or None")
        # The default of all of them is one object. A sequence that is given becomes a tuple.
        if not (
            self.tool_calls is _NOTHING
            and self.logprobs is _NOTHING
            and self.turns is _NOTHING
            and self.thoughts is _NOTHING
        ):
            self._freeze_sequences()

    def _freeze_sequences(self) -> None:
        kinds = (("tool_calls", ToolCall), ("logprobs", object), ("turns", Message), ("thoughts", Reasoning))
        for name, kind in kinds:
            items = check_items(name, getattr(self, name), f"a sequence of {kind.__name__}")
            for item in items:
                check_instance(f"an item of {name}", item, kind, f"a {kind.__name__}")
            object.__setattr__(self, name, items)
        if self.reasoning is None and self.thoughts:
            # A signature may come without a text.
            object.__setattr__(self, "reasoning", "".join([thought.text for thought in self.thoughts]) or None)

    @property
    def message(self) -> Message:
        """The answer as a message of the conversation, with its tool calls and signed reasoning."""
        if not self.tool_calls and not self.thoughts:
            return Message("assistant", self.text)
        parts: list[Part] = [thought for thought in self.thoughts if thought.signature is not None]
        if self.text:
            parts.append(Text(self.text))
        parts.extend(self.tool_calls)
        return Message("assistant", parts if len(parts) > bool(self.text) else self.text)

    def as_answer(self) -> "str | tuple[Message, ...]":
        """Return what the answer adds to the conversation: its text alone, or messages."""
        return (*self.turns, self.message) if self.tool_calls or self.turns or self.thoughts else self.text


@attrs.frozen(kw_only=True)
class Identity:
    """
    The ids of the running call and attempt.

    Between attempts, the last four fields are None.
    """

    sampling_id: str
    """The id of the call of `sample()`. Globally unique, and sorts by the time of the call."""

    parent_id: str | None = None
    """The iteration_id of the attempt that made this call, if it is nested in another call."""

    iteration: int | None = None
    """`subsample * loop_budget + attempt + 1`, unique within the call."""

    iteration_id: str | None = None
    """The id of the attempt, unique across calls, processes and machines."""

    subsample: int | None = None
    attempt: int | None = None
