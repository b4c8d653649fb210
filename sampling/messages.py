"""What is asked, in which conversation, and what came back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast, final, get_args, overload

import attrs

from sampling._arguments import check_instance, check_int, check_items, check_number, check_str, shown, wrong_type
from sampling._output_types import is_shape, reader_of
from sampling.usage import NO_USAGE, Usage

__all__ = ["Action", "Attempt", "Context", "Generation", "Identity", "Message", "Options", "Request", "Role"]

T = TypeVar("T")

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Who says a message, as chat models know it."""

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
            # A list, for example, can't even be looked up.
            known = False
        if not known:
            raise ValueError(f"role must be one of {', '.join(sorted(_ROLES))}, got {shown(self.role)}")
        if not isinstance(self.content, str):
            raise wrong_type("content", self.content, "a str")


@final
class Context:
    """
    A conversation so far. It never changes: `add` returns a new one.

    Each context holds only its own messages and a link to the one it grew from,
    so `add` costs the same at the first turn and at the thousandth, and subsamples share their common past.
    """

    __slots__ = ("__weakref__", "_all", "_answer", "_count", "_parent", "_tail", "chars")

    chars: int
    """Characters in all messages together."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._parent: Context | None = None
        self._tail = _all_messages(check_items("messages", messages, "an iterable of Message"))
        self._answer: str | None = None
        self._all: tuple[Message, ...] | None = None
        self._count = len(self._tail)
        self.chars = sum(len(message.content) for message in self._tail)

    def add(self, *messages: Message) -> "Context":
        """Return a new context with these messages at its end."""
        grown = Context(messages)
        grown._parent = self
        grown._count += self._count
        grown.chars += self.chars
        return grown

    @classmethod
    def sent(cls, messages: tuple[Message, ...], chars: int, answer: str | None = None) -> "Context":
        """Make the context of what was sent, `chars` characters in all, and of the answer, if one came."""
        context = cls.__new__(cls)
        context._parent = None
        context._tail = messages
        # The answer becomes a message when it is read: most attempts are never looked at again.
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

    def messages_before(self, message: Message) -> tuple[Message, ...]:
        """Return all messages, and this one after them."""
        if self._all is None and self._answer is not None:
            # The tuple of this context alone may never be asked for.
            return (*self._tail, Message("assistant", self._answer), message)
        return (*self.messages, message)

    def _collect(self) -> tuple[Message, ...]:
        if self._answer is not None:
            return (*self._tail, Message("assistant", self._answer))
        # Walks up only to the nearest context that has its tuple already: in a growing conversation, the one before.
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
        # An empty conversation is still a conversation: `ctx or Context()` must not swap it.
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
        # The default would follow the links one by one, and a long conversation is deeper than the stack.
        return Context, (self.messages,)

    def __repr__(self) -> str:
        return f"Context({self._count} messages, {self.chars} characters)"


def _all_messages(messages: tuple[Any, ...]) -> tuple[Message, ...]:
    for message in messages:
        if type(message) is not Message:
            check_instance("an item of messages", message, Message, "a Message(role, content)")
    return messages


def _frozen_mapping(mapping: object) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise wrong_type("extra", mapping, "a mapping of option names to values")
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
    """How to generate. None leaves the choice to the backend."""

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] = attrs.field(default=(), converter=_stop_words)
    schema: Any = attrs.field(default=None, hash=False)
    """What the answer must look like, for backends that can constrain decoding: a JSON schema or a model class."""

    extra: Mapping[str, Any] = attrs.field(factory=dict[str, Any], converter=_frozen_mapping, hash=False)
    """Passed on as it is to backends that know more options."""

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
        """Return these options with what `other` sets put over them."""
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


@attrs.frozen(init=False)
class Action(Generic[T]):
    """
    What is asked: the text to send, and how to parse the answer into a `T`. Without a parser, `T` is the text.

    A parser is a function of the answer's text, or a class whose fields are read from JSON: a pydantic model,
    an attrs class, a dataclass or a typed dict, or a container such as `list[Flight]`. Of such a class,
    the schema goes to backends that can constrain decoding; the answer is parsed whatever the backend does with it.
    """

    text: str
    parser: Callable[[str], T] | None = None
    schema: Any = attrs.field(default=None, hash=False, repr=False)
    """What `Options.schema` is set to when this is asked, unless the caller's options set it."""

    @overload
    def __init__(self: "Action[str]", text: str, parser: None = None, *, schema: Any = None) -> None: ...
    @overload
    def __init__(self, text: str, parser: type[T], *, schema: Any = None) -> None: ...
    @overload
    def __init__(self, text: str, parser: Callable[[str], T], *, schema: Any = None) -> None: ...
    def __init__(self, text: str, parser: type[T] | Callable[[str], T] | None = None, *, schema: Any = None) -> None:
        check_str("text", text)
        if parser is not None:
            if is_shape(parser):
                reader = reader_of(parser)
                parser, schema = reader, reader.schema if schema is None else schema
            else:
                _check_parser(parser)
        self.__attrs_init__(text, parser, schema)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def with_text(self, text: str) -> "Action[T]":
        """Return an action that asks something else and parses the answer in the same way."""
        other = object.__new__(type(self))
        # The parser was looked at when this one was made.
        other.__attrs_init__(check_str("text", text), self.parser, self.schema)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return other

    def parse(self, text: str) -> T:
        """Turn the answer's text into a `T`; what the parser raises, comes through."""
        return cast("T", text) if self.parser is None else self.parser(text)


