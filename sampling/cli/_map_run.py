"""Run `sampling map` after its flags are parsed."""

import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import attrs

from sampling._text import quoted
from sampling.budgets import Budget
from sampling.cli._answer_format import AnswerFormat
from sampling.cli._exit_codes import FAILED, REFUSED, exit_code_of
from sampling.cli._files import reason_of, replacing
from sampling.cli._flag_names import describe_error
from sampling.cli._flags import usage_errors
from sampling.cli._headers import without_header_values
from sampling.cli._jsonl import AnswersNotWritten, growing_file, print_row, write_rows
from sampling.cli._prompts import Prompts
from sampling.cli._signals import Interrupted, SignalHandler, ignore_hangup
from sampling.cli._specs import open_backend
from sampling.cli._status import print_status
from sampling.cli._stdout import ReaderLeft, only_results, write_result
from sampling.errors import JournalError, JournalMismatch, JournalWriteFailed, SamplingError
from sampling.fanout import FanOut, FanOutEngine, ItemOutcome, ItemStatus, OnError, OnFailure, open_fan_out
from sampling.fanout.items import cut_off_by
from sampling.fanout.journal import Journal, export
from sampling.fanout.journal._export import live_row, rows
from sampling.hooks import Hooks
from sampling.messages import Action, Context, Options
from sampling.protocols import Backend
from sampling.requirements import Requirement, as_requirements
from sampling.strategies.worst_case import WorstCase, WorstCases
from sampling.strategy import BaseSamplingStrategy
from sampling.telemetry.run_progress import fan_out_progress
from sampling.usage import Price

__all__ = ["MapJob", "check", "run", "show_worst_case"]

_LINE_EVERY_S = 10.0
"""The interval of progress lines where no bar can be drawn."""

_MAX_REASONS = 5
_MAX_REASON_CHARS = 200

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
    format: AnswerFormat
    context: Context | None
    options: Options
    budget: Budget | None
    max_concurrency: int
    max_requests: int | None
    item_timeout_s: float | None
    outage_grace_s: float
    retry: tuple[ItemStatus, ...]
    on_failure: OnFailure
    on_error: OnError
    journal: Journal | None
    out: Path | None
    report: Path | None = None
    """The file for the page about the run."""

    engine: FanOutEngine | None
    price_factor: float = 1.0
    """The price of a request, as a fraction of --price."""

    @property
    def all_requirements(self) -> list[Requirement]:
        """The requirements of the strategy and of the run."""
        return [*as_requirements("requirements", self.strategy.requirements), *self.requirements]

    def items(self) -> "Prompts | _TypedPrompts":
        """Return the items of the fan-out."""
        return self.prompts if self.format.parser is None else _TypedPrompts(self.prompts, self.format)


class _TypedPrompts:
    """Prompts whose answers are parsed."""

    def __init__(self, prompts: Prompts, answer_format: AnswerFormat) -> None:
        self._prompts = prompts
        self._format = answer_format

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[tuple[str, Action[Any]]]:
        return ((key, self._format.action(text)) for key, text in self._prompts)


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


_FORMAT = (
    'A line must be {"prompt": "…"} or a JSON string, and a .csv file must have a column "prompt". Other names are set '
    "with --prompt-field, and plain text is read with --text"
)
"""Advice for a file without a single good line, which is probably in another format."""


def _report_bad_lines(prompts: Prompts, *, skip_bad: bool) -> None:
    if not prompts.bad_count:
        return
    for bad in prompts.bad:
        print_status(f"{prompts.name}, line {bad.line}: {bad.problem}")
    if prompts.bad_count > len(prompts.bad):
        print_status(f"… and {prompts.bad_count - len(prompts.bad):,} more")
    if not skip_bad:
        advice = "Fix them, or skip them with --skip-bad" if len(prompts) else _FORMAT
        raise ValueError(
            f"{prompts.name} has {prompts.bad_count:,} bad line(s), the first is line {prompts.bad[0].line}. "
            f"Nothing was sent. {advice}"
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
        **({"cost": f"{worst.cost(price) * job.price_factor:,.4f}" if limited else unknown} if price else {}),
    }
    lines = [f"{len(job.prompts):,} prompts with {job.strategy!r}. At most:"]
    lines += [f"  {name:<14}{figure:>18}" for name, figure in figures.items()]
    lines += _assumptions(job, retries, priced=price is not None, limited=limited)
    write_result("\n".join(lines) + "\n")


