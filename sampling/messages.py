"""Messages, contexts, actions, requests and generations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast, final, get_args, overload

import attrs

from sampling._arguments import check_instance, check_int, check_items, check_number, check_str, short_repr, wrong_type
from sampling._output_types import is_output_type, reader_for
from sampling.usage import NO_USAGE, Usage

__all__ = ["Action", "Attempt", "Context", "Generation", "Identity", "Message", "Options", "Request", "Role"]

T = TypeVar("T")

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""The author of a message, in the terms of chat APIs."""

_ROLES = frozenset(get_args(Role))


@attrs.frozen
class Message:
    """One turn of a conversation."""

    role: Role
    content: str

    def __attrs_post_init__(self) -> None:
        try:
            known = self.role in _ROLES
        except TypeError:
            # Unhashable values, such as a list, can't be looked up in a set.
            known = False
        if not known:
            raise ValueError(f"role must be one of {', '.join(sorted(_ROLES))}, got {short_repr(self.role)}")
        if not isinstance(self.content, str):
            raise wrong_type("content", self.content, "a str")


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
    """The number of characters in all messages."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._parent: Context | None = None
        self._tail = _check_messages(check_items("messages", messages, "an iterable of Message"))
        self._answer: str | None = None
        self._all: tuple[Message, ...] | None = None
        self._count = len(self._tail)
        self.chars = sum(len(message.content) for message in self._tail)

    def add(self, *messages: Message) -> "Context":
        """Return a new context with these messages appended."""
        grown = Context(messages)
        grown._parent = self
        grown._count += self._count
        grown.chars += self.chars
        return grown

    @classmethod
    def sent(cls, messages: tuple[Message, ...], chars: int, answer: str | None = None) -> "Context":
        """
        Build the context of a sent request.

        `chars` is the length of all messages together, without the answer.
        """
        context = cls.__new__(cls)
        context._parent = None
        context._tail = messages
        # The answer becomes a Message only when it is read: most attempts are never looked at again.
        context._answer = answer
        if answer is None:
            context._all = messages
            context._count = len(messages)
            context.chars = chars
        else:
            context._all = None
            context._count = len(messages) + 1
            context.chars = chars + len(answer)
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
            return (*self._tail, Message("assistant", self._answer), message)
        return (*self.messages, message)

    def _collect(self) -> tuple[Message, ...]:
        if self._answer is not None:
            return (*self._tail, Message("assistant", self._answer))
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


def _frozen_mapping(mapping: object) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise wrong_type("extra", mapping, "a mapping of option names to values")
    # A copy, so that later changes to the caller's dict have no effect.
    frozen = dict(cast("Mapping[str, Any]", mapping))
    for name in frozen:
        check_str("a name in extra", name, empty=False)
    return MappingProxyType(frozen)


def _stop_words(stop: object) -> tuple[str, ...]:
    words = check_items("stop", stop, "a sequence of str, such as ('\\n',)")
    for word in words:
        check_str("an item of stop", word)
    return words


@attrs.frozen
class Options:
    """Generation options. None leaves the choice to the backend."""

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] = attrs.field(default=(), converter=_stop_words)
    # hash=False here and below: dicts can't be hashed.
    schema: Any = attrs.field(default=None, hash=False)
    """A JSON schema or a model class for the answer, for backends that support constrained decoding."""

    extra: Mapping[str, Any] = attrs.field(factory=dict[str, Any], converter=_frozen_mapping, hash=False)
    """Further options, passed to the backend unchanged."""

    def __attrs_post_init__(self) -> None:
        if self.model is not None:
            check_str("model", self.model, empty=False)
        if self.temperature is not None:
            check_number("temperature", self.temperature, least=0)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, least=1)
        if self.seed is not None:
            check_int("seed", self.seed)

    def overlaid(self, other: "Options | None") -> "Options":
        """Return these options, overridden by those that `other` sets."""
        if other is None:
            return self
        changes: dict[str, Any] = {
            name: value
            for name in ("model", "temperature", "max_tokens", "seed", "schema")
            if (value := getattr(other, name)) is not None
        }
        if other.stop:
            changes["stop"] = other.stop
        if other.extra:
            changes["extra"] = {**self.extra, **other.extra}
        return attrs.evolve(self, **changes)


# init=False: the overloads of __init__ infer `T` from the parser, which attrs can't do.
@attrs.frozen(init=False)
class Action(Generic[T]):
    """
    A prompt, with a parser for its answer.

    Without a parser, the value is the text of the answer. A parser is a function of that text,
    or a type to read from JSON: a pydantic model, an attrs class, a dataclass, a typed dict,
    or a container such as `list[Flight]`. The schema of a type is sent to backends that support constrained decoding.
    Answers are parsed and checked even if the backend constrains them.
    """

    text: str
    parser: Callable[[str], T] | None = None
    schema: Any = attrs.field(default=None, hash=False, repr=False)
    """The default of `Options.schema` for this action. The caller's options take precedence."""

    @overload
    def __init__(self: "Action[str]", text: str, parser: None = None, *, schema: Any = None) -> None: ...
    @overload
    def __init__(self, text: str, parser: type[T], *, schema: Any = None) -> None: ...
    @overload
    def __init__(self, text: str, parser: Callable[[str], T], *, schema: Any = None) -> None: ...
    def __init__(self, text: str, parser: type[T] | Callable[[str], T] | None = None, *, schema: Any = None) -> None:
        check_str("text", text)
        if parser is not None:
            if is_output_type(parser):
                reader = reader_for(parser)
                parser, schema = reader, reader.schema if schema is None else schema
            else:
                _check_parser(parser)
        self.__attrs_init__(text, parser, schema)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def with_text(self, text: str) -> "Action[T]":
        """Return an action with another prompt and the same parser."""
        other = object.__new__(type(self))
        # Bypass __init__: the parser was checked when this action was created.
        other.__attrs_init__(check_str("text", text), self.parser, self.schema)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return other

    def parse(self, text: str) -> T:
        """
        Parse the text of an answer.

        Exceptions of the parser propagate.
        """
        return cast("T", text) if self.parser is None else self.parser(text)


