"""Put one answer to its requirements."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutine
from time import perf_counter
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sampling import _watchdog as watchdog
from sampling._engine.judge import Judge
from sampling.errors import BadVerdict, CheckTimeout, FatalError
from sampling.messages import Action
from sampling.requirements import Requirement, Validation, View

__all__ = [
    "Checking",
    "CutShort",
    "PartialText",
    "check",
    "first_error",
    "limiter_of_this_loop",
    "may_still_pass",
    "parse",
]

T = TypeVar("T")

_Said: TypeAlias = Validation | Awaitable[object] | None
"""What a requirement has said so far: the rest of a check has to be awaited; None for a judge that was not asked."""

PARSES = Requirement("the answer can be parsed")
PARSER_HINT = "Parse with a plain function; what has to be awaited goes into a check."

_MAX_BLOCKING_CHECKS = 32
_blocking_checks: RunVar[anyio.CapacityLimiter] = RunVar("sampling_blocking_checks")


def parse(action: Action[T], text: str) -> tuple[T | None, Validation | None]:
    """Parse the answer; a parser that raises is a failed requirement with that reason."""
    try:
        value = action.parse(text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a parser raises means that it can't be parsed
        reason = f"the answer can't be parsed: {str(error) or type(error).__name__}"
        return None, Validation(False, reason, requirement=PARSES)
    if iscoroutine(value):
        value.close()
        raise BadVerdict("the parser returned a coroutine: it must be a plain function", hint=PARSER_HINT)
    return value, None


class CutShort(Exception):
    """Stops a generation whose text can no longer pass."""

    def __init__(self, text: str, validation: Validation) -> None:
        super().__init__("the text can no longer pass")
        self.text = text
        self.validation = validation


class PartialText:
    """The text of an answer while it streams in. Adding a piece raises `CutShort` if the text can no longer pass."""

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._requirements = requirements
        self._text = ""
        self.cut: CutShort | None = None

    def add(self, piece: str) -> None:
        """Add a piece and ask the partial checks."""
        self._text += piece
        for requirement in self._requirements:
            verdict = may_still_pass(requirement, self._text)
            if verdict is not None and not verdict.passed:
                # Kept, too, for a backend that turns what it is interrupted with into an error of its own.
                self.cut = CutShort(self._text, verdict)
                raise self.cut


def may_still_pass(requirement: Requirement, text: str) -> Validation | None:
    """Ask the partial check of a requirement about a text that still grows; None if it has none."""
    if requirement.partial is None:
        return None
    try:
        verdict = requirement.partial(text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    return requirement.read_verdict(verdict)


def check(requirements: Sequence[Requirement], text: str, view: View | None) -> "tuple[Validation, ...] | Checking":
    """
    Put an answer to its requirements, as far as that needs no waiting.

    Returns what they said, in their order; or, if something has to be waited for or a judge asked, the rest of the way.
    Raises only `BadVerdict`, which can't get better by trying again.
    """
    said: list[_Said] = []
    finished = True
    try:
        for requirement in requirements:
            one = None if requirement.judged else _begin(requirement, text, view)
            said.append(one)
            if type(one) is not Validation:
                finished = False
    except BaseException:
        _close(said)
        raise
    return tuple(cast("list[Validation]", said)) if finished else Checking(requirements, text, view, said)


class Checking:
    """
    The rest of the way of an answer through its requirements: slow checks together, judges only if all else passed.

    Raises only `BadVerdict`, and `FatalError` from a judge: what can't get better by trying again.
    """

    def __init__(self, requirements: Sequence[Requirement], text: str, view: View | None, said: list[_Said]) -> None:
        self._requirements = requirements
        self._text = text
        self._view = view
        self._said = said

    async def finish(self, timeout_s: float | None) -> tuple[Validation, ...]:
        """
        Wait for the checks that take time, then ask the judges if there is still something to judge.

        Returns what was said, in the order of the requirements; a judge that was not asked is left out.
        """
        try:
            await self._wait(timeout_s)
            if all(one.passed for one in self._validations()):
                for index, requirement in enumerate(self._requirements):
                    if requirement.judged:
                        self._said[index] = _begin(requirement, self._text, self._view)
                # A model takes the time that its backend gives it: there is no default timeout.
                await self._wait(None)
        finally:
            self.close()
        return tuple(self._validations())

    def _validations(self) -> list[Validation]:
        return [one for one in self._said if isinstance(one, Validation)]

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for all that has begun, at once."""
        unbearable: list[Exception] = []

        async def finish(index: int, requirement: Requirement, rest: Awaitable[object]) -> None:
            try:
                self._said[index] = await _finish_check(requirement, rest, timeout_s)
            except (BadVerdict, FatalError, MemoryError, RecursionError) as error:
                unbearable.append(error)

        begun = zip(self._requirements, self._said, strict=True)
        waiting = [
            (index, requirement, one)
            for index, (requirement, one) in enumerate(begun)
            if one is not None and not isinstance(one, Validation)
        ]
        if len(waiting) == 1:
            await finish(*waiting[0])
        elif waiting:
            async with anyio.create_task_group() as group:
                for one in waiting:
                    group.start_soon(finish, *one)
        if unbearable:
            raise unbearable[0]

    def close(self) -> None:
        """End what will never be waited for."""
        _close(self._said)