def _assumptions(job: MapJob, retries: int, *, priced: bool, limited: bool) -> Iterator[str]:
    yield "Assumes four characters per token, and that every attempt is made."
    if not limited:
        yield "Answers have no length limit: set --max-tokens."
    if not priced:
        yield "Add --price IN/OUT, the price of a million tokens, to see the cost."
    if job.price_factor != 1.0 and priced:
        yield f"A request in a batch costs {job.price_factor:g} of --price."
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
    reasons: Counter[str] = attrs.field(factory=Counter[str])
    """The reasons of failures, by how many prompts have them."""

    run: FanOut[Any] | None = None
    """The run, once it has begun."""

    budget_is_spent: bool = False
    reader_left: bool = False
    not_written: AnswersNotWritten | None = None
    """The error that ended the writing of answers, if any."""

    unwritten: list[ItemOutcome[Any]] = attrs.field(factory=list[ItemOutcome[Any]])
    """The outcomes after that error, if no journal has them."""

    error: Exception | None = None

    def count(self, outcome: ItemOutcome[Any]) -> None:
        """Count an outcome and the reasons of its failure."""
        self.counts[outcome.status] += 1
        if outcome.status != "succeeded":
            self.reasons.update(set(_reasons(outcome)))


def _reasons(outcome: ItemOutcome[Any]) -> Iterator[str]:
    """Yield the reasons why an outcome is not a success."""
    if outcome.error is not None:
        # The message of a timeout names its item. Without the name, those of all items are counted as one reason.
        message = str(outcome.error).removeprefix(f"item {outcome.key} had ")
        yield f"{type(outcome.error).__name__}: {message}"
        return
    best = None if outcome.result is None else outcome.result.best
    for validation in () if best is None else best.validations:
        if not validation.passed:
            about = "" if validation.requirement is None else validation.requirement.description
            yield f"{about}: {validation.reason}" if validation.reason and about else validation.complaint
    if best is None and outcome.result is not None:
        yield from (f"{type(error).__name__}: {error}" for error in outcome.result.errors)


def run(job: MapJob, signal_handler: SignalHandler) -> int:
    """Run the job and return the exit code."""
    with usage_errors():
        backend = job.make_backend()
    state = _RunState()
    with only_results():
        anyio.run(_run_job, job, backend, signal_handler, state)
    error = state.error
    if isinstance(error, JournalError) and not isinstance(error, JournalWriteFailed):
        # The journal belongs to another run, so nothing may be written.
        print_status(f"sampling: {error}\n{_ACCEPT_CHANGES if isinstance(error, JournalMismatch) else error.hint}")
        return REFUSED
    with ignore_hangup(), _tell_if_interrupted(job, state):
        not_written = _export_answers(job, state)
        page_not_written = _write_page(job, state)
    _print_summary(job, state)
    for problem in filter(None, (not_written, page_not_written)):
        print_status(f"sampling: {problem}")
    if signal_handler.received is not None:
        return exit_code_of(signal_handler.received)
    if not_written is not None or page_not_written is not None or state.reader_left:
        return FAILED
    if error is not None and not isinstance(error, SamplingError):
        raise error  # unexpected, so its traceback is of use
    return 0 if state.counts["succeeded"] == len(job.prompts) and error is None else FAILED


async def _run_job(job: MapJob, backend: Backend, signal_handler: SignalHandler, state: _RunState) -> None:
    with signal_handler.open() as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(signal_handler.handle, signals, group.cancel_scope)
            # On a cluster, the workers open backends of their own.
            async with open_backend(backend) if job.engine is None else nullcontext():
                with fan_out_progress(total=len(job.prompts), print_every_s=_LINE_EVERY_S) as hooks:
                    try:
                        with _open_writer(job) as write, _keep_error(state):
                            await _fan_out(job, backend, hooks, write, signal_handler, state)
                    except AnswersNotWritten as error:
                        state.not_written = state.not_written or error
            group.cancel_scope.cancel()


