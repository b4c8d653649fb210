"""`sampling demo`: the embedded model, asked one question live, and two hundred in seven ways."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sampling.backends.llama.models.arithmetic import Question, held_out
from sampling.cli._bar_chart import as_bars, as_markdown, as_svg, as_table
from sampling.cli._demo_strategies import AS_IT_IS, Score, ask_all, seven_ways
from sampling.cli._flags import bad_flags
from sampling.cli._lanes import Stage
from sampling.cli._specs import backend_of, opened
from sampling.protocols import StreamingBackend
from sampling.strategies import RejectionSamplingStrategy

__all__ = ["EXAMPLES", "HELP", "demo"]

HELP = """
See what asking well is worth, on a small model that comes with the package: no key, no network.

First one question with 4 subsamples on screen, each answer played back at a pace at which one can read: the model
itself writes it in a few hundredths of a second, before a loser can be cut off. Then many questions that the model was
never taught, in seven ways and at full speed, with a table and a picture of what came of it.
"""

EXAMPLES = """
\b
Examples:
  sampling demo
  sampling demo --question "What is 512 - 87?" --questions 50
  sampling demo --svg demo.svg --markdown
"""

_READABLE_TOKENS_PER_S = 15.0


def demo(
    *,
    question: Annotated[str, typer.Option(help="What to ask live, such as 'What is 47 + 38?'")] = "What is 487 + 356?",
    questions: Annotated[int, typer.Option(min=1, help="How many to ask in each way.")] = 200,
    seed: Annotated[int, typer.Option(help="Which questions to ask.")] = 0,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> int:
    """Show one call, and then many; the flags are explained where they stand."""
    with bad_flags():
        shown = Question.parse(question)
        asked = held_out(questions, seed=seed)
    console = Console()
    scores = anyio.run(_show, console, shown, asked)
    console.print(as_markdown(scores) if markdown else as_table(scores), soft_wrap=markdown)
    console.print()
    console.print(as_bars(scores))
    if svg is not None:
        svg.write_text(
            as_svg(scores, caption=f"sampling demo: {questions} questions, embedded model"), encoding="utf-8"
        )
        console.print(f"\nThe picture is in {svg}.")
    return 0


async def _show(console: Console, shown: Question, asked: list[Question]) -> list[Score]:
    backend = cast("StreamingBackend", backend_of("llama"))
    async with opened(backend):
        await _one_call(console, shown, backend)
        return await _many_calls(console, asked, backend)


async def _one_call(console: Console, question: Question, backend: StreamingBackend) -> None:
    console.print(
        f"1. {question.text}  4 subsamples, up to 3 attempts each; the first right one ends the call.\n"
        f"   Answers are played back at {_READABLE_TOKENS_PER_S:.0f} tokens a second; the model is faster.\n"
    )
    strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4)
    stage = Stage(console)
    watched = stage.watched(backend, tokens_per_s=_READABLE_TOKENS_PER_S)
    with stage.lit() as hooks:
        result = await strategy.sample(
            question.text, None, watched, [question.requirement], options=AS_IT_IS, hooks=hooks
        )
    console.print(f"\n   {result}\n")


async def _many_calls(console: Console, questions: list[Question], backend: StreamingBackend) -> list[Score]:
    ways = seven_ways()
    console.print(f"2. {len(questions)} questions that the model was never taught, in {len(ways)} ways.\n")
    with _progress() as progress:
        scores: list[Score] = []
        for way in ways:
            task = progress.add_task(way.name, total=len(questions))
            scores.append(await ask_all(way, questions, backend, advance=partial(progress.advance, task)))
    return scores


@contextmanager
def _progress() -> Generator[Progress]:
    """Show bars, on the standard error and on a terminal only: what is printed can go into a file."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
