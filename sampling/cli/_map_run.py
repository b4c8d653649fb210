"""Run `sampling map` after its flags are parsed."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import attrs

from sampling._text import quoted
from sampling.budgets import Budget
from sampling.cli._flags import usage_errors
from sampling.cli._jsonl import outcome_row, print_row, replace_file
from sampling.cli._plain_progress import PlainProgress
from sampling.cli._prompts import Prompts
from sampling.cli._signals import SignalHandler
from sampling.cli._specs import open_backend
from sampling.cli._status import print_status
from sampling.errors import JournalError, JournalMismatch, JournalWriteFailed, SamplingError
from sampling.fanout import FanOut, FanOutEngine, ItemOutcome, ItemStatus, OnError, OnFailure, open_fan_out
from sampling.fanout.journal import Journal
from sampling.fanout.journal._export import rows
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.strategies.worst_case import WorstCase, WorstCases
from sampling.strategy import BaseSamplingStrategy
from sampling.telemetry.run_progress import fan_out_progress
from sampling.usage import Price

__all__ = ["MapJob", "check", "run", "show_worst_case"]

# Shells use 128 + the number of the signal for a process that a signal ended.
FAILED, REFUSED, SIGNALLED = 1, 2, 128

OutcomeWriter: TypeAlias = Callable[[ItemOutcome[Any]], None]
"""A function that writes one outcome."""


@attrs.frozen(kw_only=True)
class MapJob:
    """The settings of a run, parsed and checked."""

    prompts: Prompts
    strategy: BaseSamplingStrategy
    make_backend: Callable[[], Backend]
    """Makes the backend. A dry run does not call it, so it needs no API key."""

    requirements: list[Requirement]
    context: Context | None
    options: Options
    budget: Budget | None
    max_concurrency: int
    on_failure: OnFailure
    on_error: OnError
    journal: Journal | None
    out: Path | None
    engine: FanOutEngine | None


def check(job: MapJob, *, skip_bad: bool) -> WorstCase:
    """Check every prompt and return the worst case."""
    cases = WorstCases(job.strategy, job.requirements, job.context, job.options)
    worst = WorstCase()
    for prompt in job.prompts.check():
        worst += cases.of(prompt.text)
    _report_bad_lines(job.prompts, skip_bad=skip_bad)
    if not len(job.prompts):
        raise ValueError(f"no prompts in {job.prompts.name}")
    return worst


def _report_bad_lines(prompts: Prompts, *, skip_bad: bool) -> None:
    if not prompts.bad_count:
        return
    for bad in prompts.bad:
        print_status(f"{prompts.name}, line {bad.line}: {bad.problem}")
    if prompts.bad_count > len(prompts.bad):
        print_status(f"… and {prompts.bad_count - len(prompts.bad):,} more")
    if not skip_bad:
        raise ValueError(
            f"{prompts.name} has {prompts.bad_count:,} bad line(s), the first is line {prompts.bad[0].line}. "
            "Nothing was sent. Fix them, or skip them with --skip-bad"
        )
    print_status(f"skipped {prompts.bad_count:,} bad line(s), {len(prompts):,} prompts left")


def show_worst_case(job: MapJob, worst: WorstCase, price: Price | None, retries: int) -> None:
    """Print the maximum requests, tokens and cost."""
    limited = job.options.max_tokens is not None
    unknown = "no limit"
    figures = {
        "requests": f"{worst.requests:,}",
        "input tokens": f"{worst.input_tokens:,}",
        "output tokens": f"{worst.output_tokens:,}" if limited else unknown,
        **({"cost": f"{worst.cost(price):,.4f}" if limited else unknown} if price is not None else {}),
    }
    lines = [f"{len(job.prompts):,} prompts with {job.strategy!r}. At most:"]
    lines += [f"  {name:<14}{figure:>18}" for name, figure in figures.items()]
    lines += _assumptions(job, retries, priced=price is not None, limited=limited)
    sys.stdout.write("\n".join(lines) + "\n")


def _assumptions(job: MapJob, retries: int, *, priced: bool, limited: bool) -> Iterator[str]:
    yield "Assumes four characters per token, and that every attempt is made."
    if not limited:
        yield "Answers have no length limit: set --max-tokens."
    if not priced:
        yield "Add --price IN/OUT, the price of a million tokens, to see the cost."
    if retries:
        yield f"Retries after transient errors, up to {retries} per request, are not included."
    if job.budget is not None:
        yield f"The run stops before it exceeds its {job.budget!r}".partition(" with ")[0] + "."
    yield "Nothing was sent."


_ACCEPT_CHANGES = (
    "Use the flags and prompts of the first run, or choose another --out for a new run. "
    "To resume anyway and keep the existing answers, add --accept-changes."
)


@attrs.define
class _RunState:
    """The counts and errors of a run."""

    counts: Counter[ItemStatus] = attrs.field(factory=Counter[ItemStatus])
    run: FanOut[Any] | None = None
    """The run, once it has begun."""

    budget_is_spent: bool = False
    error: Exception | None = None


def run(job: MapJob, signal_handler: SignalHandler) -> int:
    """Run the job and return the exit code."""
    with usage_errors():
        backend = job.make_backend()
    state = _RunState()
    anyio.run(_run_job, job, backend, signal_handler, state)
    error = state.error
    if isinstance(error, JournalError) and not isinstance(error, JournalWriteFailed):
        # The journal belongs to another run, so nothing may be written.
        print_status(f"sampling: {error}\n{_ACCEPT_CHANGES if isinstance(error, JournalMismatch) else error.hint}")
        return REFUSED
    if job.out is not None and job.journal is not None and state.run is not None:
        _export_answers(job.out, job.journal, state.run.halted_by)
    _print_summary(job, state, signal_handler)
    if signal_handler.received is not None:
        return SIGNALLED + signal_handler.received
    if error is not None and not isinstance(error, SamplingError):
        raise error  # unexpected, so its traceback is of use
    return 0 if state.counts["succeeded"] == len(job.prompts) and error is None else FAILED


async def _run_job(job: MapJob, backend: Backend, signal_handler: SignalHandler, state: _RunState) -> None:
    with signal_handler.open() as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(signal_handler.handle, signals, group.cancel_scope)
            # On a cluster, the workers open backends of their own.
            async with open_backend(backend) if job.engine is None else nullcontext():
                with _progress(len(job.prompts)) as hooks, _open_writer(job) as write:
                    try:
                        await _fan_out(job, backend, hooks, write, signal_handler, state)
                    except Exception as error:  # noqa: BLE001 - reported, or raised, after the answers are written
                        state.error = error
            group.cancel_scope.cancel()


async def _fan_out(
    job: MapJob,
    backend: Backend,
    hooks: Hooks,
    write: OutcomeWriter,
    signal_handler: SignalHandler,
    state: _RunState,
) -> None:
    async with open_fan_out(
        job.strategy,
        job.prompts,
        job.context,
        backend,
        job.requirements,
        max_concurrency=job.max_concurrency,
        on_failure=job.on_failure,
        on_error=job.on_error,
        journal=job.journal,
        options=job.options,
        budget=job.budget,
        hooks=hooks,
        engine=job.engine,
    ) as run:
        state.run = run
        signal_handler.attach(run)
        async for outcome in run:
            state.counts[outcome.status] += 1
            if job.budget is not None and _ended_by_budget(outcome):
                # All further items would end the same way. The journal has no outcome of this one, so a resume asks it.
                state.budget_is_spent = True
                run.drain()
            write(outcome)


def _ended_by_budget(outcome: ItemOutcome[Any]) -> bool:
    result = outcome.result
    return result is not None and not result.success and result.stop_reason == "budget"


@contextmanager
def _open_writer(job: MapJob) -> Generator[OutcomeWriter]:
    """Yield a function that writes outcomes as they arrive."""
    if job.out is None:
        yield lambda outcome: print_row(outcome_row(outcome))
    elif job.journal is not None:
        # The answers are exported from the journal at the end, which also has those of earlier runs.
        yield lambda _: None
    else:
        with replace_file(job.out) as write:
            yield lambda outcome: write(outcome_row(outcome))


def _export_answers(out: Path, journal: Journal, halted_by: int | None) -> None:
    """Write the answers of the journal, up to `halted_by`."""
    # Later prompts may have finished before the one that halted the run. They are kept in the journal only.
    with replace_file(out) as write:
        for row in rows(journal.path):
            if halted_by is None or row["index"] <= halted_by:
                write(row)


@contextmanager
def _progress(total: int) -> Generator[Hooks]:
    if sys.stderr.isatty():
        with fan_out_progress(total=total) as hooks:
            yield hooks
    else:
        yield PlainProgress(total, print_status).hooks()


def _print_summary(job: MapJob, state: _RunState, signal_handler: SignalHandler) -> None:
    run = state.run
    if run is None:
        print_status(
            "stopped before anything was sent" if state.error is None else f"sampling: {_describe_error(state.error)}"
        )
        return
    done = state.counts.total()
    counts = ", ".join(f"{count:,} {status}" for status, count in state.counts.items()) or "none"
    tokens = f" · {run.usage.total_tokens:,} tokens" if run.usage.total_tokens else ""
    cost = f" · cost {run.usage.cost:.6g}" if run.usage.cost else ""
    print_status(f"{run.status}: {done:,} of {len(job.prompts):,} prompts ({counts}){tokens}{cost}")
    if run.maybe_billed_twice:
        print_status(
            f"{len(run.maybe_billed_twice):,} prompts were in flight when an earlier run died, and were asked again"
        )
    if state.error is not None:
        print_status(f"ended by an error: {_describe_error(state.error)}")
    if state.budget_is_spent:
        print_status(f"the budget is spent: {job.budget!r}. Raise it to resume")
    if run.status in {"stopped", "failed"}:
        print_status(_resume_hint() if job.journal is not None else "the run can't be resumed: it has no journal")


def _describe_error(error: Exception) -> str:
    hint = error.hint if isinstance(error, SamplingError) else ""
    return f"{type(error).__name__}: {quoted(str(error), 500)[1:-1]} {hint}".rstrip()


def _resume_hint() -> str:
    arguments = sys.argv[1:] if "--resume" in sys.argv else [*sys.argv[1:], "--resume"]
    return f"all answers are kept. Resume with:\n  {shlex.join(['sampling', *arguments])}"
