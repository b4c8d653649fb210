"""Put one answer to its requirements."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutine
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sampling import watchdog
from sampling.errors import BadVerdict, CheckTimeout, FatalError
from sampling.judge import Judge
from sampling.messages import Action
from sampling.requirements import Requirement, Validation, View

__all__ = ["Checking", "CutShort", "Growing", "limiter_of_this_loop", "may_still_pass", "parse"]

T = TypeVar("T")

_Pending: TypeAlias = tuple[int, Requirement, Callable[[], Awaitable[object]]]
"""A check that has to be waited for: its place, whose it is, and what to await."""

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


class Growing:
    """The text of an answer while it streams in; taking a piece raises `CutShort` when it is past saving."""

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._requirements = requirements
        self._text = ""
        self.cut: CutShort | None = None

    def take(self, piece: str) -> None:
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


class Checking:
    """
    One answer on its way through its requirements: code checks all together, judges only if all of those passed.

    Making one runs the plain functions; only if it is not `finished` by then, there is something to wait for.
    Raises only `BadVerdict`, and `FatalError` from a judge: what can't get better by trying again.
    """

    __slots__ = ("_judges", "_pending", "_results", "_text", "_view", "error", "passed")

    def __init__(self, requirements: Sequence[Requirement], text: str, view: View | None) -> None:
        self._text = text
        self._view = view
        self.passed = True
        """Whether nothing has failed."""
        self.error: Exception | None = None
        """What the first check that raised, raised."""
        self._pending: list[_Pending] = []
        self._judges: list[tuple[int, Requirement]] = []
        self._results: list[Validation | None] = []
        try:
            for requirement in requirements:
                if requirement.judged:
                    self._judges.append((len(self._results), requirement))
                    self._results.append(None)
                else:
                    self._results.append(self._start(len(self._results), requirement))
        except BaseException:
            self.close()
            raise

    def _start(self, index: int, requirement: Requirement) -> Validation | None:
        """Run a check as far as it goes without waiting; None for what needs to wait, and becomes pending."""
        check: Any = requirement.check or Judge(requirement.description)
        if requirement.blocking:
            bound = partial(check, self._text, self._view) if requirement.takes_view else partial(check, self._text)
            self._pending.append((index, requirement, partial(_in_thread, requirement, bound)))
            return None
        started_s = perf_counter()
        try:
            verdict = check(self._text, self._view) if requirement.takes_view else check(self._text)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
            return self._counted(_broken(requirement, error))
        finally:
            # Asked here too, and not only there: it is asked after every single check.
            if perf_counter() - started_s > watchdog.BLOCKED_S:
                watchdog.warn_if_blocked(started_s, requirement.description)
        if type(verdict) is not bool and isawaitable(verdict):
            self._pending.append((index, requirement, lambda: verdict))
            return None
        return self._counted(requirement.read_verdict(verdict))

    def _counted(self, result: Validation) -> Validation:
        if not result.passed:
            self.passed = False
            if self.error is None:
                self.error = result.error
        return result

    @property
    def finished(self) -> bool:
        """Whether all requirements that have to be asked were asked."""
        return not self._pending and not (self._judges and self.passed)

    @property
    def validations(self) -> tuple[Validation, ...]:
        """What was said, in the order of the requirements; a judge that was not asked is left out."""
        return tuple(filter(None, self._results))

    async def finish(self, timeout_s: float | None) -> None:
        """Wait for the checks that take time, then ask the judges if there is still something to judge."""
        try:
            await self._wait_for_pending(timeout_s)
        finally:
            self.close()
        if self._judges and self.passed:
            await self._ask_judges()

    async def _ask_judges(self) -> None:
        """Ask all judges at once. A model takes the time that its backend gives it: there is no default timeout."""
        try:
            for index, requirement in self._judges:
                self._results[index] = self._start(index, requirement)
            await self._wait_for_pending(None)
        finally:
            self.close()

    async def _wait_for_pending(self, timeout_s: float | None) -> None:
        unbearable: list[Exception] = []

        async def finish(index: int, requirement: Requirement, check: Callable[[], Awaitable[object]]) -> None:
            try:
                self._results[index] = self._counted(await _finish_check(requirement, check, timeout_s))
            except (BadVerdict, FatalError, MemoryError, RecursionError) as error:
                unbearable.append(error)

        if len(self._pending) == 1:
            await finish(*self._pending[0])
        elif self._pending:
            async with anyio.create_task_group() as group:
                for check in self._pending:
                    group.start_soon(finish, *check)
        self._pending.clear()
        if unbearable:
            raise unbearable[0]

    def close(self) -> None:
        """Close the coroutines that a cancellation or a bad verdict kept from ever starting: Python warns of those."""
        for _, requirement, check in self._pending:
            close = getattr(check(), "close", None) if not requirement.blocking else None
            if close is not None:
                close()


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
    requirement: Requirement, check: Callable[[], Awaitable[object]], default_timeout_s: float | None
) -> Validation:
    # A thread that is waited for can't be timed out, so blocking checks have only the timeout of their own.
    limit_s = requirement.timeout_s or (None if requirement.blocking else default_timeout_s)
    verdict: object = None
    try:
        if limit_s is None:
            verdict = await check()
        else:
            with anyio.move_on_after(limit_s) as scope:
                verdict = await check()
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