@contextmanager
def _keep_error(state: _RunState) -> Generator[None]:
    """Keep an error of the run. It is reported, or raised, after the answers are written."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        state.error = error


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
        job.items(),
        job.context,
        backend,
        job.requirements,
        max_concurrency=job.max_concurrency,
        max_requests=job.max_requests,
        item_timeout_s=job.item_timeout_s,
        outage_grace_s=job.outage_grace_s,
        retry=job.retry,
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
            if job.budget is not None and cut_off_by(outcome) == "budget":
                # All further items would end the same way. The journal has no outcome of this one, so a resume asks it,
                # and it is not counted as failed.
                state.budget_is_spent = True
                run.drain()
            else:
                state.count(outcome)
            if not state.reader_left:
                _write(outcome, write, job, state)


def _write(outcome: ItemOutcome[Any], write: OutcomeWriter, job: MapJob, state: _RunState) -> None:
    if state.not_written is None:
        try:
            write(outcome)
        except ReaderLeft:
            # The answers are no longer read, so no more are requested. A journal keeps those in flight.
            state.reader_left = True
            if state.run is not None:
                (state.run.cancel if job.journal is None else state.run.drain)()
        except AnswersNotWritten as error:
            state.not_written = error
            # What is in flight is paid for.
            if state.run is not None:
                state.run.drain()
    if state.not_written is not None and job.journal is None:
        state.unwritten.append(outcome)


@contextmanager
def _open_writer(job: MapJob) -> Generator[OutcomeWriter]:
    """Yield a function that writes outcomes as they arrive."""
    requirements = job.all_requirements
    if job.out is None:
        yield lambda outcome: print_row(live_row(outcome, requirements))
    elif job.journal is not None:
        # The answers are exported from the journal at the end, which also has those of earlier runs.
        yield lambda _: None
    else:
        with growing_file(job.out) as write:
            yield lambda outcome: write(live_row(outcome, requirements))


def _export_answers(job: MapJob, state: _RunState) -> str | None:
    """Write the answers of the journal to `--out`. If that fails, return the problem and what was saved."""
    if state.not_written is not None:
        return f"{state.not_written} {_how_to_go_on(job, state.error)}"
    if job.out is None or job.journal is None or state.run is None:
        return None
    counts = Counter[ItemStatus]()
    try:
        write_rows(job.out, _counted(_rows_of(job.journal.path, state.run.halted_by), counts))
    except (OSError, JournalError) as error:
        problem = reason_of(error) if isinstance(error, OSError) else str(error)
        return f"{job.out} could not be written: {problem}. {_how_to_go_on(job, state.error)}"
    # A run that an error ended does not deliver what finished behind that prompt, but the journal has it.
    state.counts = counts
    return None


@contextmanager
def _tell_if_interrupted(job: MapJob, state: _RunState) -> Generator[None]:
    """Say how to get the files if a signal ends the block, which writes them."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if state.run is not None and job.journal is not None:
            print_status(f"interrupted before all files were written: {_how_to_resume(job, state)}")
        raise


def _write_page(job: MapJob, state: _RunState) -> str | None:
    """Write the page about the run to `--report`. If that fails, return the problem."""
    if job.report is None or job.journal is None or state.run is None:
        return None
    try:
        with replacing(job.report) as temporary:
            export(job.journal.path, temporary, format="html")
    except (OSError, JournalError) as error:
        problem = reason_of(error) if isinstance(error, OSError) else str(error)
        command = shlex.join(["sampling", "export", str(job.journal.path), "--out", str(job.report)])
        return f"{job.report} could not be written: {problem}. Fix that, and run: {command}"
    print_status(f"wrote {job.report}")
    return None


def _how_to_go_on(job: MapJob, error: Exception | None) -> str:
    if job.journal is None:
        return "Fix that, and run it again: without a journal it starts from the beginning."
    if not job.journal.path.exists():
        return f"The journal {job.journal.path} is gone. Move it back, and run: {_resume_command()}"
    kept = "All other answers" if _unsaved(error) else "All answers"
    return f"{kept} are kept in {job.journal.path}. Fix that, and run: {_resume_command()}"


def _rows_of(journal: Path, halted_by: int | None) -> Iterable[dict[str, Any]]:
    # Later prompts may have finished before the one that halted the run. They are kept in the journal only.
    return (row for row in rows(journal) if halted_by is None or row["index"] <= halted_by)


def _counted(rows: Iterable[dict[str, Any]], counts: Counter[ItemStatus]) -> Iterator[dict[str, Any]]:
    """Yield the rows, and count them by status."""
    for row in rows:
        counts[row["status"]] += 1
        yield row


def _print_summary(job: MapJob, state: _RunState) -> None:
    if state.run is not None:
        _print_run(job, state, state.run)
    elif state.error is not None:
        print_status(f"sampling: {_describe_error(state.error)}")
    elif state.not_written is None:
        print_status("stopped before anything was sent")
    if job.prompts.has_changed:
        go_on = "" if job.journal is None else ". To ask those, correct it and add --resume --accept-changes"
        print_status(f"{job.prompts.name} was changed during the run, so prompts may be missing{go_on}")


