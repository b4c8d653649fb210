"""Every seam of the library, on one page."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import attrs

from sampling._arguments import wrong_type
from sampling.messages import Attempt, Generation, Options, Request
from sampling.results import SamplingResult, Slice

__all__ = [
    "Backend",
    "BackendFunction",
    "BackendLike",
    "Decisions",
    "Progress",
    "Running",
    "Stage",
    "StreamingBackend",
    "Variation",
    "as_generation",
    "generate_of",
]

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


@attrs.frozen
class Running:
    """An attempt that has not ended yet."""

    subsample: int
    attempt: int
    started_s: float
    """Seconds from the start of the call."""


@attrs.frozen(kw_only=True)
class Progress(Generic[T]):
    """How far a call is, for decisions that need more than its slices."""

    slices: Sequence[Slice[T]]
    """What `done` would see."""

    attempts: Sequence[Slice[T]]
    """Every attempt that has ended, errored ones too, in the order in which they ended."""

    started: int
    """How many subsamples have started: these are the ones from 0 to `started - 1`."""

    running: tuple[Running, ...]
    """What is being tried right now, one for each subsample that is at it."""

    ended: frozenset[int]
    """The subsamples that will add nothing more."""

    loop_budget: int
    concurrency_budget: int
    """Both as the call has them, after its hooks."""

    now_s: float
    """Seconds from the start of the call."""


Variation: TypeAlias = Callable[[Attempt[Any], int, int], Attempt[Any]]
"""Makes subsamples differ: `variation(plan, subsample, attempt)` returns what is really tried."""


@attrs.frozen(kw_only=True)
class Stage(Generic[T]):
    """A call inside a call: what a strategy's `next_stage` returns."""

    strategy: Any
    """The `BaseSamplingStrategy` that makes it, with its own budgets, requirements and hooks."""

    first: Attempt[T]
    """What it asks first."""

    backend: BackendLike | None = None
    """Who answers; None for the backend of the call."""

    options: Options | None = None
    """Put over the options of the call, for this stage only."""

    should_continue: Callable[[Sequence[Slice[T]]], bool] | None = None
    """Asked besides the strategy's own `should_continue`: both must agree that a subsample goes on."""


class Decisions(Protocol[T]):
    """
    What a strategy decides. Each decision is pure and synchronous: the engine does all the waiting.

    The docstrings of `BaseSamplingStrategy` say what each one means.
    """

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]: ...

    def done(self, slices: Sequence[Slice[T]]) -> bool: ...

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...

    def should_continue(self, history: Sequence[Slice[T]]) -> bool: ...

    def settled(self, progress: Progress[T]) -> bool: ...

    def next_subsample_in_s(self, progress: Progress[T]) -> float: ...

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None: ...

    def learn(self, attempts: Sequence[Slice[T]]) -> None: ...
