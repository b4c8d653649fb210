"""The flags that several commands share, and what they share in dealing with them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from sampling.cli._specs import BACKENDS, REQUIREMENTS, STRATEGIES
from sampling.usage import Price

__all__ = [
    "BackendFlag",
    "Breadth",
    "Depth",
    "MaxTokens",
    "PriceFlag",
    "Require",
    "SendEnvKey",
    "Strategy",
    "Temperature",
    "bad_flags",
    "price_of",
]

BackendFlag = Annotated[str, typer.Option("--backend", "-b", help=f"Who answers: {BACKENDS}.")]
Strategy = Annotated[str, typer.Option("--strategy", "-s", help=f"How to ask: {', '.join(STRATEGIES)}.")]
Depth = Annotated[int, typer.Option("--depth", "-d", min=1, help="Attempts, one after the other.")]
Breadth = Annotated[int, typer.Option("--breadth", "-n", min=1, help="Subsamples, side by side.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        "-r",
        help="What makes an answer valid, as often as you like: "
        f"{'; '.join(one.usage for one in REQUIREMENTS.values())}; or a sentence for the model to judge.",
    ),
]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="How freely to choose words.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="How long an answer may get.")]
SendEnvKey = Annotated[bool, typer.Option("--send-env-key", help="Send OPENAI_API_KEY to the URL given.")]
PriceFlag = Annotated[
    str | None,
    typer.Option("--price", metavar="IN/OUT", help="What a million tokens cost, of input and of output: 0.15/0.60."),
]


@contextmanager
def bad_flags() -> Generator[None]:
    """Turn an argument that the library refuses into a flag that is wrong: one line, and exit code 2."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def price_of(given: str | None) -> Price | None:
    """Read what `--price` says."""
    if given is None:
        return None
    try:
        of_input, of_output = map(float, given.split("/"))
    except ValueError:
        raise ValueError(f"--price must be IN/OUT, such as 0.15/0.60, got {given!r}") from None
    return Price(of_input, of_output)
