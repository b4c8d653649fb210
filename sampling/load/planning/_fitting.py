"""
Fit a server model by simulation.

The parameters are changed until the simulation reproduces the recorded percentiles.
A regression over single requests is only a first guess. A request that is slow for its own reasons overlaps with more
requests and delays more of them, so cause and effect can't be separated one by one. A replay of the whole traffic
takes both into account.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import mul

import attrs

from sampling.load.model._recording import ANSWERED, OUTCOMES, Recording
from sampling.load.model._series import nearest_rank
from sampling.load.planning._server_model import ServerModel
from sampling.load.planning._simulation import replay

__all__ = ["Fit", "Traffic", "fit_server"]

_MOST_REPLAYED = 2_000
"""Maximum number of requests per run. That is enough for percentiles, and each is simulated about fifty times."""

_FIRST_TOKEN_PERCENTS = (50,)
_WHOLE_PERCENTS = (25, 50, 75, 90, 95)
_TIMES = ("time_to_first_token_s", "time_per_token_s")
_SHARES = ("first_token_slowdown", "token_slowdown", "jitter")
_NUDGE = 0.05
"""Step of the numerical derivatives: relative for times, absolute for shares."""

_LEAST_TIME = 0.01
"""Lower bound of a time, as a share of its first guess."""

_MOST_ROUNDS = 8
_GOOD_ENOUGH = 0.01
"""The fit ends when a round reduces the squared error by less than this share."""


@attrs.frozen
class _Times:
    """Durations of requests, in any order."""

    to_first_token_s: tuple[float, ...]
    whole_s: tuple[float, ...]


@attrs.frozen
class _RecordedRun:
    """One recorded run."""

    sent_s: tuple[float, ...]
    tokens: tuple[int, ...]
    answered: frozenset[int]
    times: _Times

    @classmethod
    def of(cls, recording: Recording) -> "_RecordedRun":
        """Convert a recording. Only the first part of a long one is used."""
        names = ("sent_s", "first_token_s", "done_s", "output_tokens", "outcome")
        rows = sorted(zip(*(recording.columns[name] for name in names), strict=True))[:_MOST_REPLAYED]
        stamps = [
            (index, sent, first, done)
            for index, (sent, first, done, _, code) in enumerate(rows)
            if OUTCOMES[code] in ANSWERED and done > sent
        ]
        return cls(
            sent_s=tuple(row[0] - rows[0][0] for row in rows),
            tokens=tuple(max(1, row[3]) for row in rows),
            answered=frozenset(index for index, *_ in stamps),
            times=_times(stamps),
        )

    def times_on(self, server: ServerModel, *, seed: int) -> _Times:
        """Return the durations of these requests on a server."""
        columns = replay(server, self.sent_s, self.tokens, seed=seed).columns
        stamps = zip(*(columns[name] for name in ("index", "sent_s", "first_token_s", "done_s")), strict=True)
        return _times(stamp for stamp in stamps if stamp[0] in self.answered)


@attrs.frozen
class Traffic:
    """The recorded runs at one rate."""

    runs: tuple[_RecordedRun, ...]

    @classmethod
    def of(cls, recordings: Iterable[Recording]) -> "Traffic":
        """Convert the recordings of runs at the same rate."""
        return cls(tuple(map(_RecordedRun.of, recordings)))

    def percentiles(self) -> list[float]:
        """Return the recorded percentiles."""
        return _percentiles([run.times for run in self.runs])

    def percentiles_on(self, server: ServerModel) -> list[float]:
        """Return the percentiles of this traffic on a server."""
        return _percentiles([run.times_on(server, seed=number) for number, run in enumerate(self.runs)])


@attrs.frozen
class Fit:
    """A fitted server, and the error of its percentiles."""

    server: ServerModel
    error: float


def fit_server(server: ServerModel, traffic: Sequence[Traffic]) -> Fit:
    """
    Fit times, slowdowns and jitter to the recorded percentiles.

    Each rate has the same weight, however many requests it has.

    Args:
        server: A first guess. Slots, lengths and pass probability are not changed.

        traffic: The recorded traffic of each rate.
    """
    # Logarithms make relative errors: a short and a long time have the same weight.
    recorded = [math.log(time) for part in traffic for time in part.percentiles()]

    def residuals(numbers: Sequence[float]) -> list[float]:
        changed = _with_parameters(server, numbers)
        expected = [math.log(time) for part in traffic for time in part.percentiles_on(changed)]
        return [simulated - seen for simulated, seen in zip(expected, recorded, strict=True)]

    numbers = _least_squares(residuals, [1.0] * len(_TIMES) + [getattr(server, name) for name in _SHARES])
    errors = residuals(numbers)
    return Fit(_with_parameters(server, numbers), sum(map(abs, errors)) / len(errors))


def _with_parameters(server: ServerModel, numbers: Sequence[float]) -> ServerModel:
    """
    Return the server with other parameters.

    Times are multiplied by the numbers, and shares are replaced by them.
    """
    factors, shares = numbers[: len(_TIMES)], numbers[len(_TIMES) :]
    changes = {
        name: getattr(server, name) * max(factor, _LEAST_TIME) for name, factor in zip(_TIMES, factors, strict=True)
    }
    changes |= {name: max(share, 0.0) for name, share in zip(_SHARES, shares, strict=True)}
    return attrs.evolve(server, **changes)


def _times(stamps: Iterable[tuple[int, float, float, float]]) -> _Times:
    """Convert time stamps to durations. A missing first token is left out."""
    took = [(first - sent, done - sent) for _, sent, first, done in stamps]
    return _Times(tuple(first_s for first_s, _ in took if first_s > 0), tuple(whole_s for _, whole_s in took))


def _percentiles(runs: Sequence[_Times]) -> list[float]:
    firsts = sorted(time for run in runs for time in run.to_first_token_s)
    wholes = sorted(time for run in runs for time in run.whole_s)
    return [
        *(nearest_rank(firsts, percent) for percent in _FIRST_TOKEN_PERCENTS),
        *(nearest_rank(wholes, percent) for percent in _WHOLE_PERCENTS),
    ]


# Nonlinear least squares (Levenberg–Marquardt) with numerical derivatives.


def _least_squares(residuals: Callable[[Sequence[float]], list[float]], start: Sequence[float]) -> list[float]:
    """Minimize the sum of squares of `residuals(numbers)`, from a start."""
    numbers, errors, damping = list(start), residuals(start), 0.01
    for _ in range(_MOST_ROUNDS):
        slopes = [_slopes(residuals, numbers, errors, index) for index in range(len(numbers))]
        before = _square(errors)
        for _ in range(_MOST_ROUNDS):
            step = _solve(_normal_matrix(slopes, damping), [-_dot(slope, errors) for slope in slopes])
            tried = [max(0.0, number + change) for number, change in zip(numbers, step, strict=True)]
            found = residuals(tried)
            if _square(found) < before:
                numbers, errors, damping = tried, found, damping / 10
                break
            damping *= 10
        if _square(errors) >= before * (1 - _GOOD_ENOUGH):
            break
    return numbers


def _slopes(
    residuals: Callable[[Sequence[float]], list[float]], numbers: Sequence[float], errors: Sequence[float], index: int
) -> list[float]:
    """
    Return the derivative of each residual by one number.

    It is 0 if the number is at its lower bound of 0.
    """
    nudged = [number + _NUDGE * (index == here) for here, number in enumerate(numbers)]
    slopes = [(after - before) / _NUDGE for after, before in zip(residuals(nudged), errors, strict=True)]
    return [0.0] * len(slopes) if not numbers[index] and _dot(slopes, errors) > 0 else slopes


def _normal_matrix(slopes: Sequence[Sequence[float]], damping: float) -> list[list[float]]:
    """
    Return the damped matrix of the normal equations.

    Damping limits the steps, also of numbers without effect.
    """
    return [
        [_dot(left, right) + damping * (row == column) for column, right in enumerate(slopes)]
        for row, left in enumerate(slopes)
    ]


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve linear equations by elimination. Pivoting is not needed, because the matrix is positive definite."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for index, pivot in enumerate(rows):
        for row in rows[index + 1 :]:
            factor = row[index] / pivot[index]
            row[index:] = [value - factor * above for value, above in zip(row[index:], pivot[index:], strict=True)]
    found = [0.0] * len(rows)
    for index in reversed(range(len(rows))):
        row = rows[index]
        found[index] = (row[-1] - _dot(row[index + 1 : -1], found[index + 1 :])) / row[index]
    return found


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    return math.fsum(map(mul, left, right))


def _square(errors: Sequence[float]) -> float:
    return _dot(errors, errors)
