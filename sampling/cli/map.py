"""`sampling map`: run one strategy over a file of prompts."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import attrs
import typer

from sampling._arguments import check_number, short_repr
from sampling.backends.llama._model_files import SMOLLM2
from sampling.backends.llama.models.arithmetic import Question
from sampling.budgets import Budget
from sampling.cli import _flags as flags
from sampling.cli._answer_format import parse_format
from sampling.cli._batch_lines import BatchLines
from sampling.cli._files import Force, check_output, is_same_file, is_special
from sampling.cli._headers import Headers
from sampling.cli._map_run import MapJob, check, run, show_worst_case
from sampling.cli._prompts import Prompts
from sampling.cli._signals import SignalHandler
from sampling.cli._specs import choose_backend, parse_backend, parse_requirements, parse_strategy, wrap_backend
from sampling.cli._status import print_status
from sampling.fanout import BatchEngine, FanOutEngine
from sampling.fanout.batch import PRICE_FACTOR as BATCH_PRICE_FACTOR
from sampling.fanout.journal import Journal
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.requirements import Requirement, Validation, View
from sampling.usage import Price

__all__ = ["EXAMPLES", "HELP", "map_prompts"]

HELP = """
Answer every prompt of a file. Writes one JSON line per answer, in the order of the file.

A line of the file is {"key": ..., "prompt": ...} or a JSON string. With --text, the line is the prompt. A .csv file has
columns of these names. All lines are checked before the first request, so a bad line costs nothing.

With --out, a journal beside it records every prompt before and after it is asked. After a stop, a crash or a power
failure, run the same command with --resume to ask only the rest. Ctrl-C starts nothing new and waits up to --grace
seconds for calls in flight. A second Ctrl-C cancels them.

With --batch, the prompts go through the batch API of the provider: half the price, within a day. Repairs are the next
batch. Ctrl-C cancels the batches and keeps what is finished, and --resume finds those of a run that was killed.

In a line of the output, `failures` has every failed requirement with its reason, and every error. With --type,
--require json or --require schema:FILE, the server is told the schema, and `value` is the parsed answer.

Exit code: 0 if every prompt has a valid answer, 1 if some have none or an error ended the run.
"""

EXAMPLES = """
\b
Examples:
  sampling map prompts.jsonl --out answers.jsonl --dry-run --max-tokens 400 --price 0.15/0.60
  sampling map prompts.jsonl --out answers.jsonl --strategy multi-turn --depth 3 --breadth 2 --require json
  sampling map prompts.jsonl --out answers.jsonl --strategy multi-turn --depth 3 --breadth 2 --require json --resume
  sampling map prompts.jsonl --backend openai:gpt-5-mini --max-concurrency 32 --price 0.25/2 --budget-cost 5 -o a.jsonl
  sampling map mails.jsonl --type shop:Invoice --system "Extract the invoice." --depth 3 --out invoices.jsonl
  sampling map prompts.jsonl --backend openai:gpt-5-mini --batch --require json --depth 2 --out answers.jsonl
  sampling map prompts.jsonl --require json --out answers.jsonl --report run.html
  head -3 questions.txt | sampling map - --text --require arithmetic
