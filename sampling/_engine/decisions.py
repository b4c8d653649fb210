"""Ask a strategy for its decisions, and hold it to what it may answer."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sampling._arguments import shown, wrong_type
from sampling.errors import ContextTooLarge, SelectionFailed
from sampling.messages import Attempt
from sampling.protocols import Decisions, Progress, Stage, Variation
from sampling.results import SamplingResult, Slice

__all__ = ["failure_of", "is_enough", "is_settled", "next_stage", "repaired", "selected", "varied", "wait_for_next_s"]

T = TypeVar("T")


def repaired(strategy: Decisions[T], history: Sequence[Slice[T]], max_context_chars: int) -> Attempt[T]:
    """Return what the strategy wants to try next; anything but an attempt of bearable size is an error."""
    plan: object = strategy.repair(history)
    if not isinstance(plan, Attempt):
        raise wrong_type(f"what {_name_of(strategy.repair)} returns", plan, "an Attempt(action, context)")
    if plan.context.chars > max_context_chars:
        raise ContextTooLarge(plan.context.chars, max_context_chars)
    return plan


def varied(vary: Variation, plan: Attempt[T], subsample: int, attempt: int) -> Attempt[T]:
    """Return what is really tried in this subsample; anything but an attempt is an error."""
    own: object = vary(plan, subsample, attempt)
    if not isinstance(own, Attempt):
        raise wrong_type(f"what {_name_of(vary)} returns", own, "an Attempt(action, context)")
    return own  # pyright: ignore[reportUnknownVariableType]


def is_enough(strategy: Decisions[T], slices: Sequence[Slice[T]]) -> bool:
    """Return whether the strategy says that the call may stop."""
    return _yes_or_no(strategy.done, _decision(strategy.done, slices, slices), slices)


def is_settled(strategy: Decisions[T], progress: Progress[T]) -> bool:
    """Return whether the strategy says that the call may stop, as far as it is now."""
    return _yes_or_no(strategy.settled, _decision(strategy.settled, progress.slices, progress), progress.slices)


def wait_for_next_s(strategy: Decisions[T], progress: Progress[T]) -> float:
    """Return in how many seconds the strategy wants one more subsample to start; inf for not as things are."""
    decide = strategy.next_subsample_in_s
    wait_s = _decision(decide, progress.slices, progress)
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or math.isnan(wait_s):
        raise SelectionFailed(f"{_name_of(decide)} returned {shown(wait_s)}, not a number of seconds", progress.slices)
    return wait_s


def next_stage(
    strategy: Decisions[T], first: Attempt[T], results: Sequence[SamplingResult[T]], slices: Sequence[Slice[T]]
) -> Stage[T] | None:
    """Return the call that the strategy wants to be made next, or None if there is none."""
    stage = _decision(strategy.next_stage, slices, first, results)
    if stage is not None and not isinstance(stage, Stage):
        raise SelectionFailed(f"{_name_of(strategy.next_stage)} returned {shown(stage)}, not a Stage or None", slices)
    return stage  # pyright: ignore[reportUnknownVariableType]


def selected(decide: Callable[[Sequence[Slice[T]]], Slice[T]], slices: Sequence[Slice[T]]) -> Slice[T]:
    """Return the slice that the strategy chooses with `decide`, which must be one of those given."""
    chosen: object = _decision(decide, slices, slices)
    for candidate in slices:
        if candidate is chosen:
            return candidate
    raise SelectionFailed(f"{_name_of(decide)} returned {shown(chosen)}, not one of the slices it was given", slices)


def failure_of(errors: Sequence[tuple[str, Exception]], fatal: Exception | None) -> Exception:
    """Return what to raise when no attempt came to an answer: the fatal failure, else the first, from all of them."""
    for iteration_id, error in errors:
        note = f"iteration {iteration_id}"
        if note not in getattr(error, "__notes__", ()):
            # A stage of the call may have said so already.
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
        raise SelectionFailed(f"{_name_of(decide)} returned {shown(answer)}, not True or False", slices)
    return answer


def _decision(decide: Callable[..., Any], slices: Sequence[Slice[Any]], *seen: object) -> object:
    """Ask; what is raised is told together with the slices that there are."""
    try:
        return decide(*seen)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise SelectionFailed(f"{_name_of(decide)} raised {error!r}", slices) from error


def _name_of(method: Callable[..., Any]) -> str:
    return f"{getattr(method, '__qualname__', repr(method))}()"
