"""
Choose the next rate of a capacity search.

These are pure functions of the history.
The majority of its runs decides a rate, and the last run decides a tie. A trip is repeated before it is believed,
because a pause of the server can trip any rate. The bracket consists of the smallest rate that
tripped and the largest rate below it that passed. It only shrinks, or is corrected by a repeated run. The answer is
always a rate that ran and passed.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import attrs

from sampling._arguments import check_number
from sampling.load.model._verdict import Verdict

__all__ = ["Bracket", "Next", "Trial", "find_bracket", "needs_confirmation", "next_trial", "parse_steps"]

_MOST_RUNS = 3
"""Maximum number of runs at one rate."""

_MOST_HALVINGS = 6
"""Maximum number of halvings below the first step, when the first step trips."""


@attrs.frozen
class Trial:
    """One run at one rate."""

    rate: float
    verdict: Verdict
    edge: bool = False


@attrs.frozen
class Bracket:
    """The highest rate that passed and the lowest that tripped, or None where there is none."""

    passed: float | None
    tripped: float | None


@attrs.frozen
class Next:
    """The next rate to run, and the reason."""

    rate: float
    why: Literal["refine", "repeat"]


def find_bracket(trials: Iterable[Trial]) -> Bracket:
    """Return the lowest trip, and the highest pass below it."""
    verdicts = _verdicts(trials)
    tripped = min((rate for rate, verdict in verdicts.items() if verdict == "TRIP"), default=None)
    below = math.inf if tripped is None else tripped
    passed = max((rate for rate, verdict in verdicts.items() if verdict == "PASS" and rate < below), default=None)
    return Bracket(passed, tripped)


def needs_confirmation(trials: Iterable[Trial], rate: float) -> bool:
    """Return True if a rate has tripped and no two of its runs agree yet."""
    verdicts = [trial.verdict for trial in trials if trial.rate == rate]
    passes, trips = verdicts.count("PASS"), verdicts.count("TRIP")
    return trips > 0 and (passes + trips == 1 or passes == trips) and len(verdicts) < _MOST_RUNS


def next_trial(
    trials: Sequence[Trial], *, precision: float, most_trials: int = 40, whole: bool = False, confirm: bool = True
) -> Next | None:
    """
    Return the next run, or None if none improves the answer.

    First repeat a trip that is not confirmed. Then bisect until the bracket is narrower than `precision` of its upper
    end. Then repeat its two ends, if their verdicts are uncertain. If a repeat overturns one of them, bisect again.
    """
    bracket = find_bracket(trials)
    if bracket.tripped is None or len(trials) >= most_trials:
        return None
    if confirm and needs_confirmation(trials, bracket.tripped):
        return Next(bracket.tripped, "repeat")
    return _halve(trials, bracket, precision, whole=whole) or _repeat_edge(trials, bracket)


def _halve(trials: Sequence[Trial], bracket: Bracket, precision: float, *, whole: bool) -> Next | None:
    high = bracket.tripped or 0.0
    low = bracket.passed or 0.0
    if not low and high <= trials[0].rate / 2**_MOST_HALVINGS:
        return None
    if low and high - low <= precision * high:
        return None
    middle = _midpoint(low, high, whole=whole)
    runs = [trial for trial in trials if trial.rate == middle]
    # Earlier runs at this rate were inconclusive. One more may help, but it never becomes a bound.
    if middle in (low, high) or len(runs) >= _MOST_RUNS - 1:
        return None
    return Next(middle, "refine")


def _midpoint(low: float, high: float, *, whole: bool) -> float:
    middle = (low + high) / 2
    if whole:
        return float(math.floor(middle))
    rounded = float(f"{middle:.4g}")
    return rounded if low < rounded < high else middle


def _repeat_edge(trials: Sequence[Trial], bracket: Bracket) -> Next | None:
    """
    Return an end of the bracket to repeat, or None.

    It is repeated if its verdict is uncertain and its majority can still change.
    """
    for rate in (bracket.passed, bracket.tripped):
        runs = [trial for trial in trials if trial.rate == rate and trial.verdict != "INCONCLUSIVE"]
        tries = sum(trial.rate == rate for trial in trials)
        trips = sum(trial.verdict == "TRIP" for trial in runs)
        settled = len(runs) > 1 and 2 * trips != len(runs)
        if rate is not None and runs[0].edge and not settled and tries < _MOST_RUNS:
            return Next(rate, "repeat")
    return None


def _verdicts(trials: Iterable[Trial]) -> dict[float, Verdict]:
    """Decide each rate by the majority of its conclusive runs, and a tie by the last of them."""
    balance: dict[float, int] = {}
    last: dict[float, Verdict] = {}
    for trial in trials:
        if trial.verdict != "INCONCLUSIVE":
            balance[trial.rate] = balance.get(trial.rate, 0) + (1 if trial.verdict == "PASS" else -1)
            last[trial.rate] = trial.verdict
    return {rate: last[rate] if not votes else "PASS" if votes > 0 else "TRIP" for rate, votes in balance.items()}


StepsLike: TypeAlias = str | Sequence[float]


def parse_steps(steps: StepsLike, *, whole: bool = False) -> tuple[float, ...]:
    """Parse steps such as `50,100,200,1k`. They must be positive and ascending, and integers if `whole`."""
    if isinstance(steps, str):
        parts = [part.strip() for part in steps.split(",")]
        numbers = [_step(part) for part in parts] if steps.strip() else []
    else:
        numbers = [_number(step) for step in steps]
    if not numbers:
        raise ValueError("steps must name at least one rate, such as 50,100,200,1k; got none")
    for earlier, later in zip([0.0, *numbers], numbers, strict=False):
        if not 0 < later < math.inf:
            raise ValueError(f"every step must be finite and > 0, got {later:g}")
        if later <= earlier:
            raise ValueError(f"steps must ascend: {later:g} comes after {earlier:g}")
        if whole and later != int(later):
            raise ValueError(f"a step is a number of users here and must be whole, got {later:g}")
    return tuple(numbers)


def _step(text: str) -> float:
    digits, factor = (text[:-1], 1000.0) if text[-1:] in ("k", "K") else (text, 1.0)
    try:
        number = float(digits) * factor
    except ValueError:
        raise ValueError(f"a step must be a number, such as 50 or 1.5k, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a step must be finite, got {text!r}")
    return number


def _number(step: object) -> float:
    return float(check_number("a step", step))