"""


class OnFailure(StrEnum):
    """The reaction to a prompt without a valid answer."""

    CONTINUE = "continue"
    HALT = "halt"


class OnError(StrEnum):
    """The reaction to a prompt whose call raised."""

    RAISE = "raise"
    HALT = "halt"
    CONTINUE = "continue"


def map_prompts(  # noqa: PLR0913 - each is a flag
    prompts: Annotated[Path, typer.Argument(help="The file of prompts, or - for stdin.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file for answers, as JSON lines. Default: stdout.")
    ] = None,
    force: Force = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    journal: Annotated[Path | None, typer.Option(help="The journal file. Default: OUT.journal.")] = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", help="Write no journal. The run can't be resumed.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page about the run to this .html file: progress, cost, failures, slowest prompts."),
    ] = None,
    backend: flags.DefaultBackendFlag = None,
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    type_: flags.TypeFlag = None,
    constrain: flags.Constrain = True,
    system: flags.System = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: flags.Seed = None,
    send_env_key: flags.SendEnvKey = False,
    allow_http: flags.AllowHttp = False,
    header: flags.Header = None,
    retries: flags.Retries = 3,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", "-k", min=1, help="Prompts in flight. Default: 8, with --batch 10,000."),
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight, over all prompts. Default: no limit.")
    ] = None,
    item_timeout: Annotated[
        float | None, typer.Option(help="Seconds before a prompt counts as errored. Default: no limit.")
    ] = None,
    outage_grace: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds to wait for a server that answered before and now fails every call. 0 counts every error "
            "at once.",
        ),
    ] = 600.0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: ask failed and errored prompts again, too.")
    ] = False,
    on_failure: Annotated[
        OnFailure, typer.Option(help="After a prompt without a valid answer: continue or halt.")
    ] = OnFailure.CONTINUE,
    on_error: Annotated[
        OnError,
        typer.Option(
            help="After a prompt whose call raised: 'raise' ends the run, and --resume asks that prompt again. "
            "'halt' ends the run and records the error. 'continue' records the error and continues."
        ),
    ] = OnError.RAISE,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help="Stop before this many tokens are exceeded.")] = None,
    budget_cost: Annotated[
        float | None, typer.Option(min=0, help="Stop before this cost is exceeded. Needs --price.")
    ] = None,
    budget_requests: Annotated[int | None, typer.Option(min=0, help="Stop after this many requests.")] = None,
    price: flags.PriceFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the maximum requests, tokens and cost. Send nothing.")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Lines are plain prompts, not JSON, also those of a .csv file.")
    ] = False,
    key_field: Annotated[str, typer.Option(help="The name of the key field.")] = "key",
    prompt_field: Annotated[str, typer.Option(help="The name of the prompt field.")] = "prompt",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip bad lines and report them.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume even if flags or prompts have changed.")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that calls in flight have to finish after Ctrl-C.")
    ] = 30.0,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch", help="Send the prompts through the batch API of openai: or anthropic:, at half the price."
        ),
    ] = False,
    actors: Annotated[int | None, typer.Option(min=1, help="Run on this many actors of a Ray cluster.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The address of the cluster. Default: RAY_ADDRESS, else a local Ray.")
    ] = None,
) -> int:
    """Ask every prompt of a file."""
    with ExitStack() as stack:
        with flags.usage_errors():
            priced = flags.parse_price(price)
            _check_dependencies(budget_cost, price)
            _check_cluster(ray_address, actors, max_requests)
            # A dry run asks no model, so none has to be named or installed.
            spec = SMOLLM2 if dry_run and backend is None else choose_backend(backend, require or ())
            if batch:
                limited = budget_tokens is not None or budget_cost is not None
                _check_batch(spec, actors, needs_max_tokens=limited and max_tokens is None)
            make_backend = partial(
                _backend,
                spec,
                send_env_key=send_env_key,
                allow_http=allow_http,
                headers=Headers.parse(header),
                retries=retries,
                price=priced,
            )
            if item_timeout is not None:
                check_number("--item-timeout", item_timeout, above=0)
            check_number("--outage-grace", outage_grace, least=0)
            answer_format = parse_format(type_, require or (), constrain=constrain)
            files = _Files(prompts=prompts, out=out, given_journal=journal, report=report)
            files.check(no_journal=no_journal, resume=resume, force=force)
            if retry_failed and not resume:
                raise ValueError("--retry-failed needs --resume, because it is about the prompts of an earlier run")
            job = MapJob(
                prompts=stack.enter_context(
                    Prompts(prompts, text=text, key_field=key_field, prompt_field=prompt_field)
                ),
                strategy=parse_strategy(strategy, depth=depth, breadth=breadth),
                make_backend=make_backend,
                requirements=_requirements(require or ()),
                format=answer_format,
                context=flags.system_context(system),
                options=Options(temperature=temperature, max_tokens=max_tokens, seed=seed, schema=answer_format.schema),
                budget=_budget(budget_tokens, budget_cost, budget_requests),
                max_concurrency=max_concurrency or 8,
                max_requests=max_requests,
                item_timeout_s=item_timeout,
                outage_grace_s=outage_grace,
                retry=("failed", "errored") if retry_failed else (),
                on_failure=on_failure.value,
                on_error=on_error.value,
                journal=None if no_journal else files.open_journal(accept_changes=accept_changes),
                out=out,
                report=report,
                engine=_engine(max_concurrency, ray_address, actors, make_backend, batch=batch),
                price_factor=BATCH_PRICE_FACTOR if batch else 1.0,
            )
            worst = check(job, skip_bad=skip_bad)
        if dry_run:
            show_worst_case(job, worst, priced, retries)
            return 0
        return run(job, SignalHandler(grace_s=grace, print_line=print_status))


def _check_dependencies(budget_cost: float | None, price: str | None) -> None:
    if budget_cost is not None and price is None:
        raise ValueError("--budget-cost needs --price IN/OUT, because servers do not report their prices")


def _check_cluster(ray_address: str | None, actors: int | None, max_requests: int | None) -> None:
    if ray_address is not None and actors is None:
        raise ValueError("--ray-address needs --actors, the number of processes to use there")
    if actors is not None and max_requests is not None and max_requests < actors:
        raise ValueError(f"--max-requests must be at least --actors, one for each, got {max_requests} and {actors}")


def _check_batch(spec: str, actors: int | None, *, needs_max_tokens: bool) -> None:
    if spec.partition(":")[0] not in {"openai", "anthropic"}:
        raise ValueError(
            f"--batch needs --backend openai:MODEL or anthropic:MODEL, got {spec!r}: no other backend has batches"
        )
    if actors is not None:
        raise ValueError("--batch and --actors exclude each other: a batch runs at the provider, not on a cluster")
    if needs_max_tokens:
        raise ValueError("--batch with --budget-tokens or --budget-cost needs --max-tokens: a batch is sent as a whole")


def _requirements(specs: Sequence[str]) -> list[Requirement]:
    """Return the requirements for all prompts."""
    requirements: list[Requirement] = []
    for spec in specs:
        # Each prompt is another question, so `arithmetic` reads it from the conversation.
        requirements += [_ARITHMETIC] if spec == "arithmetic" else parse_requirements([spec], "")
    return requirements


def _is_right(text: str, view: View) -> Validation:
    asked = next(message.text for message in view.context if message.role == "user")
    # A repair template adds its text after the first line.
    return Question.parse(asked.partition("\n")[0]).check(text)


_ARITHMETIC = Requirement("the last number is what the prompt asks for", _is_right)


def _backend(
    spec: str, *, send_env_key: bool, allow_http: bool, headers: Headers, retries: int, price: Price | None
) -> Backend:
    backend = parse_backend(spec, send_env_key=send_env_key, allow_http=allow_http, headers=headers)
    return wrap_backend(backend, retries=retries, price=price)


def _budget(tokens: int | None, cost: float | None, requests: int | None) -> Budget | None:
    if tokens is None and cost is None and requests is None:
        return None
    return Budget(tokens=tokens, cost=cost, requests=requests)


def _engine(
    window: int | None, address: str | None, actors: int | None, make_backend: "partial[Backend]", *, batch: bool
) -> FanOutEngine | None:
    if batch:
        lines = BatchLines(print_status)
        return BatchEngine(on_progress=lines) if window is None else BatchEngine(on_progress=lines, window=window)
    return None if actors is None else _ray(address, actors, make_backend)


def _ray(address: str | None, actors: int, make_backend: "partial[Backend]") -> FanOutEngine:
    from sampling.fanout.ray import RayEngine  # noqa: PLC0415 - an extra, needed for --actors only

    return RayEngine(address, actors=actors, backend_factory=make_backend)


@attrs.frozen(kw_only=True)
class _Files:
    """The files of a run."""

    prompts: Path
    out: Path | None
    given_journal: Path | None
    report: Path | None = None

    @property
    def journal(self) -> Path | None:
        """The path of the journal, if there is to be one."""
        if self.given_journal is not None or self.out is None or is_special(self.out):
            return self.given_journal
        # Not `with_name`, which refuses a path without a name, such as a dot, with an error of its own.
        return self.out.parent / f"{self.out.name}.journal"

    def check(self, *, no_journal: bool, resume: bool, force: bool) -> None:
        """Raise ValueError if a file is missing, or would be overwritten."""
        if no_journal and (self.given_journal is not None or resume):
            raise ValueError(f"--no-journal and {'--resume' if resume else '--journal'} exclude each other")
        journal = None if no_journal else self.journal
        if resume and journal is None:
            raise ValueError("--resume needs the --out, or the --journal, of the run to resume")
        if resume and journal is not None and not journal.exists():
            raise ValueError(
                f"--resume: there is no journal {journal}, so nothing was recorded. Check the name in "
                f"{'--out' if self.given_journal is None else '--journal'}, or leave out --resume to begin a new run"
            )
        if journal is not None:
            self._check_journal(journal, resume=resume)
        if self.out is not None:
            protected = {"the file of prompts": self.prompts, **_files_of_journal(journal)}
            check_output("--out", self.out, replace=force or resume, protected=protected)
        if self.report is not None:
            self._check_report(self.report, journal, replace=force or resume)
        if self.out is not None and not resume:
            _check_format(self.out)

    def _check_journal(self, journal: Path, *, resume: bool) -> None:
        # Answers that were paid for are never overwritten.
        if journal.is_file() and not resume and not is_same_file(journal, self.prompts):
            raise ValueError(f"{journal} already exists: add --resume, delete it, or choose another name")
        flag = "--out" if self.given_journal is None else "--journal"
        check_output(flag, journal, replace=resume, protected={"the file of prompts": self.prompts})

    def _check_report(self, report: Path, journal: Path | None, *, replace: bool) -> None:
        if journal is None:
            raise ValueError("--report is made from a journal: add --out FILE or --journal FILE")
        if report.suffix.lower() != ".html":
            raise ValueError(f"--report must end in .html, got {short_repr(str(report))}")
        others = {"the file of prompts": self.prompts, "the file of --out": self.out, **_files_of_journal(journal)}
        check_output("--report", report, replace=replace, protected=others)

    def open_journal(self, *, accept_changes: bool) -> Journal | None:
        """Return the journal, which is opened when the run begins."""
        if self.journal is None:
            return None
        return Journal(self.journal, on_change="continue" if accept_changes else "refuse")


def _check_format(out: Path) -> None:
    """Raise ValueError if the name of the answers promises stdout, or another format than they have."""
    if str(out) == "-":
        raise ValueError("--out - would be a file of that name: without --out, the answers go to stdout")
    if out.suffix.lower() in {".csv", ".html", ".parquet"}:
        lines = out.with_suffix(".jsonl")
        export = shlex.join(["sampling", "export", f"{lines}.journal", "--out", str(out)])
        raise ValueError(f"--out is written as JSON lines: use --out {shlex.quote(str(lines))}, and then {export}")


def _files_of_journal(journal: Path | None) -> dict[str, Path]:
    if journal is None:
        return {}
    parts = {f"a part of the journal ({suffix})": suffix for suffix in (".lock", "-wal", "-shm")}
    return {"the journal": journal, **{what: Path(f"{journal}{suffix}") for what, suffix in parts.items()}}
