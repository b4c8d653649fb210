"""`sampling sample`: ask one question and print a checked answer."""

import sys
from typing import Annotated, Any

import anyio
import typer

from sampling.cli import _flags as flags
from sampling.cli._specs import open_backend, parse_backend, parse_requirements, parse_strategy
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.telemetry.call_progress import progress

__all__ = ["EXAMPLES", "HELP", "sample"]

HELP = """
Ask one question and print the answer.

The answer goes to stdout, and a summary of the call to stderr. Exit code: 0 for a valid answer, 1 for an invalid one,
2 if a flag is wrong.
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
    question: Annotated[str, typer.Argument(help="The question.")],
    *,
    backend: flags.BackendFlag = "llama",
    strategy: flags.Strategy = "rejection",
    depth: flags.Depth = 1,
    breadth: flags.Breadth = 1,
    require: flags.Require = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: Annotated[int | None, typer.Option(help="Seed, if the backend supports it.")] = None,
    send_env_key: flags.SendEnvKey = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show every attempt and what failed.")] = False,
) -> int:
    """Ask one question and print the answer."""
    with flags.usage_errors():
        parsed_backend = parse_backend(backend, send_env_key=send_env_key)
        parsed_strategy = parse_strategy(strategy, depth=depth, breadth=breadth)
        requirements = parse_requirements(require or (), question)
        options = Options(temperature=temperature, max_tokens=max_tokens, seed=seed)
    result = anyio.run(_ask, question, parsed_backend, parsed_strategy, requirements, options)
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
    async with open_backend(backend):
        with progress() as hooks:
            return await strategy.sample(question, None, backend, requirements, options=options, hooks=hooks)
