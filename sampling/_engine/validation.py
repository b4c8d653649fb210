"""Check one answer against its requirements."""

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
"""The state of one check: finished, still to be awaited, or None for a judge that was not asked."""

PARSES = Requirement("the answer can be parsed")
PARSER_HINT = "Parse with a plain function; what has to be awaited goes into a check."

_MAX_BLOCKING_CHECKS = 32
_blocking_checks: RunVar[anyio.CapacityLimiter] = RunVar("sampling_blocking_checks")


def parse(action: Action[T], text: str) -> tuple[T | None, Validation | None]:
    """Parse the answer. A parser that raises is a failed requirement with that reason."""
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
        """Add a piece and run the partial checks."""
        self._text += piece
        for requirement in self._requirements:
            verdict = may_still_pass(requirement, self._text)
            if verdict is not None and not verdict.passed:
                # Kept, too, for a backend that turns the exception into an error of its own.
                self.cut = CutShort(self._text, verdict)
                raise self.cut


def may_still_pass(requirement: Requirement, text: str) -> Validation | None:
    """Run the partial check of a requirement on a growing text, or return None if it has none."""
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
    Check an answer, as far as possible without awaiting.

    Returns the validations in order, or a `Checking` if a check has to be awaited or a judge asked.
    Raises only `BadVerdict`, which another attempt cannot mend.
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
    The checks of one answer that have to be awaited: all at once, and judges only if everything else passed.

    Raises only `BadVerdict`, and `FatalError` from a judge, which another attempt cannot mend.
    """

    def __init__(self, requirements: Sequence[Requirement], text: str, view: View | None, said: list[_Said]) -> None:
        self._requirements = requirements
        self._text = text
        self._view = view
        self._said = said

    async def finish(self, timeout_s: float | None) -> tuple[Validation, ...]:
        """
        Await the checks, then ask the judges if all checks passed.

        Returns the validations in the order of the requirements, without those of judges that were not asked.
        """
        try:
            await self._wait(timeout_s)
            if all(one.passed for one in self._validations()):
                for index, requirement in enumerate(self._requirements):
                    if requirement.judged:
                        self._said[index] = _begin(requirement, self._text, self._view)
                # No default timeout: the backend of the judge has its own.
                await self._wait(None)
        finally:
            self.close()
        return tuple(self._validations())

    def _validations(self) -> list[Validation]:
        return [one for one in self._said if isinstance(one, Validation)]

    async def _wait(self, timeout_s: float | None) -> None:
        """Await all checks that have begun, at once."""
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
        """Close the checks that will never be awaited."""
        _close(self._said)


def _begin(requirement: Requirement, text: str, view: View | None) -> Validation | Awaitable[object]:
    """Run a check up to its first await, and return its validation or the rest of it."""
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
        # Compared here, too: a function call after every check costs more than most checks.
        if perf_counter() - started_s > watchdog.BLOCKED_S:
            watchdog.warn_if_blocked(started_s, requirement.description)
    if type(verdict) is not bool and isawaitable(verdict):
        return verdict
    return requirement.read_verdict(verdict)


def _close(said: Iterable[_Said]) -> None:
    """Close coroutines that never started, for Python warns of them."""
    for one in said:
        close = getattr(one, "close", None)
        if close is not None:
            close()


def first_error(failed: Iterable[Validation]) -> Exception | None:
    """Return the exception of the first check that raised."""
    for validation in failed:
        if validation.error is not None:
            return validation.error
    return None


def limiter_of_this_loop(variable: RunVar[anyio.CapacityLimiter], tokens: int) -> anyio.CapacityLimiter:
    """Return the limiter of the running event loop, made when it is first needed."""
    limiter = variable.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(tokens)
        variable.set(limiter)
    return limiter


async def _in_thread(requirement: Requirement, check: Callable[[], object]) -> object:
    # Not anyio's own limiter: checks that hang must not take the application's threads away.
    limiter = limiter_of_this_loop(_blocking_checks, _MAX_BLOCKING_CHECKS)
    # A thread can't be stopped. With a timeout it is abandoned, still counted by the limiter. Without, it is awaited.
    leave_behind = requirement.timeout_s is not None
    # In a list, since trio refuses a coroutine as the result of a thread.
    [verdict] = await anyio.to_thread.run_sync(lambda: [check()], abandon_on_cancel=leave_behind, limiter=limiter)
    return await verdict if isawaitable(verdict) else verdict


async def _finish_check(
    requirement: Requirement, rest: Awaitable[object], default_timeout_s: float | None
) -> Validation:
    # An awaited thread can't be timed out, so blocking checks have only their own timeout.
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
