"""Every seam of the library, on one page."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from sampling._arguments import wrong_type
from sampling.messages import Attempt, Generation, Request
from sampling.results import Slice

__all__ = ["Backend", "BackendFunction", "BackendLike", "Decisions", "StreamingBackend", "as_generation", "generate_of"]

T = TypeVar("T")


@runtime_checkable
class Backend(Protocol):
    """Anything that turns a `Request` into a `Generation`."""

    async def generate(self, request: Request) -> Generation:
        """
        Answer one request.

        Raise `TransientError` for what may pass on another try, and `FatalError` for what never will.
        When cancelled, stop generating for real before letting the cancellation through:
        no task, socket or server slot may be left working. Report what was used by then with `report_usage`.
        """
        ...


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that can also hand the text over while it grows."""

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        """
        Answer one request, and give every new piece of text to `receive` as it comes.

        What `receive` raises stops the generation, for real, and comes through.
        (Text is pushed and not iterated over: an async generator that holds a connection
        open can't promise to close it when its consumer walks away.)
        """
        ...


BackendFunction: TypeAlias = Callable[[Request], Awaitable[Generation | str]]
"""A plain `async def` that answers a request is a backend too."""

BackendLike: TypeAlias = Backend | BackendFunction


def generate_of(backend: object) -> Callable[[Request], Awaitable[Generation | str]]:
    """Return the function that answers: the `generate` of a backend, or the backend itself if it is a function."""
    if isinstance(backend, type):
        raise TypeError(f"backend must be an instance, got the class {backend.__name__}: call it first")
    generate = getattr(backend, "generate", backend)
    if not callable(generate):
        allowed = "a Backend with `async def generate(request)`, or an async function of one request"
        raise wrong_type("backend", backend, allowed)
    return cast("Callable[[Request], Awaitable[Generation | str]]", generate)


def as_generation(answer: object) -> Generation:
    """Return what a backend answered as a generation; a plain text is one too."""
    if isinstance(answer, Generation):
        return answer
    if isinstance(answer, str):
        return Generation(answer)
    raise wrong_type("what the backend returns", answer, "a Generation or a str")


class Decisions(Protocol[T]):
    """
    What a strategy decides. Each decision is pure and synchronous: the engine does all the waiting.

    The docstrings of `BaseSamplingStrategy` say what each one means.
    """

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]: ...

    def done(self, slices: Sequence[Slice[T]]) -> bool: ...

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...
