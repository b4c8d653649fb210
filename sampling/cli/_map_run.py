"""A run of `sampling map`: everything after its flags are read."""

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
from sampling.cli._answers import printed, replacing, row_of
from sampling.cli._flags import bad_flags
from sampling.cli._interrupts import Interrupts
from sampling.cli._plain_progress import PlainProgress
from sampling.cli._prompts import Prompts
from sampling.cli._specs import opened
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

__all__ = ["Job", "check", "run", "say", "show_worst_case"]

FAILED, REFUSED, SIGNALLED = 1, 2, 128

Write: TypeAlias = Callable[[ItemOutcome[Any]], None]
"""Writes one answer."""


@attrs.frozen(kw_only=True)
class Job:
    """What a run was told, read and checked."""

    prompts: Prompts
    strategy: BaseSamplingStrategy
    make_backend: Callable[[], Backend]
    """Not made yet: a dry run needs none, nor its key."""

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


# Before anything is asked.


def check(job: Job, *, skip_bad: bool) -> WorstCase:
    """Look at every prompt before the first is asked, and add up what they can take at most."""
    cases = WorstCases(job.strategy, job.requirements, job.context, job.options)
    worst = WorstCase()
    for prompt in job.prompts.check():
        worst += cases.of(prompt.text)
    _report_bad_lines(job.prompts, skip_bad=skip_bad)
    if not len(job.prompts):
        raise ValueError(f"there is no prompt in {job.prompts.name}")
    return worst


def _report_bad_lines(prompts: Prompts, *, skip_bad: bool) -> None:
    if not prompts.bad_count:
        return
    for bad in prompts.bad:
        say(f"{prompts.name}, line {bad.line}: {bad.problem}")
    if prompts.bad_count > len(prompts.bad):
        say(f"… and {prompts.bad_count - len(prompts.bad):,} more")
    if not skip_bad:
        raise ValueError(
            f"{prompts.name} has lines that are no prompts: {prompts.bad_count:,}, the first in line "
            f"{prompts.bad[0].line}. Nothing was asked. Mend them, or pass over them with --skip-bad"
        )
    say(f"skipped: {prompts.bad_count:,}; {len(prompts):,} are good")


# Saying something.


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def show_worst_case(job: Job, worst: WorstCase, price: Price | None, retries: int) -> None:
    """Show the most that a run can take, and what that rests on."""
    limited = job.options.max_tokens is not None
    unknown = "no limit"
    figures = {
        "requests": f"{worst.requests:,}",
        "input tokens": f"{worst.input_tokens:,}",
        "output tokens": f"{worst.output_tokens:,}" if limited else unknown,
        **({"cost": f"{worst.cost(price):,.4f}" if limited else unknown} if price is not None else {}),
    }
    lines = [f"{len(job.prompts):,} prompts, each asked by {job.strategy!r}. At most:"]
    lines += [f"  {name:<14}{figure:>18}" for name, figure in figures.items()]
    lines += _assumptions(job, retries, priced=price is not None, limited=limited)
    sys.stdout.write("\n".join(lines) + "\n")


def _assumptions(job: Job, retries: int, *, priced: bool, limited: bool) -> Iterator[str]:
    yield "A token is taken for four characters, and every attempt is made, up to the last."
    if not limited:
        yield "Without --max-tokens an answer may be as long as the model likes: set it to have a limit."
    if not priced:
        yield "With --price IN/OUT, what a million tokens cost, the cost is shown too."
    if retries:
        yield f"Requests that fail in passing are sent again, up to {retries} times each, and come on top."
    if job.budget is not None:
        yield f"The run stops before it passes its {job.budget!r}".partition(" with ")[0] + "."
    yield "Nothing was asked."


# Running.


_ACCEPT_CHANGES = (
    "Make the call as it was, or name another --out for a new run. "
    "To go on all the same, and keep the answers that are there, add --accept-changes."
)


@attrs.define
class _Tally:
    """What came of a run."""

    counts: Counter[ItemStatus] = attrs.field(factory=Counter[ItemStatus])
    run: FanOut[Any] | None = None
    """The run, once it has begun: then there is something to keep."""

    budget_is_spent: bool = False
    error: Exception | None = None


