"""The parts that all layers share. Each layer is a backend that wraps a backend."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, cast

import attrs

from sampling._engine import scope as identity
from sampling._event_loop import as_exception
from sampling._observers.requests import is_observed_inside, observers, send
from sampling.errors import UnexpectedCancellation
from sampling.messages import Generation, Request
from sampling.protocols import BackendFunction, BackendLike, as_generation, generate_of
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "Layer",
    "Receive",
    "TrackedReceiver",
    "UsageMeter",
    "call_backend",
    "forget_text",
    "is_restartable",
    "iter_backends",
    "pass_on_text",
]

Receive: TypeAlias = Callable[[str], None]
"""A callback that takes the text of a stream, piece by piece."""


class Layer:
    """
    A backend that wraps one or more others.

    A subclass implements `_answer`. This class provides `generate` and `stream` on top of it,
    and `async with layer` opens and closes the inner backends that are async context managers.
    If an inner backend can't stream, its text is passed on as one piece.
    """

    observed_inside: Literal[True] = True
    """Requests are observed where they are sent, because a layer may send none or several."""

    def __init__(self, *inner: BackendLike) -> None:
        for backend in inner:
            generate_of(backend)  # raises TypeError if it is not a backend
        self.inner = inner
        """The backends that this layer wraps."""

        self._open: AsyncExitStack | None = None

    @property
    def reports_cost(self) -> bool | None:
        """True or False if all inner backends are known to report a cost, or not to. None if unknown."""
        known = {getattr(backend, "reports_cost", None) for backend in self.inner}
        return known.pop() if len(known) == 1 else None

    async def generate(self, request: Request) -> Generation:
        """Return the whole answer."""
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Return the answer, and pass each new piece of text to `receive`."""
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise RuntimeError(f"{self!r} is open already: open it once, and share it")
        # If a later backend fails to open, leaving this stack closes the earlier ones. `pop_all` keeps them open.
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
        """Return the settings to show in the repr."""
        return {}

    def __repr__(self) -> str:
        parts = [_backend_name(backend) for backend in self.inner]
        parts += [f"{name}={value!r}" for name, value in self._settings().items()]
        return f"{type(self).__name__}({', '.join(parts)})"


@attrs.define
class TrackedReceiver:
    """
    A receiver that remembers the pieces it passed on.

    A layer must not start over after the first piece, unless the receiver can take back what it has seen.
    """

    _receive: Receive
    pieces: list[str] = attrs.field(factory=list[str])
    cut: bool = False
    """True once the caller's receiver raised, which is how it stops a stream."""

    passed_on: bool = False
    """True if text was passed on that was not the answer."""

    @property
    def restartable(self) -> bool:
        """True if the receiver can take text back."""
        return is_restartable(self._receive)

    @property
    def committed(self) -> bool:
        """True once the caller stopped the stream, or any text was passed on that can't be taken back."""
        return self.cut or ((self.passed_on or bool(self.pieces)) and not self.restartable)

    def restart(self) -> None:
        """Forget the pieces so far, if there are any, and tell the receiver."""
        if self.pieces:
            self.pieces = []
            self.passed_on = True
            forget_text(self._receive)

    def __call__(self, piece: str) -> None:
        """Pass a piece on."""
        self.pieces.append(piece)
        try:
            self._receive(piece)
        except BaseException:
            self.cut = True
            raise


def is_restartable(receive: Receive) -> bool:
    """Return whether a receiver can take back text that it has seen, as those of the engine can."""
    return bool(getattr(receive, "restartable", False))


def forget_text(receive: Receive) -> None:
    """Tell a receiver that the text so far was not the answer, if it can forget it."""
    forget = getattr(receive, "restart", None)
    if callable(forget):
        forget()


class UsageMeter:
    """
    Captures the usage that a backend reports, and passes it on.

    This includes backends that fail or are cancelled. The usage of earlier requests, such as a failed try, is given
    as `before` and is added to the usage that is passed on.
    """

    __slots__ = ("_before", "_entered", "_scope")

    def __init__(self, before: Usage = NO_USAGE) -> None:
        self._before = before
        self._scope: identity.Scope | None = None

    def __enter__(self) -> Self:
        self._scope = identity.part_of_current()
        if self._scope is not None:
            self._entered = identity.enter_part(self._scope)
        return self

    @property
    def used(self) -> Usage | None:
        """The reported usage plus that of earlier requests, or None."""
        reported = None if self._scope is None else self._scope.reported
        if reported is None:
            return self._before if self._before != NO_USAGE else None
        return self._before + reported

    def __exit__(self, *_: object) -> None:
        if self._scope is not None:
            identity.leave_part(self._entered)
            if self.used is not None:
                identity.report_usage(self.used)


async def call_backend(backend: BackendLike, request: Request, receive: Receive | None) -> Generation:
    """
    Call any kind of backend.

    Stream the text if there is a receiver.
    """
    stream = None if receive is None else getattr(backend, "stream", None)
    if receive is not None and stream is not None:
        return await _observed(backend, request, lambda request: stream(request, receive))
    generation = await _observed(backend, request, generate_of(backend))
    if receive is not None:
        pass_on_text(generation, receive)
    return generation


async def _observed(backend: BackendLike, request: Request, answer: BackendFunction) -> Generation:
    """Send a request, and notify the observers if there are any."""
    try:
        if observers() and not is_observed_inside(backend):
            return await send(backend, request, answer)
        return as_generation(await answer(request))
    except Exception:
        raise
    except BaseException as error:
        # A cancellation that nobody requested is a transient error for the layers, too.
        raise as_exception(error, UnexpectedCancellation) from error  # noqa: ASYNC104 - it raises a requested one


def pass_on_text(generation: Generation, receive: Receive, pieces: Iterable[str] | None = None) -> None:
    """
    Pass the text of a complete answer to a receiver.

    The usage is reported first: it is spent even if the receiver raises.
    """
    identity.report_usage(generation.usage)
    for piece in (generation.text,) if pieces is None else pieces:
        if piece:
            receive(piece)


def iter_backends(backend: object) -> Iterator[object]:
    """Yield a backend and all backends inside of it, depth first."""
    yield backend
    if isinstance(backend, Layer):
        for inner in backend.inner:
            yield from iter_backends(inner)


def _backend_name(backend: object) -> str:
    return getattr(backend, "__qualname__", None) or repr(backend)
