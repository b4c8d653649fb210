"""`sampling capacity`: find the highest load that meets an SLO."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer

from sampling.cli import _flags as flags
from sampling.cli import _generated_prompts as prompt_flags
from sampling.cli import _workload as workload_flags
from sampling.cli._exit_codes import FAILED, exit_code_of
from sampling.cli._files import Force, check_output
from sampling.cli._headers import without_header_values
from sampling.cli._load_progress import EndedRun, ProgressUpdate, run_with_progress
from sampling.cli._outputs import Out, check_outputs, publish, write_outputs
from sampling.cli._signals import ignore_hangup
from sampling.cli._status import print_status
from sampling.cli._stdout import only_results, write_result
from sampling.cli._virtual_run import run_virtual_until_signal
from sampling.cli._workload import (
    WorkloadSettings,
    check_operations,
    check_turns,
    check_workers,
    prompt_tokens_of,
    select_workload,
    sending_headers,
)
from sampling.load import ArrivalModel, CapacityAnswer, CapacityRun, CapacitySettings, ImportedWorkload, Slo, Step
from sampling.load.model._units import format_seconds, parse_duration, parse_share
from sampling.telemetry.run_progress import describe_tally

__all__ = ["EXAMPLES", "HELP", "capacity"]

HELP = """
Find the highest rate that meets an SLO. Raises the rate step by step until the SLO breaks.

Each step has a warm-up, a measurement and a cool-down. Its verdict is PASS, TRIP with all reasons, or INCONCLUSIVE, for
example if the load generator itself could not keep up. --refine then bisects between the last step that passed and the
first that tripped.

With --journal, every step is saved as soon as it ends, and the same command resumes an interrupted search. Ctrl-C
stops, and the results so far are printed and written.

Exit code: 0 if any step passed, 1 if none did.
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
    """The quantity that steps raise."""

    RATE = "rate"
    USERS = "users"


