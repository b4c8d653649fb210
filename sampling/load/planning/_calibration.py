"""`calibrate`: fit a server model to recordings of real runs."""

import bisect
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import attrs

from sampling._arguments import check_instance, check_int, check_items
from sampling.load.model._profiles import Profile
from sampling.load.model._recording import ANSWERED, OUTCOMES, Recording
from sampling.load.model._report import LoadReport
from sampling.load.planning._fitting import Traffic, fit_server
from sampling.load.planning._server_model import ServerModel
from sampling.load.planning._simulation import replay

__all__ = ["Calibration", "calibrate"]

_LEAST_SAMPLES = 30
_MOST_LENGTHS = 200
_MOST_SLOTS = 64
_RELIABLE = 0.05
"""Maximum `percentile_error` of a model that is considered reliable."""

_OUTLIER = 20.0
"""Samples further from the fit than this many median deviations are ignored as outliers."""


@attrs.frozen(kw_only=True)
class Calibration:
    """A fitted server model, with its errors against the recording."""

    server: ServerModel
    error: float
    """Relative error of the model's times, averaged over all requests."""

    percentile_error: float
    """
    Relative error of the model's percentiles, averaged over rates and percentiles.

    Randomness affects single requests more than percentiles, so this is the better indicator of good predictions.
    """

    samples: int
    notes: tuple[str, ...] = ()
    """Remarks on what the recording could not determine."""

    def __str__(self) -> str:
        off = f"percentiles off by {self.percentile_error:.1%}, single requests by {self.error:.1%} of {self.samples:,}"
        return "; ".join([str(self.server), off, *self.notes])


@attrs.frozen
class _Sample:
    """One answered request, and the load during it."""

    first_s: float
    tokens_s: float
    tokens: int
    found_a_slot: bool
    """True if it did not have to queue."""

    busy_first: float
    """Average number of busy slots until its first token."""

    busy_later: float
    """Average number of busy slots after its first token."""


def calibrate(reports: LoadReport | Iterable[LoadReport], *, slots: int | None = None) -> Calibration:
    """
    Fit a `ServerModel` to recorded runs.

    Best record two: one at a rate that leaves the server mostly idle, and one that fills it. The reports must contain
    every request (`run_load` keeps them, files need `to_json(samples=True)`), with one request to the server per call
    (depth 1, breadth 1). The backend must stream and report its usage, for first-token times and output tokens.

    Args:
        reports: One report or several, of the same server and the same kind of request.

        slots: Number of requests that the server processes at once, if known. Otherwise the number that fits the
            recording best. A run that never fills the server can't determine it.
    """
    runs = [reports] if isinstance(reports, LoadReport) else check_items("reports", reports, "load reports")
    for run in runs:
        check_instance("a report", run, LoadReport, "a LoadReport")
        _check(run)
    if not runs:
        raise ValueError("reports must not be empty")
    answered = sum(run.succeeded for run in runs)
    if answered < _LEAST_SAMPLES:
        raise ValueError(f"calibrate needs {_LEAST_SAMPLES} answered requests, there are {answered}: record for longer")
    found, notes = _slots(runs, slots)
    guess = _fit(runs, found)
    match = fit_server(attrs.evolve(guess, jitter=_jitter(runs, guess)), _by_rate(runs))
    return Calibration(
        server=match.server,
        error=_error(attrs.evolve(match.server, jitter=0.0), runs),
        percentile_error=match.error,
        samples=answered,
        notes=(*notes, *_doubts(match.error)),
    )


def _doubts(percentile_error: float) -> Iterator[str]:
    if percentile_error > _RELIABLE:
        yield (
            f"no server like this explains the recording (its percentiles are {percentile_error:.0%} off), so "
            "predictions will be off as much or more: did its pace change meanwhile? Record again, the rates by turns"
        )


def _recording(run: LoadReport) -> Recording:
    if run.samples is None:
        raise ValueError("this report has no samples: write it with to_json(samples=True), or --samples")
    return run.samples


