"""Check one answer against its requirements."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutine
from time import perf_counter
from types import FrameType
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sampling._arguments import message_or
from sampling._engine.decisions import leaves
from sampling._event_loop import as_exception, limiter_of_this_loop, watchdog
from sampling._picklable import Picklable
from sampling.errors import BadVerdict, CheckTimeout, FatalError, UnexpectedCancellation
from sampling.messages import Action
from sampling.requirements import Requirement, Validation, View

__all__ = [
    "PARSES",
    "CheckDefect",
    "Checking",
    "CutShort",
    "PartialText",
    "check",
    "first_error",
    "is_defect",
    "may_still_pass",
    "parse",
]

T = TypeVar("T")

_Said: TypeAlias = Validation | Awaitable[object] | None
"""The state of one check: finished, still to be awaited, or None for a judge that was not asked."""

PARSES = Requirement("the answer can be parsed")
PARSER_HINT = "Parse with a plain function; what has to be awaited goes into a check."

_PARTIAL_CHECKS_PER_LENGTH = 256
"""Up to so many characters, partial checks run after every piece."""

_MAX_BLOCKING_CHECKS = 32
_blocking_checks: "RunVar[anyio.CapacityLimiter]" = RunVar("sampling_blocking_checks")


def parse(action: Action[T], text: str) -> tuple[T | None, Validation | None]:
    """Parse the answer. A parser that raises is a failed requirement with that reason."""
    try:
        value = action.parse(text)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a parser raises means that it can't be parsed
        _raise_defect(error)
        reason = (
            "it is nested too deeply"
            if isinstance(error, RecursionError)
            else message_or(error, "") or "it is malformed"
        )
        return None, Validation(False, reason, requirement=PARSES)
    if iscoroutine(value):
        value.close()
        raise BadVerdict("the parser returned a coroutine: it must be a plain function", hint=PARSER_HINT)
    return value, None


class CutShort(Picklable, Exception):
    """Stops a generation whose text can no longer pass."""

    def __init__(self, text: str, validation: Validation) -> None:
        super().__init__("the text can no longer pass")
        self.text = text
        self.validation = validation


class CheckDefect(Picklable, Exception):
    """
    The exception of a defect in a check, on its way to the engine.

    The caller gets `.error`: no other answer would be checked either.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class PartialText:
    """The streamed text so far. Adding a piece raises `CutShort` if the text can no longer pass."""

    restartable = True
    """Layers may send the text once more: `restart` takes back what they sent."""

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._requirements = requirements
        self._pieces: list[str] = []
        self._chars = 0
        self._next_check_at = 0
        self.raised: CutShort | CheckDefect | BadVerdict | None = None
        """Kept for a backend that turns the exception into an error of its own."""

    def add(self, piece: str) -> None:
        """
        Add a piece and run the partial checks.

        They look at the whole text each time. So a long text is checked only after it has grown by a share of its
        length, which keeps the time linear in the length, and costs at most this share of the tokens.
        """
        self._pieces.append(piece)
        self._chars += len(piece)
        if self._chars < self._next_check_at:
            return
        text = "".join(self._pieces)
        self._pieces = [text]
        self._next_check_at = self._chars + self._chars // _PARTIAL_CHECKS_PER_LENGTH
        try:
            self._check(text)
        except (CutShort, CheckDefect, BadVerdict) as error:
            self.raised = error
            raise

    __call__ = add

    def restart(self) -> None:
        """Forget the text so far. It was not the answer."""
        self._pieces, self._chars, self._next_check_at = [], 0, 0

    def _check(self, text: str) -> None:
        for requirement in self._requirements:
            verdict = may_still_pass(requirement, text)
            if verdict is not None and not verdict.passed:
                raise CutShort(text, verdict)


def may_still_pass(requirement: Requirement, text: str) -> Validation | None:
    """Run the partial check of a requirement on a growing text, or return None if it has none."""
    if requirement.partial is None:
        return None
    try:
        verdict = requirement.partial(text)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    return requirement.read_verdict(verdict)


def check(requirements: Sequence[Requirement], text: str, view: View | None) -> "tuple[Validation, ...] | Checking":
    """
    Check an answer, as far as possible without awaiting.

    Returns the validations in order, or a `Checking` if a check has to be awaited or a judge asked.
    Raises only `BadVerdict` and `CheckDefect`, which another attempt cannot fix.
    """
    said: list[Any] = []
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
    return tuple(said) if finished else Checking(requirements, text, view, said)


