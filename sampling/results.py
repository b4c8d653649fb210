"""Results: one `Slice` per attempt, one `SamplingResult` per call."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import attrs

from sampling._arguments import check_bool, message_or
from sampling._frozen import quick
from sampling._lazy import on_first_use
from sampling._text import quoted
from sampling.errors import NoValidAnswer
from sampling.messages import Action, Attempt, Context, Generation
from sampling.requirements import Validation
from sampling.usage import NO_USAGE, Usage

__all__ = ["HookFailure", "Outcome", "SamplingResult", "Slice", "StopReason"]

T = TypeVar("T")

# Few programs need them, and they import this module.
_json = on_first_use("sampling._serialization.results")
_page = on_first_use("sampling._result_page")

_MAX_NAMED_FAILURES = 3

Outcome: TypeAlias = Literal["valid", "invalid", "errored", "cancelled"]
"""The outcome of an attempt. Every attempt that starts has exactly one."""

StopReason: TypeAlias = Literal["validated", "exhausted", "budget", "deadline", "failed"]
"""The reason why a call ended."""


@quick
@attrs.frozen(repr=False)
class Slice(Generic[T]):
    """The record of one attempt."""

    iteration: int
    """`subsample * loop_budget + attempt + 1`, unique within the call."""

    iteration_id: str
    subsample: int
    """The index of its subsample, from 0. A call has `concurrency_budget` subsamples at most."""

    attempt: int
    """The index within its subsample, from 0. A subsample has `loop_budget` attempts at most."""

    outcome: Outcome
    action: Action[T]
    context: Context
    """The conversation after the attempt: with its prompt and, if there is one, its answer."""

    generation: Generation | None = None
    validations: tuple[Validation, ...] = ()
    """The results of the requirements, in their order. Judges that did not run are left out."""

    value: T | None = None
    error: BaseException | None = None
    """The error of the backend if the attempt errored, or of a check if it is invalid."""

    usage: Usage = NO_USAGE
    """Tokens and cost of the attempt, including its judges."""

    started_s: float = 0.0
    """Seconds from the start of the call."""

    finished_s: float = 0.0

    requests: int = 1
    """The number of requests sent, including judges and retries."""

    tokens_saved: int = 0
    """
    An upper bound of the tokens that a partial check saved.

    It assumes that the answer would have reached `max_tokens`, or if that is not set, the longest answer so far.
    """

    tried: Attempt[T] | None = None
    """The attempt as the strategy planned it: action, context before it, and its own options."""

    from_cache: bool = False
    """True if a `Cached` layer answered, so that the latency says nothing about the model."""

    @property
    def valid(self) -> bool:
        """True if the answer met every requirement."""
        return self.outcome == "valid"

    @property
    def text(self) -> str | None:
        """The unparsed answer, or None if there is none."""
        return None if self.generation is None else self.generation.text

    @property
    def passed(self) -> int:
        """The number of requirements that were met."""
        # A plain loop is faster than sum() over a generator, and selection reads this for every slice.
        passed = 0
        for validation in self.validations:
            passed += validation.passed
        return passed

    @property
    def score(self) -> float:
        """The sum of all scores, 0 without any."""
        score: float = 0
        for validation in self.validations:
            if validation.score is not None:
                score += validation.score
        return score

    @property
    def complaints(self) -> tuple[str, ...]:
        """
        The reason of each failed requirement, for the model.

        Errors of the backend are not included.
        """
        return tuple([validation.complaint for validation in self.validations if not validation.passed])

    @property
    def elapsed_s(self) -> float:
        """The duration of the attempt, in seconds."""
        return self.finished_s - self.started_s

    def __repr__(self) -> str:
        parts = [f"{self.outcome} in {self.elapsed_s:.2f} s"]
        if self.error is not None:
            parts.append(type(self.error).__name__)
        if self.validations:
            parts.append(f"{self.passed} of {len(self.validations)} requirements met")
        if self.text is not None:
            parts.append(quoted(self.text, 60))
        return f"<Slice {self.iteration}: {' · '.join(parts)}>"


@attrs.frozen
class HookFailure:
    """
    The failure of a hook that is not critical.

    The call continued.
    """

    hook: str
    event: str
    error: Exception
    iteration_id: str | None = None


@quick
@attrs.frozen(kw_only=True, repr=False)
class SamplingResult(Generic[T]):
    """The result of `sample()`, with a record of every attempt."""

    success: bool
    """True if `best` met every requirement."""

    best: Slice[T] | None
    """The selected valid slice, else the best failure, else None if no attempt produced an answer."""

    slices: tuple[Slice[T], ...]
    """All attempts that were generated and validated, by iteration."""

    attempts: tuple[Slice[T], ...]
    """All attempts that started, including errored and cancelled ones, by iteration."""

    errors: tuple[Exception, ...]
    """All errors of backends, checks and repairs, by iteration."""

    usage: Usage
    """Total tokens and cost: of the winner, the losers and the judges."""

    stop_reason: StopReason
    sampling_id: str
    elapsed_s: float
    max_attempts: int
    """`loop_budget * concurrency_budget` of this call."""

    parent_id: str | None = None
    stop_detail: str | None = None
    """The limit of the budget that was reached, if any."""

    hook_failures: tuple[HookFailure, ...] = ()

    agreement: float | None = None
    """The share of the votes that the answer got, or None if there was no vote."""

    margin: float | None = None
    """The lead of the answer over the next one, as a share of the votes, or None if there was no vote."""

    notes: tuple[str, ...] = attrs.field(default=(), eq=False)
    """The differences from the original, in a result that `from_dict` restored."""

    @property
    def value(self) -> T | None:
        """
        The parsed answer of `best`, also if it is invalid.

        Check `success` first, or use `unwrap()`.
        """
        return None if self.best is None else self.best.value

    @property
    def text(self) -> str | None:
        """The unparsed answer of `best`."""
        return None if self.best is None else self.best.text

    @property
    def tokens_saved(self) -> int:
        """An upper bound of the tokens saved by partial checks."""
        return sum(attempt.tokens_saved for attempt in self.attempts)

    def unwrap(self) -> T:
        """Return the value of a success, or raise `NoValidAnswer`."""
        if not self.success or self.best is None:
            raise NoValidAnswer(self, self.explain_failure())
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

    def explain(self, *, html: bool = False) -> str:
        """
        Describe every attempt: its prompt, answer and failed requirements.

        Args:
            html: Return a fragment of HTML with the lanes of the call, as notebooks show it.
        """
        if check_bool("html", html):
            return cast("str", _page().explain_in_html(self))
        lines = [str(self)]
        if self.stop_detail is not None:
            lines.append(f"stopped by the {self.stop_detail}")
        for attempt in self.attempts:
            mark = "" if attempt is not self.best else "  ← the answer" if self.success else "  ← the best failure"
            lines.extend(_explain_attempt(attempt, mark))
        lines.extend(
            f"hook {failure.hook} on {failure.event}: {_explain_error(failure.error)}" for failure in self.hook_failures
        )
        return "\n".join(lines)

    def to_svg(self) -> str:
        """
        Draw the lanes of the call: a row for each subsample, a bar for each attempt, coloured by its outcome.

        The picture has no text of a prompt or an answer.
        """
        return cast("str", _page().draw_lanes(self))

    def _repr_html_(self) -> str:
        return self.explain(html=True)

    def to_dict(self, *, content: bool = True) -> dict[str, Any]:
        """
        Return the result as JSON values, in a versioned format.

        Anything that looks like a key is masked in errors and options. `from_dict` restores the result.

        Args:
            content: If False, leave out prompts, answers, values, reasons and messages of errors.
        """
        return cast("dict[str, Any]", _json().dump_result(self, content=check_bool("content", content)))

    def to_json(self, *, content: bool = True, indent: int | None = None) -> str:
        """Return what `to_dict` returns, as JSON text."""
        return cast("str", _json().result_to_json(self, content=check_bool("content", content), indent=indent))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], action: Action[T] | None = None) -> "SamplingResult[T]":
        """
        Restore a result from the return value of `to_dict`.

        Errors get their types back if these are types of this library or built-in ones. Checks are functions and are
        not stored: a restored requirement has only its description. `notes` lists all other differences.
        Raise a ValueError for anything that `to_dict` did not return.

        Args:
            data: The JSON values. Nothing that they name is imported or run.

            action: Parses the values from the texts of the answers. Without one, values are plain JSON.
        """
        return cast("SamplingResult[T]", _json().load_result(data, action))

    @classmethod
    def from_json(cls, text: str, action: Action[T] | None = None) -> "SamplingResult[T]":
        """Restore a result from the return value of `to_json`. See `from_dict`."""
        return cast("SamplingResult[T]", _json().result_from_json(text, action))

    def explain_failure(self) -> str:
        """
        Name the requirements that failed most often, with one reason each.

        Empty if none failed.
        """
        failed = [one for attempt in self.slices for one in attempt.validations if not one.passed]
        counts = Counter(map(_description, failed)).most_common(_MAX_NAMED_FAILURES)
        # The last reason: repairs get closer to what is wanted, so it says what is still missing.
        reasons = {_description(one): one.reason for one in failed if one.reason}
        return ", ".join(
            f"{quoted(description, 100)} ×{count}{_explain_reason(description, reasons.get(description))}"
            for description, count in counts
        )


def _description(validation: Validation) -> str:
    return validation.requirement.description if validation.requirement is not None else "a requirement"


def _explain_reason(description: str, reason: str | None) -> str:
    return f" ({quoted(reason, 100)})" if reason and reason != description else ""


def _explain_attempt(attempt: Slice[Any], mark: str) -> list[str]:
    tokens = f" · {attempt.usage.total_tokens} tokens" if attempt.usage.total_tokens else ""
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
    reason = f": {quoted(validation.reason, 200)}" if validation.reason and not validation.passed else ""
    score = f" (score {validation.score:g})" if validation.score is not None else ""
    return f"  {verdict}    {quoted(_description(validation), 100)}{reason}{score}"


def _explain_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {quoted(message_or(error, ''), 200)}"


def _tally(names: Iterable[str]) -> str:
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in Counter(names).items())


def first_tried(history: Sequence[Slice[T]]) -> Attempt[T]:
    """Return the attempt that the first slice made."""
    first = history[0]
    # Slices made by hand, such as in tests, may have no plan.
    return first.tried or Attempt(first.action, Context())


def by_merit(slices: Sequence[Slice[T]]) -> Slice[T]:
    """
    Return the best failure.

    The order is: most requirements passed, then highest score, then first.
    """
    # Of equal slices, max() returns the first.
    return max(slices, key=lambda candidate: (candidate.passed, candidate.score))