def _check(run: LoadReport) -> None:
    _recording(run)
    if run.requests > run.admitted:
        raise ValueError("calibrate needs one request to the server per call: record with depth 1 and breadth 1")
    if not run.time_to_first_token.count:
        raise ValueError("this run has no times to first token: use a backend that streams")
    if not run.output_tokens:
        raise ValueError("this run has no output tokens: use a backend that reports its usage")
    if not run.time_to_first_token.max:
        raise ValueError("the first tokens of this run took no time: use a backend that reports when they arrived")


def _slots(runs: Sequence[LoadReport], given: int | None) -> tuple[int, tuple[str, ...]]:
    """
    Return the number of slots, given or estimated.

    The estimate is the number whose simulation is closest to the recording.
    """
    if given is not None:
        return check_int("slots", given, least=1), ()
    most = min(max(_InFlight(_recording(run)).most for run in runs), _MOST_SLOTS)
    best = min(range(1, most + 1), key=lambda slots: _error(_fit(runs, slots), runs))
    if best < most:
        return best, ()
    return most, (f"never more than {most} requests were in flight: there may be more slots, record at a higher rate",)


def _by_rate(runs: Iterable[LoadReport]) -> list[Traffic]:
    """Group the runs by traffic profile."""
    recordings: dict[Profile, list[Recording]] = {}
    for run in runs:
        recordings.setdefault(run.profile, []).append(_recording(run))
    return [Traffic.of(same) for same in recordings.values()]


# The load of the server during a request.


class _InFlight:
    """The number of requests in flight over time."""

    def __init__(self, recording: Recording) -> None:
        columns = recording.columns
        changes = sorted([*((instant, +1) for instant in columns["sent_s"]), *((end, -1) for end in columns["done_s"])])
        self._instants: list[float] = [instant for instant, _ in changes]
        self._levels: list[int] = list(accumulate(by for _, by in changes))
        self.most = max(self._levels, default=0)
        self._integrals: dict[int, list[float]] = {}

    def _integral(self, slots: int) -> list[float]:
        """Return the integral of busy slots at each change."""
        if slots not in self._integrals:
            spans = [after - before for before, after in zip(self._instants, self._instants[1:], strict=False)]
            areas = (span * min(level, slots) for span, level in zip(spans, self._levels, strict=False))
            self._integrals[slots] = list(accumulate(areas, initial=0.0))
        return self._integrals[slots]

    def busy(self, start_s: float, end_s: float, slots: int) -> float:
        """
        Return the average number of busy slots.

        It is at least 1, for the request itself.
        """
        if end_s <= start_s:
            return 1.0
        return max(1.0, (self._up_to(end_s, slots) - self._up_to(start_s, slots)) / (end_s - start_s))

    def _up_to(self, instant: float, slots: int) -> float:
        index = bisect.bisect_right(self._instants, instant) - 1
        if index < 0:
            return 0.0
        return self._integral(slots)[index] + (instant - self._instants[index]) * min(self._levels[index], slots)

    def at(self, instant: float) -> int:
        """Return the requests in flight right after a time."""
        index = bisect.bisect_right(self._instants, instant) - 1
        return self._levels[index] if index >= 0 else 0


def _samples(runs: Iterable[LoadReport], slots: int) -> Iterator[_Sample]:
    for run in runs:
        recording = _recording(run)
        in_flight = _InFlight(recording)
        names = ("outcome", "sent_s", "first_token_s", "done_s", "output_tokens")
        for code, sent, first, done, tokens in zip(*(recording.columns[name] for name in names), strict=True):
            if OUTCOMES[code] in ANSWERED and not math.isnan(first) and tokens:
                yield _Sample(
                    first_s=first - sent,
                    tokens_s=done - first,
                    tokens=tokens,
                    found_a_slot=in_flight.at(sent) <= slots,
                    busy_first=in_flight.busy(sent, first, slots),
                    busy_later=in_flight.busy(first, done, slots),
                )


# Fitting.


