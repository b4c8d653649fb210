"""`sampling load`: send traffic and report on it."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import anyio
import attrs
import typer

from sampling.cli import _flags as flags
from sampling.cli import _generated_prompts as prompt_flags
from sampling.cli import _workload as workload_flags
from sampling.cli._exit_codes import FAILED, SUCCEEDED, exit_code_of
from sampling.cli._files import Force
from sampling.cli._live_page import LivePage, serving_live_page
from sampling.cli._load_progress import EndedRun, ProgressUpdate, run_with_progress
from sampling.cli._outputs import Out, Samples, check_outputs, publish, write_outputs
from sampling.cli._scenario import Scenario, read_scenario, scenario_schema
from sampling.cli._signals import ignore_hangup
from sampling.cli._status import print_status
from sampling.cli._stdout import only_results, write_result
from sampling.cli._traffic import Traffic
from sampling.cli._virtual_run import run_virtual_until_signal
from sampling.cli._workload import (
    WorkloadSettings,
    check_operations,
    check_turns,
    check_workers,
    prompt_tokens_of,
    select_workload,
    sending_headers,
    sharing_backends,
)
from sampling.load import (
    ImportedWorkload,
    LoadReport,
    LoadRun,
    OpenLoop,
    PopulationsReport,
    PopulationsRun,
    Profile,
    Slo,
)
from sampling.load.model._units import format_seconds
from sampling.load.report._table import load_table
from sampling.load.traffic._arrivals import count_arrivals
from sampling.telemetry.run_progress import describe_tally

__all__ = ["EXAMPLES", "HELP", "load"]

HELP = """
Send traffic and report latencies, errors, validity and cost.

With --rate (open loop), requests leave on schedule even if the server is slow, and latency counts from the scheduled
time. With --users (closed loop), each user waits for an answer before sending the next request.

A scenario in a TOML file has several populations, each with its own traffic, questions and limits. Its keys are the
names of these flags, and --scenario-schema prints its JSON schema.

Ctrl-C stops the run, and the results so far are reported and written.

Exit code: 0 if the SLO held (without --slo, if any request was answered), 1 otherwise.
"""

EXAMPLES = """
\b
Examples:
  sampling load --rate 5 --duration 30s
  sampling load --rate 50 --duration 1m --backend openai:qwen3@http://127.0.0.1:8000/v1 --slo p95=2s,error=0.1%
  sampling load --users 20 --think-time 2s --duration 5m --require arithmetic --depth 3 --out report.html
  sampling load --users 20 --duration 5m --prompt-tokens 512 --prompt-tokens-stdev 128 --turns 3
  sampling load --rate 5 --to-rate 50 --duration 2m --arrivals poisson -o ramp.json -o ramp.html
  sampling load --rate 200 --duration 30s --workers 4 --workload shop.load:chat
  sampling load --rate 4 --duration 1h --backend simulated:0.7 --virtual
  sampling load scenario.toml --out report.html
"""


@attrs.frozen(kw_only=True)
class _LoadJob:
    """The settings of a run, parsed and checked."""

    workload: WorkloadSettings | ImportedWorkload
    profile: Profile
    slo: Slo | None
    seed: int
    workers: int
    virtual: bool
    outputs: tuple[Path, ...]

    def run(self) -> LoadRun:
        """Return the run, not yet started."""
        workload = self.workload.imported() if isinstance(self.workload, WorkloadSettings) else self.workload
        about = self.workload.describe() if isinstance(self.workload, WorkloadSettings) else None
        return LoadRun(workload, self.profile, seed=self.seed, slo=self.slo, workers=self.workers, about=about)

    def sharing(self) -> AbstractAsyncContextManager[None]:
        """Return the context of the run, in which nothing is shared."""
        return nullcontext()

    @property
    def total_s(self) -> float:
        """The planned length of the run."""
        return _total_s(self.profile)

    def plan(self) -> list[str]:
        """Describe what would be sent, as lines of text."""
        described = f"seed {self.seed}, {self.workers} workers, SLO {self.slo or 'none'}"
        return [f"workload: {self.workload}", *_traffic_lines(self.profile, self.workload), described]

    def __str__(self) -> str:
        return str(self.workload)


@attrs.frozen(kw_only=True)
class _ScenarioJob:
    """The settings of a scenario, parsed and checked."""

    scenario: Scenario
    seed: int
    virtual: bool
    outputs: tuple[Path, ...]

    def run(self) -> PopulationsRun:
        """Return the run, not yet started."""
        populations = [settings.population() for settings in self.scenario.populations]
        return PopulationsRun(populations, seed=self.seed, workers=self.scenario.workers)

    def sharing(self) -> AbstractAsyncContextManager[None]:
        """Return the context of the run, in which populations share their backends. Worker processes can't."""
        parts = [part for settings in self.scenario.populations for part in settings.parts()]
        own = [part for part in parts if isinstance(part, WorkloadSettings)]
        return sharing_backends(own if self.scenario.workers == 1 else ())

    @property
    def total_s(self) -> float:
        """The planned length of the run."""
        return max(_total_s(settings.traffic.profile()) for settings in self.scenario.populations)

    def plan(self) -> list[str]:
        """Describe what would be sent, as lines of text."""
        lines: list[str] = []
        for settings in self.scenario.populations:
            lines.append(str(settings))
            lines += _traffic_lines(settings.traffic.profile(), *settings.parts())
            lines.append(f"SLO {settings.slo or 'none'}")
        return [*lines, f"seed {self.seed}, {self.scenario.workers} workers for each population"]

    def __str__(self) -> str:
        return "; ".join(map(str, self.scenario.populations))


