"""`sampling map`: one strategy over a file of prompts, overnight if need be."""

from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sampling.backends.layers._priced import Priced
from sampling.backends.layers._retrying import Retrying
from sampling.backends.llama.models.arithmetic import Question
from sampling.budgets import Budget
from sampling.cli import _flags as flags
from sampling.cli._interrupts import Interrupts
from sampling.cli._map_run import Job, check, run, say, show_worst_case
from sampling.cli._prompts import Prompts
from sampling.cli._specs import backend_of, requirements_of, strategy_of
from sampling.fanout import FanOutEngine
from sampling.fanout.journal import Journal
from sampling.messages import Context, Message, Options
from sampling.protocols import Backend
from sampling.requirements import Requirement, Validation, View
from sampling.usage import Price

__all__ = ["EXAMPLES", "HELP", "map_prompts"]

HELP = """
Ask every prompt of a file, and write one JSON line for each answer, in the order of the file.

A line of the file is {"key": ..., "prompt": ...}, or just a JSON string; with --text it is the prompt as it stands.
Every line is looked at before the first one is asked: a broken one is named, and nothing is spent.

With --out, everything is also written down in a journal beside it, before and after it is asked. So the run may be
stopped, killed or cut off from power: the same command with --resume asks only for what is not answered yet.
Ctrl-C starts nothing new, and waits for what is in flight, up to --grace seconds; a second Ctrl-C cancels that.

Exit code: 0 if every prompt has a valid answer, 1 if some have none or an error ended the run, 2 if a flag, the file or
the journal is not as it should be (then nothing was spent), 130 after Ctrl-C, 143 after SIGTERM.
"""

EXAMPLES = """
\b
Examples:
  sampling map prompts.jsonl --out answers.jsonl --dry-run --max-tokens 400 --price 0.15/0.60
  sampling map prompts.jsonl --out answers.jsonl --strategy multi-turn --depth 3 --breadth 2 --require json
  sampling map prompts.jsonl --out answers.jsonl --strategy multi-turn --depth 3 --breadth 2 --require json --resume
  sampling map prompts.jsonl --backend openai:gpt-5-mini --max-concurrency 32 --price 0.25/2 --budget-cost 5 -o a.jsonl
  head -3 questions.txt | sampling map - --text --require arithmetic
"""


class OnFailure(StrEnum):
    """What to do after a prompt without a valid answer."""

    CONTINUE = "continue"
    HALT = "halt"


class OnError(StrEnum):
    """What to do after a prompt whose call raised."""

    RAISE = "raise"
    HALT = "halt"
    CONTINUE = "continue"


def map_prompts(  # noqa: PLR0913 - each is a flag
    prompts: Annotated[Path, typer.Argument(help="The file of prompts; - for the standard input.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the answers go; else to standard output.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    journal: Annotated[
        Path | None, typer.Option(help="Where to write the run down. By default beside --out, as OUT.journal.")
    ] = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", help="Write no journal: then there is no --resume.")
    ] = False,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    system: Annotated[str | None, typer.Option(help="The system message that comes before every prompt.")] = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: Annotated[int | None, typer.Option(help="Makes chance repeatable, where the backend can.")] = None,
    send_env_key: flags.SendEnvKey = False,
    retries: Annotated[int, typer.Option(min=0, help="How often to send a request again that failed in passing.")] = 3,
    max_concurrency: Annotated[int, typer.Option("--max-concurrency", "-k", min=1, help="Prompts in flight.")] = 8,
    on_failure: Annotated[
        OnFailure, typer.Option(help="After a prompt without a valid answer: go on, or halt there.")
    ] = OnFailure.CONTINUE,
    on_error: Annotated[
        OnError,
        typer.Option(
            help="After a prompt whose call raised: 'raise' ends the run, and --resume asks that prompt again; "
            "'halt' ends it, and keeps the error as the outcome; 'continue' keeps it, and goes on."
        ),
    ] = OnError.RAISE,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help="Stop at so many tokens.")] = None,
    budget_cost: Annotated[float | None, typer.Option(min=0, help="Stop at so much money; needs --price.")] = None,
    budget_requests: Annotated[int | None, typer.Option(min=0, help="Stop at so many requests.")] = None,
    price: flags.PriceFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the most that it can take: requests, tokens, cost. Ask nothing.")
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="Every line is a prompt as it stands, not JSON.")] = False,
    key_field: Annotated[str, typer.Option(help="The field of a line that has its key.")] = "key",
    prompt_field: Annotated[str, typer.Option(help="The field of a line that has its prompt.")] = "prompt",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over broken lines, and report them.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="With --resume, although flags or prompts are not as they were.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for what is in flight to finish after Ctrl-C.")] = 30.0,
    actors: Annotated[
        int | None, typer.Option(min=1, help="Ask from that many processes of a Ray cluster, instead of from this one.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="The cluster's address; without it, RAY_ADDRESS, or a Ray of its own.")
    ] = None,
) -> int:
    """Ask every prompt of a file; the flags are explained where they stand."""
    with ExitStack() as stack:
        with flags.bad_flags():
            priced = flags.price_of(price)
            _check_together(budget_cost, price, ray_address, actors)
            make_backend = partial(_backend, backend, send_env_key=send_env_key, retries=retries, price=priced)
            job = Job(
                prompts=stack.enter_context(
                    Prompts(prompts, text=text, key_field=key_field, prompt_field=prompt_field)
                ),
                strategy=strategy_of(strategy, depth=depth, breadth=breadth),
                make_backend=make_backend,
                requirements=_requirements(require or ()),
                context=None if system is None else Context([Message("system", system)]),
                options=Options(temperature=temperature, max_tokens=max_tokens, seed=seed),
                budget=_budget(budget_tokens, budget_cost, budget_requests),
                max_concurrency=max_concurrency,
                on_failure=on_failure.value,
                on_error=on_error.value,
                journal=_journal(out, journal, no_journal=no_journal, resume=resume, accept_changes=accept_changes),
                out=out,
                engine=None if actors is None else _ray(ray_address, actors, make_backend),
            )
            worst = check(job, skip_bad=skip_bad)
        if dry_run:
            show_worst_case(job, worst, priced, retries)
            return 0
        return run(job, Interrupts(grace_s=grace, say=say))


