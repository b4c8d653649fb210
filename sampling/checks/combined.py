"""Combinations of requirements."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from sampling._arguments import check_items, check_number, check_str, wrong_type
from sampling._engine.validation import Checking, check, first_error, may_still_pass
from sampling.requirements import Requirement, RequirementLike, Validation, Verdict, View, as_requirement

__all__ = ["all_of", "any_of", "not_", "weighted"]

_CHECK_TIMEOUT_S = 60.0
"""Default timeout of an async check inside a combination. The same as the default of a strategy."""

Decide: TypeAlias = Callable[[Sequence[Validation | None]], Validation | None]
"""A function that combines the results of the parts. None means that it needs the missing ones."""


def all_of(*requirements: RequirementLike, description: str | None = None) -> Requirement:
    """
    Require all of these.

    Judged ones run only if all code checks passed.
    """
    parts = _parts("all_of()", requirements)

    def decide(known: Sequence[Validation | None]) -> Validation | None:
        failed = [one for one in known if one is not None and not one.passed]
        if failed:
            return Validation(False, "; ".join(one.complaint for one in failed), error=first_error(failed))
        return Validation(True) if None not in known else None

    def may_pass(text: str) -> Verdict:
        hopeless = [one for one in (may_still_pass(part, text) for part in parts) if one is not None and not one.passed]
        return (False, "; ".join(one.complaint for one in hopeless)) if hopeless else True

    # One part that can no longer pass is enough to fail.
    watched = any(part.partial is not None for part in parts)
    return _combined(parts, decide, _named(description, _joined("; and ", parts)), may_pass if watched else None)


def any_of(*requirements: RequirementLike, description: str | None = None) -> Requirement:
    """
    Require at least one of these.

    Judged ones run only if no code check passed.
    """
    parts = _parts("any_of()", requirements)
    how = f"at least one of these must be true: {_joined('; or ', parts)}"

    def decide(known: Sequence[Validation | None]) -> Validation | None:
        if any(one is not None and one.passed for one in known):
            return Validation(True)
        failed = [one for one in known if one is not None]
        return Validation(False, _with_reasons(how, failed), error=first_error(failed)) if None not in known else None

    def may_pass(text: str) -> Verdict:
        results = [may_still_pass(part, text) for part in parts]
        hopeless = [one for one in results if one is not None and not one.passed]
        return len(hopeless) < len(parts), _with_reasons(how, hopeless)

    # A part without a partial check may always pass later.
    watched = all(part.partial is not None for part in parts)
    return _combined(parts, decide, _named(description, _joined("; or ", parts)), may_pass if watched else None)


def not_(requirement: RequirementLike, description: str | None = None) -> Requirement:
    """
    Require the opposite of a requirement.

    A check that raises does not pass either.
    """
    part = as_requirement("the argument of not_()", requirement)

    def decide(known: Sequence[Validation | None]) -> Validation | None:
        [one] = known
        if one is None or one.error is not None:
            return one
        return Validation(not one.passed, f"this must not be true of the answer: {part.description}")

    return _combined((part,), decide, _named(description, f"not: {part.description}"), None)


def weighted(
    weights: Iterable[tuple[RequirementLike, float]], *, at_least: float = 0.5, description: str | None = None
) -> Requirement:
    """
    Require a share of the total weight of these.

    `at_least` is the share that must pass. 0 passes everything and only scores.
    A requirement with a score from 0 to 1 counts by its score.
    The share is the score of the whole.
    Judged requirements run only if the outcome depends on them.
    """
    pairs = [_pair(pair) for pair in check_items("weights", weights, "a list of (requirement, weight)")]
    parts = _parts("weighted()", [requirement for requirement, _ in pairs])
    scale = [check_number("a weight", weight, above=0) for _, weight in pairs]
    needed = check_number("at_least", at_least, least=0)
    if needed > 1:
        raise ValueError(f"at_least must be <= 1, the share of the weights, got {needed:g}")
    whole = sum(scale)

    def decide(known: Sequence[Validation | None]) -> Validation | None:
        sure = sum(weight * _merit(one) for one, weight in zip(known, scale, strict=True) if one is not None) / whole
        possible = sure + sum(weight for one, weight in zip(known, scale, strict=True) if one is None) / whole
        # If nothing is needed, the score is what the caller wants, so everything runs.
        # Sums of floats such as 0.1 may be slightly too small.
        if None in known and (needed == 0 or sure + 1e-9 < needed <= possible + 1e-9):
            return None
        failed = [one for one in known if one is not None and not one.passed]
        reason = _with_reasons(f"it has {sure:.2f} of the points, and {needed:g} are needed", failed)
        return Validation(sure + 1e-9 >= needed, reason, sure, error=first_error(failed) if sure < needed else None)

    return _combined(parts, decide, _named(description, f"{needed:g} of: {_joined(', ', parts)}"), None)


def _pair(pair: Any) -> tuple[RequirementLike, float]:
    try:
        requirement, weight = pair
    except (TypeError, ValueError):
        raise wrong_type("an item of weights", pair, "a tuple of (requirement, weight)") from None
    return requirement, weight


def _merit(one: Validation) -> float:
    # Bounded, so that one large score can't outweigh all the other requirements.
    return float(one.passed) if one.score is None else min(1.0, max(0.0, one.score))


def _parts(what: str, requirements: Sequence[RequirementLike]) -> tuple[Requirement, ...]:
    if not requirements:
        raise ValueError(f"{what} must be given at least one requirement, got none")
    return tuple([as_requirement(f"the requirements of {what}", requirement) for requirement in requirements])


def _named(description: str | None, by_parts: str) -> str:
    return by_parts if description is None else check_str("description", description, empty=False)


def _joined(between: str, parts: Sequence[Requirement]) -> str:
    return between.join(part.description for part in parts)


def _with_reasons(what: str, failed: Sequence[Validation]) -> str:
    reasons = [one.reason for one in failed if one.reason]
    return f"{what} ({'; '.join(reasons)})" if reasons else what


# Check the parts: code first, then judged ones if the outcome depends on them.


def _combined(
    parts: tuple[Requirement, ...], decide: Decide, description: str, partial: Callable[[str], Verdict] | None
) -> Requirement:
    judged = any(part.judged for part in parts)
    return Requirement(description, _Combination(parts, decide).check, partial=partial, judged=judged)


@attrs.frozen
class _Combination:
    """Several requirements and the function that combines their results."""

    parts: tuple[Requirement, ...]
    decide: Decide

    def check(self, text: str, view: View) -> Validation | Awaitable[Validation]:
        """
        Return the result, or an awaitable if it is not known yet.

        It is known at once if synchronous checks decide.
        """
        code = self._check_parts(text, view, judged=False)
        if not isinstance(code, Checking):
            verdict = self.decide(self._known(code, ()))
            if verdict is not None:
                return verdict
        return _Waiting(self, code, text, view)

    async def wait(self, checking: tuple[Validation, ...] | Checking, text: str, view: View) -> Validation:
        """
        Wait for the code checks, then for judged ones.

        Judged ones run only if the outcome depends on them.
        """
        code = await _finished(checking, _CHECK_TIMEOUT_S)
        verdict = self.decide(self._known(code, ()))
        judged: tuple[Validation, ...] = ()
        if verdict is None:
            judged = await _finished(self._check_parts(text, view, judged=True), None)
            verdict = self.decide(self._known(code, judged))
        if verdict is None:
            raise RuntimeError("no decision although all requirements were checked, please report this as a bug")
        return attrs.evolve(verdict, transcript=tuple([turn for one in judged for turn in one.transcript]))

    def _check_parts(self, text: str, view: View, *, judged: bool) -> tuple[Validation, ...] | Checking:
        return check([part for part in self.parts if part.judged is judged], text, view)

    def _known(self, code: Iterable[Validation], judged: Iterable[Validation]) -> list[Validation | None]:
        """
        Return the results in the order of the parts.

        Parts that were not checked have None.
        """
        results = {id(one.requirement): one for one in (*code, *judged)}
        return [results.get(id(part)) for part in self.parts]


async def _finished(checking: tuple[Validation, ...] | Checking, timeout_s: float | None) -> tuple[Validation, ...]:
    return await checking.finish(timeout_s) if isinstance(checking, Checking) else checking


@attrs.frozen
class _Waiting:
    """
    An awaitable for a combination with async parts.

    It is not a coroutine, because closing one that was never awaited would not close those of the parts.
    """

    combination: _Combination
    checking: tuple[Validation, ...] | Checking
    text: str
    view: View

    def __await__(self) -> Generator[Any, Any, Validation]:
        return self.combination.wait(self.checking, self.text, self.view).__await__()

    def close(self) -> None:
        """Close the coroutines of parts that are never awaited."""
        if isinstance(self.checking, Checking):
            self.checking.close()
