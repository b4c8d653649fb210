"""`sampling demo`: compare seven strategies on the embedded model."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from sampling.backends.llama.models.arithmetic import Question, held_out
from sampling.cli._bar_chart import as_bars, as_markdown, as_svg, as_table
from sampling.cli._demo_strategies import UNTRUNCATED, Score, demo_strategies, score_strategy
from sampling.cli._files import Force, check_output, replacing
from sampling.cli._flags import usage_errors
from sampling.cli._paced_backend import PacedBackend
from sampling.cli._specs import open_backend, parse_backend
from sampling.cli._stdout import discard
from sampling.errors import MissingExtra
from sampling.protocols import StreamingBackend
from sampling.strategies import RejectionSamplingStrategy
from sampling.telemetry.call_progress import progress
from sampling.telemetry.run_progress import run_progress

__all__ = ["EXAMPLES", "HELP", "demo"]

HELP = """
Compare seven strategies on a tiny model. It comes with the package, and needs no key and no network.

The demo first asks one question and shows its 4 subsamples live. Their text is slowed down so that you can read it.
Then it asks many questions that the model was not trained on, at full speed, with each strategy in turn. It prints a
table and a chart of accuracy, latency and tokens.
"""

EXAMPLES = """
\b
Examples:
  sampling demo
  sampling demo --question "What is 512 - 87?" --questions 50
  sampling demo --svg demo.svg --markdown
"""

NEXT_COMMAND = 'sampling sample "Name three rivers." -r words:3..9 -d 3 -b openai:MODEL@URL'

_READABLE_TOKENS_PER_S = 15.0


def demo(
    *,
    question: Annotated[
        str, typer.Option(help="The question to ask live, such as 'What is 47 + 38?'")
    ] = "What is 487 + 356?",
    questions: Annotated[int, typer.Option(min=1, max=100_000, help="Number of questions for each strategy.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed that selects the questions.")] = 0,
    svg: Annotated[Path | None, typer.Option(help="Write the chart to this SVG file.")] = None,
    force: Force = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> int:
    """Show one call live, then score all strategies."""
    with usage_errors():
        live_question = Question.parse(question)
        test_questions = held_out(questions, seed=seed)
        if svg is not None:
            check_output("--svg", svg, replace=force, protected={})
    console = _Console()
    scores = anyio.run(_run, console, live_question, test_questions)
    console.print(as_markdown(scores) if markdown else as_table(scores, width=console.width), soft_wrap=markdown)
    console.print()
    console.print(as_bars(scores, width=console.width))
    if svg is not None:
        with replacing(svg) as temporary:
            caption = f"sampling demo: {questions} questions, embedded model"
            temporary.write_text(as_svg(scores, caption=caption), encoding="utf-8")
        console.print(f"\nThe chart is in {svg}.")
    _print_conclusion(console, scores)
    return 0


class _Console(Console):
    """A console whose reader may leave, as `head` does. The chart is still written."""

    def on_broken_pipe(self) -> None:
        """Discard what would be printed, instead of exiting."""
        self.quiet = True
        discard(sys.stdout)


def _print_conclusion(console: Console, scores: list[Score]) -> None:
    """Print what the scores show, and the command to try next."""
    accuracy = {score.name: score.accuracy for score in scores}
    console.print(
        f"\nAsked once, the model was right in {accuracy['one-shot']:.0%} of the questions; "
        f"asked again until a check passed, in {accuracy['rejection']:.0%}. Try it on your own server:\n"
    )
    # Without line breaks, so that it can be copied from a narrow terminal.
    console.print(f"  {NEXT_COMMAND}", soft_wrap=True, markup=False, highlight=False)


async def _run(console: Console, live_question: Question, test_questions: list[Question]) -> list[Score]:
    backend = _embedded_model()
    async with open_backend(backend):
        await _show_one_call(console, live_question, backend)
        return await _score_strategies(console, test_questions, backend)


def _embedded_model() -> StreamingBackend:
    try:
        return cast("StreamingBackend", parse_backend("llama"))
    except MissingExtra as missing:
        missing.hint = ""  # it is about --backend, which this command does not have
        raise


async def _show_one_call(console: Console, question: Question, backend: StreamingBackend) -> None:
    console.print(
        f"1. {question.text}",
        _indented(
            "4 subsamples, up to 3 attempts each. The first right answer ends the call. "
            f"Answers are shown at {_READABLE_TOKENS_PER_S:.0f} tokens per second. The model is faster.\n"
        ),
    )
    strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=4)
    paced = PacedBackend(backend, tokens_per_s=_READABLE_TOKENS_PER_S)
    with progress(lanes=True, console=console, show=True) as hooks:
        result = await strategy.sample(
            question.text, None, paced, [question.requirement], options=UNTRUNCATED, hooks=hooks
        )
    console.print("", _indented(f"{result}\n"))


async def _score_strategies(console: Console, questions: list[Question], backend: StreamingBackend) -> list[Score]:
    strategies = demo_strategies()
    console.print(
        f"2. {len(questions)} questions, {len(strategies)} strategies",
        _indented("The model was not trained on these questions.\n"),
    )
    asked, total = 0, len(strategies) * len(questions)
    with run_progress() as update:

        def advance(name: str) -> None:
            nonlocal asked
            asked += 1
            update(f"{name}: {asked:,} of {total:,}", asked / total)

        return [
            await score_strategy(strategy, questions, backend, advance=partial(advance, strategy.name))
            for strategy in strategies
        ]


def _indented(text: str) -> Padding:
    """Indent all lines, including those that wrap on a narrow terminal."""
    return Padding(Text(text), (0, 0, 0, 3))