# Reading what was told.


def _check_together(budget_cost: float | None, price: str | None, ray_address: str | None, actors: int | None) -> None:
    if budget_cost is not None and price is None:
        raise ValueError("--budget-cost needs --price IN/OUT, for servers do not say what they charge")
    if ray_address is not None and actors is None:
        raise ValueError("--ray-address needs --actors, the number of processes to use there")


def _requirements(specs: Sequence[str]) -> list[Requirement]:
    """Make the requirements; the one that depends on the question takes it from the conversation."""
    requirements: list[Requirement] = []
    for spec in specs:
        requirements += [_ARITHMETIC] if spec == "arithmetic" else requirements_of([spec], "")
    return requirements


def _is_right(text: str, view: View) -> Validation:
    asked = next(message.content for message in view.context if message.role == "user")
    # What comes after its first line was put there to repair an answer.
    return Question.parse(asked.partition("\n")[0]).check(text)


_ARITHMETIC = Requirement("the last number is what the prompt asks for", _is_right)


def _backend(spec: str, *, send_env_key: bool, retries: int, price: Price | None) -> Backend:
    backend = backend_of(spec, send_env_key=send_env_key)
    if retries:
        backend = Retrying(backend, attempts=retries + 1)
    return backend if price is None else Priced(backend, price)


def _budget(tokens: int | None, cost: float | None, requests: int | None) -> Budget | None:
    if tokens is None and cost is None and requests is None:
        return None
    return Budget(tokens=tokens, cost=cost, requests=requests)


def _ray(address: str | None, actors: int, make_backend: "partial[Backend]") -> FanOutEngine:
    from sampling.fanout.ray import RayEngine  # noqa: PLC0415 - an extra: only those who ask for it need it

    return RayEngine(address, actors=actors, backend_factory=make_backend)


def _journal(
    out: Path | None, path: Path | None, *, no_journal: bool, resume: bool, accept_changes: bool
) -> Journal | None:
    """Find the journal, and see that neither it nor the answers of another run are overwritten by mistake."""
    if no_journal and (path is not None or resume):
        raise ValueError(f"--no-journal and {'--resume' if resume else '--journal'} exclude each other")
    if path is None and out is not None and not no_journal:
        path = out.with_name(f"{out.name}.journal")
    if path is None and resume:
        raise ValueError("--resume needs the --out, or the --journal, of the run to go on with")
    if not resume:
        for there in (path, out):
            if there is not None and there.exists():
                raise ValueError(f"{there} is there already: go on with it by --resume, or delete it, or name another")
    return None if path is None else Journal(path, on_change="continue" if accept_changes else "refuse")
