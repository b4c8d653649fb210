"""The call: the arguments and ids that are fixed when `sample()` starts."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs

from sampling._engine.scope import Scope
from sampling._frozen import quick
from sampling.budgets import Budget, Reservation
from sampling.hooks import Emitter
from sampling.messages import Attempt, Context, Generation, Options, Request
from sampling.protocols import BackendLike, Decisions, Variation
from sampling.requirements import Requirement
from sampling.results import Slice

__all__ = ["Call", "whole_nanoseconds"]

T = TypeVar("T")


@quick
@attrs.frozen(kw_only=True)
class Call(Generic[T]):
    """The arguments of one `sample()`, its ids, and the decisions that its strategy makes."""

    sampling_id: str
    parent_id: str | None
    item: Scope | None
    """The item of a fan-out that the call is made for."""

    item_call_name: str | None
    """The name of this call among those of its item."""

    clock: Callable[[], float]
    """The clock of the event loop, in seconds."""

    cancelled: type[BaseException]
    """The exception that the event loop raises in a cancelled task."""

    started_at: float
    """The start of the call, on its clock."""

    strategy: Decisions[T]
    first: Attempt[T]
    """The attempt that every subsample starts with."""

    backend: BackendLike
    generate: Callable[[Request], Awaitable[Generation | str]]
    ask: Callable[[Request], Awaitable[Generation | str]]
    """Generates for judges: with the caller's backend, even if the strategy wraps it for the answers."""

    requirements: tuple[Requirement, ...]
    partial: tuple[Requirement, ...]
    """The requirements that check a text while it streams in. Empty if the backend cannot stream."""

    streamed: bool
    """Whether a requirement or a hook reads the text while it grows."""

    needs_view: bool
    """Whether a requirement looks at more than the text of the answer."""

    options: Options
    loop_budget: int
    concurrency_budget: int
    deterministic: bool
    budget: Budget | None
    holding: tuple[Reservation, ...]
    """The reservations of the attempts around this call."""

    validation_ctx: Context | None
    emitter: Emitter
    overridden: frozenset[str]
    """The optional methods that the strategy overrides. The engine skips the others."""

    # None for a decision that is the default one: calling it costs 1 to 12 % of an attempt's instructions.
    done: Callable[[Sequence[Slice[T]]], bool] | None = None
    repair: Callable[[Sequence[Slice[T]]], Attempt[T]] | None = None
    vary: Variation | None = None
    should_continue: Callable[[Sequence[Slice[T]]], bool] | None = None

    def ids_of(self, source: Request | Slice[T]) -> dict[str, Any]:
        """Return the ids of an attempt, for its events."""
        return {
            "sampling_id": self.sampling_id,
            "parent_id": self.parent_id,
            "strategy": type(self.strategy).__name__,
            "iteration": source.iteration,
            "iteration_id": source.iteration_id,
            "subsample": source.subsample,
            "attempt": source.attempt,
        }

    @property
    def in_turn(self) -> bool:
        """Whether requests are made one after the other: what is left of a budget must not depend on timing."""
        return self.deterministic and self.budget is not None and self.budget.limits_spending

    def elapsed_s(self) -> float:
        """Return the seconds since the start of the call."""
        return whole_nanoseconds(self.clock() - self.started_at)


def whole_nanoseconds(seconds: float) -> float:
    """
    Round a duration to nanoseconds.

    More digits would be noise, and take twice as long to print and to store.
    """
    return int(seconds * 1e9 + 0.5) / 1e9
