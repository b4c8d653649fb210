"""`run_load`: make traffic, and report what became of it."""

from sampling._arguments import check_instance, check_int
from sampling.load.model._aggregation import build_report
from sampling.load.model._imported_workload import ImportedWorkload
from sampling.load.model._profiles import Profile
from sampling.load.model._recording import Tally
from sampling.load.model._report import LoadReport
from sampling.load.model._slo import Slo
from sampling.load.model._workload import Workload
from sampling.load.traffic._generator import Generator
from sampling.load.traffic._workers import WorkerPool

__all__ = ["LoadRun", "run_load"]


class LoadRun:
    """
    A load run that can be watched and stopped. `run_load` is all that most need.

    A run that is stopped returns its report; a run that is cancelled raises, as everything that is cancelled does,
    and `report()` still tells what was gathered.
    """

    def __init__(
        self,
        workload: Workload | ImportedWorkload,
        profile: Profile,
        *,
        seed: int = 0,
        slo: Slo | None = None,
        workers: int = 1,
    ) -> None:
        """
        Prepare a run.

        Args:
            workload: Any `async def f(arrival)`, or something with `draw(arrival)`; for several workers, or to open
                a client first, an `ImportedWorkload`.

            profile: An `OpenLoop` or a `ClosedLoop`.

            seed: The same seed makes the same traffic.

            slo: What a good answer is, for the report's goodput.

            workers: How many processes send, where one can't keep up.
        """
        if slo is not None:
            check_instance("slo", slo, Slo, "a Slo")
        self._profile = profile
        self._seed = check_int("seed", seed)
        self._slo = slo
        self._workers = check_int("workers", workers, least=1)
        self._generator: Generator | WorkerPool
        if workers > 1:
            self._generator = WorkerPool(workload, profile, seed=seed, workers=workers)
        else:
            self._generator = Generator(workload, profile, seed=seed)

    async def run(self) -> LoadReport:
        """Make the traffic, wait for the answers, and report. A run runs once."""
        await self._generator.generate()
        return self.report()

    def stop(self) -> None:
        """End the run now: what is in flight is cancelled and counted so, and `run()` returns its report."""
        self._generator.stop()

    @property
    def progress(self) -> Tally:
        """The counts so far, those of the warm-up included."""
        return self._generator.progress

    def report(self) -> LoadReport:
        """Report what was gathered, after the run has ended, whichever way that was."""
        return build_report(
            self._generator.recording, self._profile, seed=self._seed, workers=self._workers, slo=self._slo
        )


async def run_load(
    workload: Workload | ImportedWorkload,
    profile: Profile,
    *,
    seed: int = 0,
    slo: Slo | None = None,
    workers: int = 1,
) -> LoadReport:
    """
    Make traffic as the profile says, and report what became of it.

    `workload` is any `async def f(arrival)`: it sends one request and waits for its answer. What it returns is a valid
    answer, unless it is an `Answered(valid=False)`; what it raises is a failed request.

    An open loop sends by the clock, whatever the server does, and measures from the instant a request was due:
    the numbers are those that users see. See `LoadRun` for the arguments, and for a run that can be stopped.
    """
    return await LoadRun(workload, profile, seed=seed, slo=slo, workers=workers).run()
