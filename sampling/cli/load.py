"""`sampling load`: send traffic and report on it."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import attrs
import typer

from sampling._arguments import short_repr
from sampling._virtual_time import run_virtual
from sampling.cli import _flags as flags
from sampling.cli import _workload as workload_flags
from sampling.cli._load_progress import ProgressUpdate, describe_tally, run_with_progress
from sampling.cli._outputs import Out, Samples, check_outputs, write_outputs
from sampling.cli._status import print_status
from sampling.cli._workload import WorkloadSettings, check_workers, select_workload
from sampling.load import ClosedLoop, ImportedWorkload, LoadReport, LoadRun, OpenLoop, Profile, Slo, judge, read_trace
from sampling.load.model._units import format_seconds, parse_count, parse_duration
from sampling.load.report._table import load_table
from sampling.load.traffic._arrivals import instants

__all__ = ["EXAMPLES", "HELP", "load"]

HELP = """
Send traffic and report latencies, errors, validity and cost.

With --rate (open loop), requests leave on schedule even if the server is slow, and latency counts from the scheduled
time. With --users (closed loop), each user waits for an answer before sending the next request.

Ctrl-C stops the run, and the results so far are reported and written. Exit code: 0 if the SLO held (without --slo, if
any request was answered), 1 otherwise, 2 if a flag is wrong.
"""

EXAMPLES = """
\b
Examples:
  sampling load --rate 5 --duration 30s
  sampling load --rate 50 --duration 1m --backend openai:qwen3@http://127.0.0.1:8000/v1 --slo p95=2s,error=0.1%
  sampling load --users 20 --think-time 2s --duration 5m --require arithmetic --depth 3 --out report.html
  sampling load --rate 5 --to-rate 50 --duration 2m --arrivals poisson -o ramp.json -o ramp.html
  sampling load --rate 200 --duration 30s --workers 4 --workload shop.load:chat
  sampling load --rate 4 --duration 1h --backend simulated:0.7 --virtual
