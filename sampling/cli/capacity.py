"""`sampling capacity`: raise the load step by step, and say what holds."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer

from sampling._virtual_time import run_virtual
from sampling.cli import _flags as flags
from sampling.cli import _workload as asking
from sampling.cli._load_progress import Sight, conduct, say, told
from sampling.cli._outputs import Out, Samples, check_outputs, write_outputs
from sampling.cli._workload import Asking
from sampling.cli.load import asked_or_imported, check_workers
from sampling.load import ArrivalModel, CapacityAnswer, CapacityRun, CapacitySettings, ImportedWorkload, Slo, Step
from sampling.load.model._units import format_seconds, parse_duration, parse_share

__all__ = ["EXAMPLES", "HELP", "capacity"]

HELP = """
Find the highest rate that holds: raise it step by step until an SLO breaks.

Each step is warm-up, measurement and cool-down. It passes, trips with every reason, or proves nothing, which is said
too: a load generator that can't keep up must not be taken for a server that can't. --refine goes on by halves between
the last step that passed and the first that tripped.

Every step is on disk as soon as it ends, with --journal: the same command goes on where it was cut off. Ctrl-C stops,
and what was found is printed and written. The exit code is 0 if some step passed, 1 if none did, 2 if a flag is wrong.
"""

EXAMPLES = """
\b
Examples:
  sampling capacity --steps 5,10,20,40 --slo p95=500ms,error=1%
  sampling capacity --steps 10,20,50,100 --slo p95=2s,error=0.1% --backend openai:qwen3@http://127.0.0.1:8000/v1
  sampling capacity --steps 10,20,50,100,1k --slo ttft_p99=500ms,validity=95% --refine --out c.html --journal c.jsonl
  sampling capacity --axis users --steps 10,50,200 --think-time 2s --slo p99=5s --out users.json
  sampling capacity --steps 1,2,4,8 --slo p95=3s --backend simulated:0.8 --virtual --refine
