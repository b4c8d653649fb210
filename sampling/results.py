"""What happened: one record an attempt, one result a call."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import attrs

from sampling._text import quoted
from sampling.errors import NoValidAnswer
from sampling.messages import Action, Attempt, Context, Generation
from sampling.requirements import Validation
from sampling.usage import NO_USAGE, Usage

__all__ = ["HookFailure", "Outcome", "SamplingResult", "Slice", "StopReason"]

T = TypeVar("T")

Outcome: TypeAlias = Literal["valid", "invalid", "errored", "cancelled"]
"""How an attempt ended. Every attempt that starts ends in exactly one of these."""

StopReason: TypeAlias = Literal["validated", "exhausted", "budget", "deadline", "failed"]
"""Why a call ended."""


@attrs.frozen(slots=False)
class Slice(Generic[T]):
    """The record of one attempt."""

    iteration: int
    iteration_id: str
    subsample: int
    attempt: int
    outcome: Outcome
    action: Action[T]
    context: Context
    """The conversation after the attempt, with its question and, if there was one, its answer."""

    generation: Generation | None = None
    validations: tuple[Validation, ...] = ()
    """What the requirements said, in their order. A judge that was not asked is not among them."""

    value: T | None = None
    error: BaseException | None = None
    """What went wrong: in the backend if the attempt is errored, in a check if it is invalid."""

    usage: Usage = NO_USAGE
    """What the attempt spent, its judges included."""

    started_s: float = 0.0
    """Seconds from the start of the call."""

    finished_s: float = 0.0

    requests: int = 1
    """How many requests it took: with those of judges, and of layers that tried again."""

    tokens_saved: int = 0
    """What cutting the answer short saved, at most: up to max_tokens, or to the longest answer of the call so far."""

    tried: Attempt[T] | None = None
    """What the attempt tried: its action, the conversation it was put into, and options of its own."""

    @property
    def valid(self) -> bool:
        """Whether the answer met every requirement."""
        return self.outcome == "valid"

    @property
    def text(self) -> str | None:
        """The answer as it came, if one came."""
        return None if self.generation is None else self.generation.text

    @property
    def passed(self) -> int:
        """How many requirements were met."""
        passed = 0
        for validation in self.validations:
            passed += validation.passed
        return passed

    @property
    def score(self) -> float:
        """All scores together; 0 where nothing was scored."""
        score: float = 0
        for validation in self.validations:
            if validation.score is not None:
                score += validation.score
        return score

    @property
    def complaints(self) -> tuple[str, ...]:
        """What to tell the model: why each failed requirement failed. Errors of the transport are not among them."""
        return tuple([validation.complaint for validation in self.validations if not validation.passed])

    @property
    def elapsed_s(self) -> float:
        """How long the attempt took."""
        return self.finished_s - self.started_s


@attrs.frozen
class HookFailure:
    """A hook that raised or hung without being critical: the call went on."""

    hook: str
    event: str
    error: Exception
    iteration_id: str | None = None


@attrs.frozen(kw_only=True, repr=False, slots=False)
class SamplingResult(Generic[T]):
    """What one call of `sample()` gave, and everything that it took."""

    success: bool
    """Whether `best` met every requirement."""

    best: Slice[T] | None
    """The answer: the valid one that was chosen, else the best failure; None if no attempt came to an answer."""

    slices: tuple[Slice[T], ...]
    """Every attempt that was generated and validated, by iteration."""

    attempts: tuple[Slice[T], ...]
    """Every attempt that started, errored and cancelled ones too, by iteration."""

    errors: tuple[Exception, ...]
    """What was raised on the way, by backends, checks and repairs, by iteration."""

    usage: Usage
    """Everything that was spent: by the winner, the losers and the judges."""

    stop_reason: StopReason
    sampling_id: str
    elapsed_s: float
    max_attempts: int
    """loop_budget * concurrency_budget, as the call had them."""

    parent_id: str | None = None
    stop_detail: str | None = None
    """Which limit of the budget was reached, if one was."""

    hook_failures: tuple[HookFailure, ...] = ()

    @property
    def value(self) -> T | None:
        """The parsed answer of `best`; check `success` first, or use `unwrap()`."""
        return None if self.best is None else self.best.value

    @property
    def text(self) -> str | None:
        """The answer of `best` as it came."""
        return None if self.best is None else self.best.text

    @property
    def tokens_saved(self) -> int:
        """What cutting hopeless answers short saved, at most."""
        return sum(attempt.tokens_saved for attempt in self.attempts)

    def unwrap(self) -> T:
        """Return the value of a success; raise `NoValidAnswer`, with this result on it, otherwise."""
        if not self.success or self.best is None:
            raise NoValidAnswer(self)
        return cast("T", self.best.value)

    def __str__(self) -> str:
        parts = [f"{self._headline()} after {len(self.attempts)} of {self.max_attempts} attempts{self._counts()}"]
        if self.usage.total_tokens:
            saved = f" ({self.tokens_saved} saved)" if self.tokens_saved else ""
            parts.append(f"{self.usage.total_tokens} tokens{saved}")
        if self.usage.cost:
            parts.append(f"cost {self.usage.cost:.6g}")
        if self.errors:
            parts.append(f"errors: {_tally(type(error).__name__ for error in self.errors)}")
        if self.text is not None:
            parts.append(quoted(self.text, 60))
        return " · ".join(parts)

    def __repr__(self) -> str:
        return f"<SamplingResult {self}>"

    def _headline(self) -> str:
        outcome = "success" if self.success else f"no valid answer ({self.stop_reason})"
        return f"{outcome} in {self.elapsed_s:.2f} s"

    def _counts(self) -> str:
        if not self.attempts:
            return ""
        outcomes = Counter(attempt.outcome for attempt in self.attempts)
        return (
            f" ({', '.join(f'{outcomes[o]} {o}' for o in ('valid', 'invalid', 'errored', 'cancelled') if outcomes[o])})"
        )

    def explain(self) -> str:
        """Show, attempt by attempt, what was asked, what came back, and which requirement failed and why."""
        lines = [str(self)]
        if self.stop_detail is not None:
            lines.append(f"stopped by the {self.stop_detail}")
        for attempt in self.attempts:
            lines.extend(_explain_attempt(attempt, chosen=attempt is self.best))
        lines.extend(
            f"hook {failure.hook} on {failure.event}: {_explain_error(failure.error)}" for failure in self.hook_failures
        )
        return "\n".join(lines)


def _explain_attempt(attempt: Slice[Any], *, chosen: bool) -> list[str]:
    tokens = f" · {attempt.usage.total_tokens} tokens" if attempt.usage.total_tokens else ""
    mark = "  ← the answer" if chosen else ""
    lines = [
        "",
        f"iteration {attempt.iteration} (subsample {attempt.subsample}, attempt {attempt.attempt}): {attempt.outcome}"
        f" · {attempt.started_s:.2f}–{attempt.finished_s:.2f} s{tokens}{mark}",
        f"  asked     {quoted(attempt.action.text, 200)}",
    ]
    if attempt.text is not None:
        lines.append(f"  answered  {quoted(attempt.text, 200)}")
    lines.extend(_explain_validation(validation) for validation in attempt.validations)
    if attempt.outcome == "errored" and attempt.error is not None:
        lines.append(f"  error     {_explain_error(attempt.error)}")
    return lines


def _explain_validation(validation: Validation) -> str:
    verdict = "passed" if validation.passed else "failed" if validation.error is None else "broke "
    description = validation.requirement.description if validation.requirement is not None else "a requirement"
    reason = f": {quoted(validation.reason, 200)}" if validation.reason and not validation.passed else ""
    score = f" (score {validation.score:g})" if validation.score is not None else ""
    return f"  {verdict}    {quoted(description, 100)}{reason}{score}"


def _explain_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {quoted(str(error), 200)}"


def _tally(names: Iterable[str]) -> str:
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in Counter(names).items())


def first_tried(history: Sequence[Slice[T]]) -> Attempt[T]:
    """Return what the first of these slices tried."""
    first = history[0]
    return first.tried or Attempt(first.action, Context())


def by_merit(slices: Sequence[Slice[T]]) -> Slice[T]:
    """Choose the best failure: most requirements passed, then the higher score; the first given wins a tie."""
    return max(slices, key=lambda candidate: (candidate.passed, candidate.score))