def _check_parser(parser: object) -> None:
    if not callable(parser):
        raise wrong_type("parser", parser, "a callable that takes the answer's text, a class to read, or None")
    if iscoroutinefunction(parser) or iscoroutinefunction(getattr(parser, "__call__", None)):  # noqa: B004
        raise TypeError(f"parser must be a plain function, got the async {shown(parser)}: await things in a check")


@attrs.frozen
class Attempt(Generic[T]):
    """The next thing to try in a subsample: what a strategy's `repair` returns."""

    action: Action[T]
    context: Context
    options: Options | None = None
    """Put over the options of the call, for this attempt only."""

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
        """How many characters are sent."""
        return self.context.chars + len(self.action.text)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What is sent: the conversation, and the action as the user's next message."""
        messages = self._messages
        if messages is None:
            messages = self.context.messages_before(Message("user", self.action.text))
            # Kept, for a strategy may try the very same attempt many times.
            object.__setattr__(self, "_messages", messages)
        return messages


@attrs.frozen
class Request:
    """One question to a backend, with the ids of the attempt that asks it."""

    messages: Sequence[Message]
    options: Options = Options()
    sampling_id: str = ""
    iteration: int = 1
    iteration_id: str = ""
    subsample: int = 0
    attempt: int = 0
    idempotency_key: str | None = None
    """For servers that know one: the same when an item of a fan-out is asked again after a crash; None elsewhere."""

    def __attrs_post_init__(self) -> None:
        messages = self.messages
        if not isinstance(messages, tuple):
            object.__setattr__(self, "messages", _all_messages(check_items("messages", messages, "Messages")))
        elif messages and type(messages[-1]) is not Message:
            # Only the last one is looked at: a conversation is a tuple already, and looking at all makes it O(n²).
            _all_messages(messages)
        if not isinstance(self.options, Options):
            raise wrong_type("options", self.options, "Options")
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
    """What a backend answered."""

    text: str
    usage: Usage = NO_USAGE
    finish_reason: str = "stop"
    """Why it ended: "stop", "length", "content_filter", … A check can see it as `view.generation.finish_reason`."""

    model: str | None = None
    reasoning: str | None = attrs.field(default=None, kw_only=True)
    """What a reasoning model thought before it answered, where the backend shows it. It is no part of the text."""

    def __attrs_post_init__(self) -> None:
        # One is made for every attempt, so this calls nothing that it need not call.
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
    """Where in which call the running code is. Between attempts, the four last fields are None."""

    sampling_id: str
    """One call of `sample()`: unique everywhere, and sorts by the time of the call."""

    parent_id: str | None = None
    """The iteration_id of the attempt that this call was made from, if it was made inside another call."""

    iteration: int | None = None
    """subsample * loop_budget + attempt + 1: unique inside the call."""

    iteration_id: str | None = None
    """One attempt: unique across calls, processes and machines."""

    subsample: int | None = None
    attempt: int | None = None
