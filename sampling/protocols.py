"""Interfaces of backends and strategies."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

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
    "can_stream",
    "generate_of",
]

T = TypeVar("T")


@runtime_checkable
class Backend(Protocol):
    """Anything that turns a `Request` into a `Generation`."""

    async def generate(self, request: Request) -> Generation:
        """
        Answer one request.

        Raise `TransientError` if another try may succeed, and `FatalError` if it can't.
        When cancelled, stop the generation before letting the cancellation through:
        leave no task, socket or server slot behind. Record the usage so far with `report_usage`.
        """
        ...


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that can stream its text."""

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        """
        Answer one request, and call `receive` with each new piece of text.

        If `receive` raises, stop the generation and let the exception through.
        This is a callback and not an async generator because a generator that holds a connection open
        can't guarantee to close it when its consumer stops iterating.
        """
        ...


BackendFunction: TypeAlias = Callable[[Request], Awaitable[Generation | str]]
"""An async function that answers a request. It can be used as a backend."""

BackendLike: TypeAlias = Backend | BackendFunction


def generate_of(backend: Any) -> Callable[[Request], Awaitable[Generation | str]]:
    """
    Return the function that answers requests.

    This is the `generate` method of a backend, or the backend itself if it is a function.
    """
    if isinstance(backend, type):
        raise TypeError(f"backend must be an instance, got the class {backend.__name__}. Create an instance first.")
    generate: BackendFunction = getattr(backend, "generate", backend)
    if not callable(generate):
        allowed = "a Backend with `async def generate(request)`, or an async function of one request"
        raise wrong_type("backend", backend, allowed)
    return generate


def can_stream(backend: object) -> bool:
    """Return whether a backend can stream its text."""
    return callable(getattr(backend, "stream", None))


def as_generation(answer: object) -> Generation:
    """Convert the return value of a backend to a Generation."""
    if isinstance(answer, Generation):
        return answer
    if isinstance(answer, str):
        return Generation(answer)
    raise wrong_type("the return value of the backend", answer, "a Generation or a str")


@attrs.frozen
class Running:
    """An attempt in progress."""

    subsample: int
    attempt: int
    started_s: float
    """Seconds from the start of the call."""


@attrs.frozen(kw_only=True)
class Progress(Generic[T]):
    """
    The state of a running call.

    For decisions that need more than its slices.
    """

    slices: Sequence[Slice[T]]
    """The attempts that were generated and validated, as passed to `done`."""

    attempts: Sequence[Slice[T]]
    """All attempts that have ended, including errored ones, in order of completion."""

    started: int
    """The number of subsamples that have started: those from 0 to `started - 1`."""

    running: tuple[Running, ...]
    """The attempts in progress, at most one per subsample."""

    ended: frozenset[int]
    """The subsamples that have ended."""

    loop_budget: int
    concurrency_budget: int
    """Both budgets are those of the call, after its hooks."""

    now_s: float
    """Seconds from the start of the call."""


Variation: TypeAlias = Callable[[Attempt[Any], int, int], Attempt[Any]]
"""A function that makes subsamples differ: `variation(plan, subsample, attempt)` returns the attempt to make."""


@attrs.frozen(kw_only=True)
class Stage(Generic[T]):
    """A nested call, as returned by a strategy's `next_stage`."""

    # Any, because BaseSamplingStrategy is defined in a layer above this one.
    strategy: Any
    """The `BaseSamplingStrategy` of the nested call, with its own budgets, requirements and hooks."""

    first: Attempt[T]
    """The first attempt of the nested call."""

    backend: BackendLike | None = None
    """The backend of this stage. None means the backend of the outer call."""

    options: Options | None = None
    """Override the options of the call, for this stage only."""

    should_continue: Callable[[Sequence[Slice[T]]], bool] | None = None
    """A second `should_continue`. A subsample continues only if this and the strategy's own return True."""


class Decisions(Protocol[T]):
    """
    The decisions of a strategy, and the settings that the engine reads when it needs them.

    Each decision is pure and synchronous. The engine does all the waiting.
    See `BaseSamplingStrategy` for their documentation.
    """

    accept_incomplete: bool
    check_timeout_s: float | None
    max_context_chars: int

    def repair(self, history: Sequence[Slice[T]]) -> Attempt[T]: ...

    def done(self, slices: Sequence[Slice[T]]) -> bool: ...

    def select(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...

    def select_from_failure(self, slices: Sequence[Slice[T]]) -> Slice[T]: ...

    def count_votes(self, slices: Sequence[Slice[T]]) -> tuple[float | None, float | None]: ...

    def should_continue(self, history: Sequence[Slice[T]]) -> bool: ...

    def settled(self, progress: Progress[T]) -> bool: ...

    def next_subsample_in_s(self, progress: Progress[T]) -> float: ...

    def next_stage(self, first: Attempt[T], results: Sequence[SamplingResult[T]]) -> Stage[T] | None: ...

    def learn(self, attempts: Sequence[Slice[T]]) -> None: ...
