"""
Choose the next rate of a capacity search.

These are pure functions of the history.
The majority of its runs decides a rate, and the last run decides a tie. A trip is repeated before it counts,
because a pause of the server can trip any rate. The bracket consists of the smallest rate that
tripped and the largest rate below it that passed. It only shrinks, or is corrected by a repeated run. The answer is
always a rate that ran and passed.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import attrs

from sampling._arguments import check_number
from sampling.load.model._profiles import MOST_USERS
from sampling.load.model._verdict import Verdict

__all__ = [
    "Bracket",
    "Next",
    "Trial",
    "find_bracket",
    "find_confidence",
    "needs_confirmation",
    "next_trial",
    "parse_steps",
]

_MOST_RUNS = 3
"""Maximum number of runs at one rate. The answer has up to two more."""

_WANTED = (0.95, 0.6, 0.0)
"""Confidence of an answer that needs no further run, after one longer run, two of them, and more."""

_NEIGHBOURS = 0.1
"""The relative distance below which runs at one rate count for another rate."""

_MOST_HALVINGS = 6
"""Maximum number of halvings below the first step, when the first step trips."""


@attrs.frozen
class Trial:
    """One run at one rate."""

    rate: float
    verdict: Verdict
    edge: bool = False
    held_s: float = 1.0
    """Length of the measurement. The verdict of a longer one has more weight."""

    confidence: float | None = None
    """The confidence of a pass, or None if it can't be computed."""

    paused: bool = False
    """True if the server paused once during the measurement, which can trip any rate."""


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
    holds: int = 1
    """Length of the measurement, as a multiple of that of the other runs."""


def find_bracket(trials: Iterable[Trial]) -> Bracket:
    """Return the lowest trip, and the highest pass below it."""
    verdicts = _verdicts(trials)
    tripped = min((rate for rate, verdict in verdicts.items() if verdict == "TRIP"), default=None)
    below = math.inf if tripped is None else tripped
    passed = max((rate for rate, verdict in verdicts.items() if verdict == "PASS" and rate < below), default=None)
    return Bracket(passed, tripped)


def needs_confirmation(trials: Iterable[Trial], rate: float) -> bool:
    """Return True if a rate has tripped and no two of its runs agree yet."""
    runs = [trial for trial in trials if trial.rate == rate]
    verdicts = [trial.verdict for trial in _conclusive(runs)]
    passes, trips = verdicts.count("PASS"), verdicts.count("TRIP")
    return trips > 0 and (passes + trips == 1 or passes == trips) and len(runs) < _MOST_RUNS


def _conclusive(trials: Iterable[Trial]) -> list[Trial]:
    """Return the runs that decide. A trip during a pause of the server counts only if no other run does."""
    found = [trial for trial in trials if trial.verdict != "INCONCLUSIVE"]
    decided = {trial.rate for trial in found if trial.verdict == "PASS" or not trial.paused}
    return [trial for trial in found if trial.verdict == "PASS" or not trial.paused or trial.rate not in decided]


def next_trial(
    trials: Sequence[Trial],
    *,
    precision: float,
    most_trials: int = 40,
    whole: bool = False,
    confirm: bool = True,
    longer: bool = True,
) -> Next | None:
    """
    Return the next run, or None if none improves the answer.

    First repeat a trip that is not confirmed. Then bisect until the bracket is narrower than `precision` of its upper
    end. Then repeat its lower end, for twice as long if `longer`. If that trips, bisect again.
    """
    bracket = find_bracket(trials)
    if bracket.tripped is None or len(trials) >= most_trials:
        return None
    if confirm and needs_confirmation(trials, bracket.tripped):
        return Next(bracket.tripped, "repeat")
    return (
        _halve(trials, bracket, precision, whole=whole)
        or _repeat_pass(trials, bracket, 2 if longer else 1)
        or _repeat_trip(trials, bracket)
    )


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


def _repeat_pass(trials: Sequence[Trial], bracket: Bracket, holds: int) -> Next | None:
    """
    Return a further run at the answer, or None.

    It was chosen because it passed, which may have been luck. So it has to pass once more in a longer run, and again if
    it is still uncertain.
    """
    runs = [trial for trial in trials if trial.rate == bracket.passed]
    if bracket.passed is None or len(runs) >= _MOST_RUNS + 2:
        return None
    shortest_s = min(run.held_s for run in runs)
    proofs = [run for run in _conclusive(runs) if run.held_s >= holds * shortest_s][0 if holds > 1 else 1 :]
    if not proofs or _confidence_at(trials, bracket.passed) < _WANTED[min(len(proofs), len(_WANTED)) - 1]:
        return Next(bracket.passed, "repeat", holds)
    return None


def _repeat_trip(trials: Sequence[Trial], bracket: Bracket) -> Next | None:
    """Return a second run at the lowest trip, or None if it is certain."""
    runs = [trial for trial in trials if trial.rate == bracket.tripped]
    is_open = bracket.tripped is not None and len(runs) == 1 and runs[0].edge
    return Next(runs[0].rate, "repeat") if is_open else None


def _confidence_at(trials: Sequence[Trial], rate: float) -> float:
    """Return the confidence in a rate. If none was computed, it is low if a pass was close."""
    confidence = find_confidence(trials, rate)
    if confidence is not None:
        return confidence
    is_at_edge = any(trial.edge for trial in trials if trial.rate == rate and trial.verdict == "PASS")
    return _WANTED[1] if is_at_edge else 1.0


def find_confidence(trials: Iterable[Trial], rate: float | None) -> float | None:
    """
    Return the confidence that a rate holds, from all runs of a search, or None if it can't be computed.

    It is the average of the runs at that rate, weighted by their length, where a trip counts 0. A server that holds a
    rate holds all lower ones. So if runs at slightly lower rates were less certain, they count too: a rate that was
    chosen because it passed is not more certain than its neighbours.
    """
    runs = [
        (trial.rate, trial.held_s, 0.0 if trial.verdict == "TRIP" else trial.confidence)
        for trial in _conclusive(trials)
        if rate is not None and (1 - _NEIGHBOURS) * rate <= trial.rate <= rate
    ]
    known = [(at, held_s, sure) for at, held_s, sure in runs if sure is not None]
    if not any(at == rate for at, _, _ in known):
        return None
    return min(_average([run for run in known if run[0] >= lowest]) for lowest, _, _ in known)


def _average(runs: Sequence[tuple[float, float, float]]) -> float:
    return sum(held_s * sure for _, held_s, sure in runs) / sum(held_s for _, held_s, _ in runs)


def _verdicts(trials: Iterable[Trial]) -> dict[float, Verdict]:
    """Decide each rate by the majority of its conclusive runs, weighted by their length, and a tie by the last."""
    balance: dict[float, float] = {}
    last: dict[float, Verdict] = {}
    for trial in _conclusive(trials):
        vote = trial.held_s if trial.verdict == "PASS" else -trial.held_s
        balance[trial.rate] = balance.get(trial.rate, 0.0) + vote
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
        if whole and later > MOST_USERS:
            raise ValueError(f"a step is a number of users here and must be <= {MOST_USERS:,}, got {later:,.0f}")
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
