"""What is asked, in which conversation, and what came back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast, final, get_args, overload

import attrs

from sampling._arguments import check_instance, check_int, check_items, check_number, check_str, shown, wrong_type
from sampling.usage import Usage

__all__ = ["Action", "Attempt", "Context", "Generation", "Message", "Options", "Request", "Role"]

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
        if self.role not in _ROLES:
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

    __slots__ = ("__weakref__", "_all", "_count", "_parent", "_tail", "chars")

    chars: int
    """Characters in all messages together."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        tail = check_items("messages", messages, "an iterable of Message")
        self._grow(None, _all_messages(tail))

    def _grow(self, parent: "Context | None", tail: tuple[Message, ...]) -> None:
        self._parent = parent
        self._tail = tail
        self._all: tuple[Message, ...] | None = None
        own_chars = sum(len(message.content) for message in tail)
        self._count = len(tail) + (parent._count if parent is not None else 0)
        self.chars = own_chars + (parent.chars if parent is not None else 0)

    def add(self, *messages: Message) -> "Context":
        """Return a new context with these messages at its end."""
        grown = Context.__new__(Context)
        grown._grow(self, _all_messages(messages))
        return grown

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        if self._all is None:
            self._all = self._collect()
        return self._all

    def _collect(self) -> tuple[Message, ...]:
        # Walks up only to the nearest context that has its tuple already: in a growing conversation, the one before.
        tails = [self._tail]
        node = self._parent
        while node is not None:
            if node._all is not None:
                tails.append(node._all)
                break
            tails.append(node._tail)
            node = node._parent
        if len(tails) == 2:
            return tails[1] + tails[0]
        return tuple(message for tail in reversed(tails) for message in tail)

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
            check_instance("messages", message, Message, "Message(role, content) objects")
    return messages


def _frozen_mapping(mapping: object) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise wrong_type("extra", mapping, "a mapping of option names to values")
    return MappingProxyType(dict(cast("Mapping[str, Any]", mapping)))


def _stop_words(stop: object) -> tuple[str, ...]:
    words = check_items("stop", stop, "a sequence of str, such as ('\\n',)")
    for word in words:
        check_str("stop", word)
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
    """What is asked: the text to send, and how to parse the answer into a `T`. Without a parser, `T` is the text."""

    text: str
    parser: Callable[[str], T] | None = None

    @overload
    def __init__(self: "Action[str]", text: str, parser: None = None) -> None: ...
    @overload
    def __init__(self, text: str, parser: Callable[[str], T]) -> None: ...
    def __init__(self, text: str, parser: Callable[[str], T] | None = None) -> None:
        check_str("text", text)
        if parser is not None and not callable(parser):
            raise wrong_type("parser", parser, "a callable that takes the answer's text, or None")
        if iscoroutinefunction(parser):
            raise TypeError(f"parser must be a plain function, got the async {shown(parser)}: await things in a check")
        self.__attrs_init__(text, parser)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def parse(self, text: str) -> T:
        """Turn the answer's text into a `T`; what the parser raises, comes through."""
        return cast("T", text) if self.parser is None else self.parser(text)


@attrs.frozen
class Attempt(Generic[T]):
    """The next thing to try in a subsample: what a strategy's `repair` returns."""

    action: Action[T]
    context: Context
    options: Options | None = None
    """Put over the options of the call, for this attempt only."""

    def __attrs_post_init__(self) -> None:
        check_instance("action", self.action, Action, "an Action")
        check_instance("context", self.context, Context, "a Context")
        if self.options is not None:
            check_instance("options", self.options, Options, "Options or None")


@attrs.frozen
class Request:
    """One question to a backend, with the ids of the attempt that asks it."""

    messages: tuple[Message, ...] = attrs.field(converter=tuple)
    options: Options = Options()
    sampling_id: str = ""
    iteration: int = 1
    iteration_id: str = ""
    subsample: int = 0
    attempt: int = 0

    def __attrs_post_init__(self) -> None:
        check_instance("options", self.options, Options, "Options")


@attrs.frozen
class Generation:
    """What a backend answered."""

    text: str
    usage: Usage = Usage()
    finish_reason: str = "stop"
    """Why it ended: "stop", "length", "content_filter", … A check can see it as `view.generation.finish_reason`."""

    model: str | None = None

    def __attrs_post_init__(self) -> None:
        check_str("text", self.text)
        check_instance("usage", self.usage, Usage, "a Usage")
