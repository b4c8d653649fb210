"""`sampling sample`: ask one question and print a checked answer."""

import sys
import tempfile
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import attrs
import typer

from sampling.cli import _flags as flags
from sampling.cli._answer_format import AnswerFormat, parse_format
from sampling.cli._files import reason_of
from sampling.cli._headers import Headers
from sampling.cli._signals import run_interruptible
from sampling.cli._specs import (
    choose_backend,
    open_backend,
    parse_backend,
    parse_requirements,
    parse_strategy,
    wrap_backend,
)
from sampling.cli._status import print_status
from sampling.cli._stdout import only_results, terminal_safe, write_result
from sampling.hooks import Hooks
from sampling.messages import Context, Options
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.telemetry import call_progress

__all__ = ["EXAMPLES", "HELP", "sample"]

HELP = """
Ask one question and print the answer.

The answer goes to stdout, and a summary of the call to stderr. The question - reads it from stdin. With --type,
--require json or --require schema:FILE, the server is told the schema, and the answer is printed as plain JSON.

Exit code: 0 for a valid answer, 1 for an invalid one.
"""

EXAMPLES = """
\b
Examples:
  sampling sample "What is the capital of France?" --require words:1..10 --depth 3
  sampling sample "What is 347 + 286?" --require arithmetic --depth 3 --breadth 4
  sampling sample "What is 347 + 286?" --require arithmetic --strategy multi-turn --depth 4 --explain
  sampling sample "A haiku about rain" --backend openai:gpt-5-mini --require "is about rain"
  sampling sample "2 + 2?" --backend openai:qwen3@http://127.0.0.1:8000/v1 --require 'regex:\\d+'
  sampling sample - --backend openai:gpt-5-mini --type shop:Invoice --depth 3 < mail.txt | jq .total
  sampling sample "Hi" -b openai:qwen3@http://10.0.0.5:8000/v1 --allow-http --header "X-Team: web" --system "Be kind."
"""


@attrs.frozen(kw_only=True)
class _Call:
    """The call to make, parsed and checked."""

    question: str
    format: AnswerFormat
    context: Context | None
    backend: Backend
    strategy: BaseSamplingStrategy
    requirements: list[Requirement]
    options: Options

    def start(self, hooks: Hooks) -> Awaitable[SamplingResult[Any]]:
        """Ask the question."""
        action = self.format.action(self.question)
        return self.strategy.sample(
            action, self.context, self.backend, self.requirements, options=self.options, hooks=hooks
        )


def sample(  # noqa: PLR0913 - each is a flag
    question: Annotated[str, typer.Argument(help="The question, or - to read it from stdin.")],
    *,
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
    explain: Annotated[bool, typer.Option("--explain", help="Show every attempt and what failed.")] = False,
    progress: Annotated[bool, typer.Option(help="Show the attempts while they are written, on a terminal.")] = True,
) -> int:
    """Ask one question and print the answer."""
    with flags.usage_errors():
        asked = _read_question(question)
        answer_format = parse_format(type_, require or (), constrain=constrain)
        spec = choose_backend(backend, require or ())
        parsed_backend = parse_backend(
            spec, send_env_key=send_env_key, allow_http=allow_http, headers=Headers.parse(header)
        )
        call = _Call(
            question=asked,
            format=answer_format,
            context=flags.system_context(system),
            backend=wrap_backend(parsed_backend, retries=retries),
            strategy=parse_strategy(strategy, depth=depth, breadth=breadth),
            requirements=parse_requirements(require or (), asked),
            options=Options(temperature=temperature, max_tokens=max_tokens, seed=seed, schema=answer_format.schema),
        )
    with only_results():
        result = anyio.run(run_interruptible, partial(_ask, call, show=None if progress else False))
    printed = _print_answer(result, answer_format)
    print_status(result.explain() if explain else str(result))
    return 0 if result.success and printed else 1


def _read_question(given: str) -> str:
    question = sys.stdin.read().removesuffix("\n") if given == "-" else given
    if not question.strip():
        if given == "-":
            raise ValueError("the question - reads stdin, which is empty")
        # Most likely a variable of the shell that is not set.
        raise ValueError("the question is empty: give one in quotes, or - to read it from stdin")
    return question


async def _ask(call: _Call, *, show: bool | None) -> SamplingResult[Any]:
    async with open_backend(call.backend):
        with call_progress.progress(lanes=True, show=show) as hooks:
            return await call.start(hooks)


def _print_answer(result: SamplingResult[Any], answer_format: AnswerFormat) -> bool:
    """Print the answer. Return False if stdout has no room for it. It is then saved elsewhere, as it is paid for."""
    if result.text is None:
        return True
    text = answer_format.shown(result.text)
    try:
        # A terminal acts on control characters. A program that reads a pipe gets the answer as it is.
        write_result(f"{terminal_safe(text) if sys.stdout.isatty() else text}\n")
    except OSError as error:
        print_status(f"sampling: stdout could not be written: {reason_of(error)}. {_rescue(text)}")
        return False
    return True


def _rescue(text: str) -> str:
    """Save an answer in the directory for temporary files, and say where."""
    try:
        saved = Path(tempfile.mkdtemp(prefix="sampling-")) / "answer.txt"
        saved.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        return f"No other file could be written either ({reason_of(error)}). The answer is:\n{terminal_safe(text)}"
    return f"The answer is saved in {saved}"
