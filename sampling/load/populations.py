"""`run_populations`: several groups of traffic in one run."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import attrs

from sampling._arguments import check_instance, check_int, check_items, check_str, short_repr
from sampling.load.model._imported_workload import ImportedWorkload
from sampling.load.model._populations_report import PopulationsReport
from sampling.load.model._profiles import ClosedLoop, OpenLoop, Profile
from sampling.load.model._recording import Tally
from sampling.load.model._seeds import derive_seed
from sampling.load.model._slo import Slo
from sampling.load.model._workload import Workload
from sampling.load.run import LoadRun

__all__ = ["Population", "PopulationsRun", "run_populations"]


@attrs.frozen(kw_only=True)
class Population:
    """
    One group of traffic in a run.

    It has its own traffic, open or closed, its own workload and its own limits.
    """

    name: str
    workload: Workload | ImportedWorkload
    """What this group sends. Use `mix` for several operations."""

    profile: Profile
    """An `OpenLoop` with a rate, or a `ClosedLoop` with users."""

    slo: Slo | None = None
    """The limits of this group."""

    about: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    """Further facts about what is measured, in JSON types, for the report."""

    def __attrs_post_init__(self) -> None:
        check_str("the name of a population", self.name, empty=False)
        if not self.name.isprintable():
            raise ValueError(f"the name of a population must not have control characters, got {short_repr(self.name)}")
        label = f"the profile of population {self.name!r}"
        check_instance(label, self.profile, (OpenLoop, ClosedLoop), "an OpenLoop or a ClosedLoop")


class PopulationsRun:
    """
    A run of several populations that can be watched and stopped.

    Most callers only need `run_populations`.
    """

    def __init__(self, populations: Sequence[Population], *, seed: int = 0, workers: int = 1) -> None:
        """
        Prepare a run.

        Args:
            populations: The groups of traffic. They start together.

            seed: The same seed generates the same traffic. Each population has its own random numbers, so
                adding or removing another one does not affect it.

            workers: Number of sending processes of each population.
        """
        self._seed = check_int("seed", seed)
        self.runs: dict[str, LoadRun] = {}
        """The run of each population, to watch its progress."""

        for population in check_items("populations", populations, "populations"):
            check_instance("a population", population, Population, "a Population")
            if population.name in self.runs:
                raise ValueError(f"two populations are named {population.name!r}: give each its own name")
            self.runs[population.name] = LoadRun(
                population.workload,
                population.profile,
                seed=derive_seed(seed, "population", population.name),
                slo=population.slo,
                workers=workers,
                about={**population.about, "population": population.name},
            )
        if not self.runs:
            raise ValueError("populations must not be empty: add at least one population")
        self._failure: Exception | None = None

    async def run(self) -> PopulationsReport:
        """Run all populations to their ends, and return the report."""
        start = _CommonStart(len(self.runs))
        async with anyio.create_task_group() as group:
            for run in self.runs.values():
                group.start_soon(self._run_one, run, start, group.cancel_scope)
        if self._failure is not None:
            raise self._failure
        return self.report()

    async def _run_one(self, run: LoadRun, start: "_CommonStart", everyone: anyio.CancelScope) -> None:
        try:
            await run.run(when_open=start.wait)
        except Exception as error:  # noqa: BLE001 - raised by `run`, outside of the exception group
            self._failure = self._failure or error
            everyone.cancel()

    def stop(self) -> None:
        """End the run now. Requests in flight are counted as cancelled, and `run()` returns its report."""
        for run in self.runs.values():
            run.stop()

    @property
    def progress(self) -> Tally:
        """The counts of all populations so far, including the warm-up."""
        counts = Tally()
        for run in self.runs.values():
            counts.add(run.progress)
        return counts

    def report(self) -> PopulationsReport:
        """Build the report of a run that has ended. It may have been cancelled, or have failed."""
        return PopulationsReport(seed=self._seed, populations={name: run.report() for name, run in self.runs.items()})


class _CommonStart:
    """The common start of all populations, once the last of them has opened its workload."""

    def __init__(self, populations: int) -> None:
        self._closed = populations
        self._all_open = anyio.Event()
        self._start = 0.0

    async def wait(self) -> float:
        self._closed -= 1
        if not self._closed:
            self._start = anyio.current_time()
            self._all_open.set()
        await self._all_open.wait()
        return self._start


async def run_populations(populations: Sequence[Population], *, seed: int = 0, workers: int = 1) -> PopulationsReport:
    """
    Send the traffic of several populations at once, and return one report with all of them.

    For example, users who chat while a batch job sends at a fixed rate. Each population is judged by its own limits.
    """
    return await PopulationsRun(populations, seed=seed, workers=workers).run()