def _print_run(job: MapJob, state: _RunState, run: FanOut[Any]) -> None:
    done = state.counts.total()
    counts = ", ".join(f"{count:,} {status}" for status, count in state.counts.items())
    shown = f" ({counts})" if counts else ""
    tokens = f" · {run.usage.total_tokens:,} tokens" if run.usage.total_tokens else ""
    cost = f" · cost {run.usage.cost:.6g}" if run.usage.cost else ""
    print_status(f"{run.status}: {done:,} of {len(job.prompts):,} prompts{shown}{tokens}{cost}")
    _print_reasons(state.reasons)
    if run.maybe_billed_twice:
        asked = "1 prompt was" if len(run.maybe_billed_twice) == 1 else f"{len(run.maybe_billed_twice):,} prompts were"
        print_status(f"{asked} asked again, because an earlier run or a worker ended without the answer")
    if state.reader_left:
        print_status("stdout was closed by its reader, so the run was stopped")
    if state.error is not None:
        print_status(f"ended by an error: {_describe_error(state.error)}")
    if unsaved := _unsaved(state.error):
        print_status(_rescue(unsaved, job, "stored, and a resume asks for them again"))
    if state.unwritten:
        print_status(_rescue(state.unwritten, job, "written"))
    _print_next_steps(job, state, run)


def _print_next_steps(job: MapJob, state: _RunState, run: FanOut[Any]) -> None:
    if state.budget_is_spent:
        go_on = "resume" if job.journal is not None else "run it again, from the beginning: it has no journal"
        print_status(f"the budget is spent: {job.budget!r}. Raise it to {go_on}")
    if job.journal is not None and _ends_every_resume(job, state, run):
        print_status(
            "a recorded outcome ends every resume: add --retry-failed to ask that prompt again, or --on-error continue "
            "and --on-failure continue to go on without it"
        )
    if run.status in {"stopped", "failed"}:
        print_status(_how_to_resume(job, state))


def _ends_every_resume(job: MapJob, state: _RunState, run: FanOut[Any]) -> bool:
    """Return whether an outcome in the journal ends the run whenever it is resumed with the same flags."""
    # With "raise", no error is recorded, but an earlier run may have had another --on-error.
    has_recorded_error = job.on_error == "raise" and state.counts["errored"] > 0
    return not job.retry and (run.halted_by is not None or has_recorded_error)


def _how_to_resume(job: MapJob, state: _RunState) -> str:
    if job.journal is None:
        return "the run can't be resumed: it has no journal"
    kept = "all other answers are kept" if _unsaved(state.error) else "all answers are kept"
    if not job.journal.path.exists():
        kept = f"the journal {job.journal.path} is gone. Move it back"
    return f"{kept}. Resume with:\n  {_resume_command()}"


def _unsaved(error: Exception | None) -> Sequence[ItemOutcome[Any]]:
    """Return the outcomes that could not be stored in the journal."""
    return error.unsaved if isinstance(error, JournalWriteFailed) else ()


def _rescue(unsaved: Sequence[ItemOutcome[Any]], job: MapJob, missed: str) -> str:
    """Save answers that there was no room for in the directory for temporary files, and say where."""
    problem = f"{len(unsaved):,} answers could not be {missed}"
    try:
        saved = Path(tempfile.mkdtemp(prefix="sampling-")) / "answers.jsonl"
        write_rows(saved, (live_row(outcome, job.all_requirements) for outcome in unsaved))
    except OSError as error:
        return f"{problem}. No other file could be written either: {reason_of(error)}"
    return f"{problem}. They are saved in {saved}"


def _print_reasons(reasons: Counter[str]) -> None:
    for reason, count in reasons.most_common(_MAX_REASONS):
        print_status(f"  {count:,} × {quoted(reason, _MAX_REASON_CHARS)[1:-1]}")
    if len(reasons) > _MAX_REASONS:
        print_status(f"  and {len(reasons) - _MAX_REASONS:,} other reasons: see the column failures")


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {quoted(describe_error(error), 800)[1:-1]}"


def _resume_command() -> str:
    arguments = sys.argv[1:] if "--resume" in sys.argv else [*sys.argv[1:], "--resume"]
    # --force would be about the file of answers, which a resume replaces anyway.
    kept = [argument for argument in without_header_values(arguments) if argument != "--force"]
    return shlex.join(["sampling", *kept])
