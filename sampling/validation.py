"""Put one answer to its requirements."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sampling.errors import BadVerdict, CheckTimeout, FatalError
from sampling.judge import judge
from sampling.messages import Action
from sampling.requirements import Requirement, Validation, View

__all__ = ["parse", "validate"]

T = TypeVar("T")

_MAX_BLOCKING_CHECKS = 32
_blocking_checks: RunVar[anyio.CapacityLimiter] = RunVar("sampling_blocking_checks")

PARSES = Requirement("the answer can be parsed")

Pending = tuple[int, Requirement, Callable[[], Awaitable[object]]]


def parse(action: Action[T], text: str) -> tuple[T | None, Validation | None]:
    """Parse the answer; a parser that raises is a failed requirement with that reason."""
    try:
        return action.parse(text), None
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a parser raises means that it can't be parsed
        reason = f"the answer can't be parsed: {str(error) or type(error).__name__}"
        return None, Validation(False, reason, requirement=PARSES, error=error)


async def validate(
    requirements: Sequence[Requirement], text: str, view: View, timeout_s: float | None
) -> tuple[Validation, ...]:
    """
    Ask every requirement: code checks all together, judges only if all of those passed.

    Raises only `BadVerdict`, and `FatalError` from a judge: what can't get better by trying again.
    """
    results: list[Validation | None] = [None] * len(requirements)
    pending: list[Pending] = []
    for index, requirement in enumerate(requirements):
        if not requirement.judged:
            results[index] = _start_check(index, requirement, text, view, pending)
    if pending:
        await _finish_checks(pending, results, timeout_s)
    if all(result is None or result.passed for result in results):
        judges: list[Pending] = [
            (index, requirement, partial(judge, requirement, text, view))
            for index, requirement in enumerate(requirements)
            if requirement.judged
        ]
        if judges:
            await _finish_checks(judges, results, None)
    return tuple([result for result in results if result is not None])


def _start_check(
    index: int, requirement: Requirement, text: str, view: View, pending: list[Pending]
) -> Validation | None:
    """Run a check as far as it goes without waiting; what needs to wait is added to `pending`."""
    check: Any = requirement.check
    arguments = (text, view) if requirement.takes_view else (text,)
    if requirement.blocking:
        pending.append((index, requirement, partial(_in_thread, requirement, partial(check, *arguments))))
        return None
    try:
        verdict = check(*arguments)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    if isawaitable(verdict):
        pending.append((index, requirement, lambda: verdict))
        return None
    return requirement.read_verdict(verdict)


async def _in_thread(requirement: Requirement, check: Callable[[], object]) -> object:
    try:
        limiter = _blocking_checks.get()
    except LookupError:
        # Not anyio's own limiter: checks that hang must not take the application's threads away.
        limiter = anyio.CapacityLimiter(_MAX_BLOCKING_CHECKS)
        _blocking_checks.set(limiter)
    # A thread can't be stopped. With a timeout it is left behind, still counted by the limiter; without, waited for.
    leave_behind = requirement.timeout_s is not None
    verdict = await anyio.to_thread.run_sync(check, abandon_on_cancel=leave_behind, limiter=limiter)
    return await verdict if isawaitable(verdict) else verdict


async def _finish_checks(pending: Sequence[Pending], results: list[Validation | None], timeout_s: float | None) -> None:
    unbearable: list[Exception] = []

    async def finish(index: int, requirement: Requirement, check: Callable[[], Awaitable[object]]) -> None:
        try:
            results[index] = await _finish_check(requirement, check, timeout_s)
        except (BadVerdict, FatalError, MemoryError, RecursionError) as error:
            unbearable.append(error)

    if len(pending) == 1:
        await finish(*pending[0])
    else:
        async with anyio.create_task_group() as group:
            for check in pending:
                group.start_soon(finish, *check)
    if unbearable:
        raise unbearable[0]


async def _finish_check(
    requirement: Requirement, check: Callable[[], Awaitable[object]], default_timeout_s: float | None
) -> Validation:
    # A thread that is waited for can't be timed out, so blocking checks have only the timeout of their own.
    limit_s = requirement.timeout_s or (None if requirement.blocking else default_timeout_s)
    try:
        if limit_s is None:
            return requirement.read_verdict(await check())
        with anyio.move_on_after(limit_s):
            return requirement.read_verdict(await check())
        return _broken(requirement, CheckTimeout(requirement.description, limit_s))
    except (BadVerdict, FatalError, MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)


def _broken(requirement: Requirement, error: Exception) -> Validation:
    if isinstance(error, BadVerdict):
        raise requirement.bad_verdict(str(error)) from error
    reason = f"{requirement.description} (the check itself failed: {type(error).__name__})"
    return Validation(False, reason, requirement=requirement, error=error)
