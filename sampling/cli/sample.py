"""`sampling sample`: ask one question, and get an answer that was checked."""

import sys
from typing import Annotated, Any

import anyio
import typer

from sampling.cli import _flags as flags
from sampling.cli._specs import backend_of, opened, requirements_of, strategy_of
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.telemetry.call_progress import progress

__all__ = ["EXAMPLES", "HELP", "sample"]

HELP = """
Ask one question and print the answer.

The answer goes to the standard output; how it came about goes to the standard error. The exit code is 0 for a valid
answer, 1 for one that is not, and 2 if a flag is wrong.
"""

EXAMPLES = """
\b
Examples:
  sampling sample "What is 347 + 286?" --require arithmetic --depth 3 --breadth 4
  sampling sample "What is 347 + 286?" --require arithmetic --strategy multi-turn --depth 4 --explain
  sampling sample "A haiku about rain" --backend openai:gpt-5-mini --require "is about rain"
  sampling sample "2 + 2?" --backend openai:qwen3@http://127.0.0.1:8000/v1 --require 'regex:\\d+'
"""


def sample(  # noqa: PLR0913 - each is a flag
    question: Annotated[str, typer.Argument(help="What to ask.")],
    *,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: Annotated[int | None, typer.Option(help="Makes chance repeatable, where the backend can.")] = None,
    send_env_key: flags.SendEnvKey = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show every attempt, and what failed.")] = False,
) -> int:
    """Ask one question and print the answer; the flags are explained where they stand."""
    with flags.bad_flags():
        asked = backend_of(backend, send_env_key=send_env_key)
        chosen = strategy_of(strategy, depth=depth, breadth=breadth)
        requirements = requirements_of(require or (), question)
        options = Options(temperature=temperature, max_tokens=max_tokens, seed=seed)
    result = anyio.run(_ask, question, asked, chosen, requirements, options)
    sys.stdout.write(f"{result.text}\n" if result.text is not None else "")
    sys.stderr.write(f"{result.explain() if explain else result}\n")
    return 0 if result.success else 1


async def _ask(
    question: str,
    backend: Backend,
    strategy: BaseSamplingStrategy,
    requirements: list[Requirement],
    options: Options,
) -> SamplingResult[Any]:
    async with opened(backend):
        with progress() as hooks:
            return await strategy.sample(question, None, backend, requirements, options=options, hooks=hooks)