_Job: TypeAlias = _LoadJob | _ScenarioJob
_WITH_A_SCENARIO = frozenset(
    {"question", "seed", "out", "force", "samples", "dry_run", "virtual", "header", "live_port"}
)
"""The parameters that are still allowed together with a scenario."""


def load(  # noqa: PLR0913 - each is a flag
    ctx: typer.Context,
    question: workload_flags.Question = None,
    *,
    rate: Annotated[str | None, typer.Option(help="Requests per second, open loop: 50, 0.5, 1.2k.")] = None,
    users: Annotated[int | None, typer.Option(help="Number of users, closed loop.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A file of send times in seconds, one per line.")] = None,
    duration: Annotated[str | None, typer.Option(help="How long to send, without the warm-up: 30s, 5m, 1h.")] = None,
    requests: Annotated[
        int | None, typer.Option(help="Number of requests. With --duration, the first limit ends the run.")
    ] = None,
    to_rate: Annotated[str | None, typer.Option(help="Change the rate linearly to this one over --duration.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Arrival process: constant (default), poisson, burst.")] = None,
    burst: Annotated[int | None, typer.Option(help="Requests per burst, with --arrivals burst.")] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(help="Limit of requests in flight. Further ones are dropped and counted. Default: 256."),
    ] = None,
    think_time: Annotated[str | None, typer.Option(help="Pause of a user between answer and next request.")] = None,
    on_error: Annotated[
        str | None, typer.Option(help="With --users, after a failure: continue (default) or cancel.")
    ] = None,
    warmup: Annotated[str, typer.Option(help="Traffic before the measurement, not counted.")] = "0s",
    drain: Annotated[str, typer.Option(help="How long to wait for the last answers.")] = "60s",
    timeout: Annotated[str | None, typer.Option(help="Cancel a request after this time, and count it failed.")] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="Limits that must hold: p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20."),
    ] = None,
    questions: workload_flags.Questions = None,
    prompt_tokens: prompt_flags.PromptTokens = None,
    prompt_tokens_stdev: prompt_flags.PromptTokensStdev = None,
    prompt_tokens_min: prompt_flags.PromptTokensMin = None,
    prompt_tokens_max: prompt_flags.PromptTokensMax = None,
    shared_prefix_tokens: prompt_flags.SharedPrefixTokens = None,
    prefixes: prompt_flags.Prefixes = None,
    turns: prompt_flags.Turns = None,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    send_env_key: flags.SendEnvKey = False,
    allow_http: flags.AllowHttp = False,
    header: flags.Header = None,
    system: flags.System = None,
    type_: flags.TypeFlag = None,
    constrain: flags.Constrain = True,
    workload: workload_flags.Workload = None,
    seed: workload_flags.TrafficSeed = 0,
    workers: workload_flags.Workers = 1,
    out: Out = None,
    force: Force = False,
    samples: Samples = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    virtual: Annotated[bool, typer.Option("--virtual", help="Run in virtual time, with --backend simulated.")] = False,
    live_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Show live figures on http://127.0.0.1:PORT/, and /metrics for Prometheus."
        ),
    ] = None,
    show_schema: Annotated[
        bool, typer.Option("--scenario-schema", help="Print the JSON schema of scenarios, and send nothing.")
    ] = False,
) -> int:
    """Send traffic and report on it."""
    if live_port is not None and virtual:
        raise flags.UsageError("--live-port and --virtual contradict each other: a run in virtual time ends at once")
    if show_schema:
        write_result(json.dumps(scenario_schema(), indent=2) + "\n")
        return SUCCEEDED
    if question and question[0].lower().endswith(".toml"):
        with sending_headers(header, workload=None, backend="openai"):
            with flags.usage_errors():
                _refuse_flags(ctx, question)
                scenario = read_scenario(Path(question[0]))
                given_seed = seed if _is_given(ctx, "seed") else None
                kept = samples or scenario.samples
                planned = _scenario_job(
                    scenario, Path(question[0]), given_seed, [*(out or ()), *scenario.out],
                    virtual=virtual, force=force, samples=kept,
                )  # fmt: skip
            if dry_run:
                _show_plan(planned)
                return SUCCEEDED
            return _run(planned, samples=kept, live_port=live_port)
    with sending_headers(header, workload=workload, backend=backend):
        with flags.usage_errors():
            profile = Traffic(
                rate=rate,
                users=users,
                trace=trace,
                duration=duration,
                requests=requests,
                to_rate=to_rate,
                arrivals=arrivals,
                burst=burst,
                max_in_flight=max_in_flight,
                think_time=think_time,
                on_error=on_error,
                warmup=warmup,
                drain=drain,
                timeout=timeout,
            ).profile()
            job = _LoadJob(
                workload=select_workload(
                    workload,
                    question,
                    questions,
                    backend=backend,
                    strategy=strategy,
                    depth=depth,
                    breadth=breadth,
                    require=tuple(require or ()),
                    temperature=temperature,
                    max_tokens=max_tokens,
                    send_env_key=send_env_key,
                    allow_http=allow_http,
                    system=system,
                    type_=type_,
                    constrain=constrain,
                    prompt_tokens=prompt_tokens,
                    prompt_tokens_stdev=prompt_tokens_stdev,
                    prompt_tokens_min=prompt_tokens_min,
                    prompt_tokens_max=prompt_tokens_max,
                    shared_prefix_tokens=shared_prefix_tokens,
                    prefixes=prefixes,
                    turns=turns,
                ),
                profile=profile,
                slo=None if slo is None else Slo.parse(slo),
                seed=seed,
                workers=workers,
                virtual=virtual,
                outputs=check_outputs(
                    out,
                    force=force,
                    protected={"the file of questions": questions, "the trace": trace},
                    samples=samples,
                ),
            )
            check_turns(job.workload, users=users is not None)
            check_workers(job.workload, workers, virtual=virtual)
            check_operations(job.slo, job.workload)
        if dry_run:
            _show_plan(job)
            return 0
        return _run(job, samples=samples, live_port=live_port)


