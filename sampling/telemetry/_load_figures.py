"""Read the metrics of a load run in progress."""

from array import array
from collections.abc import Iterator

import attrs

from sampling._arguments import check_instance
from sampling.load import LoadRun, PopulationsRun, Tally
from sampling.load.model._recording import ANSWERED, OUTCOMES

__all__ = ["BUCKETS_S", "COUNTS", "LoadFigures", "PopulationFigures", "watched"]

BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
"""Histogram buckets, from the lag of a timer to a request that times out."""

COUNTS = {
    "scheduled": "Arrivals that were due.",
    "admitted": "Arrivals that were sent.",
    "dropped": "Arrivals that were not sent.",
    "succeeded": "Requests that were answered.",
    "failed": "Requests that failed.",
    "cancelled": "Requests that were unanswered at the end.",
}
"""The counters of a load run, with their descriptions."""

_ANSWERED_CODES = frozenset(OUTCOMES.index(outcome) for outcome in ANSWERED)


@attrs.frozen(eq=False)
class PopulationFigures:
    """The metrics of one population at one moment."""

    population: str
    """The name of the population, empty in a run without populations."""

    model: str
    """The arrival model: open or closed."""

    tally: Tally
    """The counts so far, including the warm-up."""

    latencies: "array[float]"
    """Latencies of the answers since the last reading, without those of the warm-up."""

    lags: "array[float]"
    """Schedule lags of the requests since the last reading."""


class LoadFigures:
    """
    The metrics of a load run so far.

    A reading costs the load generator nothing: it looks at what the generator records anyway. With several workers the
    counts are live, and the latencies come at the end.
    """

    def __init__(self, run: LoadRun | PopulationsRun, *, most: int | None = None) -> None:
        """Read all new requests, or at most this many of the latest, at each reading."""
        check_instance("run", run, (LoadRun, PopulationsRun), "a LoadRun or a PopulationsRun")
        self._most = most
        self._runs = watched(run)
        self._read = dict.fromkeys(self._runs, 0)

    def read(self) -> Iterator[PopulationFigures]:
        """Yield the metrics of each population. May be called from any thread, but only one at a time."""
        for name, run in self._runs.items():
            columns = run.recording.columns
            # The last column is written last, so up to its length all columns are complete.
            start, end = self._read[name], len(columns["longest_gap_s"])
            self._read[name] = end
            if self._most is not None:
                start = max(start, end - self._most)
            latencies, lags = array("d"), array("d")
            for row in range(start, end):
                due = columns["intended_s"][row]
                lags.append(max(columns["sent_s"][row] - due, 0.0))
                if columns["outcome"][row] in _ANSWERED_CODES:
                    latencies.append(max(columns["done_s"][row] - due, 0.0))
            yield PopulationFigures(name, run.profile.model, run.progress, latencies, lags)


def watched(run: LoadRun | PopulationsRun) -> dict[str, LoadRun]:
    """Return the runs of all populations, by name."""
    return dict(run.runs) if isinstance(run, PopulationsRun) else {"": run}
