"""Ask a strategy for its decisions, and hold it to what it may answer."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sampling._arguments import shown, wrong_type
from sampling.errors import ContextTooLarge, SelectionFailed
from sampling.messages import Attempt
from sampling.protocols import Decisions
from sampling.results import Slice

__all__ = ["failure_of", "is_enough", "repaired", "selected"]

T = TypeVar("T")


def repaired(strategy: Decisions[T], history: Sequence[Slice[T]], max_context_chars: int) -> Attempt[T]:
    """Return what the strategy wants to try next; anything but an attempt of bearable size is an error."""
    plan: object = strategy.repair(history)
    if not isinstance(plan, Attempt):
        raise wrong_type(f"what {_name_of(strategy.repair)} returns", plan, "an Attempt(action, context)")
    if plan.context.chars > max_context_chars:
        raise ContextTooLarge(plan.context.chars, max_context_chars)
    return plan


def is_enough(strategy: Decisions[T], slices: Sequence[Slice[T]]) -> bool:
    """Return whether the strategy says that the call may stop."""
    answer: object = _decision(strategy.done, slices)
    if type(answer) is not bool:
        raise SelectionFailed(f"{_name_of(strategy.done)} returned {shown(answer)}, not True or False", slices)
    return answer


def selected(decide: Callable[[Sequence[Slice[T]]], Slice[T]], slices: Sequence[Slice[T]]) -> Slice[T]:
    """Return the slice that the strategy chooses with `decide`, which must be one of those given."""
    chosen: object = _decision(decide, slices)
    for candidate in slices:
        if candidate is chosen:
            return candidate
    raise SelectionFailed(f"{_name_of(decide)} returned {shown(chosen)}, not one of the slices it was given", slices)


def failure_of(errors: Sequence[tuple[str, Exception]], fatal: Exception | None) -> Exception:
    """Return what to raise when no attempt came to an answer: the fatal failure, else the first, from all of them."""
    for iteration_id, error in errors:
        error.add_note(f"iteration {iteration_id}")
    failures = [error for _, error in errors]
    failure = fatal or failures[0]
    if len(failures) > 1:
        group = ExceptionGroup(f"all {len(failures)} failed attempts", failures)
        # The failure's own cause stays in the chain, one link further up.
        group.__cause__ = failure.__cause__
        failure.__cause__ = group
    return failure


def _decision(decide: Callable[[Sequence[Slice[T]]], Any], slices: Sequence[Slice[T]]) -> object:
    try:
        return decide(slices)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise SelectionFailed(f"{_name_of(decide)} raised {error!r}", slices) from error


def _name_of(method: Callable[..., Any]) -> str:
    return f"{getattr(method, '__qualname__', repr(method))}()"