def _refuse_flags(ctx: typer.Context, question: Sequence[str]) -> None:
    """Raise ValueError for flags whose values belong in the scenario."""
    if len(question) > 1:
        raise ValueError("a scenario has its own questions: give the file alone")
    given = [name for name in ctx.params if _is_given(ctx, name)]
    unused = sorted(f"--{name.strip('_').replace('_', '-')}" for name in given if name not in _WITH_A_SCENARIO)
    if unused:
        raise ValueError(f"the scenario says what is sent: write {', '.join(unused)} into the file")


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _scenario_job(
    scenario: Scenario,
    path: Path,
    seed: int | None,
    out: Sequence[Path],
    *,
    virtual: bool,
    force: bool,
    samples: bool,
) -> _ScenarioJob:
    """Check everything that can be wrong before anything is sent."""
    job = _ScenarioJob(
        scenario=scenario,
        seed=scenario.seed if seed is None else seed,
        virtual=virtual or scenario.virtual,
        outputs=check_outputs(out, force=force or scenario.force, protected={"the scenario": path}, samples=samples),
    )
    for settings in scenario.populations:
        for workload in settings.parts():
            check_workers(workload, scenario.workers, virtual=job.virtual)
    job.run()
    return job


def _run(job: _Job, *, samples: bool, live_port: int | None) -> int:
    """Run the job, write the report, and return the exit code."""
    with ExitStack() as stack:
        page: LivePage | None = None
        with flags.usage_errors():
            run = job.run()
            if live_port is not None:
                page = stack.enter_context(serving_live_page(run, live_port, str(job)))
                print_status(f"live figures: {page.address}, and {page.address}metrics for Prometheus")
        with only_results(), _keeping(job, run, samples=samples):
            ended = _run_virtual(job, run) if job.virtual else anyio.run(_run_with_progress, job, run)
        with ignore_hangup():
            code = _write(job, ended, samples=samples)
        if page is not None:
            # Everything is written, so that a further Ctrl-C ends nothing but this wait.
            with suppress(KeyboardInterrupt):
                page.end(ended.result)
        return code


