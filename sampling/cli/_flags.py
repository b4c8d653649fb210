"""Flags that several commands share."""

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
    "parse_price",
    "usage_errors",
]

BackendFlag = Annotated[str, typer.Option("--backend", "-b", help=f"The model to ask: {BACKENDS}.")]
Strategy = Annotated[str, typer.Option("--strategy", "-s", help=f"The strategy: {', '.join(STRATEGIES)}.")]
Depth = Annotated[int, typer.Option("--depth", "-d", min=1, help="Attempts per subsample (loop_budget).")]
Breadth = Annotated[int, typer.Option("--breadth", "-n", min=1, help="Subsamples in parallel (concurrency_budget).")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        "-r",
        help="A requirement on the answer, repeatable: "
        f"{'; '.join(one.usage for one in REQUIREMENTS.values())}; or a sentence for the model to judge.",
    ),
]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="The sampling temperature.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The maximum tokens of an answer.")]
SendEnvKey = Annotated[bool, typer.Option("--send-env-key", help="Send OPENAI_API_KEY to the URL of --backend.")]
PriceFlag = Annotated[
    str | None,
    typer.Option("--price", metavar="IN/OUT", help="The price of a million input and output tokens: 0.15/0.60."),
]


@contextmanager
def usage_errors() -> Generator[None]:
    """Turn TypeError and ValueError into a usage error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def parse_price(given: str | None) -> Price | None:
    """Parse the value of `--price`."""
    if given is None:
        return None
    try:
        input_price, output_price = map(float, given.split("/"))
    except ValueError:
        raise ValueError(f"--price must be IN/OUT, such as 0.15/0.60, got {given!r}") from None
    return Price(input_price, output_price)