def capacity(  # noqa: PLR0913 - each is a flag
    question: workload_flags.Question = None,
    *,
    steps: Annotated[str, typer.Option(help="The loads to try, ascending: 10,20,50,1k.")],
    slo: Annotated[
        str, typer.Option(help="Limits that must hold: p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20.")
    ],
    axis: Annotated[AxisFlag, typer.Option(help="The unit of --steps: requests per second, or users.")] = AxisFlag.RATE,
    warmup: Annotated[str, typer.Option(help="Traffic before each measurement, not counted.")] = "10s",
    hold: Annotated[str, typer.Option(help="How long each step is measured.")] = "30s",
    cooldown: Annotated[str, typer.Option(help="Pause after each step.")] = "5s",
    drain: Annotated[str, typer.Option(help="How long to wait for the last answers of a step.")] = "60s",
    rate_tolerance: Annotated[str, typer.Option(help="How far below its rate a step may send.")] = "5%",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run all steps, even after one has tripped.")
    ] = False,
    confirm: Annotated[
        bool, typer.Option(help="Repeat a step that tripped, and ignore a trip that does not repeat.")
    ] = True,
    timeout: Annotated[str | None, typer.Option(help="Cancel a request after this time, and count it failed.")] = None,
    max_in_flight: Annotated[int, typer.Option(help="Limit of requests in flight. Further ones are dropped.")] = 1024,
    refine: Annotated[bool, typer.Option("--refine", help="Bisect between the last pass and the first trip.")] = False,
    precision: Annotated[str, typer.Option(help="Precision of --refine, as a share of the rate.")] = "2%",
    most_steps: Annotated[int, typer.Option(help="Maximum number of steps, with --refine.")] = 40,
    arrivals: Annotated[str, typer.Option(help="Arrival process: constant, poisson, burst.")] = "constant",
    think_time: Annotated[str, typer.Option(help="With --axis users: pause between answer and next request.")] = "0s",
    activate_per_s: Annotated[
        float | None, typer.Option("--activate-per-s", help="With --axis users: how many users may start per second.")
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
    preflight: Annotated[bool, typer.Option(help="Send one request first, and give up if it fails.")] = True,
    preflight_timeout: Annotated[str, typer.Option(help="How long the preflight may take.")] = "30s",
    journal: Annotated[Path | None, typer.Option(help="Save each step to this file, to resume later.")] = None,
    out: Out = None,
    force: Force = False,
    samples: Annotated[bool, typer.Option("--samples", hidden=True)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    virtual: Annotated[bool, typer.Option("--virtual", help="Run in virtual time, with --backend simulated.")] = False,
) -> int:
    """Search for the highest load that meets the SLO."""
    with sending_headers(header, workload=workload, backend=backend):
        with flags.usage_errors():
            selected = select_workload(
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
            )
            check_turns(selected, users=axis is AxisFlag.USERS, flag="--axis users")
            check_workers(selected, workers, virtual=virtual)
            if samples:
                raise ValueError(
                    "--samples is for `sampling load`: a search keeps a summary of each step. Leave it out"
                )
            settings = CapacitySettings(
                steps=steps,
                slo=Slo.parse(slo),
                warmup_s=parse_duration("--warmup", warmup),
                hold_s=parse_duration("--hold", hold),
                cooldown_s=parse_duration("--cooldown", cooldown),
                drain_s=parse_duration("--drain", drain),
                rate_tolerance=parse_share("--rate-tolerance", rate_tolerance),
                stop_on_trip=not keep_going,
                confirm=confirm,
                timeout_s=None if timeout is None else parse_duration("--timeout", timeout),
                max_in_flight=max_in_flight,
                refine=refine,
                precision=parse_share("--precision", precision),
                most_steps=most_steps,
                axis=axis.value,
                arrivals=cast("ArrivalModel", arrivals),  # validated by CapacitySettings
                think_time_s=parse_duration("--think-time", think_time),
                activate_per_s=activate_per_s,
                seed=seed,
                workers=workers,
                preflight=preflight,
                preflight_timeout_s=parse_duration("--preflight-timeout", preflight_timeout),
            )
            check_operations(settings.slo, selected)
            protected = {"the file of questions": questions, "the journal": journal}
            outputs = check_outputs(out, force=force, protected=protected)
            if journal is not None:
                protected = {"the file of questions": questions}
                check_output("--journal", journal, replace=True, protected=protected)
            search = _search(selected, settings, journal, outputs)
        if dry_run:
            _show_plan(selected, settings, outputs)
            return 0
        # A journal of another search is found out when it is read.
        with only_results(), flags.usage_errors() if journal is not None else nullcontext():
            try:
                ended = _run(search, settings, virtual=virtual)
            except BaseException:
                # A workload ended the program, or a worker died: what was measured is kept.
                if search.answer().steps:
                    write_outputs(search.answer(), outputs)
                raise
    answer = ended.result
    with ignore_hangup():
        written = publish(answer, f"{answer.render()}\n", outputs)
    if ended.received is None and ended.problem is None:
        return answer.exit_code if written else FAILED
    if ended.problem is not None:
        print_status(f"sampling: the system ended the search: {ended.problem}. The steps until then are reported")
    _say_how_to_resume(journal)
    return FAILED if ended.received is None else exit_code_of(ended.received)


def _say_how_to_resume(journal: Path | None) -> None:
    if journal is None:
        print_status("the search can't be resumed: it has no --journal")
        return
    arguments = [argument for argument in without_header_values(sys.argv[1:]) if argument != "--force"]
    print_status(f"all steps are kept. Resume with:\n  {shlex.join(['sampling', *arguments, '--force'])}")


def _search(
    selected: WorkloadSettings | ImportedWorkload,
    settings: CapacitySettings,
    journal: Path | None,
    outputs: Sequence[Path],
) -> CapacityRun:
    rows = [path for path in outputs if path.suffix.lower() == ".csv"]
    return CapacityRun(
        selected.imported() if isinstance(selected, WorkloadSettings) else selected,
        settings,
        journal=journal,
        csv=rows[0] if rows else None,
        on_step=_print_step,
        about=selected.describe() if isinstance(selected, WorkloadSettings) else None,
    )


def _print_step(step: Step) -> None:
    reasons = f": {'; '.join(step.reasons)}" if step.reasons else ""
    print_status(f"{step.target_rate:g}: {step.verdict}{reasons}")


def _show_plan(
    selected: WorkloadSettings | ImportedWorkload, settings: CapacitySettings, outputs: Sequence[Path]
) -> None:
    each_s = settings.warmup_s + settings.hold_s + settings.cooldown_s
    unit = "users" if settings.axis == "users" else "per second"
    lines = [
        f"workload: {selected}",
        f"steps: {', '.join(f'{step:g}' for step in settings.steps)} {unit}, {format_seconds(each_s)} each, "
        f"{format_seconds(each_s * len(settings.steps))} if all are run",
    ]
    if settings.axis == "rate":
        calls = sum(step * (settings.warmup_s + settings.hold_s) for step in settings.steps)
        most = (
            f", at most {calls * selected.max_requests:,.0f} to the backend{prompt_tokens_of(calls, [selected])}"
            if isinstance(selected, WorkloadSettings)
            else ""
        )
        lines.append(f"requests: {calls:,.0f} if all steps are run{most}")
    if settings.refine:
        lines.append(f"then up to {max(0, settings.most_steps - len(settings.steps))} more to bisect")
    lines.append(f"SLO {settings.slo}, seed {settings.seed}, {settings.workers} workers")
    lines += [f"would write {path}" for path in outputs]
    write_result("\n".join(lines) + "\n")


def _run(search: CapacityRun, settings: CapacitySettings, *, virtual: bool) -> EndedRun[CapacityAnswer]:
    if virtual:
        return EndedRun(*run_virtual_until_signal(search.run, search.stop))
    return anyio.run(_run_with_progress, search, settings)


async def _run_with_progress(search: CapacityRun, settings: CapacitySettings) -> EndedRun[CapacityAnswer]:
    def get_progress() -> ProgressUpdate:
        done = len(search.answer().steps)
        running = search.running
        # Repeats and bisections come on top of the steps that were asked for, and their number is not known.
        at = f"step {done + 1}, {search.target:g}" if search.target is not None else "starting"
        text = at if running is None else f"{at}: {describe_tally(running.progress)}"
        return ProgressUpdate(text, min(done / len(settings.steps), 1.0))

    return await run_with_progress(search.run, get_progress=get_progress, stop=search.stop, result_so_far=search.answer)