@contextmanager
def _keeping(job: _Job, run: LoadRun | PopulationsRun, *, samples: bool) -> Generator[None]:
    """Write what was measured even if a workload ends the program or a worker dies."""
    try:
        yield
    except BaseException:
        if run.progress.scheduled:
            write_outputs(run.report(), job.outputs, samples=samples)
        raise


def _write(job: _Job, ended: EndedRun[LoadReport | PopulationsReport], *, samples: bool) -> int:
    """Write the report, and return the exit code."""
    report = ended.result
    text = f"{load_table(report)}\n{_verdict_line(report)}"
    written = publish(report, text, job.outputs, samples=samples)
    if ended.received is not None:
        return exit_code_of(ended.received)
    if ended.problem is not None:
        print_status(f"sampling: the system ended the run: {ended.problem}. The report covers the time until then")
        return FAILED
    answered = (report.total if isinstance(report, PopulationsReport) else report).succeeded
    held = answered > 0 if report.verdict is None else report.verdict == "PASS"
    return SUCCEEDED if held and written else FAILED


def _verdict_line(report: LoadReport | PopulationsReport) -> str:
    if report.verdict is None:
        return ""
    limits = "every population with an SLO held" if isinstance(report, PopulationsReport) else str(report.slo)
    return f"\n{report.verdict}: {'; '.join(report.reasons) or limits}\n"


def _show_plan(job: _Job) -> None:
    write_result("\n".join([*job.plan(), *(f"would write {path}" for path in job.outputs)]) + "\n")


def _traffic_lines(profile: Profile, *workloads: WorkloadSettings | ImportedWorkload) -> Iterator[str]:
    if isinstance(profile, OpenLoop):
        arrivals = count_arrivals(profile)
        yield f"traffic: {arrivals:,} requests over {format_seconds(_total_s(profile))}, open loop"
        most: int | None = arrivals
    else:
        ends = [f"{profile.requests:,} requests" if profile.requests is not None else ""]
        ends.append(format_seconds(profile.horizon_s) if profile.horizon_s is not None else "")
        yield f"traffic: {profile.users:,} users, until {' or '.join(filter(None, ends))}"
        most = profile.requests
    own = [workload for workload in workloads if isinstance(workload, WorkloadSettings)]
    if own and most is not None:
        requests = f"{most * max(each.max_requests for each in own):,} requests{prompt_tokens_of(most, own)}"
        earlier = " and earlier turns" if any(each.turns for each in own) else ""
        yield f"to the backend: at most {requests}, without judges{earlier}"


def _total_s(profile: Profile) -> float:
    return profile.warmup_s + (profile.measured_s or 0.0)


def _run_virtual(job: _Job, run: LoadRun | PopulationsRun) -> EndedRun[LoadReport | PopulationsReport]:
    report, received = run_virtual_until_signal(partial(_run_shared, job, run), run.stop)
    return EndedRun(report, received)


async def _run_shared(job: _Job, run: LoadRun | PopulationsRun) -> LoadReport | PopulationsReport:
    async with job.sharing():
        return await run.run()


async def _run_with_progress(job: _Job, run: LoadRun | PopulationsRun) -> EndedRun[LoadReport | PopulationsReport]:
    print_status(f"sending: {job}")
    get_progress = partial(_progress, run, job.total_s, _stopwatch())
    return await run_with_progress(
        partial(_run_shared, job, run), get_progress=get_progress, stop=run.stop, result_so_far=run.report
    )


def _stopwatch() -> Callable[[], float]:
    start = anyio.current_time()
    return lambda: anyio.current_time() - start


def _progress(run: LoadRun | PopulationsRun, total_s: float, elapsed_s: Callable[[], float]) -> ProgressUpdate:
    text = f"{elapsed_s():.0f} s: {describe_tally(run.progress)}"
    return ProgressUpdate(text, min(elapsed_s() / total_s, 1.0) if total_s else None)