def _begin(requirement: Requirement, text: str, view: View | None) -> Validation | Awaitable[object]:
    """Run a check as far as it goes without waiting, and return what it says, or the rest of it."""
    check: Any = requirement.check or Judge(requirement.description)
    if requirement.blocking:
        bound = partial(check, text, view) if requirement.takes_view else partial(check, text)
        return _in_thread(requirement, bound)
    started_s = perf_counter()
    try:
        verdict = check(text, view) if requirement.takes_view else check(text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    finally:
        # Asked here too, and not only there: it is asked after every single check.
        if perf_counter() - started_s > watchdog.BLOCKED_S:
            watchdog.warn_if_blocked(started_s, requirement.description)
    if type(verdict) is not bool and isawaitable(verdict):
        return verdict
    return requirement.read_verdict(verdict)


def _close(said: Iterable[_Said]) -> None:
    """Close the coroutines that a cancellation or a bad verdict kept from ever starting: Python warns of those."""
    for one in said:
        close = getattr(one, "close", None)
        if close is not None:
            close()


def first_error(failed: Iterable[Validation]) -> Exception | None:
    """Return what the first of these checks that raised, raised."""
    for validation in failed:
        if validation.error is not None:
            return validation.error
    return None


def limiter_of_this_loop(variable: RunVar[anyio.CapacityLimiter], tokens: int) -> anyio.CapacityLimiter:
    """Return the limiter that a variable of the running event loop holds, made when it is first needed."""
    limiter = variable.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(tokens)
        variable.set(limiter)
    return limiter


async def _in_thread(requirement: Requirement, check: Callable[[], object]) -> object:
    # Not anyio's own limiter: checks that hang must not take the application's threads away.
    limiter = limiter_of_this_loop(_blocking_checks, _MAX_BLOCKING_CHECKS)
    # A thread can't be stopped. With a timeout it is left behind, still counted by the limiter; without, waited for.
    leave_behind = requirement.timeout_s is not None
    # Boxed, since trio refuses a function that hands a coroutine out of a thread.
    [verdict] = await anyio.to_thread.run_sync(lambda: [check()], abandon_on_cancel=leave_behind, limiter=limiter)
    return await verdict if isawaitable(verdict) else verdict


async def _finish_check(
    requirement: Requirement, rest: Awaitable[object], default_timeout_s: float | None
) -> Validation:
    # A thread that is waited for can't be timed out, so blocking checks have only the timeout of their own.
    limit_s = requirement.timeout_s or (None if requirement.blocking else default_timeout_s)
    verdict: object = None
    try:
        if limit_s is None:
            verdict = await rest
        else:
            with anyio.move_on_after(limit_s) as scope:
                verdict = await rest
            if scope.cancelled_caught:
                return _broken(requirement, CheckTimeout(requirement.description, limit_s))
    except (FatalError, MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    return requirement.read_verdict(verdict)


def _broken(requirement: Requirement, error: Exception) -> Validation:
    if isinstance(error, BadVerdict):
        raise requirement.bad_verdict(str(error)) from error
    reason = f"{requirement.description} (the check itself failed: {type(error).__name__})"
    return Validation(False, reason, requirement=requirement, error=error)
