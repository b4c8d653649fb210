"""`run_load`: generate traffic and report the results."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from sampling._arguments import check_instance, check_int
from sampling.load.model._about import describe_run, describe_workload
from sampling.load.model._aggregation import build_report
from sampling.load.model._imported_workload import ImportedWorkload
from sampling.load.model._profiles import Profile
from sampling.load.model._recording import Recording, Tally
from sampling.load.model._report import LoadReport
from sampling.load.model._slo import Slo
from sampling.load.model._verdict import with_verdict
from sampling.load.model._workload import Workload
from sampling.load.traffic._generator import Generator
from sampling.load.traffic._workers import WorkerPool

__all__ = ["LoadRun", "run_load"]


class LoadRun:
    """
    A load run that can be watched and stopped.

    Most callers only need `run_load`.
    A stopped run returns its report. A cancelled run raises, and `report()` still returns what was recorded.
    """

    def __init__(
        self,
        workload: Workload | ImportedWorkload,
        profile: Profile,
        *,
        seed: int = 0,
        slo: Slo | None = None,
        workers: int = 1,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Prepare a run.

        Args:
            workload: Any `async def f(arrival)`, or an object with `draw(arrival)`. Use an `ImportedWorkload` for
                several workers, or to open a client first.

            profile: An `OpenLoop` or a `ClosedLoop`.

            seed: The same seed generates the same traffic.

            slo: Limits that define a good answer, for the report's goodput.

            workers: Number of sending processes, for rates that one can't reach.

            about: Further facts about what is measured, in JSON types, for the report.
        """
        if slo is not None:
            check_instance("slo", slo, Slo, "a Slo")
        self._profile = profile
        self._seed = check_int("seed", seed)
        self._slo = slo
        self._workers = check_int("workers", workers, least=1)
        self._about: dict[str, Any] = {**describe_workload(workload), **(about or {})}
        self._generator: Generator | WorkerPool
        if workers > 1:
            self._generator = WorkerPool(workload, profile, seed=seed, workers=workers)
        else:
            self._generator = Generator(workload, profile, seed=seed)

    async def run(self, *, when_open: Callable[[], Awaitable[float]] | None = None) -> LoadReport:
        """
        Run the load once, and return the report. It waits for the last answers.

        `when_open` is awaited once the workload is open, and returns the start on the clock of the event loop. With it,
        several runs can start together.
        """
        self._about |= describe_run()
        await self._generator.generate(when_open)
        return self.report()

    def stop(self) -> None:
        """
        End the run now.

        Requests in flight are counted as cancelled, and `run()` returns its report.
        """
        self._generator.stop()

    @property
    def profile(self) -> Profile:
        """The traffic profile."""
        return self._profile

    @property
    def recording(self) -> Recording:
        """All requests so far. With several workers they arrive at the end."""
        return self._generator.recording

    @property
    def progress(self) -> Tally:
        """The counts so far, including the warm-up."""
        return self._generator.progress

    def report(self) -> LoadReport:
        """
        Build the report of a run that has ended.

        It may have been cancelled, or have failed.
        """
        report = build_report(
            self._generator.recording, self._profile, seed=self._seed, workers=self._workers, slo=self._slo
        )
        return with_verdict(attrs.evolve(report, about=self._about))


async def run_load(
    workload: Workload | ImportedWorkload,
    profile: Profile,
    *,
    seed: int = 0,
    slo: Slo | None = None,
    workers: int = 1,
) -> LoadReport:
    """
    Generate the traffic of a profile and return a report.

    `workload` is any `async def f(arrival)` that sends one request and waits for its answer. Any return value counts
    as a valid answer, except `Answered(valid=False)`. An exception counts as a failed request.

    An open loop sends on schedule, whatever the server does, and measures from the instant a request was due,
    so the latencies are those that users see. See `LoadRun` for the arguments, and for a run that can be stopped.
    """
    return await LoadRun(workload, profile, seed=seed, slo=slo, workers=workers).run()
