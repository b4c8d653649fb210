"""`sampling load`: traffic by the clock, or from users who wait, and what became of it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import attrs
import typer

from sampling._arguments import shown
from sampling._virtual_time import run_virtual
from sampling.cli import _flags as flags
from sampling.cli import _workload as asking
from sampling.cli._load_progress import Sight, conduct, say, told
from sampling.cli._outputs import Out, Samples, check_outputs, write_outputs
from sampling.cli._workload import Asking, asked_questions, workload_from
from sampling.load import ClosedLoop, ImportedWorkload, LoadReport, LoadRun, OpenLoop, Profile, Slo, judge, read_trace
from sampling.load.model._units import format_seconds, parse_count, parse_duration
from sampling.load.report._table import load_table
from sampling.load.traffic._arrivals import instants

__all__ = ["EXAMPLES", "HELP", "load"]

HELP = """
Send traffic, and report what became of it: latencies from the instant a request was due, errors, validity, cost.

With --rate, requests leave by the clock, whatever the server does: that is how the world asks, and a stall shows.
With --users, so many users each wait for an answer before they ask again: that is what a fixed number of callers get.

Ctrl-C stops it, and what was gathered is reported and written all the same. The exit code is 0 if the SLO held (or,
without --slo, if anything was answered), 1 otherwise, and 2 if a flag is wrong.
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
    """The flags that say how much is sent, and when; None for one that was not given."""

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
        """Return the traffic, or say which flags contradict each other and which to change."""
        given = [name for name in ("rate", "users", "trace") if getattr(self, name) is not None]
        if not given:
            raise ValueError("say how much traffic: --rate 50 (by the clock), --users 20 (who wait), or --trace FILE")
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(f'--{name}' for name in given)} contradict each other: a rate and a trace send by the "
                "clock, users wait for their answers; keep one of them"
            )
        if self.trace is None and self.duration is None and self.requests is None:
            raise ValueError(f"--{given[0]} needs an end: add --duration 30s, or --requests 1000")
        return self._closed(self.users) if self.users is not None else self._open(given[0])

    def _closed(self, users: int) -> ClosedLoop:
        self._refuse(("to_rate", "arrivals", "burst", "max_in_flight"), "for --rate: users send when they are answered")
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
        self._refuse(("think_time", "on_error"), "for --users: a rate does not wait for anyone")
        if kind == "trace":
            self._refuse(("to_rate", "arrivals", "burst"), "for --rate: a trace has its own instants")
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
                raise ValueError(f"--{name.replace('_', '-')} is {why}; leave it out")


def _seconds(name: str, text: str | None) -> float | None:
    return None if text is None else parse_duration(f"--{name}", text)


