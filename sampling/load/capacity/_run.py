"""Raise the load step by step until the SLO breaks."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import anyio
import attrs

from sampling._arguments import check_bool, check_instance, check_int, check_number, short_repr
from sampling.errors import PreflightFailed
from sampling.load.capacity._answer import Axis, CapacityAnswer, Step
from sampling.load.capacity._probe import BacklogMonitor, BacklogProbe
from sampling.load.capacity._search import StepsLike, Trial, find_bracket, needs_confirmation, next_trial, parse_steps
from sampling.load.capacity._step_files import StepCsv, StepJournal
from sampling.load.model._about import describe_run, describe_workload, digest
from sampling.load.model._imported_workload import ImportedWorkload
from sampling.load.model._profiles import ArrivalModel, ClosedLoop, OpenLoop, Profile, Shape
from sampling.load.model._rates import shape_factors
from sampling.load.model._report import LoadReport
from sampling.load.model._seeds import derive_seed
from sampling.load.model._slo import Slo
from sampling.load.model._steadiness import find_pause
from sampling.load.model._verdict import Backlog, judge
from sampling.load.model._workload import Workload
from sampling.load.run import LoadRun
from sampling.load.traffic._stop import StopRequest

__all__ = ["CapacityRun", "CapacitySettings", "find_capacity"]

OnStep = Callable[[Step], object]


@attrs.frozen(kw_only=True)
class CapacitySettings:
    """The settings of a capacity search. `find_capacity` takes all of these."""

    steps: tuple[float, ...] = attrs.field(converter=parse_steps)
    """The rates, or numbers of users, to try, strictly ascending."""

    slo: Slo
    warmup_s: float = 10.0
    """Length of the unmeasured traffic before each measurement, at the rate of the step."""

    hold_s: float = 30.0
    """Length of the measurement of each step."""

    cooldown_s: float = 5.0
    """Pause after each step."""

    drain_s: float | None = 60.0
    """Time to wait for the last answers of a step. Requests still unanswered count as errors."""

    rate_tolerance: float = 0.05
    """A step whose rate falls short by more than this share is inconclusive."""

    stop_on_trip: bool = True
    """End the ramp at the first step that trips."""

    confirm: bool = True
    """Repeat a step that tripped, and count the trip only if it trips again."""

    timeout_s: float | None = None
    """Time from sending a request after which it is cancelled and counts as failed."""

    max_in_flight: int = 1024
    refine: bool = False
    """Bisect between the last rate that passed and the first that tripped."""

    precision: float = 0.02
    """Final width of the bracket, as a share of its upper end."""

    most_steps: int = 40
    axis: Axis = "rate"
    arrivals: ArrivalModel = "constant"
    shape: Shape | None = None
    """A factor of the rate over the measured time. It starts over at each step."""

    think_time_s: float = 0.0
    """With `axis="users"`: pause between an answer and the next request of the same user."""

    activate_per_s: float | None = None
    """With `axis="users"`: maximum number of users that start per second."""

    seed: int = 0
    workers: int = 1
    preflight: bool = False
    """Send one request first, and raise `PreflightFailed` if it fails."""

    probe: BacklogProbe | None = None
    """Returns the length of the server's queue. Without it, requests in flight are the backlog."""

    probe_timeout_s: float = 5.0
    preflight_timeout_s: float | None = None
    """Timeout of the preflight, or None for `probe_timeout_s`."""

    def __attrs_post_init__(self) -> None:
        check_instance("slo", self.slo, Slo, "a Slo")
        if self.slo.is_empty:
            raise ValueError("slo needs at least one limit, such as Slo(p95_s=2.0): without one nothing can trip")
        for name in ("warmup_s", "cooldown_s", "think_time_s"):
            check_number(name, getattr(self, name), least=0)
        for name in ("hold_s", "precision", "probe_timeout_s"):
            check_number(name, getattr(self, name), above=0)
        if check_number("rate_tolerance", self.rate_tolerance, least=0) >= 1:
            raise ValueError(f"rate_tolerance is a share and must be < 1, got {self.rate_tolerance}")
        if self.preflight_timeout_s is not None:
            check_number("preflight_timeout_s", self.preflight_timeout_s, above=0)
        for name in ("stop_on_trip", "confirm", "refine", "preflight"):
            check_bool(name, getattr(self, name))
        for name in ("max_in_flight", "most_steps", "workers"):
            check_int(name, getattr(self, name), least=1)
        check_int("seed", self.seed)
        self._check_axis()
        self.profile(self.steps[0])

    def _check_axis(self) -> None:
        if self.axis not in get_args(Axis):
            raise ValueError(f"axis must be 'rate' or 'users', got {short_repr(self.axis)}")
        if self.axis == "users" and (self.arrivals != "constant" or self.shape is not None):
            raise ValueError("with axis='users' arrivals follow from the answers: omit arrivals and shape")
        if self.axis == "rate" and (self.think_time_s or self.activate_per_s is not None):
            raise ValueError("think_time_s and activate_per_s are for axis='users': omit them, or change the axis")
        parse_steps(self.steps, whole=self.axis == "users")

    def profile(self, target: float) -> Profile:
        """Return the traffic profile of one step."""
        if self.axis == "users":
            return ClosedLoop(
                users=int(target),
                horizon_s=self.warmup_s + self.hold_s,
                think_time_s=self.think_time_s,
                warmup_s=self.warmup_s,
                activate_per_s=self.activate_per_s,
                drain_s=self.drain_s,
                timeout_s=self.timeout_s,
            )
        return OpenLoop(
            rate=target,
            duration_s=self.hold_s,
            max_in_flight=self.max_in_flight,
            arrivals=self.arrivals,
            shape=self.shape,
            warmup_s=self.warmup_s,
            drain_s=self.drain_s,
            timeout_s=self.timeout_s,
        )

    def measurement_settings(self) -> dict[str, Any]:
        """Return the settings that a resumed journal must match."""
        names = ("warmup_s", "hold_s", "drain_s", "rate_tolerance", "max_in_flight", "axis", "arrivals", "timeout_s")
        found: dict[str, Any] = {
            name: getattr(self, name) for name in (*names, "think_time_s", "activate_per_s", "seed")
        }
        return {**found, "slo": self.slo.to_dict(), "shape": self._shape_digest()}

    def _shape_digest(self) -> str | None:
        # The name of a function says little, and its address is another one in the process that resumes.
        first = self.profile(self.steps[0])
        if self.shape is None or isinstance(first, ClosedLoop):
            return None
        return digest(map(repr, shape_factors(first)))