def _check_parser(parser: object) -> None:
    if not callable(parser):
        raise wrong_type("parser", parser, "a function of the answer's text, a type to read from JSON, or None")
    if iscoroutinefunction(parser) or iscoroutinefunction(getattr(parser, "__call__", None)):  # noqa: B004
        raise TypeError(
            f"parser must be a plain function, got the async {short_repr(parser)}. Move what it awaits into a check."
        )


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
        return self.context.chars + len(self.action.text)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, followed by the action as a user message."""
        messages = self._messages
        if messages is None:
            messages = self.context.messages_with(Message("user", self.action.text))
            # Cached: a strategy may make the same attempt many times.
            object.__setattr__(self, "_messages", messages)
        return messages


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
        if type(self.sampling_id) is not str or type(self.iteration_id) is not str:
            self._check_ids()
        if self.idempotency_key is not None and type(self.idempotency_key) is not str:
            self._check_ids()

    def _check_ids(self) -> None:
        check_str("sampling_id", self.sampling_id)
        check_int("iteration", self.iteration, least=1)
        check_str("iteration_id", self.iteration_id)
        check_int("subsample", self.subsample, least=0)
        check_int("attempt", self.attempt, least=0)
        if self.idempotency_key is not None:
            check_str("idempotency_key", self.idempotency_key)


@attrs.frozen
class Generation:
    """The answer of a backend."""

    text: str
    usage: Usage = NO_USAGE
    finish_reason: str = "stop"
    """The reason why it ended: "stop", "length", "content_filter", … Checks read `view.generation.finish_reason`."""

    model: str | None = None
    reasoning: str | None = attrs.field(default=None, kw_only=True)
    """The reasoning that came before the answer, if the backend returns it. Not part of `text`."""

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