def _trace(path: Path) -> tuple[float, ...]:
    try:
        return read_trace(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--trace: can't read {shown(str(path))}: {error.strerror}") from None


@attrs.frozen(kw_only=True)
class _Job:
    """A run as it was told, read and checked."""

    workload: Asking | ImportedWorkload
    profile: Profile
    slo: Slo | None
    seed: int
    workers: int
    virtual: bool

    def run(self) -> LoadRun:
        """Prepare the run."""
        workload = self.workload.imported() if isinstance(self.workload, Asking) else self.workload
        return LoadRun(workload, self.profile, seed=self.seed, slo=self.slo, workers=self.workers)


def check_workers(workload: Asking | ImportedWorkload, workers: int, *, virtual: bool) -> None:
    """Refuse several processes that would each have a server of their own, and virtual time with a real server."""
    if workers > 1 and isinstance(workload, Asking) and workload.made_here:
        raise ValueError(
            f"--workers {workers} would start {workers} servers of their own with --backend {workload.backend}: "
            "use --workers 1, or a server that all of them can reach (--backend openai:MODEL@URL)"
        )
    if virtual and not (isinstance(workload, Asking) and workload.simulated):
        raise ValueError("--virtual needs --backend simulated: the time of a real server can't be skipped")
    if virtual and workers > 1:
        raise ValueError(
            "--virtual and --workers contradict each other: virtual time is that of one process; leave one out"
        )


def load(  # noqa: PLR0913 - each is a flag
    question: asking.Question = None,
    *,
    rate: Annotated[str | None, typer.Option(help="Requests per second, by the clock: 50, 0.5, 1.2k.")] = None,
    users: Annotated[int | None, typer.Option(help="Users who each wait for an answer before they ask again.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A file of instants in seconds, one a line: yesterday's traffic.")
    ] = None,
    duration: Annotated[str | None, typer.Option(help="For how long, the warm-up not included: 30s, 5m, 1h.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many; with --duration, whichever ends first.")] = None,
    to_rate: Annotated[str | None, typer.Option(help="Change the rate evenly to this one, over --duration.")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="How they are spread: constant (the default), poisson, burst.")
    ] = None,
    burst: Annotated[int | None, typer.Option(help="How many come at once, with --arrivals burst.")] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(help="Requests sent and not answered; more are dropped and counted. 256 by default."),
    ] = None,
    think_time: Annotated[str | None, typer.Option(help="With --users: from an answer to the next question.")] = None,
    on_error: Annotated[
        str | None, typer.Option(help="With --users: after a failure, continue (the default) or cancel.")
    ] = None,
    warmup: Annotated[str, typer.Option(help="Traffic before the measurement, which is not counted.")] = "0s",
    drain: Annotated[str, typer.Option(help="How long to wait for the last answers.")] = "60s",
    slo: Annotated[
        str | None, typer.Option(help="What must hold: p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20.")
    ] = None,
    questions: asking.Questions = None,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    send_env_key: flags.SendEnvKey = False,
    workload: asking.Workload = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same traffic.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that send, where one can't keep up.")] = 1,
    out: Out = None,
    samples: Samples = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="With --backend simulated: in virtual time, an hour in seconds.")
    ] = False,
) -> int:
    """Send traffic and report; the flags are explained where they stand."""
    with flags.bad_flags():
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
        job = _Job(
            workload=asked_or_imported(
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
    report = run_virtual(_unwatched, job, horizon_s=1e9) if virtual else anyio.run(_watched, job)
    sys.stdout.write(f"{load_table(report)}\n")
    write_outputs(report, outputs, samples=samples)
    return _verdict(report)


_DEFAULTS: Mapping[str, object] = {
    "backend": "llama", "strategy": "rejection", "depth": 1, "breadth": 1, "require": (), "temperature": None,
    "max_tokens": None, "send_env_key": False,
}  # fmt: skip


def asked_or_imported(
    workload: str | None, question: Sequence[str] | None, questions: Path | None, **given: Any
) -> Asking | ImportedWorkload:
    """Return what to send, of the flags that `load` and `capacity` have in common."""
    changed = [f"--{name.replace('_', '-')}" for name, value in given.items() if value != _DEFAULTS[name]]
    if question or questions:
        changed.append("the questions")
    return workload_from(workload, {"questions": asked_questions(question, questions), **given}, changed)


def _show_plan(job: _Job, outputs: Sequence[Path]) -> None:
    profile = job.profile
    lines = [f"workload: {job.workload}"]
    if isinstance(profile, OpenLoop):
        arrivals = sum(1 for _ in instants(profile, job.seed))
        lines.append(f"traffic: {arrivals:,} requests over {format_seconds(_total_s(profile))}, by the clock")
        most: int | None = arrivals
    else:
        ends = [f"{profile.requests:,} requests" if profile.requests is not None else ""]
        ends.append(format_seconds(profile.horizon_s) if profile.horizon_s is not None else "")
        lines.append(f"traffic: {profile.users:,} users, until {' or '.join(filter(None, ends))}")
        most = profile.requests
    if isinstance(job.workload, Asking) and most is not None:
        lines.append(f"to the backend: at most {most * job.workload.most_requests:,} requests, judges aside")
    lines.append(f"seed {job.seed}, {job.workers} workers, SLO {job.slo or 'none'}")
    lines += [f"would write {path}" for path in outputs]
    sys.stdout.write("\n".join(lines) + "\n")


def _total_s(profile: Profile) -> float:
    return profile.warmup_s + (profile.measured_s or 0.0)


async def _unwatched(job: _Job) -> LoadReport:
    return await job.run().run()


async def _watched(job: _Job) -> LoadReport:
    with flags.bad_flags():
        run = job.run()
    say(f"sending: {job.workload}")
    found = await conduct(run.run, look=partial(_look, run, _total_s(job.profile), _clock()), stop=run.stop)
    return run.report() if found is None else found


def _clock() -> Callable[[], float]:
    start = anyio.current_time()
    return lambda: anyio.current_time() - start


def _look(run: LoadRun, total_s: float, elapsed_s: Callable[[], float]) -> Sight:
    counts = run.progress
    return Sight(f"{elapsed_s():.0f} s: {told(counts)}", min(elapsed_s() / total_s, 1.0) if total_s else None)


def _verdict(report: LoadReport) -> int:
    """Say whether the SLO held; the exit code is what scripts go by."""
    if report.slo is None:
        return 0 if report.succeeded else 1
    judgement = judge(report, report.slo)
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{judgement.verdict}: {'; '.join(judgement.reasons) or report.slo}\n")
    return 0 if judgement.verdict == "PASS" else 1