class CapacityRun:
    """
    A capacity search that can be watched and stopped.

    Most callers only need `find_capacity`.
    A cancelled search raises, and `answer()` still returns the steps so far.
    """

    def __init__(
        self,
        workload: Workload | ImportedWorkload,
        settings: CapacitySettings,
        *,
        journal: str | Path | None = None,
        csv: str | Path | None = None,
        on_step: OnStep | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._about = {**describe_workload(workload), **(about or {})}
        measured = {**settings.measurement_settings(), "workload": self._about}
        self._journal = None if journal is None else StepJournal(journal, measured)
        self._csv = None if csv is None else StepCsv(csv)
        self._on_step = on_step
        self._steps: list[Step] = []
        self._done = False
        self._started: Mapping[str, Any] = {}
        self._stopping = StopRequest()
        self.running: LoadRun | None = None
        """The load run of the current step, to watch its progress."""

        self.target: float | None = None
        """The target of the current step."""

    async def run(self) -> CapacityAnswer:
        """
        Run the remaining steps, and return the answer.

        Steps in the journal are not run again.
        """
        self._restore()
        self._started = describe_run()
        with self._stopping.open_scope():
            if self._settings.preflight:
                await self._check_target()
            await self._ramp()
            if self._settings.refine:
                await self._refine()
            self._done = True
        return self.answer()

    def stop(self) -> None:
        """
        End the search now.

        The current step is discarded, and `run()` returns the steps so far.
        """
        self._stopping.set()

    def answer(self) -> CapacityAnswer:
        """Return the answer from the steps so far."""
        settings = self._settings
        return CapacityAnswer(
            slo=settings.slo,
            steps=tuple(self._steps),
            axis=settings.axis,
            refined=settings.refine,
            interrupted=not self._done,
            about={**self._about, **self._started},
        )

    def _restore(self) -> None:
        self._steps = list(self._journal.read()) if self._journal is not None else []
        if self._csv is not None:
            self._csv.start(self._steps)

    async def _check_target(self) -> None:
        """Send one request, to fail now rather than after an hour."""
        timeout_s = self._settings.preflight_timeout_s or self._settings.probe_timeout_s
        profile = OpenLoop(rate=1, requests=1, max_in_flight=1, drain_s=timeout_s)
        report = await LoadRun(self._workload, profile, seed=derive_seed(self._settings.seed, "preflight")).run()
        if report.succeeded:
            return
        if report.failed:
            ((name, message), *_) = report.error_messages.items()
            raise PreflightFailed(f"the first request failed with {name}: {message}")
        limit = f"{timeout_s:g} s"
        raise PreflightFailed(
            f"the first request was not answered within {limit}" if report.admitted else "the workload is empty"
        )

    # Steps.

    async def _ramp(self) -> None:
        for target in self._settings.steps:
            # A resumed search runs inconclusive steps again.
            known = [step for step in self._steps if step.target_rate == target and step.verdict != "INCONCLUSIVE"]
            if not known:
                await self._step(target, "ramp")
            while self._settings.confirm and needs_confirmation(self._trials, target):
                await self._step(target, "repeat")
            if find_bracket(self._trials).tripped == target and self._settings.stop_on_trip:
                return

    @property
    def _trials(self) -> list[Trial]:
        return [step.trial for step in self._steps]

    async def _refine(self) -> None:
        settings = self._settings
        while True:
            following = next_trial(
                self._trials,
                precision=settings.precision,
                most_trials=settings.most_steps,
                whole=settings.axis == "users",
                confirm=settings.confirm,
                # A shape is made for the length of a hold.
                longer=settings.shape is None,
            )
            if following is None:
                return
            await self._step(following.rate, following.why, following.holds)

    async def _step(self, target: float, why: Literal["ramp", "refine", "repeat"], holds: int = 1) -> None:
        """Run, judge and save one step, `holds` times as long as the others. A cancelled one is discarded."""
        # A repeated run has other random numbers, or it would only repeat its verdict.
        runs = sum(step.target_rate == target for step in self._steps)
        seed = derive_seed(self._settings.seed, "step", repr(target), runs)
        report, backlog = await self._measure(target, seed, holds)
        step = self._make_step(target, why, seed, report, backlog)
        self._steps.append(step)
        if self._journal is not None:
            self._journal.add(step)
        if self._csv is not None:
            self._csv.add(step)
        if self._on_step is not None:
            self._on_step(step)
        await anyio.sleep(self._settings.cooldown_s)

    async def _measure(self, target: float, seed: int, holds: int) -> tuple[LoadReport | None, Backlog | None]:
        settings = attrs.evolve(self._settings, hold_s=holds * self._settings.hold_s)
        profile = settings.profile(target)
        self.target = target
        self.running = LoadRun(self._workload, profile, seed=seed, slo=settings.slo, workers=settings.workers)
        try:
            if settings.probe is None:
                return await self.running.run(), None
            monitor = BacklogMonitor(settings.probe, timeout_s=settings.probe_timeout_s)
            return await _run_with_monitor(monitor, settings, self.running), monitor.backlog
        finally:
            self.running = None

    def _make_step(
        self,
        target: float,
        why: Literal["ramp", "refine", "repeat"],
        seed: int,
        report: LoadReport | None,
        backlog: Backlog | None,
    ) -> Step:
        settings = self._settings
        judgement = judge(report, settings.slo, rate_tolerance=settings.rate_tolerance, backlog=backlog)
        return Step(
            target_rate=target,
            achieved_rate=_achieved(report, settings.axis),
            verdict=judgement.verdict,
            reasons=judgement.reasons,
            why=why,
            edge=judgement.edge,
            confidence=judgement.confidence,
            seed=seed,
            pause_s=0.0 if report is None else find_pause(report),
            warnings=tuple(_warnings(target, report, backlog)),
            # The samples have been judged and are dropped here: a long ramp must not keep them all in memory.
            report=None if report is None else attrs.evolve(report, samples=None),
        )


def _warnings(target: float, report: LoadReport | None, backlog: Backlog | None) -> Iterator[str]:
    if backlog is not None and backlog.warning is not None:
        yield backlog.warning
    if report is not None and report.blocked is not None:
        yield f"{target:g}: {report.blocked}"


def _achieved(report: LoadReport | None, axis: Axis) -> float:
    if report is None:
        return 0.0
    return report.achieved_rate if axis == "rate" else float(report.active_users or 0)


async def _run_with_monitor(monitor: BacklogMonitor, settings: CapacitySettings, run: LoadRun) -> LoadReport | None:
    """
    Run a step while its queue is monitored.

    An exception of the run is raised as it is, not in a group.
    """
    report: LoadReport | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(monitor.watch, settings.warmup_s, settings.hold_s)
        try:
            report = await run.run()
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return report


async def find_capacity(  # noqa: PLR0913 - a search has many settings, and nearly all have a default
    workload: Workload | ImportedWorkload,
    steps: StepsLike,
    slo: Slo,
    *,
    warmup_s: float = 10.0,
    hold_s: float = 30.0,
    cooldown_s: float = 5.0,
    drain_s: float | None = 60.0,
    rate_tolerance: float = 0.05,
    stop_on_trip: bool = True,
    confirm: bool = True,
    timeout_s: float | None = None,
    max_in_flight: int = 1024,
    refine: bool = False,
    precision: float = 0.02,
    most_steps: int = 40,
    axis: Axis = "rate",
    arrivals: ArrivalModel = "constant",
    shape: Shape | None = None,
    think_time_s: float = 0.0,
    activate_per_s: float | None = None,
    seed: int = 0,
    workers: int = 1,
    preflight: bool = False,
    probe: BacklogProbe | None = None,
    probe_timeout_s: float = 5.0,
    preflight_timeout_s: float | None = None,
    journal: str | Path | None = None,
    csv: str | Path | None = None,
    on_step: OnStep | None = None,
) -> CapacityAnswer:
    """
    Find the highest load that meets the SLO.

    The load is raised step by step until the SLO breaks.

    Args:
        workload: Any `async def f(arrival)`, as for `run_load`.

        steps: The rates to try, ascending: `"50,100,200,1k"`, or numbers. With `axis="users"`, numbers of users.

        slo: The limits to meet.

        warmup_s: Length of the unmeasured traffic before each measurement, at the rate of the step.

        hold_s: Length of the measurement of each step.

        cooldown_s: Pause after each step.

        drain_s: Time to wait for the last answers of a step. Requests still unanswered count as errors.

        rate_tolerance: A step whose rate falls short by more than this share is inconclusive.

        stop_on_trip: End the ramp at the first step that trips.

        confirm: Repeat a step that tripped, and count the trip only if it trips again. Any rate can trip once, if the
            server pauses.

        timeout_s: Time from sending a request after which it is cancelled and counts as failed.

        max_in_flight: Maximum number of unanswered requests. Arrivals beyond it are dropped.

        refine: Bisect between the last rate that passed and the first that tripped, and repeat uncertain verdicts.

        precision: Final width of that bracket, as a share of its upper end.

        most_steps: Maximum number of steps.

        axis: The quantity to raise: the "rate" of an open loop, or the "users" of a closed loop.

        arrivals: The distribution of arrivals: "constant", "poisson" or "burst".

        shape: A factor of the rate over the measured time. It starts over at each step.

        think_time_s: With axis="users": pause between an answer and the next request of the same user.

        activate_per_s: With axis="users": maximum number of users that start per second.

        seed: The same seed generates the same traffic.

        workers: Number of sending processes.

        preflight: Send one request first, and raise `PreflightFailed` if it fails.

        probe: Returns the length of the server's queue. Without it, requests in flight are the backlog.

        probe_timeout_s: Timeout of one probe.

        preflight_timeout_s: Timeout of the preflight, or None for `probe_timeout_s`.

        journal: A file that stores the steps. The same search with the same file resumes after an interruption.

        csv: A file that gets a row after each step.

        on_step: Called with each finished step.
    """
    settings = CapacitySettings(
        steps=steps,
        slo=slo,
        warmup_s=warmup_s,
        hold_s=hold_s,
        cooldown_s=cooldown_s,
        drain_s=drain_s,
        rate_tolerance=rate_tolerance,
        stop_on_trip=stop_on_trip,
        confirm=confirm,
        timeout_s=timeout_s,
        max_in_flight=max_in_flight,
        refine=refine,
        precision=precision,
        most_steps=most_steps,
        axis=axis,
        arrivals=arrivals,
        shape=shape,
        think_time_s=think_time_s,
        activate_per_s=activate_per_s,
        seed=seed,
        workers=workers,
        preflight=preflight,
        probe=probe,
        probe_timeout_s=probe_timeout_s,
        preflight_timeout_s=preflight_timeout_s,
    )
    return await CapacityRun(workload, settings, journal=journal, csv=csv, on_step=on_step).run()
