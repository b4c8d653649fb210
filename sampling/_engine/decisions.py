"""Call the decisions of a strategy, check what they return, and decide what an error ends."""

import math
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from sampling._arguments import short_repr, wrong_type
from sampling.errors import BadVerdict, ContextTooLarge, FatalError, SamplingError, SelectionFailed
from sampling.messages import Attempt
from sampling.protocols import Decisions, Progress, Stage, Variation
from sampling.results import SamplingResult, Slice

__all__ = [
    "TRACKED",
    "Ends",
    "count_votes",
    "ended_by",
    "failure_of",
    "is_done",
    "is_settled",
    "leaves",
    "next_stage",
    "repair",
    "select",
    "vary",
    "wait_for_next_s",
]

T = TypeVar("T")

TRACKED = frozenset({"settled", "next_subsample_in_s"})
"""The decisions that need the state of every subsample."""


class Ends(IntEnum):
    """The scope that an error ends, from the smallest to the largest."""

    ATTEMPT = 0
    SUBSAMPLE = 1
    EQUAL_REQUESTS = 2
    """Its subsample, and the call if every other subsample sends the same request."""
    CALL = 3
    PROCESS = 4
    """Not an error of an attempt: it passes through."""


def ended_by(error: BaseException) -> Ends:
    """Return what an error ends. A group counts as the worst of its leaves."""
    return max(map(_ended_by_leaf, leaves(error)))


def _ended_by_leaf(error: BaseException) -> Ends:
    if isinstance(error, MemoryError | RecursionError) or not isinstance(error, Exception):
        return Ends.PROCESS
    if isinstance(error, FatalError):
        return Ends.EQUAL_REQUESTS if error.about_request else Ends.CALL
    if isinstance(error, BadVerdict):
        return Ends.CALL
    return Ends.ATTEMPT if isinstance(error, SamplingError) and error.retryable else Ends.SUBSAMPLE


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the exceptions in a group, or the exception itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for part in error.exceptions:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        yield from leaves(part)  # pyright: ignore[reportUnknownArgumentType]


def repair(
    decide: Callable[[Sequence[Slice[T]]], Attempt[T]], history: Sequence[Slice[T]], max_context_chars: int
) -> Attempt[T]:
    """Return the next attempt of a subsample, or raise if it is invalid or its conversation is too long."""
    plan: object = decide(history)
    if not isinstance(plan, Attempt):
        raise wrong_type(f"what {_name_of(decide)} returns", plan, "an Attempt(action, context)")
    if plan.context.chars > max_context_chars:
        raise ContextTooLarge(plan.context.chars, max_context_chars)
    return plan  # pyright: ignore[reportUnknownVariableType]


def vary(decide: Variation, plan: Attempt[T], subsample: int, attempt: int) -> Attempt[T]:
    """Return the variant of an attempt for this subsample."""
    variant: object = decide(plan, subsample, attempt)
    if not isinstance(variant, Attempt):
        raise wrong_type(f"what {_name_of(decide)} returns", variant, "an Attempt(action, context)")
    return variant  # pyright: ignore[reportUnknownVariableType]


def is_done(strategy: Decisions[T], slices: Sequence[Slice[T]]) -> bool:
    """Return whether the strategy decides that the call may stop."""
    return _yes_or_no(strategy.done, _decision(strategy.done, slices, slices), slices)


def is_settled(strategy: Decisions[T], progress: Progress[T]) -> bool:
    """Return whether the strategy decides that the call may stop, given its state."""
    return _yes_or_no(strategy.settled, _decision(strategy.settled, progress.slices, progress), progress.slices)


def wait_for_next_s(strategy: Decisions[T], progress: Progress[T]) -> float:
    """Return the seconds until the next subsample starts. `math.inf` means: not until something changes."""
    decide = strategy.next_subsample_in_s
    wait_s = _decision(decide, progress.slices, progress)
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or math.isnan(wait_s):
        raise SelectionFailed(
            f"{_name_of(decide)} returned {short_repr(wait_s)}, not a number of seconds", progress.slices
        )
    return wait_s


def next_stage(
    strategy: Decisions[T], first: Attempt[T], results: Sequence[SamplingResult[T]], slices: Sequence[Slice[T]]
) -> Stage[T] | None:
    """Return the next stage of the strategy, or None after the last one."""
    stage = _decision(strategy.next_stage, slices, first, results)
    if stage is not None and not isinstance(stage, Stage):
        raise SelectionFailed(
            f"{_name_of(strategy.next_stage)} returned {short_repr(stage)}, not a Stage or None", slices
        )
    return stage  # pyright: ignore[reportUnknownVariableType]


def select(decide: Callable[[Sequence[Slice[T]]], Slice[T]], slices: Sequence[Slice[T]]) -> Slice[T]:
    """Return the slice that the strategy chooses, which must be one of those given."""
    # A copy, because the strategy may sort or clear what it is given.
    chosen: object = _decision(decide, slices, list(slices))
    for candidate in slices:
        if candidate is chosen:
            return candidate
    raise SelectionFailed(
        f"{_name_of(decide)} returned {short_repr(chosen)}, not one of the slices it was given", slices
    )


def count_votes(strategy: Decisions[T], slices: Sequence[Slice[T]]) -> tuple[float | None, float | None]:
    """Return the agreement and the margin that the strategy counts."""
    votes: Any = _decision(strategy.count_votes, slices, list(slices))
    try:
        agreement, margin = votes
    except (TypeError, ValueError):
        name = _name_of(strategy.count_votes)
        message = f"{name} returned {short_repr(votes)}, not a tuple of agreement and margin"
        raise SelectionFailed(message, slices) from None
    return agreement, margin


def failure_of(errors: Sequence[tuple[str, Exception]], fatal: Exception | None) -> Exception:
    """Return the exception of a call without an answer: the fatal error, else the first, caused by all of them."""
    for iteration_id, error in errors:
        note = f"iteration {iteration_id}"
        if note not in getattr(error, "__notes__", ()):
            # A stage of the call may have added it already.
            error.add_note(note)
    failures = [error for _, error in errors]
    failure = fatal or failures[0]
    if len(failures) > 1:
        group = ExceptionGroup(f"all {len(failures)} failed attempts", failures)
        # The failure's own cause stays in the chain, one link further up.
        group.__cause__ = failure.__cause__
        failure.__cause__ = group
    return failure


def _yes_or_no(decide: Callable[..., Any], answer: object, slices: Sequence[Slice[Any]]) -> bool:
    if type(answer) is not bool:
        raise SelectionFailed(f"{_name_of(decide)} returned {short_repr(answer)}, not True or False", slices)
    return answer


def _decision(decide: Callable[..., Any], slices: Sequence[Slice[Any]], *seen: object) -> object:
    """Call a decision, and turn its exceptions into a `SelectionFailed` with the slices so far."""
    try:
        return decide(*seen)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise SelectionFailed(f"{_name_of(decide)} raised {_repr_of(error)}", slices) from error


def _repr_of(error: Exception) -> str:
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the error
        return type(error).__name__


def _name_of(method: Callable[..., Any]) -> str:
    return f"{getattr(method, '__qualname__', repr(method))}()"