"""


class AxisFlag(StrEnum):
    """What is raised from step to step."""

    RATE = "rate"
    USERS = "users"


def capacity(  # noqa: PLR0913 - each is a flag
    question: asking.Question = None,
    *,
    steps: Annotated[str, typer.Option(help="What to try, ascending: 10,20,50,1k.")],
    slo: Annotated[str, typer.Option(help="What must hold: p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20.")],
    axis: Annotated[AxisFlag, typer.Option(help="Whether steps are requests per second, or users.")] = AxisFlag.RATE,
    warmup: Annotated[str, typer.Option(help="Traffic before each measurement, which is not counted.")] = "10s",
    hold: Annotated[str, typer.Option(help="How long each step is measured.")] = "30s",
    cooldown: Annotated[str, typer.Option(help="A pause after each step.")] = "5s",
    drain: Annotated[str, typer.Option(help="How long to wait for a step's last answers.")] = "60s",
    rate_tolerance: Annotated[str, typer.Option(help="How much less than its rate a step may have sent.")] = "5%",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run all steps, also after one has tripped.")
    ] = False,
    max_in_flight: Annotated[int, typer.Option(help="Requests sent and not yet answered; more are dropped.")] = 1024,
    refine: Annotated[bool, typer.Option("--refine", help="Go on by halves between pass and trip.")] = False,
    precision: Annotated[str, typer.Option(help="How close --refine gets, as a share of the rate.")] = "2%",
    most_steps: Annotated[int, typer.Option(help="How many steps to run in all, with --refine.")] = 40,
    arrivals: Annotated[str, typer.Option(help="How requests are spread: constant, poisson, burst.")] = "constant",
    think_time: Annotated[str, typer.Option(help="With --axis users: from an answer to the next question.")] = "0s",
    activate_per_s: Annotated[
        float | None, typer.Option("--activate-per-s", help="With --axis users: how many may start per second.")
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
    preflight: Annotated[bool, typer.Option(help="Send one request first; give up if it fails.")] = True,
    journal: Annotated[Path | None, typer.Option(help="Write each step down as it ends, to go on later.")] = None,
    out: Out = None,
    samples: Samples = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="With --backend simulated: in virtual time, an hour in seconds.")
    ] = False,
) -> int:
    """Find out what holds; the flags are explained where they stand."""
    with flags.bad_flags():
        asked = asked_or_imported(
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
        )
        check_workers(asked, workers, virtual=virtual)
        if samples:
            raise ValueError("--samples is for `sampling load`: a search keeps a summary of each step; leave it out")
        settings = CapacitySettings(
            steps=steps,
            slo=Slo.parse(slo),
            warmup_s=parse_duration("--warmup", warmup),
            hold_s=parse_duration("--hold", hold),
            cooldown_s=parse_duration("--cooldown", cooldown),
            drain_s=parse_duration("--drain", drain),
            rate_tolerance=parse_share("--rate-tolerance", rate_tolerance),
            stop_on_trip=not keep_going,
            max_in_flight=max_in_flight,
            refine=refine,
            precision=parse_share("--precision", precision),
            most_steps=most_steps,
            axis=axis.value,
            arrivals=cast("ArrivalModel", arrivals),  # it is checked there, against the names that there are
            think_time_s=parse_duration("--think-time", think_time),
            activate_per_s=activate_per_s,
            seed=seed,
            workers=workers,
            preflight=preflight,
        )
        outputs = check_outputs(out)
        search = _search(asked, settings, journal, outputs)
    if dry_run:
        _show_plan(asked, settings, outputs)
        return 0
    answer = _run(search, settings, virtual=virtual)
    sys.stdout.write(f"{answer.render()}\n")
    write_outputs(answer, outputs)
    return answer.exit_code


def _search(
    asked: Asking | ImportedWorkload, settings: CapacitySettings, journal: Path | None, outputs: Sequence[Path]
) -> CapacityRun:
    rows = [path for path in outputs if path.suffix.lower() == ".csv"]
    return CapacityRun(
        asked.imported() if isinstance(asked, Asking) else asked,
        settings,
        journal=journal,
        csv=rows[0] if rows else None,
        on_step=_tell,
    )


def _tell(step: Step) -> None:
    why = f": {'; '.join(step.reasons)}" if step.reasons else ""
    say(f"{step.target_rate:g}: {step.verdict}{why}")


def _show_plan(asked: Asking | ImportedWorkload, settings: CapacitySettings, outputs: Sequence[Path]) -> None:
    each_s = settings.warmup_s + settings.hold_s + settings.cooldown_s
    unit = "users" if settings.axis == "users" else "per second"
    lines = [
        f"workload: {asked}",
        f"steps: {', '.join(f'{step:g}' for step in settings.steps)} {unit}, {format_seconds(each_s)} each, "
        f"{format_seconds(each_s * len(settings.steps))} if all are run",
    ]
    if settings.axis == "rate":
        calls = sum(step * (settings.warmup_s + settings.hold_s) for step in settings.steps)
        most = f", at most {calls * asked.most_requests:,.0f} to the backend" if isinstance(asked, Asking) else ""
        lines.append(f"requests: {calls:,.0f} if all steps are run{most}")
    if settings.refine:
        lines.append(f"then up to {max(0, settings.most_steps - len(settings.steps))} more by halves")
    lines.append(f"SLO {settings.slo}, seed {settings.seed}, {settings.workers} workers")
    lines += [f"would write {path}" for path in outputs]
    sys.stdout.write("\n".join(lines) + "\n")


def _run(search: CapacityRun, settings: CapacitySettings, *, virtual: bool) -> CapacityAnswer:
    if virtual:
        return run_virtual(search.run, horizon_s=1e9)
    return anyio.run(_watched, search, settings)


async def _watched(search: CapacityRun, settings: CapacitySettings) -> CapacityAnswer:
    def look() -> Sight:
        done = len(search.answer().steps)
        running = search.running
        at = f"step {done + 1} of {len(settings.steps)}, {search.target:g}" if search.target is not None else "starting"
        return Sight(at if running is None else f"{at}: {told(running.progress)}", min(done / len(settings.steps), 1.0))

    found = await conduct(search.run, look=look, stop=search.stop)
    return search.answer() if found is None else found