def run(job: Job, interrupts: Interrupts) -> int:
    with bad_flags():
        backend = job.make_backend()
    tally = _Tally()
    anyio.run(_ask_all, job, backend, interrupts, tally)
    error = tally.error
    if isinstance(error, JournalError) and not isinstance(error, JournalWriteFailed):
        # It is not of this run, so nothing of this run is written anywhere.
        say(f"sampling: {error}\n{_ACCEPT_CHANGES if isinstance(error, JournalMismatch) else error.hint}")
        return REFUSED
    if job.out is not None and job.journal is not None and tally.run is not None:
        _put_down(job.out, job.journal, tally.run.halted_by)
    _say_how_it_went(job, tally, interrupts)
    if interrupts.received is not None:
        return SIGNALLED + interrupts.received
    if error is not None and not isinstance(error, SamplingError):
        raise error
    return 0 if tally.counts["succeeded"] == len(job.prompts) and error is None else FAILED


async def _ask_all(job: Job, backend: Backend, interrupts: Interrupts, tally: _Tally) -> None:
    with interrupts.open() as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(interrupts.watch, signals, group.cancel_scope)
            # On a cluster, the workers open backends of their own.
            async with opened(backend) if job.engine is None else nullcontext():
                with _progress(len(job.prompts)) as hooks, _writing(job) as write:
                    try:
                        await _ask(job, backend, hooks, write, interrupts, tally)
                    except Exception as error:  # noqa: BLE001 - told, or raised, when what was paid for is put down
                        tally.error = error
            group.cancel_scope.cancel()


async def _ask(
    job: Job,
    backend: Backend,
    hooks: Hooks,
    write: Write,
    interrupts: Interrupts,
    tally: _Tally,
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
        tally.run = run
        interrupts.govern(run)
        async for outcome in run:
            tally.counts[outcome.status] += 1
            if job.budget is not None and _was_cut_off(outcome):
                # So would be all that follow; and as it has no outcome on record, a resume asks it again.
                tally.budget_is_spent = True
                run.drain()
            write(outcome)


def _was_cut_off(outcome: ItemOutcome[Any]) -> bool:
    result = outcome.result
    return result is not None and not result.success and result.stop_reason == "budget"


@contextmanager
def _writing(job: Job) -> Generator[Write]:
    """Give what writes outcomes as they come; with a journal beside the answers, they are written from that."""
    if job.out is None:
        yield lambda outcome: printed(row_of(outcome))
    elif job.journal is not None:
        yield lambda _: None
    else:
        with replacing(job.out) as write:
            yield lambda outcome: write(row_of(outcome))


def _put_down(out: Path, journal: Journal, halted_by: int | None) -> None:
    """Write the answers that the journal has, all of them, or those up to the prompt that halted the run."""
    with replacing(out) as write:
        for row in rows(journal.path):
            if halted_by is None or row["index"] <= halted_by:
                write(row)


@contextmanager
def _progress(total: int) -> Generator[Hooks]:
    if sys.stderr.isatty():
        with fan_out_progress(total=total) as hooks:
            yield hooks
    else:
        yield PlainProgress(total, say).hooks()


# The end.


def _say_how_it_went(job: Job, tally: _Tally, interrupts: Interrupts) -> None:
    run = tally.run
    if run is None:
        say("stopped before anything was asked" if tally.error is None else f"sampling: {_told(tally.error)}")
        return
    done = tally.counts.total()
    counts = ", ".join(f"{count:,} {status}" for status, count in tally.counts.items()) or "none"
    tokens = f" · {run.usage.total_tokens:,} tokens" if run.usage.total_tokens else ""
    cost = f" · cost {run.usage.cost:.6g}" if run.usage.cost else ""
    say(f"{run.status}: {done:,} of {len(job.prompts):,} prompts ({counts}){tokens}{cost}")
    if run.maybe_billed_twice:
        say(f"{len(run.maybe_billed_twice):,} prompts had been asked when an earlier run died, and were asked again")
    if tally.error is not None:
        say(f"ended by an error: {_told(tally.error)}")
    if tally.budget_is_spent:
        say(f"the budget is spent: {job.budget!r}; raise it to go on")
    if run.status in {"stopped", "failed"}:
        say(_how_to_go_on() if job.journal is not None else "it can't be gone on with: there is no journal")


def _told(error: Exception) -> str:
    hint = error.hint if isinstance(error, SamplingError) else ""
    return f"{type(error).__name__}: {quoted(str(error), 500)[1:-1]} {hint}".rstrip()


def _how_to_go_on() -> str:
    arguments = sys.argv[1:] if "--resume" in sys.argv else [*sys.argv[1:], "--resume"]
    return f"nothing that was answered is lost; go on with:\n  {shlex.join(['sampling', *arguments])}"