"""


@attrs.frozen(kw_only=True)
class _Traffic:
    """The traffic flags, or None for those not given."""

    rate: str | None = None
    users: int | None = None
    trace: Path | None = None
    duration: str | None = None
    requests: int | None = None
    to_rate: str | None = None
    arrivals: str | None = None
    burst: int | None = None
    max_in_flight: int | None = None
    think_time: str | None = None
    on_error: str | None = None
    warmup: str = "0s"
    drain: str = "60s"

    def profile(self) -> Profile:
        """Return the traffic profile, or raise ValueError."""
        given = [name for name in ("rate", "users", "trace") if getattr(self, name) is not None]
        if not given:
            raise ValueError("give the traffic: --rate 50 (open loop), --users 20 (closed loop), or --trace FILE")
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(f'--{name}' for name in given)} contradict each other: a rate and a trace are open "
                "loops, users are a closed loop. Keep one of them"
            )
        if self.trace is None and self.duration is None and self.requests is None:
            raise ValueError(f"--{given[0]} needs an end: add --duration 30s, or --requests 1000")
        return self._closed(self.users) if self.users is not None else self._open(given[0])

    def _closed(self, users: int) -> ClosedLoop:
        self._refuse(
            ("to_rate", "arrivals", "burst", "max_in_flight"), "for --rate: users send when they have an answer"
        )
        settings: dict[str, Any] = {"on_error": self.on_error} if self.on_error is not None else {}
        return ClosedLoop(
            users=users,
            requests=self.requests,
            horizon_s=_seconds("duration", self.duration),
            think_time_s=_seconds("think-time", self.think_time) or 0.0,
            **self._common(),
            **settings,
        )

    def _open(self, kind: str) -> OpenLoop:
        self._refuse(("think_time", "on_error"), "for --users: an open loop does not wait for answers")
        if kind == "trace":
            self._refuse(("to_rate", "arrivals", "burst"), "for --rate: a trace has its own send times")
        if self.burst is not None and self.arrivals != "burst":
            raise ValueError("--burst needs --arrivals burst")
        settings: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("arrivals", "burst", "max_in_flight", "requests")
            if getattr(self, name) is not None
        }
        return OpenLoop(
            rate=None if self.rate is None else parse_count("--rate", self.rate),
            to_rate=None if self.to_rate is None else parse_count("--to-rate", self.to_rate),
            trace=None if self.trace is None else _trace(self.trace),
            duration_s=_seconds("duration", self.duration),
            **self._common(),
            **settings,
        )

    def _common(self) -> dict[str, Any]:
        return {"warmup_s": _seconds("warmup", self.warmup), "drain_s": _seconds("drain", self.drain)}

    def _refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is {why}. Leave it out")


def _seconds(name: str, text: str | None) -> float | None:
    return None if text is None else parse_duration(f"--{name}", text)


def _trace(path: Path) -> tuple[float, ...]:
    try:
        return read_trace(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--trace: can't read {short_repr(str(path))}: {error.strerror}") from None


@attrs.frozen(kw_only=True)
class _LoadJob:
    """The settings of a run, parsed and checked."""

    workload: WorkloadSettings | ImportedWorkload
    profile: Profile
    slo: Slo | None
    seed: int
    workers: int
    virtual: bool

    def run(self) -> LoadRun:
        """Return the run, not yet started."""
        workload = self.workload.imported() if isinstance(self.workload, WorkloadSettings) else self.workload
        return LoadRun(workload, self.profile, seed=self.seed, slo=self.slo, workers=self.workers)


def load(  # noqa: PLR0913 - each is a flag
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
    slo: Annotated[
        str | None,
        typer.Option(help="Limits that must hold: p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20."),
    ] = None,
    questions: workload_flags.Questions = None,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    send_env_key: flags.SendEnvKey = False,
    workload: workload_flags.Workload = None,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes that send.")] = 1,
    out: Out = None,
    samples: Samples = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    virtual: Annotated[bool, typer.Option("--virtual", help="Run in virtual time, with --backend simulated.")] = False,
) -> int:
    """Send traffic and report on it."""
    with flags.usage_errors():
        profile = _Traffic(
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
            ),
            profile=profile,
            slo=None if slo is None else Slo.parse(slo),
            seed=seed,
            workers=workers,
            virtual=virtual,
        )
        check_workers(job.workload, workers, virtual=virtual)
        outputs = check_outputs(out, samples=samples)
    if dry_run:
        _show_plan(job, outputs)
        return 0
    # The default horizon is 12 days of virtual time. A longer run would count as deadlocked.
    report = run_virtual(_run_silently, job, horizon_s=1e9) if virtual else anyio.run(_run_with_progress, job)
    sys.stdout.write(f"{load_table(report)}\n")
    write_outputs(report, outputs, samples=samples)
    return _exit_code(report)


def _show_plan(job: _LoadJob, outputs: Sequence[Path]) -> None:
    profile = job.profile
    lines = [f"workload: {job.workload}"]
    if isinstance(profile, OpenLoop):
        arrivals = sum(1 for _ in instants(profile, job.seed))
        lines.append(f"traffic: {arrivals:,} requests over {format_seconds(_total_s(profile))}, open loop")
        most: int | None = arrivals
    else:
        ends = [f"{profile.requests:,} requests" if profile.requests is not None else ""]
        ends.append(format_seconds(profile.horizon_s) if profile.horizon_s is not None else "")
        lines.append(f"traffic: {profile.users:,} users, until {' or '.join(filter(None, ends))}")
        most = profile.requests
    if isinstance(job.workload, WorkloadSettings) and most is not None:
        lines.append(f"to the backend: at most {most * job.workload.max_requests:,} requests, without judges")
    lines.append(f"seed {job.seed}, {job.workers} workers, SLO {job.slo or 'none'}")
    lines += [f"would write {path}" for path in outputs]
    sys.stdout.write("\n".join(lines) + "\n")


def _total_s(profile: Profile) -> float:
    return profile.warmup_s + (profile.measured_s or 0.0)


async def _run_silently(job: _LoadJob) -> LoadReport:
    return await job.run().run()


async def _run_with_progress(job: _LoadJob) -> LoadReport:
    with flags.usage_errors():
        run = job.run()
    print_status(f"sending: {job.workload}")
    get_progress = partial(_progress, run, _total_s(job.profile), _stopwatch())
    report = await run_with_progress(run.run, get_progress=get_progress, stop=run.stop)
    # None after a second Ctrl-C: report what was measured until then.
    return run.report() if report is None else report


def _stopwatch() -> Callable[[], float]:
    start = anyio.current_time()
    return lambda: anyio.current_time() - start


def _progress(run: LoadRun, total_s: float, elapsed_s: Callable[[], float]) -> ProgressUpdate:
    text = f"{elapsed_s():.0f} s: {describe_tally(run.progress)}"
    return ProgressUpdate(text, min(elapsed_s() / total_s, 1.0) if total_s else None)


def _exit_code(report: LoadReport) -> int:
    """Print the verdict on the SLO and return the exit code."""
    if report.slo is None:
        return 0 if report.succeeded else 1
    judgement = judge(report, report.slo)
    # The reader of a pipe, such as `head`, may have left. The exit code still counts.
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{judgement.verdict}: {'; '.join(judgement.reasons) or report.slo}\n")
    return 0 if judgement.verdict == "PASS" else 1