def _fit(runs: Sequence[LoadReport], slots: int) -> ServerModel:
    samples = list(_samples(runs, slots))
    # The time to first token of a queued request contains its wait, which the model adds by itself.
    unqueued = [sample for sample in samples if sample.found_a_slot] or samples
    first_s, first_slowdown = _pace([(sample.busy_first - 1, sample.first_s) for sample in unqueued])
    long = [sample for sample in samples if sample.tokens > 1]
    token_s, token_slowdown = _pace([(sample.busy_later - 1, sample.tokens_s / (sample.tokens - 1)) for sample in long])
    answered = sum(run.succeeded for run in runs)
    return ServerModel(
        slots=slots,
        time_to_first_token_s=first_s,
        time_per_token_s=token_s,
        first_token_slowdown=first_slowdown,
        token_slowdown=token_slowdown,
        output_tokens=_lengths(sample.tokens for sample in samples),
        input_tokens=round(sum(run.input_tokens for run in runs) / answered),
        pass_probability=sum(run.valid for run in runs) / answered,
    )


def _lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """Reduce a distribution of lengths to a few hundred quantiles."""
    ordered = sorted(lengths)
    if len(ordered) <= _MOST_LENGTHS:
        return tuple(ordered)
    return tuple(ordered[(2 * number + 1) * len(ordered) // (2 * _MOST_LENGTHS)] for number in range(_MOST_LENGTHS))


def _pace(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """
    Return the time of a lone request, and its slowdown.

    The slowdown is relative, per other request.
    Fit a line by least squares, and again without outliers. Neither number is below zero.
    """
    if not points:
        return 0.0, 0.0
    alone_s, each_s = _line(points)
    off = [abs(time - alone_s - each_s * others) for others, time in points]
    usual = statistics.median(off)
    near = [point for point, distance in zip(points, off, strict=True) if distance <= _OUTLIER * usual + 1e-12]
    alone_s, each_s = _line(near)
    return alone_s, each_s / alone_s if alone_s else 0.0


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    middle_x = math.fsum(x for x, _ in points) / len(points)
    middle_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - middle_x) ** 2 for x, _ in points)
    slope = math.fsum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread > 1e-9 else 0.0
    if slope <= 0:
        # A server is not faster under load. Noise made it look so.
        return middle_y, 0.0
    start = middle_y - slope * middle_x
    # The intercept is not positive, so anchor the line at half of the least observed time instead.
    least = min(y for _, y in points)
    return (start, slope) if start > least / 2 else (least / 2, max(0.0, (middle_y - least / 2) / middle_x))


def _jitter(runs: Sequence[LoadReport], server: ServerModel) -> float:
    """
    Return the spread of measured around expected service times.

    It is the standard deviation of the logarithm of their ratio.
    """
    ratios: list[float] = []
    for sample in _samples(runs, server.slots):
        first_s = server.time_to_first_token_s * (1 + server.first_token_slowdown * (sample.busy_first - 1))
        token_s = server.time_per_token_s * (1 + server.token_slowdown * (sample.busy_later - 1))
        expected = first_s + token_s * (sample.tokens - 1)
        if sample.found_a_slot and expected > 0 and sample.first_s + sample.tokens_s > 0:
            ratios.append(math.log((sample.first_s + sample.tokens_s) / expected))
    if len(ratios) < 2:
        return 0.0
    return statistics.pstdev(ratios)


# The error of a model.


def _error(server: ServerModel, runs: Sequence[LoadReport]) -> float:
    """Return the average relative error of replayed requests."""
    return statistics.fmean(abs(math.log(expected / took)) for run in runs for expected, took in _replayed(server, run))


def _replayed(server: ServerModel, run: LoadReport) -> Iterator[tuple[float, float]]:
    recording = _recording(run)
    names = ("sent_s", "done_s", "output_tokens", "outcome")
    rows = sorted(zip(*(recording.columns[name] for name in names), strict=True))
    start_s = rows[0][0]
    columns = replay(server, [row[0] - start_s for row in rows], [max(1, row[2]) for row in rows]).columns
    stamps = zip(columns["index"], columns["sent_s"], columns["done_s"], strict=True)
    expected = {index: ended - started for index, started, ended in stamps}
    for index, (sent, done, _, code) in enumerate(rows):
        if OUTCOMES[code] in ANSWERED and done > sent and expected[index] > 0:
            yield expected[index], done - sent
