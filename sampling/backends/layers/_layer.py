"""The parts that all layers share. Each layer is a backend that wraps a backend."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import attrs

from sampling._engine import scope as identity
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike, as_generation, generate_of
from sampling.usage import Usage

__all__ = ["NOTHING", "Delivery", "Layer", "Metered", "Receive", "ask", "deliver", "everything_in"]

NOTHING = Usage()
"""What costs nothing."""

Receive: TypeAlias = Callable[[str], None]
"""What takes the text of a stream, piece by piece."""


class Layer:
    """
    A backend around one or more others.

    A subclass says in `_answer` how it answers. Everything else is done here: the text comes whole or as a stream,
    as the caller wants it, and `async with layer` opens and closes what is inside, if that can be opened.
    The text of a backend that does not stream comes as one piece.
    """

    def __init__(self, *inner: BackendLike) -> None:
        for backend in inner:
            generate_of(backend)  # raises if it is none
        self.inner = inner
        """What this layer is around."""

        self._open: AsyncExitStack | None = None

    async def generate(self, request: Request) -> Generation:
        """Answer with the whole text."""
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Answer, and hand the text over as it grows."""
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise RuntimeError(f"{self!r} is open already: open it once, and share it")
        async with AsyncExitStack() as stack:
            for backend in self.inner:
                if isinstance(backend, AbstractAsyncContextManager):
                    await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", backend))
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack, self._open = self._open or AsyncExitStack(), None
        await stack.__aexit__(kind, error, traceback)  # noqa: ASYNC102 - what is inside shields its own cleanup

    def _settings(self) -> dict[str, object]:
        """Return what makes this layer differ from another of its kind, for its repr."""
        return {}

    def __repr__(self) -> str:
        parts = [_name_of(backend) for backend in self.inner]
        parts += [f"{name}={value!r}" for name, value in self._settings().items()]
        return f"{type(self).__name__}({', '.join(parts)})"


@attrs.define
class Delivery:
    """A receiver that remembers what it handed on: text that is out can't be taken back."""

    _receive: Receive
    pieces: list[str] = attrs.field(factory=list[str])
    cut: bool = False
    """Whether the receiver has seen enough, and said so by raising."""

    @property
    def begun(self) -> bool:
        """True once any text was passed on."""
        return bool(self.pieces)

    def __call__(self, piece: str) -> None:
        """Hand a piece on."""
        self.pieces.append(piece)
        try:
            self._receive(piece)
        except BaseException:
            self.cut = True
            raise


class Metered:
    """
    Sees what a backend reports to have used, also when it fails or is cancelled, and passes it on.

    To what is passed on, it adds what was used `before`: by an earlier try, say, that failed.
    """

    __slots__ = ("_before", "_entered", "_place")

    def __init__(self, before: Usage = NOTHING) -> None:
        self._before = before
        self._place: identity.Scope | None = None

    def __enter__(self) -> Self:
        self._place = identity.part_of_current()
        if self._place is not None:
            self._entered = identity.enter_part(self._place)
        return self

    @property
    def used(self) -> Usage | None:
        """The reported usage plus that of earlier requests, or None."""
        reported = None if self._place is None else self._place.reported
        if reported is None:
            return self._before if self._before != NOTHING else None
        return self._before + reported

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            identity.leave_part(self._entered)
            if self.used is not None:
                identity.report_usage(self.used)


async def ask(backend: BackendLike, request: Request, receive: Receive | None) -> Generation:
    """Ask any kind of backend, for the whole text or, if there is someone to receive it, for a stream."""
    stream = None if receive is None else getattr(backend, "stream", None)
    if receive is not None and stream is not None:
        return as_generation(await stream(request, receive))
    generation = as_generation(await generate_of(backend)(request))
    if receive is not None:
        deliver(generation, receive)
    return generation


def deliver(generation: Generation, receive: Receive, pieces: Iterable[str] | None = None) -> None:
    """Pass on the text of a complete answer. It counts as spent even if the receiver raises."""
    identity.report_usage(generation.usage)
    for piece in (generation.text,) if pieces is None else pieces:
        if piece:
            receive(piece)


def everything_in(backend: object) -> Iterator[object]:
    """Go through a backend and all that is inside of it."""
    yield backend
    if isinstance(backend, Layer):
        for inner in backend.inner:
            yield from everything_in(inner)


def _name_of(backend: object) -> str:
    return getattr(backend, "__qualname__", None) or repr(backend)