class Checking:
    """
    The checks of one answer that have to be awaited: all at once, and judges only if everything else passed.

    Raises only `BadVerdict`, `CheckDefect` and `FatalError` from a judge, which another attempt cannot fix,
    and `UnexpectedCancellation`.
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
        """Await all checks that have begun: at once, or one after the other if the call needs that."""
        unbearable: dict[int, Exception] = {}

        async def finish(index: int, requirement: Requirement, rest: Awaitable[object]) -> None:
            try:
                self._said[index] = await _finish_check(requirement, rest, timeout_s)
            except BaseException as error:  # noqa: BLE001, ASYNC103 - collected, so that one does not hide another
                # A task group would swallow a cancellation that nobody requested, and the check with it.
                unbearable[index] = as_exception(error, UnexpectedCancellation)

        begun = zip(self._requirements, self._said, strict=True)
        waiting = [
            (index, requirement, one)
            for index, (requirement, one) in enumerate(begun)
            if one is not None and not isinstance(one, Validation)
        ]
        if len(waiting) == 1 or (self._view is not None and self._view.in_turn):
            for one in waiting:
                await finish(*one)
        elif waiting:
            async with anyio.create_task_group() as group:
                for one in waiting:
                    group.start_soon(finish, *one)
        if unbearable:
            # The first by the order of the requirements, whichever of them was faster.
            raise unbearable[min(unbearable)]

    def close(self) -> None:
        """Close the checks that will never be awaited."""
        _close(self._said)


def _judge(requirement: Requirement) -> object:
    # Slow to import, and most programs have no judge.
    from sampling._engine.judge import Judge  # noqa: PLC0415

    return Judge(requirement.description)


def _begin(requirement: Requirement, text: str, view: View | None) -> Validation | Awaitable[object]:
    """Run a check up to its first await, and return its validation or the rest of it."""
    check: Any = requirement.check or _judge(requirement)
    if requirement.blocking:
        bound = partial(check, text, view) if requirement.takes_view else partial(check, text)
        return _in_thread(requirement, bound)
    started_s = perf_counter()
    try:
        verdict = check(text, view) if requirement.takes_view else check(text)
    except MemoryError:
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
    """Close coroutines that never started, because Python warns about them."""
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
    except (FatalError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a check that raises is a failed check
        return _broken(requirement, error)
    except BaseExceptionGroup as group:
        raised = as_exception(group, UnexpectedCancellation)
        if isinstance(raised, UnexpectedCancellation):
            raise raised from group
        return _broken(requirement, raised)
    return requirement.read_verdict(verdict)


def _broken(requirement: Requirement, error: Exception) -> Validation:
    """Return the failure of a check that raised, or raise if the check itself is broken."""
    if isinstance(error, BadVerdict):
        raise requirement.bad_verdict(str(error)) from error
    _raise_defect(error)
    # The model is told neither the type nor the message: they are about the check, not about the answer.
    reason = "checking it took too long" if isinstance(error, CheckTimeout) else "it could not be checked"
    return Validation(False, reason, requirement=requirement, error=error)


def _raise_defect(error: Exception) -> None:
    """Raise `CheckDefect` for a misspelt name or a missing import in the code of a check or parser."""
    if isinstance(error, CheckDefect) or (isinstance(error, RecursionError) and not _overflowed(error)):
        raise error
    if is_defect(error, __file__):
        raise CheckDefect(error) from error


def is_defect(error: Exception, caller: str) -> bool:
    """
    Return whether a misspelt name or a missing import in somebody's code raised an error, or one in a group.

    `caller` is the file that called that code.
    """
    called = _frames_inside(error, caller)
    own = called[0] if called else None
    return any(
        isinstance(leaf, NameError | ImportError) and not _raised_by_generated_code(_frames_inside(leaf, caller), own)
        for leaf in leaves(error)
    )


def _overflowed(error: RecursionError) -> bool:
    """Return whether the interpreter raised it, as in `json.loads` of an answer with a thousand brackets."""
    return str(error).startswith("maximum recursion depth exceeded")


def _raised_by_generated_code(frames: list[FrameType], own: FrameType | None) -> bool:
    """Return whether the frames lead through code that is in no module, such as an answer that a check runs."""
    if own is None or not frames or _same_source(frames[-1], own):
        # The answer may have called it, but the check's own code raised the error.
        return False
    return any(not _is_in_module(frame) and not _same_source(frame, own) for frame in frames)


def _frames_inside(error: BaseException, caller: str) -> list[FrameType]:
    """Return the frames of an error below the file that called the code."""
    frames = _frames_of(error)
    called = max((index for index, frame in enumerate(frames) if frame.f_code.co_filename == caller), default=-1)
    return frames[called + 1 :]


def _frames_of(error: BaseException) -> list[FrameType]:
    frames: list[FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def _is_in_module(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return file.startswith("<frozen ")
    module = sys.modules.get(frame.f_globals.get("__name__", ""))
    return module is not None and vars(module) is frame.f_globals


def _same_source(frame: FrameType, own: FrameType) -> bool:
    """Return whether two frames are of one script, notebook cell or console."""
    return frame.f_globals is own.f_globals and frame.f_code.co_filename == own.f_code.co_filename
